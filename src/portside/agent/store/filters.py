"""Filters of items, split into parts that Postgres evaluates quickly.

Equality of scalars becomes containment, a comparison becomes a JSON path; both run in C. Only where a filter needs more
(null, lists, `$ne` below the top level) does the function `store_matches` check the whole filter, for the rows that
pass the other two.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from portside.agent.store.json_values import to_json_text
from portside.kernel.codec import load
from portside.kernel.errors import BadRequest

_COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS = {"$eq", "$ne", *_COMPARISONS}


class CompiledFilter(msgspec.Struct):
    """The parts of a filter, as JSON text; a part that is None matches everything."""

    contains: str | None = None
    path: str | None = None
    operands: str | None = None
    rest: str | None = None


class UnsupportedOperator(BadRequest, ValueError):
    """The filter has an unknown operator."""

    code = "unsupported_operator"


def compile_filter(conditions: Mapping[str, Any] | None) -> CompiledFilter:
    """Split a filter. Raises UnsupportedOperator, and ValueError for a filter that is not JSON."""
    if not conditions:
        return CompiledFilter()

    plain: dict[str, Any] = load(to_json_text(dict(conditions), "the filter"))
    if operator := next((key for key in plain if key.startswith("$")), None):
        raise UnsupportedOperator(f"Unsupported operator: {operator}; operators belong under the name of a field")

    parts = _FilterCompiler()
    contains = parts.split(plain, ())
    return CompiledFilter(
        contains=json.dumps(contains) if contains else None,
        path="strict " + " && ".join(parts.comparisons) if parts.comparisons else None,
        operands=json.dumps(parts.operands) if parts.operands else None,
        rest=None if parts.is_complete else json.dumps(plain),
    )


class _FilterCompiler:
    """Collects the comparisons of a filter, and whether they and containment express all of it."""

    def __init__(self) -> None:
        self.comparisons: list[str] = []
        self.operands: dict[str, Any] = {}
        self.is_complete = True

    def split(self, conditions: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return what a value has to contain; collect what containment cannot express."""
        contains: dict[str, Any] = {}
        for key, part in conditions.items():
            if isinstance(part, dict) and any(name.startswith("$") for name in part):
                for operator, operand in part.items():
                    self._add_operator((*path, key), operator, operand)
                    if operator == "$eq" and _is_plain(operand):
                        contains[key] = operand
            elif isinstance(part, dict) and part:
                contains[key] = self.split(part, (*path, key))
            elif _is_plain(part):
                contains[key] = part
            else:
                self.is_complete = False

        return contains

    def _add_operator(self, path: tuple[str, ...], operator: str, operand: Any) -> None:
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

            # A missing value, and one of another type, counts as different.
            self.comparisons.append(f"(({field}) is unknown || !({field}))")
        elif not (operator == "$eq" and _is_plain(operand)):
            self.is_complete = False


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))
