"""What a handler is told of a request, and the request as the handler left it."""

from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from portside.agent.store.names import WILDCARD, check_namespace
from portside.agent.types.runs import Command, RunConfig, RunCreate, StreamMode
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert

T = TypeVar("T", bound=msgspec.Struct)
# Handlers write into these without a look whether they are there.
OBJECTS = frozenset({"metadata", "values", "config", "context", "filter"})
# What a run is executed with beside its input and context: nothing stands for none.
STEERING: dict[str, Any] = {
    "config": RunConfig,
    "command": Command,
    "stream_mode": StreamMode | list[StreamMode],
    "interrupt_before": Literal["*"] | list[str],
    "interrupt_after": Literal["*"] | list[str],
    "webhook": str,
}


def told(name: str, value: Any) -> Any:
    """Return a field as a handler is told it: in plain data, an object where there may be one."""
    if value is None and name in OBJECTS:
        return {}
    plain = msgspec.to_builtins(value, builtin_types=(UUID,)) if isinstance(value, msgspec.Struct) else value
    return dict(plain) if isinstance(plain, dict) else plain


def taken_back(body: T, names: tuple[str, ...], value: dict[str, Any]) -> T:
    """Return a request with what a handler changed; it has to make sense still. Raises Invalid."""
    changed = {name: value[name] for name in names if name in value and value[name] != told(name, getattr(body, name))}
    if not changed:
        return body
    given = {name: field for name, field in msgspec.structs.asdict(body).items() if field is not msgspec.UNSET}
    taken: T = convert(msgspec.to_builtins({**given, **changed}), type(body), "body")
    return taken


def run_value(body: RunCreate, ids: dict[str, Any]) -> dict[str, Any]:
    """Return what a handler is told of a run that is asked for."""
    kwargs = {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": told("config", body.config),
        "context": told("context", body.context),
        "stream_mode": body.stream_mode,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
    }
    return {
        **ids,
        "status": "pending",
        "metadata": told("metadata", body.metadata),
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.on_not_exist or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": kwargs,
    }


def run_taken_back(body: RunCreate, value: dict[str, Any]) -> None:
    """Take what a handler may have changed of a run: its metadata, and how it is executed. Raises Invalid."""
    kwargs = value.get("kwargs") or {}
    body.metadata = value.get("metadata") or None
    body.input, body.context = kwargs.get("input"), kwargs.get("context") or None
    for name, kind in STEERING.items():
        given = kwargs.get(name)
        is_none = given is None or (name in OBJECTS and not given)
        setattr(body, name, None if is_none else convert(given, kind, "body"))


def store_value(body: msgspec.Struct, fields: dict[str, str]) -> dict[str, Any]:
    """Return what a handler is told of a request to the store; the namespace is a tuple of labels."""
    value = {name: told(name, getattr(body, field)) for name, field in fields.items()}
    value["namespace"] = tuple(_labels(value["namespace"]))
    return value


def store_taken_back(body: T, fields: dict[str, str], value: dict[str, Any]) -> T:
    """Return a request to the store as the handler left it. Raises Invalid for a namespace that is none."""
    labels = _labels(value.get("namespace"))
    try:
        check_namespace(labels)
    except ValueError as exc:
        raise Invalid.field(["body", "namespace"], str(exc)) from exc
    if labels.count(WILDCARD) > _labels(getattr(body, fields["namespace"])).count(WILDCARD):
        # A label that stands for any other, such as the name of a user: searched for, it would be everybody's.
        raise Invalid.field(["body", "namespace"], f"the handler put {WILDCARD!r} into it, which means every label")
    is_joined = isinstance(getattr(body, fields["namespace"]), str)
    value = {**value, "namespace": ".".join(labels) if is_joined else labels}
    given = {fields[name]: value.get(name) or None if name in OBJECTS else value.get(name) for name in fields}
    taken: T = convert(msgspec.to_builtins({**msgspec.structs.asdict(body), **given}), type(body), "body")
    return taken


def _labels(namespace: Any) -> list[str]:
    """Return the labels of a namespace, which some requests join by periods."""
    if isinstance(namespace, str):
        return namespace.split(".")
    return list(namespace or ())
