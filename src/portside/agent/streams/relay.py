"""Joins this process with the others of its database: the log of events, what is mirrored of others, and the hints.

Postgres is asked unasked, too: who lives, who follows what, what was written, what is over. Hints only say when. What
fails is tried again with the next look, so a database that is away makes streams late and nothing else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID, uuid4

from portside.agent.sql import sql
from portside.agent.streams.bus import NOBODY, Bus, Hints
from portside.agent.streams.chunks import Chunk, Telling, unpack
from portside.agent.streams.feed import Feed
from portside.agent.streams.hub import Hub
from portside.agent.streams.log import EventLog
from portside.agent.streams.mirrors import ALIVE_S, Mirror, Mirrors
from portside.agent.streams.reach import Start
from portside.agent.streams.threads import ThreadFeed
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LOOK_S = 1.0
READ_S = 0.5
BREATH_S = 0.005
CATCH_UP_S = 2.0
THREADS_AT_ONCE = 1000
NAMED_AT_ONCE = 150
WITHIN_S = 20.0
# A bus that is slow or stands still is not waited for by those who write; what it does not carry is read where it is.
UNSAID_LIMIT_BYTES = 16 * 1024 * 1024


class Work(NamedTuple):
    """Whom to tell that there are runs to claim, and runs to stop."""

    on_claims: Callable[[], None]
    on_cancels: Callable[[], None]


class PostgresRelay:
    """The relay of a process whose truth is in Postgres, whatever carries the hints."""

    def __init__(self, db: Database, bus: Bus, hub: Hub, work: Work, draining: asyncio.Event) -> None:
        self.has_others = False
        self._db, self._bus, self._hub, self._work = db, bus, hub, work
        self._process_id = uuid4()
        self._draining = draining
        self._log = EventLog(db, self._process_id, self._on_written)
        self._log.on_lost = lambda thread_id, run_id: hub.thread(thread_id).note_lost(run_id)
        self._mirrors = Mirrors(db, self._process_id, hub)
        self._hints = Hints(sender=self._process_id)
        self._chunks: list[Chunk] = []
        self._unsaid_bytes = 0
        self._has_news, self._to_look, self._to_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._check_at = 0.0
        # Threads that others follow, as hints said or as was seen when runs of theirs were here.
        self._followed: set[UUID] = set()
        self._clock_error_s = 60.0
        self._noted: dict[UUID, tuple[str, int]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Join the others. Raises what the database failed with."""
        await self._meet()
        self._log.start()
        await self._bus.open(self._hear)
        self._tasks = [
            asyncio.create_task(loop()) for loop in (self._keep_looking, self._keep_reading, self._keep_saying)
        ]
        self._hints.hello = True
        self._has_news.set()

    async def close(self) -> None:
        """Write what waits, and leave."""
        await self._log.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _try("saying goodbye", lambda: asyncio.wait_for(self._say(), 1.0))
        await self._bus.close()
        await _try("leaving", lambda: self._db.execute(sql.leave_processes, process_id=self._process_id))

    def tell(self, telling: Telling) -> None:
        """Write events down."""
        self._log.tell(telling)

    async def written(self) -> None:
        """Wait until all that was told is written."""
        await self._log.written()

    def look(self) -> None:
        """Look soon who follows what here, and take it that there are others until they are counted."""
        self.has_others = True
        self._to_look.set()

    def say_ended(self, run_id: UUID) -> None:
        """Let others know that a run is over."""
        if self.has_others:
            self._hints.ended.append(run_id)
            self._has_news.set()

    def say_gone(self, thread_id: UUID) -> None:
        """Let others know that a thread is no more; what was written of it goes as well."""
        self._tasks.append(asyncio.create_task(self._forget(thread_id)))

    def say_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Let others know that there are runs to claim or to stop."""
        if self.has_others:
            self._hints.claims = self._hints.claims or claims
            self._hints.cancels = self._hints.cancels or cancels
            self._has_news.set()

    def is_followed(self, thread_id: UUID, /) -> bool:
        """Whether another process follows a thread, as far as is known."""
        return thread_id in self._followed

    def mirrors(self, thread_id: UUID) -> bool:
        """Whether the events that others make of a thread are wanted here."""
        return thread_id in self._mirrors

    async def mirror(self, thread: ThreadFeed, feed: Feed | None = None) -> Mirror:
        """Have what others tell of a thread here, for as long as the result is held. Raises what the database does."""
        mirror = await self._mirrors.follow(thread, feed)
        if self.has_others:
            self._hints.followed.append(thread.thread_id)
            self._has_news.set()
        return mirror

    def adopt(self, feed: Feed) -> bool:
        """Go on following a run that goes on elsewhere; False when this process is about to leave."""
        if self._draining.is_set():
            return False
        self._mirrors.adopt(feed)
        self._to_look.set()
        return True

    async def sequence(self, thread_id: UUID) -> tuple[str, int] | None:
        """Tell the last event of a thread that was numbered, and its number. Raises what the database failed with."""
        row = await self._db.fetchrow(sql.read_stream_sequence, thread_id=thread_id)
        return None if row is None else (row["event_id"], row["seq"])

    async def made_at(self, thread_id: UUID) -> int | None:
        """Tell when a thread was made, by the database's clock. Raises what the database failed with."""
        made_at: int | None = await self._db.fetchval(sql.thread_made_at, thread_id=thread_id)
        return made_at

    async def catch_up(self, start: Start, feed: Feed) -> None:
        """Learn what others told of a run, and of its thread, before this process goes on with it."""
        await _try("catching up", lambda: asyncio.wait_for(self._catch_up(start, feed), CATCH_UP_S))

    async def _catch_up(self, start: Start, feed: Feed) -> None:
        if start.thread_id in self._mirrors:
            await self._mirrors.read()
        if start.was_begun or start.attempt > 1:
            last = await self._db.fetchval(sql.last_stream_chunk, thread_id=start.thread_id)
            if last is not None:
                self._hub.clock.go_beyond(unpack(last)[-1].event_id)
            if start.is_resumable:
                await self._mirrors.fill(feed)

    async def _forget(self, thread_id: UUID) -> None:
        await _try("forgetting a stream", lambda: self._db.execute(sql.forget_stream, thread_id=thread_id))
        self._hints.gone = True
        self._has_news.set()

    def _on_written(self, chunks: list[Chunk]) -> None:
        if not self.has_others or not chunks:
            return
        self._hints.written = list({*self._hints.written, *(chunk.thread_id for chunk in chunks)})
        if self._bus.carries_chunks and self._unsaid_bytes < UNSAID_LIMIT_BYTES:
            self._chunks += chunks
            self._unsaid_bytes += sum(len(chunk.body) for chunk in chunks)
        self._has_news.set()

    def _hear(self, hints: Hints, chunks: list[Chunk]) -> None:
        if hints.sender == self._process_id:
            return
        if hints.hello:
            self.has_others = True
        if hints.sender == NOBODY:
            # The way to the others is open from now on: they do not know of this process yet.
            self._hints.hello = True
            self._has_news.set()
        if hints.claims or hints.many:
            self._work.on_claims()
        if hints.cancels or hints.many:
            self._work.on_cancels()
        if hints.gone:
            self._check_at = 0.0
        self._followed.update(hints.followed)
        if hints.followed or hints.gone or hints.many:
            self._to_look.set()
        self._hear_events(hints, chunks)

    def _hear_events(self, hints: Hints, chunks: list[Chunk]) -> None:
        carried = {chunk.thread_id for chunk in chunks}
        is_named = any(thread_id in self._mirrors and thread_id not in carried for thread_id in hints.written)
        if not self._mirrors.take(chunks) or is_named or hints.many:
            self._to_read.set()
        for feed in self._hub.mirrored() if hints.many else map(self._hub.find, hints.ended):
            if feed is not None:
                feed.nudge()

    async def _keep_looking(self) -> None:
        met_at = time.monotonic()
        while True:
            await _wait(self._to_look, LOOK_S)
            if time.monotonic() - met_at >= LOOK_S:
                met_at = time.monotonic()
                await _try("meeting the other processes", self._meet)
            await _try("looking who follows", self._look)
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + LOOK_S
                await _try("looking what is over", self._mirrors.check)
                await _try("noting how far sequences are", self._note_sequences)
            await _try("settling what is followed", self._mirrors.settle)
            self._tasks = [task for task in self._tasks if not task.done()]
            await asyncio.sleep(BREATH_S)

    async def _keep_reading(self) -> None:
        while True:
            await _wait(self._to_read, READ_S)
            if len(self._mirrors):
                await _try("reading events of other processes", self._mirrors.read)
                await asyncio.sleep(BREATH_S)

    async def _keep_saying(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            await _try("saying hints", self._say)
            await asyncio.sleep(BREATH_S)

    async def _say(self) -> None:
        hints, self._hints = self._hints, Hints(sender=self._process_id)
        chunks, self._chunks, self._unsaid_bytes = self._chunks, [], 0
        if len(hints.written) + len(hints.ended) + len(hints.followed) > NAMED_AT_ONCE and not self._bus.carries_chunks:
            hints = Hints(sender=self._process_id, many=True)
        if not hints.is_empty():
            await self._bus.say(hints, chunks)

    async def _meet(self) -> None:
        began = time.time()
        row = await self._db.fetchrow(sql.meet_processes, process_id=self._process_id, alive_s=ALIVE_S)
        assert row is not None  # noqa: S101 - it always returns one row
        ended = time.time()
        self.has_others = row["others"] > 0
        # The quicker the answer, the better the time in it; an old one is worth a little less with every look.
        self._clock_error_s *= 1.2
        if ended - began < self._clock_error_s:
            self._clock_error_s = ended - began
            self._hub.clock.ahead_s = row["seconds"] - (began + ended) / 2
        if row["was_dead"]:
            self._mirrors.forget_recorded()

    async def _note_sequences(self) -> None:
        positions = self._hub.positions()
        new = {key: position for key, position in positions.items() if position[0] and self._noted.get(key) != position}
        if new:
            event_ids, seqs = zip(*new.values(), strict=True)
            await self._db.execute(
                sql.note_stream_sequences, thread_ids=list(new), event_ids=list(event_ids), seqs=list(seqs)
            )
        self._noted = positions

    async def _look(self) -> None:
        threads = {thread.thread_id: thread for thread in self._hub.untold(THREADS_AT_ONCE)}
        asked = self._followed | set(threads)
        if not asked:
            return
        rows = await self._db.fetch(sql.followed_elsewhere, process_id=self._process_id, thread_ids=list(asked))
        # What was said to be followed meanwhile is asked about the next time.
        self._followed = {row["thread_id"] for row in rows} | (self._followed - asked)
        for thread_id in self._followed & set(threads):
            threads[thread_id].tell_all()


async def _wait(event: asyncio.Event, within_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return
    event.clear()


async def _try(what: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            await work()
    except Exception as exc:  # noqa: BLE001 - whatever it is, the next look may go better
        log.warning("failed, and is tried again", what=what, error=str(exc) or type(exc).__name__)
