"""Serves the calls of executors: checkpoints, the store, and requests to the server's own API.

An executor has no keys and no database: rows are encrypted and written here. It may write rows of the runs that
it executes, and of no other attempt at a run. A request to the API is made as the user of the call that the executor is
working on, whatever user the executor names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any
from uuid import UUID

from portside.agent.checkpoints.writer import LeaseLost
from portside.agent.custom.cache import CACHE
from portside.agent.custom.loopback import LOOPBACK
from portside.agent.executors.member import CallContext, Executor
from portside.agent.problems import note_refused_traces
from portside.agent.store.items import StoreBatches
from portside.executor import messages
from portside.executor.asgi import UNREAD_BYTES
from portside.executor.checkpoints.backend import (
    CheckpointBackend,
    CheckpointQuery,
    CheckpointRow,
    PieceRow,
    Rows,
    ValueRow,
    WriteRow,
)
from portside.executor.errors import FAILURE, RAISED
from portside.executor.link import CallFailed, Handler, ServedCall
from portside.executor.messages import MAIN_SCOPE
from portside.executor.type_checks import build_type_check
from portside.kernel.codec import load
from portside.kernel.http.in_process import InProcessRequest

# Operations whose arguments and results are plain data.
_PLAIN_OPERATIONS = frozenset({"delete_threads", "delete_runs", "keep_latest", "copy_thread"})
# The check of the rows of each table, and how many of the first columns are its key.
_TABLES = (
    ("checkpoints", build_type_check(CheckpointRow), 3),
    ("values", build_type_check(ValueRow), 4),
    ("pieces", build_type_check(PieceRow), 3),
    ("writes", build_type_check(WriteRow), 5),
)


class Scopes:
    """The backends that executors write checkpoints to, by numbers: the server's own, and one for each transaction."""

    def __init__(self, main: CheckpointBackend) -> None:
        self._backends: dict[int, CheckpointBackend] = {MAIN_SCOPE: main}
        self._next = MAIN_SCOPE + 1

    def open(self, backend: CheckpointBackend) -> int:
        """Register the backend of a transaction, and return its number."""
        number = self._next
        self._next = self._next + 1
        self._backends[number] = backend
        return number

    def close(self, number: int) -> None:
        """Forget a transaction."""
        self._backends.pop(number, None)

    def find(self, number: Any) -> CheckpointBackend:
        """Return the backend of a scope. Raises CallFailed if its transaction has ended."""
        backend = self._backends.get(number) if isinstance(number, int) else None
        if backend is None:
            # As a graph in the server's own process gets it.
            raise CallFailed("closed", "the transaction is over", {"type": "RuntimeError"})

        return backend


class ExecutorRequests:
    """Serves the calls of executors."""

    def __init__(self, scopes: Scopes, store: StoreBatches) -> None:
        self._scopes = scopes
        self._store = store

    def handlers(self, executor: Callable[[], Executor]) -> Mapping[str, Handler]:
        """Return the handlers of one executor's calls; `executor` returns it once it exists."""

        def build_handler(work: Callable[[Executor, Any], Coroutine[Any, Any, Any]], message: type[Any]) -> Handler:
            def serve(body: Any, _call: ServedCall) -> Awaitable[Any]:
                request = messages.read(message, body)
                caller = executor().callers.get(request.call)
                return _run_in_context(caller, _await_answer(work(executor(), request), caller))

            return serve

        return {
            messages.CHECKPOINTS_PUT: build_handler(self._put, messages.CheckpointPut),
            messages.CHECKPOINTS: build_handler(self._operate, messages.CheckpointCall),
            messages.STORE_BATCH: build_handler(self._batch, messages.StoreBatch),
            **COMMON_HANDLERS,
            messages.HTTP_REQUEST: lambda body, call: answer_request(executor(), body, call),
        }

    async def _put(self, executor: Executor, message: messages.CheckpointPut) -> None:
        backend = self._scopes.find(message.scope)
        run = None

        if message.run is not None:
            run_name, attempt = message.run
            run_id = _parse_uuid(run_name)
            if executor.runs.get(run_id) != attempt and message.scope == MAIN_SCOPE:
                raise LeaseLost("the run has ended, or another worker has it")

            executor.note_size(run_id, message.size)
            run = (run_name, attempt)

        rows = _read_rows(message)
        await backend.put(message.thread_id, message.checkpoint_ns, rows, run=run, is_awaited=message.is_awaited)

    async def _operate(self, _executor: Executor, call: messages.CheckpointCall) -> Any:
        backend = self._scopes.find(call.scope)
        arguments = call.arguments
        if call.operation == "read":
            row = await backend.read(*arguments)
            return None if row is None else dict(row)

        if call.operation == "list":
            return [dict(row) for row in await backend.list(CheckpointQuery(**arguments[0]))]
        if call.operation not in _PLAIN_OPERATIONS:
            raise CallFailed("unknown_operation", f"there is no operation {call.operation!r} on checkpoints")

        return await getattr(backend, call.operation)(*arguments)

    async def _batch(self, _executor: Executor, batch: messages.StoreBatch) -> list[Any]:
        return await self._store.run((kind, load(fields)) for kind, fields in batch.ops)


async def _read_cache(key: Any, _call: ServedCall) -> Any:
    return await _await_answer(CACHE.read(key))


async def _write_cache(body: Any, _call: ServedCall) -> None:
    key, content, ttl_s = body
    await _await_answer(CACHE.write(key, content, ttl_s))


COMMON_HANDLERS: Mapping[str, Handler] = {
    messages.CACHE_READ: _read_cache,
    messages.CACHE_WRITE: _write_cache,
    messages.TRACES_REFUSED: lambda _body, _call: note_refused_traces(),
}
"""The handlers of calls that every kind of executor makes."""


async def answer_request(executor: Executor, body: Any, call: ServedCall) -> None:
    """Answer a request to this server's API: with the head of the response, then with its body as it comes.

    It waits while the caller does not read, so that no executor holds a whole response in memory.
    """
    request = messages.read(messages.HttpRequest, body)
    headers = [(name, value) for name, value in request.headers]
    caller = executor.callers.get(request.call)
    user = None if caller is None else caller.user
    head, response = await LOOPBACK.send(
        InProcessRequest(
            method=request.method,
            path=request.path,
            raw_path=request.raw_path,
            query=request.query,
            headers=headers,
            body=request.body,
            user=user,
        )
    )

    try:
        call.send((head.status, head.headers))
        unread = 0
        while data := await response.read():
            call.send(data)
            await call.drain()

            unread += len(data)
            if request.exchange and unread > UNREAD_BYTES:
                await executor.link.call(messages.HTTP_DRAIN, request.exchange)
                unread = 0
    finally:
        await response.close()


async def _await_answer(work: Awaitable[Any], caller: CallContext | None = None) -> Any:
    """Await work for a caller. Raises CallFailed with the name of the exception, for the executor to raise it."""
    try:
        return await work
    except CallFailed:
        raise
    except Exception as exc:
        fields: dict[str, Any] = {"type": type(exc).__name__}
        if caller is not None:
            fields[FAILURE] = caller.note_failure(exc)

        raise CallFailed(RAISED, str(exc), fields) from exc


def _run_in_context(caller: CallContext | None, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
    """Run work in the context of the server's call that the executor is serving, for example its encryption context."""
    return asyncio.create_task(work) if caller is None else asyncio.create_task(work, context=caller.context.copy())


def _parse_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return UUID(int=0)


def _read_rows(message: messages.CheckpointPut) -> Rows:
    """Return the rows of a message. Raises CallFailed if one has other columns, or belongs to another thread."""
    rows = Rows()
    for table, is_row, key in _TABLES:
        target = getattr(rows, table)
        for row in getattr(message, table):
            if not is_row(row) or row[0] != message.thread_id:
                raise CallFailed("malformed", f"a row of {table} has other columns, or belongs to another thread")
            target[tuple(row[:key])] = tuple(row)

    rows.size = message.size
    return rows
