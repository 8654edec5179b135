"""Finds the lines of sources that V8 executed, by its counts for a bundle and the source map of the bundle."""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_DIGITS = {
    digit: value for value, digit in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
}


class SourceMap:
    """Which places of a bundle come from which lines of the sources in a folder."""

    def __init__(self, bundle: Path, source_map: Path, folder: Path) -> None:
        content = json.loads(source_map.read_text("utf-8"))
        sources = [(source_map.parent / source).resolve() for source in content["sources"]]
        text = bundle.read_text("utf-8")

        # V8 counts offsets in UTF-16, as JavaScript does.
        starts = [0]
        for line in text.split("\n"):
            starts.append(starts[-1] + _utf16_length(line) + 1)

        self._places = sorted(
            (starts[line] + column, sources[source], original + 1)
            for line, column, source, original in _decode(content["mappings"])
            if folder in sources[source].parents
        )

        self._offsets = [offset for offset, _, _ in self._places]

    def lines(self, functions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Path, int, bool]]:
        """Yield the lines that have code, and whether all of their code was executed."""
        missed = bytearray(len(self._places))
        # An inner range replaces what the one around it says.
        ranges = [each for function in functions for each in function["ranges"]]
        for each in sorted(ranges, key=lambda item: (item["startOffset"], -item["endOffset"])):
            first = bisect_left(self._offsets, each["startOffset"])
            end = bisect_left(self._offsets, each["endOffset"])
            missed[first:end] = (b"\0" if each["count"] else b"\1") * (end - first)

        by_line: dict[tuple[Path, int], bool] = defaultdict(bool)
        for (_, path, line), is_missed in zip(self._places, missed, strict=True):
            by_line[path, line] |= bool(is_missed)

        for (path, line), is_missed in by_line.items():
            yield path, line, not is_missed


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _decode(mappings: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield line and column of a bundle with the number of the source and its line, all counted from 0."""
    source = original = 0
    for line, segments in enumerate(mappings.split(";")):
        column = 0
        for segment in filter(None, segments.split(",")):
            numbers = _numbers(segment)
            column += numbers[0]
            if len(numbers) > 1:
                source += numbers[1]
                original += numbers[2]
                yield line, column, source, original


def _numbers(segment: str) -> list[int]:
    """Decode the numbers of a segment, which are in base 64 with the sign in the lowest bit."""
    numbers: list[int] = []
    value = shift = 0
    for digit in segment:
        bits = _DIGITS[digit]
        value += (bits & 31) << shift
        shift += 5

        if not bits & 32:
            numbers.append(-(value >> 1) if value & 1 else value >> 1)
            value = shift = 0

    return numbers
