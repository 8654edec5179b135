"""SQL conditions, composed from named queries. Values stay parameters; each gets a name of its own."""

import re
from typing import Any

from portside.kernel.db import Query

_PARAMETER = re.compile(r"\$(\d+)")
_LAST_TRUE = re.compile(r"\btrue\b(?![\s\S]*\btrue\b)")


class Condition:
    """A condition on rows: SQL with named parameters, and their values."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        self.text = text
        self.values = values


class ConditionBuilder:
    """Builds conditions with distinct parameter names, also across builders with different prefixes."""

    def __init__(self, prefix: str = "c") -> None:
        self._prefix = prefix
        self._count = 0

    def build(self, query: Query, **values: Any) -> Condition:
        """Return the `where` clause of a named query as a condition."""
        self._count += 1
        prefix = f"{self._prefix}{self._count}_"
        text = re.split(r"\bwhere\b", _with_named_parameters(query, prefix), maxsplit=1)[1]
        return Condition(f"({text.strip()})", {prefix + name: value for name, value in values.items()})


def require_all(conditions: list[Condition]) -> Condition:
    """Return the condition that all of these hold; true without any."""
    return _join(" and ", conditions, "true")


def require_any(conditions: list[Condition]) -> Condition:
    """Return the condition that one of these holds; false without any."""
    return _join(" or ", conditions, "false")


def negate(condition: Condition) -> Condition:
    """Return the negation, which also holds where the condition is null: a missing field does not equal a value."""
    return Condition(f"({condition.text} is not true)", condition.values)


def nest_condition(outer: Condition, inner: Condition) -> Condition:
    """Replace the last `true` of a condition by another condition."""
    return Condition(_LAST_TRUE.sub(lambda _: inner.text, outer.text), {**outer.values, **inner.values})


def apply_condition(query: Query, condition: Condition, **values: Any) -> tuple[Query, dict[str, Any]]:
    """Replace the last `true` of a named query by a condition; return the query with all its values."""
    outer = nest_condition(Condition(_with_named_parameters(query, ""), values), condition)
    return Query(query.name, outer.text), outer.values


def _with_named_parameters(query: Query, prefix: str) -> str:
    return _PARAMETER.sub(lambda match: f":{prefix}{query.parameters[int(match[1]) - 1]}", query.sql)


def _join(word: str, conditions: list[Condition], empty: str) -> Condition:
    values = {name: value for condition in conditions for name, value in condition.values.items()}
    return Condition(f"({word.join(condition.text for condition in conditions) or empty})", values)
