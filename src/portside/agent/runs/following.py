"""Following runs: their events and their results, for clients that wait.

A client in the process that executes its run is woken by the run itself. One elsewhere gets the events by way of the
relay and the result from the database, which is asked when a hint says so, and once in a while without one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import GONE, Ending
from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.agent.streams.feed import Feed, Subscription
from portside.agent.streams.hub import Hub
from portside.agent.types.runs import TERMINAL, Run
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database

ELSEWHERE_POLL_S = 0.5


class Made(NamedTuple):
    """A run that was just admitted, its feed in this process, and, where asked for, all its events."""

    run: Run
    feed: Feed
    followed: Subscription | None


class Following:
    """Waits for runs of this process and of others."""

    def __init__(self, db: Database, hub: Hub, worker: Worker) -> None:
        self._db = db
        self._hub = hub
        self._worker = worker

    async def result(self, thread_id: UUID, run_id: UUID) -> bytes:
        """Wait until a run is over and return its final values as JSON; of one that is gone, the error that says so."""
        feed = self._hub.find(run_id)
        is_watched = False
        if feed is not None and feed.is_admitted_here and not (feed.is_local or feed.ended.is_set()):
            await pause(feed)
        while True:
            if (result := await _own_result(feed)) is not None:
                return result
            row = await self._db.fetchrow(sql.run_result, run_id=run_id, thread_id=thread_id)
            if row is None:
                # A stateless run leaves no row; it may have begun and ended here while the database answered.
                return await _own_result(feed) or GONE
            if row["status"] in TERMINAL:
                return _stored_result(row)
            if row["is_temporary"] and not is_watched:
                await lifecycle.keep_result(self._db, self._worker.worker_id, run_id)
                is_watched = True
                continue
            if feed is None or feed.ended.is_set():
                feed = self._hub.open(run_id, thread_id, is_resumable=False)
            await pause(feed)

    async def follow(self, run: Run, *, after: str | None, modes: frozenset[str] | None) -> AsyncIterator[bytes]:
        """Follow a run wherever it is executed; what is over and not kept has no events."""
        feed, is_resumable = self._hub.find(run.run_id), bool(run.kwargs.get("resumable"))
        if feed is None and run.status in TERMINAL and not (is_resumable and after is not None):
            return _nothing()
        feed = feed or self._hub.open(run.run_id, run.thread_id, is_resumable=is_resumable)
        feed.is_resumable = is_resumable
        return self.events(Made(run, feed, await self._hub.follow(feed, after=after, modes=modes)))

    async def events(self, made: Made) -> AsyncIterator[bytes]:
        """Yield the events of a run, which may be executed anywhere."""
        feed, followed = made.feed, made.followed
        if followed is not None and followed.mirror is None and not (feed.is_local or feed.ended.is_set()):
            followed.mirror = await self._hub.relay.mirror(feed.thread, feed)
        async for chunk in followed or _nothing():
            yield chunk

    async def gone(self, thread_id: UUID, run_id: UUID) -> None:
        """Wait until a run that is rolled back has left no row."""
        while await self._db.fetchval(sql.has_run, thread_id=thread_id, run_ids=[run_id]):
            await self._worker.ended(run_id, within_s=ELSEWHERE_POLL_S)

    def let_go(self, run_id: UUID, ending: Ending) -> None:
        """End what follows a run here that the database ended before any worker began it."""
        feed = self._hub.find(run_id)
        if feed is not None and not feed.is_started:
            feed.ending = ending
            self._hub.end_unbegun(feed, (ending.error or {}).get("message") or "the run was cancelled before it began")


async def pause(feed: Feed | None) -> None:
    """Wait for the run in this process to begin or end, or a moment for one elsewhere."""
    if feed is None or feed.ended.is_set():
        await asyncio.sleep(ELSEWHERE_POLL_S)
    else:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(feed.change(), ELSEWHERE_POLL_S)


async def _own_result(feed: Feed | None) -> bytes | None:
    """Wait for a run that is executed in this process; None when it is not, or was handed back."""
    if feed is None or not (feed.is_local or feed.ended.is_set()):
        return None
    await feed.ended.wait()
    ending: Ending | None = feed.ending
    return None if ending is None else ending.result()


def _stored_result(row: Any) -> bytes:
    """Return what a run that is over left on its thread, as a waiting client gets it."""
    if row["status"] == "error":
        return dump_api({"__error__": row["error"]})
    values: bytes = (row["values"] or "null").encode()
    waiting = [
        {"value": asked.get("value"), "id": asked.get("id"), "response_schema": asked.get("response_schema")}
        for interrupts in (row["interrupts"] or {}).values()
        for asked in interrupts
    ]
    if not waiting:
        return values
    return dump_api({**(load(values) or {}), "__interrupt__": waiting})


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield
