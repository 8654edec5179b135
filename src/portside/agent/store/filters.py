"""Filters of langgraph's store, split by what Postgres can say quickly.

Equality of plain values is containment, comparisons are a JSON path; both are evaluated in C. Only where a filter asks
for more (null, lists, `$ne` below the top) the function `store_matches` looks at the whole of it, for the rows that the
other two let through.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from portside.agent.store.values import json_text
from portside.kernel.codec import load
from portside.kernel.errors import BadRequest

_COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS = {"$eq", "$ne", *_COMPARISONS}


class Filter(msgspec.Struct):
    """The parts of a filter, as JSON text; a part that is None asks for nothing."""

    contains: str | None = None
    path: str | None = None
    operands: str | None = None
    rest: str | None = None


class UnsupportedOperator(BadRequest, ValueError):
    """A filter has an operator that there is not."""

    code = "unsupported_operator"


def compile_filter(wanted: Mapping[str, Any] | None) -> Filter:
    """Split a filter. Raises UnsupportedOperator, and ValueError for what is no JSON."""
    if not wanted:
        return Filter()
    plain: dict[str, Any] = load(json_text(dict(wanted), "the filter"))
    if operator := next((key for key in plain if key.startswith("$")), None):
        raise UnsupportedOperator(f"Unsupported operator: {operator}; operators belong under the name of a field")
    parts = _Parts()
    contains = parts.split(plain, ())
    return Filter(
        contains=json.dumps(contains) if contains else None,
        path="strict " + " && ".join(parts.comparisons) if parts.comparisons else None,
        operands=json.dumps(parts.operands) if parts.operands else None,
        rest=None if parts.is_complete else json.dumps(plain),
    )


class _Parts:
    """Collects the comparisons of a filter, and whether anything is left over."""

    def __init__(self) -> None:
        self.comparisons: list[str] = []
        self.operands: dict[str, Any] = {}
        self.is_complete = True

    def split(self, wanted: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return what a value has to contain; put aside what containment cannot say."""
        contains: dict[str, Any] = {}
        for key, part in wanted.items():
            if isinstance(part, dict) and any(name.startswith("$") for name in part):
                for operator, operand in part.items():
                    self._operate((*path, key), operator, operand)
                    if operator == "$eq" and _is_plain(operand):
                        contains[key] = operand
            elif isinstance(part, dict) and part:
                contains[key] = self.split(part, (*path, key))
            elif _is_plain(part):
                contains[key] = part
            else:
                self.is_complete = False
        return contains

    def _operate(self, path: tuple[str, ...], operator: str, operand: Any) -> None:
        if operator not in _OPERATORS:
            raise UnsupportedOperator(f"Unsupported operator: {operator}")
        if operator in _COMPARISONS and _is_plain(operand) and not isinstance(operand, bool):
            name = f"v{len(self.operands)}"
            self.operands[name] = operand
            steps = "".join(f".{json.dumps(step, ensure_ascii=False)}" for step in path)
            self.comparisons.append(f"(${steps} {_COMPARISONS[operator]} ${name})")
        elif operator == "$ne" and len(path) == 1 and _is_plain(operand):
            name = f"v{len(self.operands)}"
            self.operands[name] = operand
            field = f"$.{json.dumps(path[0], ensure_ascii=False)} == ${name}"
            # What is missing, or of another type, differs.
            self.comparisons.append(f"(({field}) is unknown || !({field}))")
        elif not (operator == "$eq" and _is_plain(operand)):
            self.is_complete = False


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))
