"""Calls of graphs in an executor process to the server, over the link, and the storage of checkpoints behind them.

The link belongs to the loop of the process; graphs call from loops and threads of their own.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from portside.executor import messages
from portside.executor.checkpoints.backend import CheckpointQuery, Rows, complete_row
from portside.executor.errors import FAILURE
from portside.executor.link import CallFailed, Link
from portside.executor.loops import CrossLoopCall
from portside.executor.messages import MAIN_SCOPE

EPHEMERAL_DELAY_S = 0.1
EPHEMERAL_LIMIT_BYTES = 1024 * 1024
UNANSWERED_LIMIT_BYTES = 8 * 1024 * 1024
ROWS_OVERHEAD_BYTES = 512
# The number of the server's call that the current code runs for: the server knows its user.
current_call: ContextVar[int] = ContextVar("current_call", default=0)
run_rows: ContextVar["RunRows | None"] = ContextVar("run_rows", default=None)
_BUILTIN = {error.__name__: error for error in (ValueError, TypeError, RuntimeError, TimeoutError, KeyError)}


class ServerCalls:
    """Calls the server, from any event loop or thread. Make it on the loop of the link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.loop = asyncio.get_running_loop()

    async def call(self, method: str, body: Any) -> Any:
        """Call the server. Raises an exception with the name and the text of the one that was raised there.

        On another loop than that of the link, cancelling the caller does not cancel the call: its rows are stored.
        """
        if asyncio.get_running_loop() is self.loop:
            return await self._call(method, body)
        return await CrossLoopCall(self.loop, self._call(method, body)).result

    def call_from_thread(self, method: str, body: Any) -> Any:
        """Call the server, and block this thread until it answers."""
        return asyncio.run_coroutine_threadsafe(self._call(method, body), self.loop).result()

    async def _call(self, method: str, body: Any) -> Any:
        try:
            return await self.link.call(method, body)
        except CallFailed as exc:
            raise _to_exception(exc) from None


def _to_exception(failure: CallFailed) -> Exception:
    """Return the exception that the server raised, by its name: a run's error shows clients that."""
    name = failure.fields.get("type")
    if not isinstance(name, str) or not name.isidentifier():
        return failure

    kind: type[Exception] = _BUILTIN.get(name) or type(name, (Exception,), {"__module__": __name__})
    exception = kind(failure.message)

    # For `find_server_failure`: if the graph does not handle the error, the server raises its own again.
    exception.portside_failure = failure.fields.get(FAILURE)  # type: ignore[attr-defined]
    return exception


class RunRows:
    """The rows that a run writes to its thread: they are sent in their order, and no step waits for the answers.

    So a node that blocks its loop keeps nothing back that was written before it. Those of a thread that is deleted with
    its run wait, because a short run needs no checkpoint: they are sent after a moment, if they grow, and if the run is
    stopped. Make it on the loop of the link.
    """

    def __init__(self, server: ServerCalls, thread_id: str, *, is_ephemeral: bool, is_encrypted: bool) -> None:
        self.thread_id = thread_id
        self._server = server

        # Whether each call waits for the one before: a server that encrypts rows may store those of a later one first.
        self._is_in_turns = is_encrypted
        self._is_ephemeral = is_ephemeral

        # Guards the rows that are held, and the size of all that was not answered.
        self._lock = threading.Lock()
        self._is_holding = is_ephemeral
        self._held: list[tuple[Callable[[], messages.CheckpointPut], int]] = []
        self._size = 0
        self._namespaces: set[str] = set()
        self._sent: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None
        self._timer = server.loop.call_later(EPHEMERAL_DELAY_S, self._send_held) if is_ephemeral else None

    def is_empty(self, checkpoint_ns: str) -> bool:
        """Whether the thread surely has no checkpoint in a namespace."""
        return self._is_ephemeral and checkpoint_ns not in self._namespaces

    async def put(self, checkpoint_ns: str, make: Callable[[], messages.CheckpointPut], size: int) -> None:
        """Take rows, on any loop; wait only if many were not answered. Raises the error of storing earlier ones."""
        if self._failure is not None:
            raise self._failure

        self._namespaces.add(checkpoint_ns)
        # Empty rows take memory as well.
        size += ROWS_OVERHEAD_BYTES
        with self._lock:
            self._size += size
            if is_held := self._is_holding:
                self._held.append((make, size))

        if not is_held:
            self._server.loop.call_soon_threadsafe(self._send, make(), size)
            if self._is_in_turns or self._size > UNANSWERED_LIMIT_BYTES:
                await self.flush()
        elif self._size > EPHEMERAL_LIMIT_BYTES:
            self._server.loop.call_soon_threadsafe(self._send_held)

    async def flush(self) -> None:
        """Wait until all rows are with the server. Raises the error of storing them."""
        if self._size and asyncio.get_running_loop() is self._server.loop:
            await self._flush()
        elif self._size:
            await CrossLoopCall(self._server.loop, self._flush()).result

        if self._failure is not None:
            raise self._failure

    def drop(self) -> None:
        """Forget the rows that are held: the run has ended, and its thread with it."""
        self._stop_timer()
        with self._lock:
            self._is_holding = False
            self._held = []

    async def _flush(self) -> None:
        self._send_held()
        while self._sent:
            await asyncio.wait(self._sent)

    def _send_held(self) -> None:
        self._stop_timer()
        with self._lock:
            rows_to_send = self._held
            self._held = []
            self._is_holding = False

        for make, size in rows_to_send:
            self._send(make(), size)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, message: messages.CheckpointPut, size: int) -> None:
        call = asyncio.ensure_future(self._server.call(messages.CHECKPOINTS_PUT, message))
        self._sent.add(call)
        call.add_done_callback(partial(self._on_answered, size))

    def _on_answered(self, size: int, call: asyncio.Future[Any]) -> None:
        self._sent.discard(call)
        with self._lock:
            self._size -= size

        if not call.cancelled() and (failure := call.exception()) is not None:
            self._failure = self._failure or failure


class RemoteBackend:
    """A `CheckpointBackend` of the server: its database, or the transaction of a scope."""

    def __init__(self, server: ServerCalls, *, is_encrypted: bool, scope: int = MAIN_SCOPE) -> None:
        self.is_encrypted = is_encrypted
        self._server = server
        self._scope = scope

    async def put(
        self, thread_id: str, checkpoint_ns: str, rows: Rows, *, run: tuple[str, int] | None, is_awaited: bool
    ) -> None:
        """Send rows; the server buffers them with those of the run."""
        make = partial(self._build_message, thread_id, checkpoint_ns, rows, run=run, is_awaited=is_awaited)
        rows_of_run = self._find_rows_of_run(thread_id)
        if rows_of_run is not None:
            if run is not None and not is_awaited:
                await rows_of_run.put(checkpoint_ns, make, rows.size)
                return

            await rows_of_run.flush()

        await self._server.call(messages.CHECKPOINTS_PUT, make())

    def _find_rows_of_run(self, thread_id: str) -> RunRows | None:
        """Return the rows of the current run if it writes to this thread, outside of transactions."""
        rows = run_rows.get()
        if rows is None or rows.thread_id != thread_id or self._scope != MAIN_SCOPE:
            return None

        return rows

    def _build_message(
        self, thread_id: str, checkpoint_ns: str, rows: Rows, *, run: tuple[str, int] | None, is_awaited: bool
    ) -> messages.CheckpointPut:
        return messages.CheckpointPut(
            call=current_call.get(),
            scope=self._scope,
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            run=run,
            is_awaited=is_awaited,
            checkpoints=[complete_row(row) for row in rows.checkpoints.values()],
            values=list(rows.values.values()),
            pieces=list(rows.pieces.values()),
            writes=[_to_plain_row(row) for row in rows.writes.values()],
            size=rows.size,
        )

    async def read(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Any:
        """Return the row of a checkpoint by its columns, or None."""
        rows_of_run = self._find_rows_of_run(thread_id)
        if rows_of_run is not None and rows_of_run.is_empty(checkpoint_ns):
            return None

        return await self._ask("read", thread_id, checkpoint_ns, checkpoint_id)

    async def list(self, query: CheckpointQuery) -> Sequence[Any]:
        """Return the rows of a page of checkpoints by their columns."""
        rows: Sequence[Any] = await self._ask("list", query._asdict())
        return rows

    async def delete_threads(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads."""
        await self._ask("delete_threads", list(thread_ids))

    async def delete_runs(self, run_ids: Sequence[str], thread_id: str | None) -> None:
        """Delete the checkpoints of runs."""
        await self._ask("delete_runs", list(run_ids), thread_id)

    async def keep_latest(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads but the latest of each namespace."""
        await self._ask("keep_latest", list(thread_ids))

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy the history of a thread."""
        await self._ask("copy_thread", source, target)

    async def _ask(self, operation: str, *arguments: Any) -> Any:
        rows_of_run = run_rows.get()
        if rows_of_run is not None and self._scope == MAIN_SCOPE:
            await rows_of_run.flush()

        body = messages.CheckpointCall(
            call=current_call.get(), scope=self._scope, operation=operation, arguments=list(arguments)
        )

        return await self._server.call(messages.CHECKPOINTS, body)


def _to_plain_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row whose ids are strings: a config may hold the run's id as a UUID."""
    return tuple(part if isinstance(part, (str, bytes, int, type(None))) else str(part) for part in row)
