"""Paths into threads, such as `values.messages[-1].content`, whose values a search returns."""

import re
from collections.abc import Mapping
from typing import Any

from portside.kernel.errors import Invalid

PATH_ROOTS = ("values", "metadata", "config", "interrupts")
MAX_PATH_CHARACTERS = 1000
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9})\]")


def parse_paths(extract: Mapping[str, str] | None) -> list[dict[str, Any]] | None:
    """Split paths such as `values.messages[-1].content` for `search_threads`. Raises Invalid for a bad path."""
    if not extract:
        return None

    return [_parse_path(alias, path) for alias, path in extract.items()]


def _parse_path(alias: str, path: str) -> dict[str, Any]:
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    if root not in PATH_ROOTS:
        raise _invalid_path(alias, f"a path starts with one of {', '.join(PATH_ROOTS)}, not with {root[:40]!r}")

    steps = []
    position = len(root)
    while position < len(path) <= MAX_PATH_CHARACTERS:
        step = _PATH_STEP.match(path, position)
        if step is None:
            break

        steps.append(step[1] or step[2])
        position = step.end()

    if position != len(path):
        why = f"a path looks like values.messages[-1].content, in {MAX_PATH_CHARACTERS} characters or less"
        raise _invalid_path(alias, why)

    return {"alias": alias, "root": root, "path": steps}


def _invalid_path(alias: str, why: str) -> Invalid:
    return Invalid.field(["body", "extract", alias], why)
