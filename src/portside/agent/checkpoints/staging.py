"""Checkpoints on their way to Postgres: what the runs of this process make in a moment is written in one statement.

A run goes on while its rows wait; it waits for them only before it ends, when it reads its own thread back, and where
its durability is `sync`. What is dropped before it was written (a thread that goes with its run) never costs a trip.
Rows are written only while their run is still this attempt's: a worker that was paused for longer than its lease
cannot write over what its successor did.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple
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
        self.staged = Rows()
        self.failure: BaseException | None = None
        self._stage = stage
        self._batch: asyncio.Future[None] | None = None
        self._namespaces: set[str] = set()
        # A run on a thread of its own that is over in a moment needs no checkpoint.
        self._opens = asyncio.get_running_loop().call_later(NEW_THREAD_WAITS_S, self._join) if holder.is_new else None

    def is_for(self, holder: Holder | None) -> bool:
        """Whether what somebody writes to the thread is this run's, as everything is that does not say whose."""
        return holder is None or holder[:2] == self.holder[:2]

    async def put(self, checkpoint_ns: str, rows: Rows) -> None:
        """Take rows. Raises what an earlier write failed with."""
        if self.failure is not None:
            raise self.failure
        self._namespaces.add(checkpoint_ns)
        self.staged.merge(rows)
        if self._opens is None or self.staged.size > NEW_THREAD_LIMIT_BYTES:
            self._join()
            if self._stage.is_full:
                await self.settle()

    def _join(self) -> None:
        """Let the rows go with the next batch, and those that follow with theirs."""
        if self._opens is not None:
            self._opens.cancel()
            self._opens = None
        if self.staged:
            self._batch = self._stage.add(self)

    def is_empty(self, checkpoint_ns: str) -> bool:
        """Whether a namespace has surely no checkpoint, because the thread is new and nothing was put there."""
        return self.holder.is_new and checkpoint_ns not in self._namespaces

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._opens is not None:
            self._opens.cancel()

    async def settle(self) -> None:
        """Wait until everything is written. Raises what that failed with, LeaseLost among it."""
        self._join()
        if self._batch is not None and not self._batch.done():
            self._stage.hurry()
            await asyncio.shield(self._batch)
        if self.failure is not None:
            raise self.failure


class Stage:
    """The holds of one event loop, and the one writer behind them."""

    def __init__(self, db: Session) -> None:
        self._db = db
        self._holds: dict[str, Hold] = {}
        self._waiting: dict[str, Hold] = {}
        self._batch: asyncio.Future[None] | None = None
        self._urgent = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def hold(self, thread_id: str, holder: Holder) -> Hold:
        """Stage what a run writes to its thread from now on."""
        held = self._holds[thread_id] = Hold(self, thread_id, holder)
        return held

    def release(self, hold: Hold) -> None:
        """End a hold; what was not settled is dropped."""
        hold.close()
        self._waiting.pop(hold.thread_id, None)
        self._holds.pop(hold.thread_id, None)

    def find(self, thread_id: str) -> Hold | None:
        """Return the hold on a thread, if a run of this loop has one."""
        return self._holds.get(thread_id)

    @property
    def is_full(self) -> bool:
        """Whether so much waits that runs must wait as well."""
        return sum(hold.staged.size for hold in self._waiting.values()) > STAGED_LIMIT_BYTES

    def add(self, hold: Hold) -> asyncio.Future[None]:
        """Have the rows of a hold written with the next batch; return what is done when that is."""
        self._waiting[hold.thread_id] = hold
        if self._batch is None:
            self._batch = asyncio.get_running_loop().create_future()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_batches())
        return self._batch

    def hurry(self) -> None:
        """Have the next batch written now."""
        self._urgent.set()

    async def write(self, thread_id: str, rows: Rows, *, by: Holder | None) -> None:
        """Write rows at once that are on no hold. Raises LeaseLost where a run made them that is not that attempt's."""
        written = await self._db.fetch(
            sql.write_checkpoints,
            threads=[thread_id],
            runs=[by and by.run_id],
            attempts=[by.attempt if by else 0],
            **rows.columns(),
        )
        if not written:
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
        staged = []
        for hold in holds:
            staged.append(hold.staged)
            hold.staged = Rows()
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
