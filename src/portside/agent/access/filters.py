"""Filters that authorization handlers return, for what is not in the database: new resources, and items of the store.

`matches_access` in `agent/functions` is the same for what is stored.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from portside.agent.types.access import Filter
from portside.executor.handler_calls import HandlerFailed
from portside.kernel.codec import load
from portside.kernel.errors import Forbidden
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user

log = get_logger(__name__)


def check_store_filter(allowed: Filter, action: str, value: dict[str, Any]) -> None:
    """Compare the namespace and the key of a request with a filter. Items have no metadata to compare.

    A search gets the items below its namespace: if that contains a label, theirs do too. Raises Forbidden, and
    HandlerFailed for a filter by anything else.
    """
    usable = {("has", "namespace")}
    if action not in {"search", "list_namespaces"}:
        usable |= {("eq", "namespace"), ("eq", "key")}

    unusable = set(_conditions(allowed)) - usable
    if unusable:
        log.error(
            "an authorization handler of the store returned a filter that cannot be compared with items, which have no "
            "metadata; filter by namespace with $contains, or let the handler change the namespace",
            action=action,
            conditions=sorted(f"{op} {key}" for op, key in unusable),
        )

        raise HandlerFailed

    if not matches_filter(value, allowed):
        raise Forbidden("Forbidden")


def _conditions(access: Filter) -> Iterator[tuple[str, str]]:
    """Yield the operator and the key of each condition of a filter."""
    for key in access["equal"]:
        yield "eq", key

    pending = list(access["rest"])
    while pending:
        condition = pending.pop()
        if condition["op"] in {"all", "any"}:
            pending += condition["of"]
        else:
            yield condition["op"], condition["key"]


def matches_filter(metadata: Mapping[str, Any], access: Filter | None) -> bool:
    """Whether metadata matches a filter. This is `matches_access` of the database, for what is not stored yet."""
    if access is None:
        return True

    equal = ({"op": "eq", "key": key, "value": value} for key, value in access["equal"].items())
    return all(_holds(metadata, condition) for condition in (*equal, *access["rest"]))


def _holds(metadata: Mapping[str, Any], condition: dict[str, Any]) -> bool:
    match condition["op"]:
        case "all":
            return all(_holds(metadata, part) for part in condition["of"])
        case "any":
            return any(_holds(metadata, part) for part in condition["of"])
        case "eq":
            return condition["key"] in metadata and _json_equal(metadata[condition["key"]], condition["value"])
        case _:
            stored = metadata.get(condition["key"])
            return isinstance(stored, (list, tuple)) and all(
                any(_json_equal(item, operand) for item in stored) for operand in condition["values"]
            )


def _json_equal(stored: Any, operand: Any) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return bool(_typed(load(dump_user(stored))) == _typed(operand))


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [_typed(part) for part in value]

    return {key: _typed(part) for key, part in value.items()} if isinstance(value, dict) else value
