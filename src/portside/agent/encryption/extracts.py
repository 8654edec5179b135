"""What a search of threads extracts: SQL fetches the first step of each path, the rest is taken once that is open."""

import json
from collections.abc import Sequence
from typing import Any


def first_steps(paths: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut paths to their first steps; the rest of each travels in its alias."""
    return [
        {**each, "alias": json.dumps([each["alias"], each["path"][1:]]), "path": each["path"][:1]} for each in paths
    ]


def extracted(found: dict[str, Any]) -> dict[str, Any]:
    """Follow the rest of the paths through what was found and is open now."""
    named = ((*json.loads(alias), value) for alias, value in found.items())
    return {alias: _below(value, steps) for alias, steps, value in named}


def _below(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (IndexError, KeyError, TypeError, ValueError):
            return None
    return value
