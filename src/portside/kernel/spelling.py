"""Suggests the name that somebody may have meant by an unknown one."""

import difflib
from collections.abc import Collection

_SIMILAR = 0.75
_LEAST_PREFIX = 3


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that somebody may have meant by another one; None if none is similar."""
    plain = {each.lower(): each for each in known}
    written = name.lower().replace("-", "_")
    if written in plain:
        return plain[written]

    similar = difflib.get_close_matches(written, plain, n=1, cutoff=_SIMILAR)
    if similar:
        return plain[similar[0]]

    longer = [each for each in sorted(plain) if len(written) >= _LEAST_PREFIX and each.startswith(f"{written}_")]
    return plain[longer[0]] if longer else None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown name; empty if no known one is similar."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"
