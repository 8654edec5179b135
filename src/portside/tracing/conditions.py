"""Conditions on runs: named statements put together into one. Values stay parameters, under names of their own."""

import re
from typing import Any

from portside.kernel.queries import Query

_NUMBERED = re.compile(r"\$(\d+)")
_PLACE = re.compile(r"\btrue\b(?![\s\S]*\btrue\b)")


class Condition:
    """What a run has to meet: SQL with named parameters, and their values."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        self.text = text
        self.values = values


class Conditions:
    """Makes conditions, no two of which have a parameter in common; nor have those of another prefix."""

    def __init__(self, prefix: str = "c") -> None:
        self._prefix = prefix
        self._count = 0

    def of(self, query: Query, **values: Any) -> Condition:
        """Make the condition that a named statement holds."""
        self._count += 1
        prefix = f"{self._prefix}{self._count}_"
        text = re.split(r"\bwhere\b", _named(query, prefix), maxsplit=1)[1]
        return Condition(f"({text.strip()})", {prefix + name: value for name, value in values.items()})


def all_of(conditions: list[Condition]) -> Condition:
    """Every one of them."""
    return _joined(" and ", conditions, "true")


def any_of(conditions: list[Condition]) -> Condition:
    """At least one of them."""
    return _joined(" or ", conditions, "false")


def none_of(condition: Condition) -> Condition:
    """Not this; what cannot be said of a run is not so."""
    return Condition(f"({condition.text} is not true)", condition.values)


def narrowed(outer: Condition, inner: Condition) -> Condition:
    """Put a condition in the place of the last `true` of another."""
    return Condition(_PLACE.sub(lambda _: inner.text, outer.text), {**outer.values, **inner.values})


def narrow(query: Query, condition: Condition, **values: Any) -> tuple[Query, dict[str, Any]]:
    """Put a condition in the place of the last `true` of a named statement; return it with all its values."""
    outer = narrowed(Condition(_named(query, ""), values), condition)
    return Query(query.name, outer.text), outer.values


def _named(query: Query, prefix: str) -> str:
    return _NUMBERED.sub(lambda match: f":{prefix}{query.parameters[int(match[1]) - 1]}", query.sql)


def _joined(word: str, conditions: list[Condition], nothing: str) -> Condition:
    values = {name: value for condition in conditions for name, value in condition.values.items()}
    return Condition(f"({word.join(condition.text for condition in conditions) or nothing})", values)
