"""Looking for the states of threads: those that are asked for in one moment are one statement.

While as many statements are under way as may be, whoever asks waits, and goes with the next one. What is found is
always what was stored when it was asked for, or later: no statement began before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from portside.agent.sql import sql
from portside.kernel.db import Database, Record

# How many statements may be under way for those who know a stamp, and most likely hear that it stands: one takes them
# all along, which costs Postgres half of what two do. The others may be sent much, and should not wait for each other.
KNOWING_AT_ONCE, OTHERS_AT_ONCE = 1, 2
# Checkpoints may be large, and those of one statement are in memory together.
TOGETHER = 16


class Ask(NamedTuple):
    """Which checkpoint is looked for, the latest where none is named, and the stamp of what is known of it."""

    thread_id: UUID
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    known: str | None = None


class Found(NamedTuple):
    """What is there of a thread: its graph, and its checkpoint with a stamp of that.

    The stamp changes whenever the checkpoint, its pending writes or the graph do; None is a state that more belongs to.
    `row` is None where the stamp is known, or no such checkpoint is there.
    """

    graph_id: str | None
    stamp: str | None
    row: Record | None


class Lookups:
    """Looks for states, for all who ask on one event loop."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._knowing, self._others = _Lane(self._fetch, KNOWING_AT_ONCE), _Lane(self._fetch, OTHERS_AT_ONCE)

    async def look(self, ask: Ask) -> Found | None:
        """Return what is there; None where there is no such thread."""
        if self._db.codec is not None:
            # What one thread's key does not open must not fail the others.
            return (await self._fetch([ask]))[0]
        return await (self._others if ask.known is None else self._knowing).look(ask)

    async def _fetch(self, asks: list[Ask]) -> list[Found | None]:
        columns: list[list[object]] = [list(column) for column in zip(*asks, strict=True)]
        names = ("thread_ids", "namespaces", "checkpoint_ids", "known")
        rows = await self._db.fetch(sql.read_states, **dict(zip(names, columns, strict=True)))
        found: list[Found | None] = [None] * len(asks)
        for row in rows:
            tuple_row = row if row["checkpoint_id"] is not None else None
            found[row["place"] - 1] = Found(row["graph_id"], row["stamp"], tuple_row)
        return found


class _Lane:
    """Those who ask and wait, and the statements under way for them."""

    def __init__(self, fetch: Callable[[list[Ask]], Awaitable[list[Found | None]]], at_once: int) -> None:
        self._fetch = fetch
        self._at_once = at_once
        self._under_way = 0
        self._waiting: list[tuple[Ask, asyncio.Future[Found | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self, ask: Ask) -> Found | None:
        answer: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, answer))
        if self._under_way < self._at_once:
            self._under_way += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                await self._answer(batch)
        finally:
            # At once, and not when the task is seen to be over: who asks in between must not wait for it.
            self._under_way -= 1

    async def _answer(self, batch: list[tuple[Ask, asyncio.Future[Found | None]]]) -> None:
        try:
            found = await self._fetch([ask for ask, _ in batch])
        except BaseException as exc:
            for _, answer in batch:
                _fail(answer, exc)
            if not isinstance(exc, Exception):
                raise
            return
        for (_, answer), one in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(one)


def _fail(answer: asyncio.Future[Found | None], exc: BaseException) -> None:
    if answer.done():
        return
    if isinstance(exc, asyncio.CancelledError):
        answer.cancel()
    else:
        answer.set_exception(exc)
