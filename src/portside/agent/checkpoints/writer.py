"""Writes the checkpoints of all runs of this process in batches.

What the runs produce within 5 ms is one statement. A run goes on while its rows wait. It waits for them only before it
ends, when it reads its own thread back, and when its durability is `sync`. The rows of an ephemeral run are dropped if
it ends quickly, so they cost no statement. Rows are written only while their run still is the attempt that produced
them: a worker that was paused for longer than its lease cannot overwrite what its successor did.

Large rows are written apart, one run after the other: the rows of other runs do not wait for them.

Rows are put from any thread and written on the writer's own event loop. That is not the graphs' loop: a node that
blocks its loop does not keep the steps before it from being written.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from portside.agent.checkpoints.shared_parts import share_parts
from portside.agent.sql import sql
from portside.executor.checkpoints.backend import (
    Rows,
)
from portside.kernel.batching import Batcher
from portside.kernel.db import Session
from portside.kernel.timeouts import timeout
from portside.kernel.value_sizes import LARGE_BYTES

WRITE_DELAY_S = 0.005
# A database that takes longer is out of service: the runs are returned to the queue.
WRITE_TIMEOUT_S = 15.0
# The rows of an ephemeral thread are only written if its run takes longer than this, or has more rows than this.
NEW_THREAD_DELAY_S = 0.1
NEW_THREAD_LIMIT_BYTES = 1024 * 1024
# With more than this waiting in all buffers, a run waits until its rows are written.
PENDING_LIMIT_BYTES = 64 * 1024 * 1024
T = TypeVar("T")


class LeaseLost(Exception):
    """Another worker has the run; what this one still produces is not stored."""


async def run_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Await a call on a loop, from this one or from any other."""
    if asyncio.get_running_loop() is loop:
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


class RunAttempt(NamedTuple):
    """The attempt at a run that writes to a thread."""

    run_id: UUID
    attempt: int
    is_ephemeral: bool = False
    """Whether the thread was created for this attempt, has no checkpoints yet, and is deleted with the run."""
    flush_events: Callable[[], Awaitable[None] | None] = lambda: None
    """Called before checkpoints are written, and what it returns is awaited.

    A worker that resumes from a checkpoint does not send the events before it again, so those must outlive this process
    first.
    """


class CheckpointBuffer:
    """The rows of a run that wait to be written to its thread."""

    def __init__(self, writer: "CheckpointWriter", thread_id: str, owner: RunAttempt) -> None:
        self.thread_id = thread_id
        self.owner = owner
        self.failure: BaseException | None = None
        self.is_closed = False
        self._writer = writer

        # Guarded by the writer's lock, as are `_size`, `is_closed` and `_is_scheduled`.
        self._parts: list[Rows] = []
        self._size = 0

        # Whether the event loop was asked to queue this buffer for the next batch.
        self._is_scheduled = False
        # The batches that this buffer was last queued for, and the event that is set when it was written with them.
        self._batches = writer.batches
        self._written: asyncio.Event | None = None
        self._is_queued = False
        self._namespaces: set[str] = set()
        self._is_open = not owner.is_ephemeral

        # A short run on a thread of its own needs no checkpoint: its rows wait until it takes longer.
        self._opening = writer.loop.call_later(NEW_THREAD_DELAY_S, self._queue) if owner.is_ephemeral else None

        if self._is_open:
            # Queued before it has rows: every run puts some at once, and they need not wake the event loop then.
            self._is_scheduled = True
            self._add_to(writer.batches)

    def is_empty(self, checkpoint_ns: str) -> bool:
        """Whether a namespace surely has no checkpoint: the thread is new and nothing was put there."""
        return self.owner.is_ephemeral and checkpoint_ns not in self._namespaces

    async def put(self, checkpoint_ns: str, rows: Rows) -> None:
        """Add rows, on any loop. Raises the error of an earlier write, and LeaseLost after the end of the run."""
        if self.failure is not None:
            raise self.failure

        self._namespaces.add(checkpoint_ns)
        with self._writer.lock:
            if self.is_closed:
                raise LeaseLost("the run has ended")

            self._parts.append(rows)
            self._size += rows.size
            self._writer.pending_bytes += rows.size
            is_first = not self._is_scheduled and (self._is_open or self._size > NEW_THREAD_LIMIT_BYTES)
            self._is_scheduled = self._is_scheduled or is_first

        if is_first:
            self._writer.loop.call_soon_threadsafe(self._queue)

        if self._is_open and self._writer.pending_bytes > PENDING_LIMIT_BYTES:
            await self.flush()

    def take(self) -> Rows:
        """Remove and return the rows that wait."""
        with self._writer.lock:
            parts = self._parts
            self._parts = []
            self._writer.pending_bytes -= self._size
            self._size = 0
            self._is_scheduled = False

        self._is_queued = False
        rows = Rows()
        for part in parts:
            rows.merge(part)

        return rows

    async def flush(self) -> None:
        """Wait until everything is written, on any loop. Raises the error of the write, and LeaseLost."""
        if self._namespaces:
            await run_on(self._writer.loop, self._flush())
        elif self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Drop what was not written, and take nothing more."""
        if self._opening is not None:
            self._opening.cancel()

        with self._writer.lock:
            self.is_closed = True
            self._writer.pending_bytes -= self._size
            self._parts = []
            self._size = 0

    def _queue(self) -> None:
        """Write the rows with the next batch, and all later rows with theirs."""
        self._is_open = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

        if self._parts and not self._is_queued:
            # Later rows must not overtake large ones that are still being written.
            is_written = self._written is None or self._written.is_set()
            self._add_to(self._writer.batches if is_written else self._batches)

    def set_apart(self) -> bool:
        """Write the rows that wait apart from other runs, if they are large; return whether they are."""
        if self._size <= LARGE_BYTES or self.is_closed:
            return False

        self._add_to(self._writer.large_batches)
        return True

    def _add_to(self, batches: "Batcher[CheckpointBuffer, None]") -> None:
        self._is_queued = True
        self._batches = batches
        self._written = batches.add(self)

    async def _flush(self) -> None:
        self._queue()

        # Twice, because the first batch may set large rows apart. Rows that are put meanwhile need no wait.
        for _ in range(2):
            if self._written is not None and not self._written.is_set():
                self._batches.hurry()
                await self._written.wait()

        if self.failure is not None:
            raise self.failure


class CheckpointWriter:
    """The buffers of the runs of this process, and the batches in which they are written.

    Make it on the event loop that its database was connected on: it writes there, and buffers are opened and closed
    there.
    """

    def __init__(self, db: Session, *, delay_s: float = WRITE_DELAY_S) -> None:
        self.loop = asyncio.get_running_loop()
        # Guards the rows of all buffers, which graphs put from their own threads.
        self.lock = threading.Lock()

        # The size of the rows that wait in all buffers.
        self.pending_bytes = 0
        self.batches: Batcher[CheckpointBuffer, None] = Batcher(self._write_small, max_batch=None, delay_s=delay_s)
        self.large_batches: Batcher[CheckpointBuffer, None] = Batcher(self._write_batch, max_batch=1)
        self._db = db
        self.buffers: dict[str, CheckpointBuffer] = {}
        """The buffers of the runs that execute, by the threads that they write to."""

    @asynccontextmanager
    async def buffering(self, thread_id: str, owner: RunAttempt) -> AsyncIterator[None]:
        """Buffer what a run writes to its thread, and write the rest of it at the end.

        The rows of a thread that is made for the run and deleted with it are dropped instead; unless the run was
        cancelled, for it may be resumed. Raises the error of a write, and LeaseLost.
        """
        buffer = self.buffers[thread_id] = CheckpointBuffer(self, thread_id, owner)
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            if is_complete and owner.is_ephemeral and buffer.failure is None:
                self._close(buffer)
            else:
                await asyncio.shield(self._flush_and_close(buffer))

    def is_buffering(self, thread_id: UUID) -> bool:
        """Whether a run of this process may have checkpoints of a thread that are not in the database yet."""
        return str(thread_id) in self.buffers

    async def flush(self, thread_id: UUID) -> None:
        """Wait until the checkpoints that a run of this process made on a thread are written, or the run was lost."""
        buffer = self.buffers.get(str(thread_id))
        if buffer is not None and not buffer.is_empty(""):
            with contextlib.suppress(LeaseLost):
                await buffer.flush()

    async def _flush_and_close(self, buffer: CheckpointBuffer) -> None:
        try:
            await buffer.flush()
        finally:
            self._close(buffer)

    def _close(self, buffer: CheckpointBuffer) -> None:
        buffer.close()
        # The attempt may have lost its run while it stopped, and the thread's next run may already have a buffer here.
        if self.buffers.get(buffer.thread_id) is buffer:
            del self.buffers[buffer.thread_id]

    async def write(self, thread_id: str, rows: Rows, *, attempt: RunAttempt | None) -> None:
        """Write rows now, past the buffers. Raises LeaseLost when they are of an attempt that lost its run."""
        writing = self._db.fetch(
            sql.write_checkpoints,
            threads=[thread_id],
            runs=[attempt and attempt.run_id],
            attempts=[attempt.attempt if attempt else 0],
            **rows.columns(),
        )
        if not await run_on(self.loop, writing):
            raise LeaseLost("another worker has the run, or it has ended")

    async def _write_small(self, buffers: list[CheckpointBuffer]) -> list[None]:
        await self._write_batch([buffer for buffer in buffers if not buffer.set_apart()])
        return [None] * len(buffers)

    async def _write_batch(self, buffers: list[CheckpointBuffer]) -> list[None]:
        queued: list[CheckpointBuffer] = []
        parts: list[Rows] = []
        for buffer in buffers:
            rows = Rows() if buffer.is_closed else buffer.take()
            # A buffer may still be empty: its loop is busy, or a graph in an executor begins late.
            if rows:
                queued.append(buffer)
                parts.append(rows)

        if queued:
            try:
                await self._write_buffers(queued, parts)
            except BaseException as exc:
                # Also when the batch is cancelled: no run may believe that its rows are written.
                for buffer in queued:
                    buffer.failure = exc
                raise

        return [None] * len(buffers)

    async def _write_buffers(self, buffers: list[CheckpointBuffer], parts: list[Rows]) -> None:
        try:
            for flushing in [buffer.owner.flush_events() for buffer in buffers]:
                if flushing is not None:
                    await flushing

            await self._write_together(buffers, parts)
        except TimeoutError as exc:
            for buffer in buffers:
                buffer.failure = exc
        except Exception:  # noqa: BLE001 - raised in the runs below
            # Postgres may refuse what one run wrote; the others must not fail with it.
            for place, (buffer, rows) in enumerate(zip(buffers, parts, strict=True)):
                try:
                    await self._write_together([buffer], [rows])
                except TimeoutError as exc:
                    # The database is out of service: waiting as long for each of the others would not help.
                    for unwritten in buffers[place:]:
                        unwritten.failure = exc
                    return
                except Exception as exc:  # noqa: BLE001 - raised in the run
                    buffer.failure = exc

    async def _write_together(self, buffers: list[CheckpointBuffer], parts: list[Rows]) -> None:
        rows = Rows()
        for part in parts:
            rows.merge(part)

        if rows.pieces and not rows.is_encrypted:
            share_parts(rows)

        async with timeout(WRITE_TIMEOUT_S):
            owned_rows = await self._db.fetch(
                sql.write_checkpoints,
                threads=[buffer.thread_id for buffer in buffers],
                runs=[buffer.owner.run_id for buffer in buffers],
                attempts=[buffer.owner.attempt for buffer in buffers],
                **rows.columns(),
            )

        owned_threads = {row["thread_id"] for row in owned_rows}
        for buffer in buffers:
            if buffer.thread_id not in owned_threads:
                buffer.failure = LeaseLost("another worker has the run")
