"""The transport of events between processes that share a Postgres: who is alive, who follows what, and notifications.

`PostgresTransport` asks Postgres at intervals which processes are alive, which threads they follow, what was written
and what is over. Notifications only make it look earlier: without them streams are slower, never wrong. What fails is
tried again at the next look, so a database that does not respond makes streams late and nothing else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

from portside.agent.sql import sql
from portside.agent.streams.bus import Bus
from portside.agent.streams.chunks import Chunk, EventBatch, unpack_events
from portside.agent.streams.event_log import EventLog
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.notifications import NOBODY, Notification
from portside.agent.streams.postgres_log import LogWriter
from portside.agent.streams.remote_subscriptions import ALIVE_S, RemoteSubscription, RemoteSubscriptions
from portside.agent.streams.run_stream import RunStream
from portside.kernel.db import Database
from portside.kernel.pool import background
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most
from portside.kernel.transient_errors import is_transient, log_failure

LOOK_S = 1.0
READ_S = 0.5
# Both periods while the server rests. Well below ALIVE_S, after which other processes take this one for dead.
RESTING_LOOK_S = 5.0
# A pause between two rounds of a loop, in which notifications gather.
PAUSE_S = 0.005
WITHIN_S = 20.0
RETRY_AFTER_S = 0.5
THREADS_AT_ONCE = 1000
# Postgres refuses notifications of 8,000 bytes or more. One that would name more ids says `many` instead.
NAMED_AT_ONCE = 150
# Of chunks that a slow bus has not carried yet. Above this, the other processes read them from Postgres.
UNSENT_LIMIT_BYTES = 16 * 1024 * 1024


class WorkCallbacks(NamedTuple):
    """The worker's callbacks, for notifications of other processes about runs to claim or to cancel."""

    on_claims: Callable[[], None]
    on_cancels: Callable[[], None]


class PostgresTransport:
    """The transport of a process that shares its Postgres with others, whatever bus carries the notifications."""

    def __init__(self, db: Database, bus: Bus, hub: Hub, work: WorkCallbacks, draining: asyncio.Event) -> None:
        self.has_others = False
        self._db = db
        self._bus = bus
        self._hub = hub
        self._work = work
        self._process_id = uuid4()
        self._draining = draining

        self._log = LogWriter(
            db,
            self._process_id,
            on_written=self._on_written,
            on_lost=lambda thread_id, run_id: hub.get_log(thread_id).note_lost(run_id),
        )

        self._subscriptions = RemoteSubscriptions(db, self._process_id, hub)

        # Gathers until the next one is sent.
        self._notification = Notification(sender=self._process_id)
        self._unsent_chunks: list[Chunk] = []
        self._unsent_bytes = 0
        self._has_news = asyncio.Event()
        self._to_look = asyncio.Event()
        self._to_read = asyncio.Event()
        self._check_at = 0.0

        self._look_s = LOOK_S
        self._read_s = READ_S
        self.subscribed = self._subscriptions.by_thread
        """The threads whose events this process follows from other processes."""

        self.followed_elsewhere: set[UUID] = set()
        """The threads that others follow, as far as notifications and the last look say."""
        self._stored_positions: dict[UUID, tuple[str, int]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect. Raises the error of the database."""
        await self._renew()
        await self._bus.open(self._on_notification)
        loops = {
            "looks at other processes": self._keep_looking,
            "reads of events": self._keep_reading,
            "notifications to other processes": self._keep_notifying,
        }

        self._tasks = [asyncio.create_task(Supervision(name).run(loop)) for name, loop in loops.items()]
        self._notification.hello = True
        self._has_news.set()

    async def close(self) -> None:
        """Write what waits, and disconnect."""
        await self._log.close()

        await cancel_and_wait(*self._tasks)
        await _try("sending the last notification", self._notify, within_s=1.0)
        await self._bus.close()
        await _try("leaving", lambda: self._db.execute(sql.remove_stream_process, process_id=self._process_id))

    def write(self, batch: EventBatch) -> None:
        """Write events to the log in Postgres."""
        self._log.write(batch)

    async def flush(self) -> None:
        """Wait until all events that were given to `write` are in the log."""
        await self._log.flush()

    def rest(self, *, is_resting: bool) -> None:
        """Look less often while nothing happens, or as often as before."""
        self._look_s = RESTING_LOOK_S if is_resting else LOOK_S
        self._read_s = RESTING_LOOK_S if is_resting else READ_S
        if not is_resting:
            self._to_look.set()
            self._to_read.set()

    def check_subscriptions(self) -> None:
        """Soon look which threads others follow; assume that there are others until they are counted."""
        self.has_others = True
        self._to_look.set()

    def notify_run_ended(self, run_id: UUID) -> None:
        """Notify others that a run is over."""
        if self.has_others:
            self._notification.ended.append(run_id)
            self._has_news.set()

    def delete_threads(self, thread_ids: Sequence[UUID]) -> None:
        """Notify others that threads were deleted, and delete their logs in Postgres."""
        self._tasks.append(asyncio.create_task(self._delete_logs(thread_ids)))

    def notify_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Notify others of runs to claim or to cancel."""
        if self.has_others:
            self._notification.claims = self._notification.claims or claims
            self._notification.cancels = self._notification.cancels or cancels
            self._has_news.set()

    async def subscribe(self, log: EventLog, stream: RunStream | None = None) -> RemoteSubscription:
        """Follow a thread's events from other processes while the caller holds the result; read those so far now.

        Raises the error of the database.
        """
        subscription = await self._subscriptions.subscribe(log, stream)
        if self.has_others:
            self._notification.followed.append(log.thread_id)
            self._has_news.set()

        return subscription

    def follow_elsewhere(self, stream: RunStream) -> bool:
        """Follow a run that another process continues; return False if this process is about to stop."""
        if self._draining.is_set():
            return False

        self._subscriptions.follow_elsewhere(stream)
        self._to_look.set()
        return True

    async def last_numbered(self, thread_id: UUID) -> tuple[str, int] | None:
        """Return the last event of a thread that the event streaming protocol numbered, and its number, if stored.

        Raises the error of the database.
        """
        row = await self._db.fetchrow(sql.read_stream_sequence, thread_id=thread_id)
        return None if row is None else (row["event_id"], row["seq"])

    async def thread_created_at(self, thread_id: UUID) -> int | None:
        """Return when a thread was created, by the database's clock. Raises the error of the database."""
        created_at: int | None = await self._db.fetchval(sql.thread_created_at, thread_id=thread_id)
        return created_at

    async def catch_up(self, start: AttemptStart, stream: RunStream) -> None:
        """Read the earlier events of a run and of its thread before this process continues with the run.

        The run waits until they are read, as long as its lease lasts: once it is local, its earlier events would come
        after its later ones, so they would be missing in every stream. Events that cannot be read at all end the
        followers with an error.
        """
        while True:
            try:
                await self._catch_up(start, stream)
            except Exception as exc:  # noqa: BLE001 - a run does not fail because of its streams
                log_failure("reading the earlier events of a run failed", exc, run_id=str(start.run_id))

                if not is_transient(exc):
                    stream.log.fail_followers()
                    stream.fail_followers()
                    break
            else:
                break

            await asyncio.sleep(RETRY_AFTER_S)

    async def _catch_up(self, start: AttemptStart, stream: RunStream) -> None:
        if start.thread_id in self._subscriptions.by_thread:
            await self._subscriptions.read()

        if start.was_started or start.attempt > 1:
            last_chunk = await self._db.fetchval(sql.last_stream_chunk, thread_id=start.thread_id)
            if last_chunk is not None:
                self._hub.clock.advance_past(unpack_events(last_chunk)[-1].event_id)

            if start.is_resumable:
                await self._subscriptions.fill(stream)

    async def _delete_logs(self, thread_ids: Sequence[UUID]) -> None:
        await _try("deleting streams", lambda: self._db.execute(sql.delete_streams, thread_ids=thread_ids))
        self._notification.gone = True
        self._has_news.set()

    def _on_written(self, chunks: list[Chunk]) -> None:
        if not self.has_others or not chunks:
            return

        self._notification.written = list({*self._notification.written, *(chunk.thread_id for chunk in chunks)})
        if self._bus.carries_chunks and self._unsent_bytes < UNSENT_LIMIT_BYTES:
            self._unsent_chunks += chunks
            self._unsent_bytes += sum(len(chunk.body) for chunk in chunks)

        self._has_news.set()

    def _on_notification(self, news: Notification, chunks: list[Chunk]) -> None:
        if news.sender == self._process_id:
            return

        if news.hello:
            self.has_others = True

        if news.sender == NOBODY:
            # The bus was just connected: the others do not know of this process yet.
            self._notification.hello = True
            self._has_news.set()

        if news.claims or news.many:
            self._work.on_claims()

        if news.cancels or news.many:
            self._work.on_cancels()

        if news.gone:
            self._check_at = 0.0

        self.followed_elsewhere.update(news.followed)
        if news.followed or news.gone or news.many:
            self._to_look.set()

        self._on_events(news, chunks)

    def _on_events(self, news: Notification, chunks: list[Chunk]) -> None:
        unread_threads = set(news.written) - {chunk.thread_id for chunk in chunks}
        must_read = news.many or any(thread_id in self._subscriptions.by_thread for thread_id in unread_threads)
        if not self._subscriptions.take(chunks) or must_read:
            self._to_read.set()

        streams = self._hub.remote_streams() if news.many else map(self._hub.find, news.ended)
        for stream in streams:
            if stream is not None:
                stream.wake()

    async def _keep_looking(self) -> None:
        with background():
            renewed_at = time.monotonic()
            while True:
                await _wait(self._to_look, self._look_s)
                if time.monotonic() - renewed_at >= LOOK_S:
                    renewed_at = time.monotonic()
                    await _try("meeting the other processes", self._renew)

                await _try("looking up who follows which thread", self._share_followed)

                if time.monotonic() >= self._check_at:
                    self._check_at = time.monotonic() + LOOK_S
                    await _try("looking up what is over", self._subscriptions.check)
                    await _try("storing the numbers of events", self._store_positions)

                await _try("storing what this process follows", self._subscriptions.sync)
                self._tasks = [task for task in self._tasks if not task.done()]
                await asyncio.sleep(PAUSE_S)

    async def _keep_reading(self) -> None:
        while True:
            await _wait(self._to_read, self._read_s)
            if self._subscriptions.by_thread:
                await _try("reading events of other processes", self._subscriptions.read)
                await asyncio.sleep(PAUSE_S)

    async def _keep_notifying(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            await _try("sending a notification", self._notify)
            await asyncio.sleep(PAUSE_S)

    async def _notify(self) -> None:
        news = self._notification
        self._notification = Notification(sender=self._process_id)
        chunks = self._unsent_chunks
        self._unsent_chunks = []
        self._unsent_bytes = 0

        id_count = len(news.written) + len(news.ended) + len(news.followed)
        if id_count > NAMED_AT_ONCE and not self._bus.carries_chunks:
            news = Notification(sender=self._process_id, many=True)

        if not news.is_empty():
            await self._bus.send(news, chunks)

    async def _renew(self) -> None:
        """Renew this process's row, count the others, and compare the clocks."""
        started_at = time.time()
        row = await self._db.fetchrow(sql.renew_stream_process, process_id=self._process_id, alive_s=ALIVE_S)
        assert row is not None  # noqa: S101 - it always returns one row
        self._hub.clock.compare(row["seconds"], started_at, time.time())

        self.has_others = row["others"] > 0
        if row["was_dead"]:
            self._subscriptions.forget_recorded()

    async def _store_positions(self) -> None:
        positions = self._hub.positions()
        earlier = self._stored_positions

        new = {key: position for key, position in positions.items() if position[0] and earlier.get(key) != position}
        if new:
            await self._db.execute(
                sql.store_stream_sequences,
                thread_ids=list(new),
                event_ids=[event_id for event_id, _ in new.values()],
                seqs=[seq for _, seq in new.values()],
            )

        self._stored_positions = positions

    async def _share_followed(self) -> None:
        """Look up which threads others follow, and write the events of these that they do not have."""
        began_at = time.monotonic()
        logs = {log.thread_id: log for log in self._hub.unshared_logs(THREADS_AT_ONCE)}
        candidates = self.followed_elsewhere | set(logs)
        if not candidates:
            self._hub.note_look(began_at)
            return

        rows = await self._db.fetch(sql.followed_elsewhere, process_id=self._process_id, thread_ids=list(candidates))
        # Threads that notifications named meanwhile are looked up the next time.
        self.followed_elsewhere = {row["thread_id"] for row in rows} | (self.followed_elsewhere - candidates)
        for thread_id in self.followed_elsewhere & set(logs):
            logs[thread_id].share()

        self._hub.note_look(began_at)


async def _wait(event: asyncio.Event, within_s: float) -> None:
    if await wait_at_most(within_s, event.wait()):
        event.clear()


async def _try(what: str, work: Callable[[], Awaitable[object]], within_s: float = WITHIN_S) -> None:
    try:
        async with timeout(within_s):
            await work()
    except Exception as exc:  # noqa: BLE001 - whatever it is, the next look may succeed
        log_failure(f"{what} failed, and is tried again", exc)
