"""The store of the server for graphs in an executor process, over the link."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from portside.executor import messages
from portside.executor.server_calls import ServerCalls, current_call

_OPS: dict[str, type[Any]] = {"get": GetOp, "search": SearchOp, "put": PutOp, "list": ListNamespacesOp}


class RemoteStore(BaseStore):
    """The store of the server. Values are encoded here, so that what has no JSON form is refused as in the server.

    Make it on the first loop of the graphs.
    """

    supports_ttl = True

    def __init__(self, server: ServerCalls, ttl: Mapping[str, Any] | None) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.ttl_config = None if ttl is None else TTLConfig(**ttl)  # type: ignore[typeddict-item]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run several operations; reads see the state before the batch."""
        operations = list(ops)
        return _read_results(operations, await self._server.call(messages.STORE_BATCH, _encode_batch(operations)))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `abatch` from another thread. Raises InvalidStateError on the loop of graphs, which it would block."""
        operations = list(ops)
        self._refuse_own_loop(operations)
        return _read_results(operations, self._server.call_from_thread(messages.STORE_BATCH, _encode_batch(operations)))

    def _refuse_own_loop(self, ops: Sequence[Op]) -> None:
        try:
            if asyncio.get_running_loop() is not self._loop:
                return
        except RuntimeError:
            return

        method = {GetOp: "get", SearchOp: "search", PutOp: "put", ListNamespacesOp: "list_namespaces"}.get(type(ops[0]))
        name = method if method and len(ops) == 1 else "batch"

        if isinstance(ops[0], PutOp) and len(ops) == 1 and ops[0].value is None:
            name = "delete"

        raise asyncio.InvalidStateError(
            "Synchronous calls to PostgresStore detected in the main event loop. This can lead to deadlocks or "
            "performance issues. Please use the asynchronous interface for main thread operations. "
            f"Specifically, replace `store.{name}(...)` with `await store.a{name}(...)`"
        )


def _encode_batch(ops: Sequence[Op]) -> messages.StoreBatch:
    """Encode operations. Raises ValueError for a value that has no JSON form."""
    names = {kind: name for name, kind in _OPS.items()}
    encoded_ops = [(names[type(op)], dump_json(_get_fields(op), _describe_op(op))) for op in ops]
    return messages.StoreBatch(call=current_call.get(), ops=encoded_ops)


def _get_fields(op: Any) -> dict[str, Any]:
    fields: dict[str, Any] = dict(op._asdict())
    if isinstance(op, PutOp) and op.value is not None and not isinstance(op.value, Mapping):
        raise ValueError(f"the value of an item must be a mapping, not {type(op.value).__name__}")

    if isinstance(op, ListNamespacesOp) and op.match_conditions:
        fields["match_conditions"] = [(condition.match_type, condition.path) for condition in op.match_conditions]

    return fields


def _describe_op(op: Op) -> str:
    return "the value of an item" if isinstance(op, PutOp) else "an operation"


def dump_json(value: Any, name: str) -> bytes:
    """Return a value of the project's code as JSON. Raises ValueError that names `what` cannot be encoded."""
    try:
        return orjson.dumps(value, _to_json, orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        raise ValueError(f"{name} cannot be stored as JSON: {exc}") from exc


def _to_json(value: Any) -> Any:
    """Return the JSON form of pydantic models, such as messages; nothing else has one."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump()
    if isinstance(value, Mapping):
        return dict(value)

    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _read_results(ops: Sequence[Op], results: Sequence[Any]) -> list[Result]:
    return [_read_result(op, result) for op, result in zip(ops, results, strict=True)]


def _read_result(op: Op, result: Any) -> Any:
    if isinstance(op, GetOp):
        return None if result is None else Item(**_read_item(result))
    if isinstance(op, SearchOp):
        return [SearchItem(**_read_item(item)) for item in result]

    return [tuple(item) for item in result] if isinstance(op, ListNamespacesOp) else None


def _read_item(fields: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(fields[name]) for name in ("created_at", "updated_at")}
    return {**fields, **times, "namespace": tuple(fields["namespace"]), "value": orjson.loads(fields["value"])}
