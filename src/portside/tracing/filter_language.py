"""The filter language of runs: `and(eq(run_type, "llm"), gt(latency, "5s"))` (contract: hosted API, section f.4).

Text in, a tree out; what the tree means is in `filters`. Length, depth and the number of calls are bounded, and what
does not read is refused with the place where it stops making sense.
"""

import re
from typing import Any

import msgspec

from portside.kernel.errors import BadRequest

MAX_CHARS, MAX_DEPTH, MAX_CALLS = 20_000, 20, 200
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?(?![\w.]))|(?P<word>[A-Za-z_][A-Za-z0-9_]{0,99})
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>[(),\[\]]))""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


class FilterInvalid(BadRequest):
    """The filter does not read."""

    code = "filter_invalid"

    @classmethod
    def at(cls, place: int, why: str) -> "FilterInvalid":
        """Make the error for a place, counted in characters from 1."""
        return cls(f"Invalid filter at character {place + 1}: {why}")


class Word(msgspec.Struct, frozen=True):
    """The name of a field."""

    name: str
    place: int


class Value(msgspec.Struct, frozen=True):
    """A text, a number, true, false, null, or a list of them."""

    value: Any
    place: int


class Call(msgspec.Struct, frozen=True):
    """An operator and what it is applied to."""

    name: str
    arguments: list[Any]
    place: int


def parse(text: str) -> Call:
    """Read a filter. Raises FilterInvalid."""
    if len(text) > MAX_CHARS:
        raise FilterInvalid.at(MAX_CHARS, f"a filter has at most {MAX_CHARS} characters")
    reader = _Reader(text)
    tree = reader.argument(0)
    if not isinstance(tree, Call):
        raise FilterInvalid.at(0, 'a filter is a call, such as eq(name, "x")')
    reader.expect_end()
    return tree


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._calls = 0

    def argument(self, depth: int) -> Call | Word | Value:
        """Read a call, a field, a value or a list of values."""
        kind, text, place = self._next()
        if kind == "word" and text in _CONSTANTS:
            return Value(_CONSTANTS[text], place)
        if kind == "word":
            return self._call(text, place, depth) if self._takes("(") else Word(text, place)
        if kind == "number":
            return Value(float(text) if re.search(r"[.eE]", text) else int(text), place)
        if kind == "text":
            return Value(_unquoted(text), place)
        if text == "[":
            return Value([self._item(part) for part in self._list("]", place, depth)], place)
        raise FilterInvalid.at(place, f"{text} does not belong here")

    def expect_end(self) -> None:
        """Raise FilterInvalid unless all is read."""
        if self._place() < len(self._text):
            raise FilterInvalid.at(self._place(), "the filter should end here")

    def _call(self, name: str, place: int, depth: int) -> Call:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise FilterInvalid.at(place, f"a filter has at most {MAX_CALLS} calls")
        return Call(name, self._list(")", place, depth), place)

    def _list(self, end: str, place: int, depth: int) -> list[Any]:
        if depth == MAX_DEPTH:
            raise FilterInvalid.at(place, f"a filter is nested at most {MAX_DEPTH} levels deep")
        parts: list[Any] = []
        if self._takes(end):
            return parts
        while True:
            parts.append(self.argument(depth + 1))
            if self._takes(end):
                return parts
            if not self._takes(","):
                raise FilterInvalid.at(self._place(), f"expected , or {end}")

    def _item(self, part: Any) -> Any:
        if isinstance(part, Value) and not isinstance(part.value, list):
            return part.value
        raise FilterInvalid.at(part.place, "a list holds texts and numbers")

    def _takes(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False
        self._at = match.end()
        return True

    def _place(self) -> int:
        """Where the next thing begins."""
        return len(self._text) - len(self._text[self._at :].lstrip())

    def _next(self) -> tuple[str, str, int]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise FilterInvalid.at(self._place(), "expected a field, a value or a call")
        self._at = match.end()
        return match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text[1:-1]).replace("\x00", "")
