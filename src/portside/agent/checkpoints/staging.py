"""Checkpoints on their way to Postgres: what the runs of this process make in a moment is written in one statement.

A run goes on while its rows wait; it waits for them only before it ends, when it reads its own thread back, and where
its durability is `sync`. What is dropped before it was written (a thread that goes with its run) never costs a trip.
Rows are written only while their run is still this attempt's: a worker that was paused for longer than its lease
cannot write over what its successor did.

Rows are put in any thread and written on the stage's own event loop, which is not the graphs': a node that blocks its
loop does not keep the steps before it from being written.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from portside.agent.checkpoints.rows import Rows
from portside.agent.sql import sql
from portside.kernel.db import Session

WRITE_WITHIN_S = 0.005
# A database that takes longer is not there, or not in time: the runs are given back.
WRITTEN_WITHIN_S = 15.0
NEW_THREAD_WAITS_S = 0.1
STAGED_LIMIT_BYTES = 64 * 1024 * 1024
NEW_THREAD_LIMIT_BYTES = 1024 * 1024

T = TypeVar("T")


class LeaseLost(Exception):
    """The run was given to another worker; what this one still makes of it is not kept."""


class Holder(NamedTuple):
    """The attempt of a run that writes to a thread; `is_new` says that nobody wrote to the thread before.

    `told` gives what to wait for until what the run told so far outlives this process, where that is wanted: who goes
    on from a checkpoint does not tell again what was told before it.
    """

    run_id: UUID
    attempt: int
    is_new: bool = False
    told: Callable[[], Awaitable[None] | None] = lambda: None


class Hold:
    """A run's hold on its thread: rows that wait to be written."""

    def __init__(self, stage: "Stage", thread_id: str, holder: Holder) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.failure: BaseException | None = None
        self._stage = stage
        self._staged: list[Rows] = []
        self._size = 0
        self._batch: asyncio.Future[None] | None = None
        self._namespaces: set[str] = set()
        # A run on a thread of its own that is over in a moment needs no checkpoint.
        self._opens = stage.loop.call_later(NEW_THREAD_WAITS_S, self._open) if holder.is_new else None
        self._is_open = not holder.is_new
        self._is_announced = self._is_over = False

    def is_for(self, holder: Holder | None) -> bool:
        """Whether what somebody writes to the thread is this run's, as everything is that does not say whose."""
        return holder is None or holder[:2] == self.holder[:2]

    async def put(self, checkpoint_ns: str, rows: Rows) -> None:
        """Take rows, on any loop. Raises what an earlier write failed with, and LeaseLost when the hold is over."""
        if self.failure is not None:
            raise self.failure
        self._namespaces.add(checkpoint_ns)
        with self._stage.lock:
            if self._is_over:
                raise LeaseLost("the run is over")
            self._staged.append(rows)
            self._size += rows.size
            self._stage.size += rows.size
            is_news = not self._is_announced and (self._is_open or self._size > NEW_THREAD_LIMIT_BYTES)
            self._is_announced = self._is_announced or is_news
        if is_news:
            self._stage.soon(self._open)
        if self._is_open and self._stage.size > STAGED_LIMIT_BYTES:
            await self.settle()

    def take(self) -> Rows:
        """Return what is to be written now."""
        with self._stage.lock:
            staged, self._staged = self._staged, []
            self._stage.size -= self._size
            self._size, self._is_announced = 0, False
        rows = Rows()
        for part in staged:
            rows.merge(part)
        return rows

    def _open(self) -> None:
        """Let the rows go with the next batch, and those that follow with theirs."""
        self._is_open = True
        if self._opens is not None:
            self._opens.cancel()
            self._opens = None
        if self._staged:
            self._batch = self._stage.add(self)

    def is_empty(self, checkpoint_ns: str) -> bool:
        """Whether a namespace has surely no checkpoint, because the thread is new and nothing was put there."""
        return self.holder.is_new and checkpoint_ns not in self._namespaces

    def close(self) -> None:
        """Wait for nothing any more, and forget what was not written."""
        if self._opens is not None:
            self._opens.cancel()
        with self._stage.lock:
            self._is_over = True
            self._stage.size -= self._size
            self._staged, self._size = [], 0

    async def settle(self) -> None:
        """Wait until everything is written, on any loop. Raises what that failed with, LeaseLost among it."""
        await self._stage.at_home(self._settle())

    async def _settle(self) -> None:
        self._open()
        if self._batch is not None and not self._batch.done():
            self._stage.hurry()
            await asyncio.shield(self._batch)
        if self.failure is not None:
            raise self.failure


class Stage:
    """The holds of the runs of this process, and the one writer behind them.

    Make it on the event loop that its database was connected on: there it writes, and there holds begin and end.
    """

    def __init__(self, db: Session) -> None:
        self.loop = asyncio.get_running_loop()
        self.lock = threading.Lock()
        # Bytes that wait, of all holds.
        self.size = 0
        self._db = db
        self._holds: dict[str, Hold] = {}
        self._waiting: dict[str, Hold] = {}
        self._batch: asyncio.Future[None] | None = None
        self._urgent = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def hold(self, thread_id: str, holder: Holder) -> AsyncIterator[None]:
        """Write what a run makes of its thread in batches with other runs, and the last of it before leaving.

        What a run leaves on a thread that is new with it and goes with it is dropped instead; unless the run was cut
        off, and may be resumed. Raises what a write failed with, LeaseLost among it.
        """
        held = self._holds[thread_id] = Hold(self, thread_id, holder)
        is_over = False
        try:
            yield
            is_over = True
        finally:
            if is_over and holder.is_new and held.failure is None:
                self._release(held)
            else:
                await asyncio.shield(self._end(held))

    async def _end(self, hold: Hold) -> None:
        try:
            await hold.settle()
        finally:
            self._release(hold)

    def _release(self, hold: Hold) -> None:
        hold.close()
        self._waiting.pop(hold.thread_id, None)
        self._holds.pop(hold.thread_id, None)

    def find(self, thread_id: str) -> Hold | None:
        """Return the hold on a thread, if a run of this process has one."""
        return self._holds.get(thread_id)

    def soon(self, call: Callable[[], None]) -> None:
        """Have something called on the stage's loop, from any thread."""
        self.loop.call_soon_threadsafe(call)

    async def at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call on the stage's loop, from any other."""
        if asyncio.get_running_loop() is self.loop:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))

    def add(self, hold: Hold) -> asyncio.Future[None]:
        """Have the rows of a hold written with the next batch; return what is done when that is."""
        self._waiting[hold.thread_id] = hold
        if self._batch is None:
            self._batch = self.loop.create_future()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_batches())
        return self._batch

    def hurry(self) -> None:
        """Have the next batch written now."""
        self._urgent.set()

    async def write(self, thread_id: str, rows: Rows, *, by: Holder | None) -> None:
        """Write rows at once that are on no hold. Raises LeaseLost where a run made them that is not that attempt's."""
        writing = self._db.fetch(
            sql.write_checkpoints,
            threads=[thread_id],
            runs=[by and by.run_id],
            attempts=[by.attempt if by else 0],
            **rows.columns(),
        )
        if not await self.at_home(writing):
            raise LeaseLost("the run goes on elsewhere, or is over")

    async def _write_batches(self) -> None:
        while self._batch is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), WRITE_WITHIN_S)
            self._urgent.clear()
            batch, self._batch = self._batch, None
            holds, self._waiting = list(self._waiting.values()), {}
            if holds:
                await self._write_holds(holds)
            batch.set_result(None)
        self._writer = None

    async def _write_holds(self, holds: list[Hold]) -> None:
        staged = [hold.take() for hold in holds]
        try:
            for waiting in [hold.holder.told() for hold in holds]:
                if waiting is not None:
                    await waiting
            await self._write_together(holds, staged)
        except TimeoutError as exc:
            for hold in holds:
                hold.failure = exc
        except Exception:  # noqa: BLE001 - told to the runs below
            # What one run wrote may be what Postgres cannot take; the others must not suffer for it.
            for hold, rows in zip(holds, staged, strict=True):
                try:
                    await self._write_together([hold], [rows])
                except Exception as exc:  # noqa: BLE001 - told to the run
                    hold.failure = exc

    async def _write_together(self, holds: list[Hold], staged: list[Rows]) -> None:
        rows = Rows()
        for part in staged:
            rows.merge(part)
        async with asyncio.timeout(WRITTEN_WITHIN_S):
            written = await self._db.fetch(
                sql.write_checkpoints,
                threads=[hold.thread_id for hold in holds],
                runs=[hold.holder.run_id for hold in holds],
                attempts=[hold.holder.attempt for hold in holds],
                **rows.columns(),
            )
        ours = {row["thread_id"] for row in written}
        for hold in holds:
            if hold.thread_id not in ours:
                hold.failure = LeaseLost("the run goes on elsewhere")
