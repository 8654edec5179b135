"""Namespaces and keys: which ones there may be, and how they are written to the database.

A name is part of an index entry, and those are bounded in size: hence the limits, which are in bytes of UTF-8.
"""

from collections.abc import Iterable, Sequence

import msgspec
from langgraph.store.base import InvalidNamespaceError, MatchCondition

MAX_DEPTH = 32
MAX_NAMESPACE_BYTES = 1024
MAX_KEY_BYTES = 1024
LOWEST, HIGHEST = "\x01", "\U0010ffff"
WILDCARD = "*"


class Pattern(msgspec.Struct, frozen=True):
    """What a namespace has to look like: labels at places counted from 1, or from its end (0 is the last)."""

    least_depth: int = 0
    labels: dict[int, str] = {}

    @property
    def prefix(self) -> tuple[str, ...]:
        """The labels that are given without a gap from the start on."""
        found: list[str] = []
        while (label := self.labels.get(len(found) + 1)) is not None:
            found.append(label)
        return tuple(found)

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern asks for a prefix and nothing more."""
        return self.least_depth == len(self.labels) == len(self.prefix)


def check_namespace(namespace: Sequence[str]) -> None:
    """Raise InvalidNamespaceError when a namespace cannot be one; the empty one can, where it is a prefix."""
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label:
            raise InvalidNamespaceError(f"Namespace label {label!r} must be a non-empty string without periods")
        if label.startswith(HIGHEST):
            raise InvalidNamespaceError(f"Namespace label {label!r} must not start with the noncharacter U+10FFFF")
        _check_text("Namespace label", label)
    if len(namespace) > MAX_DEPTH:
        raise InvalidNamespaceError(f"Namespace must have at most {MAX_DEPTH} labels")
    if sum(len(label.encode()) for label in namespace) > MAX_NAMESPACE_BYTES:
        raise InvalidNamespaceError(f"Namespace must have at most {MAX_NAMESPACE_BYTES} bytes in all its labels")


def check_key(key: str) -> None:
    """Raise ValueError when an item cannot have this key; an empty one it can."""
    if not isinstance(key, str):
        raise ValueError(f"Key {key!r} must be a string")  # noqa: TRY004 - one class for all that a name can have wrong
    _check_text("Key", key)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"Key must have at most {MAX_KEY_BYTES} bytes")


def joined(namespace: Sequence[str]) -> str:
    """Write a namespace as the queries take it."""
    return ".".join(namespace)


def beyond(prefix: Sequence[str]) -> str:
    """Write the least namespace that comes after all those under a prefix."""
    return joined(prefix) + LOWEST if prefix else HIGHEST


def pattern_of(conditions: Iterable[MatchCondition] | None) -> Pattern | None:
    """Join match conditions to one pattern, or return None when they contradict each other.

    Raises InvalidNamespaceError, and ValueError for an unknown type of condition.
    """
    labels: dict[int, str] = {}
    least = 0
    for condition in conditions or ():
        check_namespace(condition.path)
        least = max(least, len(condition.path))
        for place, label in _places(condition):
            if label != WILDCARD and labels.setdefault(place, label) != label:
                return None
    return Pattern(least, labels)


def _places(condition: MatchCondition) -> list[tuple[int, str]]:
    if condition.match_type == "prefix":
        return list(enumerate(condition.path, 1))
    if condition.match_type == "suffix":
        return [(-place, label) for place, label in enumerate(reversed(condition.path))]
    raise ValueError(f"Unsupported match type: {condition.match_type}")


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise InvalidNamespaceError(f"{what} {text!r} must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidNamespaceError(f"{what} {text!r} must not hold half of a surrogate pair") from None
