"""The filters on metadata that authorization handlers return.

A filter is checked, and converted to the one form that the database function `matches_access` takes:

    {"owner": "alice"}                         the metadata has `owner`, and it is "alice"
    {"owner": {"$eq": "alice"}}                the same
    {"members": {"$contains": "alice"}}        the metadata has a list `members` that contains "alice"
    {"members": {"$contains": ["a", "b"]}}     a list that contains both
    {"$or": [{…}, {…}]}, {"$and": [{…}, {…}]}  one of them, all of them

All keys of an object must hold. Conditions that an index can answer (top-level fields with scalar values) go into
`equal`, all others into `rest`. Anything else is a mistake of the handler, and denies access.
"""

from collections.abc import Mapping
from typing import Any

from portside.executor.requests import Filter
from portside.kernel.user_json import plain

MAX_CONDITIONS = 100
_MAX_DEPTH = 10
_SCALARS = (str, bool, int, float)


class BadFilter(ValueError):
    """An authorization handler returned an invalid filter; the text is for the project's log only."""


def read_filter(source: Mapping[str, Any]) -> Filter:
    """Return a handler's filter in the form of the database. Raises BadFilter."""
    equal: dict[str, Any] = {}
    other_conditions: list[dict[str, Any]] = []
    for condition in _read_conditions(source, 1):
        key = condition.get("key")
        value = condition.get("value")
        if condition["op"] == "eq" and isinstance(value, _SCALARS) and key not in equal:
            equal[str(key)] = value
        else:
            other_conditions.append(condition)

    return Filter({"equal": equal, "rest": other_conditions})


def _read_conditions(source: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(source, Mapping):
        raise BadFilter(f"a filter must be an object, not {type(source).__name__}")
    if depth > _MAX_DEPTH:
        raise BadFilter(f"a filter may be nested at most {_MAX_DEPTH} objects deep")
    if len(source) > MAX_CONDITIONS:
        raise BadFilter(f"a filter may have at most {MAX_CONDITIONS} conditions at one level")

    conditions: list[dict[str, Any]] = []
    for key, value in source.items():
        if key in {"$and", "$or"}:
            parts = [{"op": "all", "of": _read_conditions(part, depth + 1)} for part in _read_branches(key, value)]
            conditions.append({"op": "all" if key == "$and" else "any", "of": parts})
        elif not isinstance(key, str) or key.startswith("$"):
            raise BadFilter(f"{key!r} is neither a field nor an operator of a filter; the operators are $and and $or")
        else:
            conditions += _read_field_conditions(key, value)

    return conditions


def _read_branches(operator: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_CONDITIONS:
        raise BadFilter(f"{operator} takes a list of 1 to {MAX_CONDITIONS} filters")
    return list(value)


def _read_field_conditions(key: str, value: Any) -> list[dict[str, Any]]:
    """Return the conditions on one field."""
    if not isinstance(value, Mapping):
        return [{"op": "eq", "key": key, "value": _to_json_value(key, value)}]
    if not value or not value.keys() <= {"$eq", "$contains"}:
        raise BadFilter(f"the field {key!r} of a filter takes a value, $eq or $contains")

    conditions = []
    if "$eq" in value:
        conditions.append({"op": "eq", "key": key, "value": _to_json_value(key, value["$eq"])})

    if "$contains" in value:
        contained = _to_json_value(key, value["$contains"])
        several = contained if isinstance(contained, list) else [contained]
        if len(several) > MAX_CONDITIONS:
            raise BadFilter(f"$contains of the field {key!r} takes at most {MAX_CONDITIONS} values")

        conditions.append({"op": "has", "key": key, "values": several})

    return conditions


def _to_json_value(key: str, value: Any) -> Any:
    """Return a value as it would be stored: ids and times become strings."""
    try:
        return plain(value)
    except (TypeError, ValueError) as exc:
        raise BadFilter(f"the value of {key!r} in a filter cannot be written as JSON") from exc
