"""Filters of handlers: checked, and brought into the one form that the database function `fits` reads.

    {"owner": "alice"}                         the metadata has `owner`, and it is "alice"
    {"owner": {"$eq": "alice"}}                the same
    {"members": {"$contains": "alice"}}        the metadata has a list `members` with "alice" in it
    {"members": {"$contains": ["a", "b"]}}     with both in it
    {"$or": [{…}, {…}]}, {"$and": [{…}, {…}]}  one of them, all of them

Several keys of one object must all hold. What an index can answer (fields of the top that are plain values) goes into
`equal`, everything else into `rest`. A filter that is none of this is the mistake of its handler, and lets nobody in.
"""

from collections.abc import Mapping
from typing import Any

from portside.agent.types.access import Filter
from portside.kernel.codec import dump_user, load
from portside.kernel.errors import PortsideError

MOST_CONDITIONS = 100
DEEPEST = 10
PLAIN = (str, bool, int, float)


class BadFilter(PortsideError):
    """An authorization handler of this server returned a filter without sense."""

    code = "bad_filter"


def read_filter(given: Mapping[str, Any]) -> Filter:
    """Return a filter in the form of the database. Raises BadFilter that says what is wrong with it."""
    equal: dict[str, Any] = {}
    rest: list[dict[str, Any]] = []
    for condition in _conditions(given, 1):
        key, value = condition.get("key"), condition.get("value")
        if condition["op"] == "eq" and isinstance(value, PLAIN) and key not in equal:
            equal[str(key)] = value
        else:
            rest.append(condition)
    return Filter({"equal": equal, "rest": rest})


def fits(metadata: Mapping[str, Any], wanted: Filter | None) -> bool:
    """Whether metadata is as a filter wants it; the database function of this name for what is not stored yet."""
    if wanted is None:
        return True
    equal = ({"op": "eq", "key": key, "value": value} for key, value in wanted["equal"].items())
    return all(_holds(metadata, condition) for condition in (*equal, *wanted["rest"]))


def _conditions(given: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise BadFilter(f"a filter is an object, not {type(given).__name__}")
    if depth > DEEPEST:
        raise BadFilter(f"a filter may be {DEEPEST} objects deep")
    if len(given) > MOST_CONDITIONS:
        raise BadFilter(f"a filter may have {MOST_CONDITIONS} conditions at one level")
    found: list[dict[str, Any]] = []
    for key, value in given.items():
        if key in {"$and", "$or"}:
            parts = [{"op": "all", "of": _conditions(part, depth + 1)} for part in _parts(key, value)]
            found.append({"op": "all" if key == "$and" else "any", "of": parts})
        elif not isinstance(key, str) or key.startswith("$"):
            raise BadFilter(f"{key!r} is no field and no operator of a filter; those are $and and $or")
        else:
            found += _about(key, value)
    return found


def _parts(operator: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MOST_CONDITIONS:
        raise BadFilter(f"{operator} takes a list of 1 to {MOST_CONDITIONS} filters")
    return list(value)


def _about(key: str, value: Any) -> list[dict[str, Any]]:
    """Return the conditions on one field."""
    if not isinstance(value, Mapping):
        return [{"op": "eq", "key": key, "value": _plain(key, value)}]
    if not value or not value.keys() <= {"$eq", "$contains"}:
        raise BadFilter(f"the field {key!r} of a filter takes a value, $eq or $contains")
    found = []
    if "$eq" in value:
        found.append({"op": "eq", "key": key, "value": _plain(key, value["$eq"])})
    if "$contains" in value:
        wanted = _plain(key, value["$contains"])
        several = wanted if isinstance(wanted, list) else [wanted]
        if len(several) > MOST_CONDITIONS:
            raise BadFilter(f"$contains of the field {key!r} takes {MOST_CONDITIONS} values at most")
        found.append({"op": "has", "key": key, "values": several})
    return found


def _plain(key: str, value: Any) -> Any:
    """Return a value as it would be stored; ids and moments become text."""
    try:
        return load(dump_user(value))
    except (TypeError, ValueError) as exc:
        raise BadFilter(f"the value of {key!r} in a filter is no JSON") from exc


def _holds(metadata: Mapping[str, Any], condition: dict[str, Any]) -> bool:
    match condition["op"]:
        case "all":
            return all(_holds(metadata, part) for part in condition["of"])
        case "any":
            return any(_holds(metadata, part) for part in condition["of"])
        case "eq":
            return condition["key"] in metadata and _same(metadata[condition["key"]], condition["value"])
        case _:
            stored = metadata.get(condition["key"])
            return isinstance(stored, (list, tuple)) and all(
                any(_same(one, wanted) for one in stored) for wanted in condition["values"]
            )


def _same(stored: Any, wanted: Any) -> bool:
    """Whether two values are one in JSON, where true is not 1."""
    return bool(_typed(load(dump_user(stored))) == _typed(wanted))


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [_typed(part) for part in value]
    return {key: _typed(part) for key, part in value.items()} if isinstance(value, dict) else value
