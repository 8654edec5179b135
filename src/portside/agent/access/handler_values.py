"""Requests in the form that authorization handlers get, and the changes that a handler makes to them."""

from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from portside.agent.store.names import WILDCARD, check_namespace
from portside.agent.types.runs import Command, RunConfig, RunCreate, StreamMode
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert

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
