"""Namespaces and keys: the valid ones, and how queries take them.

Both are parts of an index entry, whose size Postgres limits: hence the limits, which count bytes of UTF-8.
"""

from collections.abc import Iterable, Sequence

import msgspec

from portside.agent.store.operations import InvalidNamespaceError, MatchCondition

MAX_DEPTH = 32
MAX_NAMESPACE_BYTES = 1024
MAX_KEY_BYTES = 1024
LOWEST_LABEL = "\x01"
HIGHEST_LABEL = "\U0010ffff"
WILDCARD = "*"


class NamespacePattern(msgspec.Struct, frozen=True):
    """A pattern of namespaces: labels by their position, counted from 1, or from 0 backwards for the last ones."""

    least_depth: int = 0
    labels: dict[int, str] = {}

    @property
    def prefix(self) -> tuple[str, ...]:
        """The labels from the start up to the first wildcard."""
        labels: list[str] = []
        while (label := self.labels.get(len(labels) + 1)) is not None:
            labels.append(label)

        return tuple(labels)

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern is just a prefix."""
        return self.least_depth == len(self.labels) == len(self.prefix)


def check_namespace(namespace: Sequence[str]) -> None:
    """Raise InvalidNamespaceError for a bad namespace; the empty one is valid as a prefix."""
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label:
            raise InvalidNamespaceError(f"Namespace label {label!r} must be a non-empty string without periods")
        if label.startswith(HIGHEST_LABEL):
            raise InvalidNamespaceError(f"Namespace label {label!r} must not start with the noncharacter U+10FFFF")

        _check_text("Namespace label", label)

    if len(namespace) > MAX_DEPTH:
        raise InvalidNamespaceError(f"Namespace must have at most {MAX_DEPTH} labels")
    if sum(len(label.encode()) for label in namespace) > MAX_NAMESPACE_BYTES:
        raise InvalidNamespaceError(f"Namespace must have at most {MAX_NAMESPACE_BYTES} bytes in all its labels")


def check_key(key: str) -> None:
    """Raise ValueError for a bad key; the empty key is valid."""
    if not isinstance(key, str):
        raise ValueError(f"Key {key!r} must be a string")  # noqa: TRY004 - one class for everything that can be wrong with a name

    _check_text("Key", key)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"Key must have at most {MAX_KEY_BYTES} bytes")


def joined(namespace: Sequence[str]) -> str:
    """Return a namespace as queries take it."""
    return ".".join(namespace)


def upper_bound(prefix: Sequence[str]) -> str:
    """Return the lowest namespace that sorts after all those under a prefix."""
    return joined(prefix) + LOWEST_LABEL if prefix else HIGHEST_LABEL


def build_pattern(conditions: Iterable[MatchCondition] | None) -> NamespacePattern | None:
    """Combine match conditions into one pattern; return None if they contradict each other.

    Raises InvalidNamespaceError, and ValueError for an unknown type of condition.
    """
    labels: dict[int, str] = {}
    least = 0
    for condition in conditions or ():
        check_namespace(condition.path)
        least = max(least, len(condition.path))
        for position, label in _number_labels(condition):
            if label != WILDCARD and labels.setdefault(position, label) != label:
                return None

    return NamespacePattern(least, labels)


def _number_labels(condition: MatchCondition) -> list[tuple[int, str]]:
    if condition.match_type == "prefix":
        return list(enumerate(condition.path, 1))
    if condition.match_type == "suffix":
        return [(-position, label) for position, label in enumerate(reversed(condition.path))]

    raise ValueError(f"Unsupported match type: {condition.match_type}")


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise InvalidNamespaceError(f"{what} {text!r} must not contain a NUL character")

    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidNamespaceError(f"{what} {text!r} must not contain half of a surrogate pair") from None
