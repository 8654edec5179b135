"""Threads whose events other processes make: read from the log into the feeds of this one, for those who follow here.

A mirror lives as long as somebody holds it; every follower does. While it lives, Postgres knows of the interest, and
whoever executes a run of the thread writes its events down. Reading begins with all that the log has, and feeds take
each event once, so it does no harm to read twice.
"""

import asyncio
import time
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.sql import sql
from portside.agent.streams.chunks import Chunk, unpack
from portside.agent.streams.events import END, LAST_WORDS, LOST, Event
from portside.agent.streams.feed import Feed
from portside.agent.streams.hub import Hub
from portside.agent.streams.threads import ThreadFeed
from portside.kernel.db import Database

ALIVE_S = 15.0
CHUNKS_AT_ONCE = 64
# The status of a run may be known before its last events are: whoever wrote those has this long to be read.
SETTLED_S = 1.5
OVER = frozenset({"success", "error", "timeout", "interrupted"})


class Mirror:
    """The interest in one thread."""

    __slots__ = ("__weakref__", "cursor", "has_existed", "is_recorded", "thread")

    def __init__(self, thread: ThreadFeed) -> None:
        self.thread = thread
        self.cursor = 0
        self.is_recorded = self.has_existed = False


class Mirrors:
    """The threads that this process mirrors."""

    def __init__(self, db: Database, process_id: UUID, hub: Hub) -> None:
        self._db = db
        self._process_id = process_id
        self._hub = hub
        self._mirrors: WeakValueDictionary[UUID, Mirror] = WeakValueDictionary()
        self._recorded: set[UUID] = set()
        self._seen_over: dict[UUID, float] = {}
        self._reading = asyncio.Lock()

    def __contains__(self, thread_id: UUID) -> bool:
        return thread_id in self._mirrors

    def __len__(self) -> int:
        return len(self._mirrors)

    def hold(self, thread: ThreadFeed) -> Mirror:
        """Return the mirror of a thread without waiting for anything; it fills when it is next read."""
        mirror = self._mirrors.get(thread.thread_id)
        if mirror is None:
            mirror = self._mirrors[thread.thread_id] = Mirror(thread)
        return mirror

    async def follow(self, thread: ThreadFeed, feed: Feed | None = None) -> Mirror:
        """Mirror a thread, or fill a feed from what is mirrored already; returns when all that is written is read.

        Raises what the database failed with.
        """
        mirror = self.hold(thread)
        if not mirror.is_recorded:
            await self._record([thread.thread_id])
            mirror.is_recorded = True
        async with self._reading:
            if mirror.cursor == 0:
                if feed is not None:
                    feed.is_whole = True
                await self._read({thread.thread_id: mirror})
            elif feed is not None and not feed.is_whole:
                await self.fill(feed)
                feed.is_whole = True
        return mirror

    async def read(self) -> None:
        """Read what was written on the threads that are mirrored."""
        async with self._reading:
            await self._read(dict(self._mirrors))

    def take(self, chunks: list[Chunk]) -> bool:
        """Take chunks that the bus carried; False when some are to be read instead because others are before them."""
        is_whole = True
        for chunk in chunks:
            mirror = self._mirrors.get(chunk.thread_id)
            if mirror is None or chunk.number <= mirror.cursor:
                continue
            if self._reading.locked() or chunk.number != mirror.cursor + 1:
                is_whole = False
            else:
                self._apply(mirror, chunk)
        return is_whole

    async def settle(self) -> None:
        """Bring what Postgres knows of our interests up to date."""
        gone = self._recorded - set(self._mirrors.keys())
        if gone:
            await self._db.execute(sql.drop_stream_interests, process_id=self._process_id, thread_ids=list(gone))
            self._recorded -= gone
        mirrors = list(self._mirrors.values())
        await self._record([mirror.thread.thread_id for mirror in mirrors if not mirror.is_recorded])
        for mirror in mirrors:
            mirror.is_recorded = True

    def adopt(self, feed: Feed) -> None:
        """Follow a run that went on elsewhere although it was executed here, for those who follow it."""
        feed.is_local, feed.is_whole = False, True
        feed.mirror = self.hold(feed.thread)

    def forget_recorded(self) -> None:
        """Take it that Postgres knows of no interest: this process was taken for dead."""
        for mirror in self._mirrors.values():
            mirror.is_recorded = False

    async def check(self) -> None:
        """End what follows runs that are over, and threads that are no more, whoever ended them."""
        mirrors = dict(self._mirrors)
        if not mirrors:
            return
        feeds = [feed for feed in self._hub.mirrored() if feed.thread.thread_id in mirrors]
        await self._check_runs(feeds)
        rows = await self._db.fetch(sql.threads_that_exist, thread_ids=list(mirrors))
        existing = {row["thread_id"] for row in rows}
        for thread_id, mirror in mirrors.items():
            if thread_id in existing:
                mirror.has_existed = True
            elif mirror.has_existed and not any(feed.thread is mirror.thread for feed in feeds):
                self._hub.drop(thread_id)

    async def _check_runs(self, feeds: list[Feed]) -> None:
        rows = await self._db.fetch(sql.run_statuses, run_ids=[feed.run_id for feed in feeds]) if feeds else []
        states = {row["run_id"]: (row["status"], row["was_begun"], row["reason"]) for row in rows}
        now, seen, self._seen_over = time.monotonic(), self._seen_over, {}
        for feed in feeds:
            status, was_begun, reason = states.get(feed.run_id, ("gone", feed.is_started, None))
            if (status != "gone" and status not in OVER) or feed.is_local:
                continue
            first = self._seen_over[feed.run_id] = seen.get(feed.run_id, now)
            if not was_begun and status != "gone":
                self._hub.end_unbegun(feed, reason or "the run was cancelled before it began")
            elif now - first > SETTLED_S and feed.is_started:
                feed.thread.receive(feed.run_id, [], end=False)
                feed.end()
            elif now - first > SETTLED_S:
                self._hub.end_unbegun(feed, "the run was rolled back before it began")

    async def _record(self, thread_ids: list[UUID]) -> None:
        if not thread_ids:
            return
        await self._db.execute(
            sql.add_stream_interests, process_id=self._process_id, alive_s=ALIVE_S, thread_ids=thread_ids
        )
        self._recorded |= set(thread_ids)

    async def _read(self, mirrors: dict[UUID, Mirror]) -> None:
        while mirrors:
            rows = await self._db.fetch(
                sql.read_stream_chunks,
                thread_ids=list(mirrors),
                cursors=[mirror.cursor for mirror in mirrors.values()],
                limit=CHUNKS_AT_ONCE,
            )
            counts: dict[UUID, int] = {}
            for row in rows:
                chunk = Chunk(**dict(row))
                counts[chunk.thread_id] = counts.get(chunk.thread_id, 0) + 1
                self._apply(mirrors[chunk.thread_id], chunk)
            mirrors = {thread_id: mirrors[thread_id] for thread_id, count in counts.items() if count == CHUNKS_AT_ONCE}

    async def fill(self, feed: Feed) -> None:
        """Give a run's feed all that is written of the run."""
        cursor, count = 0, CHUNKS_AT_ONCE
        while count == CHUNKS_AT_ONCE:
            rows = await self._db.fetch(
                sql.read_run_chunks,
                thread_id=feed.thread.thread_id,
                run_id=feed.run_id,
                cursor=cursor,
                limit=CHUNKS_AT_ONCE,
            )
            for row in rows:
                cursor = row["number"]
                _fill_from(feed, unpack(row["body"]))
            count = len(rows)

    def _apply(self, mirror: Mirror, chunk: Chunk) -> None:
        mirror.cursor = max(mirror.cursor, chunk.number)
        if chunk.writer == self._process_id:
            return
        events = chunk.events()
        self._hub.clock.go_beyond(events[-1].event_id)
        end = next((event.data == b"true" for event in events if event.name == END), None)
        if any(event.name == LOST for event in events):
            mirror.thread.lose()
        told = [event for event in events if event.name not in {END, LAST_WORDS, LOST}]
        feed = self._hub.find(chunk.run_id) if chunk.run_id is not None else None
        if feed is not None and feed.is_whole:
            _fill_from(feed, events)
        if feed is None or not feed.is_local:
            mirror.thread.receive(chunk.run_id, told, end=end)


def _fill_from(feed: Feed, events: list[Event]) -> None:
    """Give a run's feed what is for its followers."""
    own: list[Event] = []
    for event in events:
        if event.name in {LAST_WORDS, END, LOST}:
            break
        own.append(event)
    feed.receive(own)
    if any(event.name == LOST for event in events):
        feed.lose()
    if any(event.name == END for event in events) and not feed.is_local:
        feed.end()
