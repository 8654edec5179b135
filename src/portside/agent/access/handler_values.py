"""What authorization handlers get and return: requests in their form, changes to them, and filters.

The filters are for what is not in the database: new resources, and items of the store. `matches_access` in
`agent/functions` is the same for what is stored.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from portside.agent.store.names import WILDCARD, check_namespace
from portside.agent.types.access import Filter
from portside.agent.types.runs import Command, RunConfig, RunCreate, StreamMode
from portside.executor.handler_calls import HandlerFailed
from portside.kernel.codec import load
from portside.kernel.errors import Forbidden, Invalid
from portside.kernel.http.decode import convert
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user

T = TypeVar("T", bound=msgspec.Struct)
# Handlers add keys to these without checking for null, so they get an empty object instead.
OBJECTS = frozenset({"metadata", "values", "config", "context", "filter"})
# The fields of a run, beside its input and context, that a handler may change.
RUN_FIELDS: dict[str, Any] = {
    "config": RunConfig,
    "command": Command,
    "stream_mode": StreamMode | list[StreamMode],
    "interrupt_before": Literal["*"] | list[str],
    "interrupt_after": Literal["*"] | list[str],
    "webhook": str,
}
log = get_logger(__name__)


def to_handler_value(name: str, value: Any) -> Any:
    """Return a field as handlers get it: plain data, and an empty object for a missing one."""
    if value is None and name in OBJECTS:
        return {}

    plain = msgspec.to_builtins(value, builtin_types=(UUID,)) if isinstance(value, msgspec.Struct) else value
    return dict(plain) if isinstance(plain, dict) else plain


def apply_changes(body: T, names: tuple[str, ...], value: dict[str, Any]) -> T:
    """Return a request with the changes of a handler. Raises Invalid if they make it invalid."""
    changed: dict[str, Any] = {}
    for name in names:
        if name in value and value[name] != to_handler_value(name, getattr(body, name)):
            changed[name] = value[name]

    if not changed:
        return body

    fields = {name: field for name, field in msgspec.structs.asdict(body).items() if field is not msgspec.UNSET}
    result: T = convert(msgspec.to_builtins({**fields, **changed}), type(body), "body")
    return result


def to_run_handler_value(body: RunCreate, ids: dict[str, Any]) -> dict[str, Any]:
    """Return a request for a run as handlers get it."""
    kwargs = {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": to_handler_value("config", body.config),
        "context": to_handler_value("context", body.context),
        "stream_mode": body.stream_mode,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
    }

    return {
        **ids,
        "status": "pending",
        "metadata": to_handler_value("metadata", body.metadata),
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.on_not_exist or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": kwargs,
    }


def apply_run_changes(body: RunCreate, value: dict[str, Any]) -> None:
    """Apply the changes of a handler to a run: its metadata, and how it is executed. Raises Invalid."""
    kwargs = value.get("kwargs") or {}
    body.metadata = value.get("metadata") or None
    body.input = kwargs.get("input")
    body.context = kwargs.get("context") or None

    for name, kind in RUN_FIELDS.items():
        field = kwargs.get(name)
        is_empty = field is None or (name in OBJECTS and not field)
        setattr(body, name, None if is_empty else convert(field, kind, "body"))


def to_store_handler_value(body: msgspec.Struct, fields: dict[str, str]) -> dict[str, Any]:
    """Return a request to the store as handlers get it; the namespace is a tuple of labels."""
    value = {name: to_handler_value(name, getattr(body, field)) for name, field in fields.items()}
    value["namespace"] = tuple(_split_labels(value["namespace"]))
    return value


def apply_store_changes(body: T, fields: dict[str, str], value: dict[str, Any]) -> T:
    """Return a request to the store with the changes of a handler. Raises Invalid for a bad namespace."""
    labels = _split_labels(value.get("namespace"))
    try:
        check_namespace(labels)
    except ValueError as exc:
        raise Invalid.field(["body", "namespace"], str(exc)) from exc

    namespace = getattr(body, fields["namespace"])
    if labels.count(WILDCARD) > _split_labels(namespace).count(WILDCARD):
        # A user named `*` would otherwise see the items of every user: searches take this label as a wildcard.
        why = f"the authorization handler added {WILDCARD!r}, which matches every label; it may not add wildcards"
        raise Invalid.field(["body", "namespace"], why)

    changes: dict[str, Any] = {}
    for name, field in fields.items():
        changed = value.get(name)
        changes[field] = None if name in OBJECTS and not changed else changed

    # Some requests join the labels by periods.
    changes[fields["namespace"]] = ".".join(labels) if isinstance(namespace, str) else labels

    result: T = convert(msgspec.to_builtins({**msgspec.structs.asdict(body), **changes}), type(body), "body")
    return result


def _split_labels(namespace: Any) -> list[str]:
    """Return the labels of a namespace; some requests join them by periods."""
    if isinstance(namespace, str):
        return namespace.split(".")
    return list(namespace or ())


def check_store_filter(allowed: Filter, action: str, value: dict[str, Any]) -> None:
    """Compare the namespace and the key of a request with a filter. Items have no metadata to compare.

    A search gets the items below its namespace: if that contains a label, theirs do too, unless it is a wildcard.
    Raises Forbidden, and HandlerFailed for a filter by anything else.
    """
    usable = {("has", "namespace")}
    if action in {"search", "list_namespaces"}:
        value = {**value, "namespace": tuple(label for label in value["namespace"] if label != WILDCARD)}
    else:
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
