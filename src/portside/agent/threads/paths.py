"""Paths into a thread, by which a search extracts pieces: `values.messages[-1].content` (contract: section 4)."""

import re
from collections.abc import Mapping
from typing import Any

from portside.kernel.errors import Invalid

ROOTS = ("values", "metadata", "config", "interrupts")
MAX_CHARACTERS = 1000
_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9})\]")


def parse_paths(extract: Mapping[str, str] | None) -> list[dict[str, Any]] | None:
    """Take paths apart as `search_threads` wants them; None where there are none. Raises Invalid that names one."""
    if not extract:
        return None
    return [_parse(alias, path) for alias, path in extract.items()]


def _parse(alias: str, path: str) -> dict[str, Any]:
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    if root not in ROOTS:
        raise _refusal(alias, f"a path starts with one of {', '.join(ROOTS)}, not with {root[:40]!r}")
    steps, place = [], len(root)
    while place < len(path) <= MAX_CHARACTERS:
        step = _STEP.match(path, place)
        if step is None:
            break
        steps.append(step[1] or step[2])
        place = step.end()
    if place != len(path):
        raise _refusal(alias, "a path looks like values.messages[-1].content, in 1000 characters or less")
    return {"alias": alias, "root": root, "path": steps}


def _refusal(alias: str, why: str) -> Invalid:
    return Invalid.field(["body", "extract", alias], why)
