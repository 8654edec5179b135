"""Suggests the name that somebody may have meant by an unknown one."""

import difflib
from collections.abc import Collection

_SIMILAR = 0.75
_LEAST_PREFIX = 3


def find_nearest(name: str, choices: Collection[str]) -> str | None:
    """Return the choice that somebody may have meant by an unknown name; None if none is similar."""
    choices_by_key = {choice.lower(): choice for choice in choices}
    key = name.lower().replace("-", "_")
    if key in choices_by_key:
        return choices_by_key[key]

    similar_keys = difflib.get_close_matches(key, choices_by_key, n=1, cutoff=_SIMILAR)
    if similar_keys:
        return choices_by_key[similar_keys[0]]

    if len(key) < _LEAST_PREFIX:
        return None

    longer_keys = [other for other in sorted(choices_by_key) if other.startswith(f"{key}_")]
    return choices_by_key[longer_keys[0]] if longer_keys else None


def did_you_mean(name: str, choices: Collection[str]) -> str:
    """Return the end of an error message about an unknown name; empty if no choice is similar."""
    choice = find_nearest(name, choices)
    return "" if choice is None else f"; did you mean {choice!r}?"
