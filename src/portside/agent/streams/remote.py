"""Events from other processes: subscriptions to threads, the log in Postgres that they read, and notifications.

Each follower of a thread in this process holds the thread's `RemoteSubscription`. While it lives, Postgres has a row
for it, and the process that executes a run of the thread writes the run's events to the log. A subscription first reads
all that the log has of its thread, then what is new. Event logs take each event once, so reading twice does no harm.

`PostgresTransport` asks Postgres at intervals which processes are alive, which threads they follow, what was written
and what is over. Notifications only make it look earlier: without them streams are slower, never wrong. What fails is
tried again at the next look, so a database that does not respond makes streams late and nothing else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import NamedTuple
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from portside.agent.sql import sql
from portside.agent.streams.bus import NOBODY, Bus, Notification
from portside.agent.streams.event_log import EventLog
from portside.agent.streams.events import CLOSING, END, LOST, MARKERS, Chunk, EventBatch, StreamEvent, unpack_events
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.postgres_log import LogWriter
from portside.agent.streams.run_stream import RunStream
from portside.kernel.db import Database
from portside.kernel.pool import background
from portside.kernel.supervision import Supervision
from portside.kernel.transient_errors import is_transient, log_failure

LOOK_S = 1.0
READ_S = 0.5
# Both periods while the server rests. Well below ALIVE_S, after which other processes take this one for dead.
RESTING_LOOK_S = 5.0
# A pause between two rounds of a loop, in which notifications gather.
PAUSE_S = 0.005
WITHIN_S = 20.0
RETRY_AFTER_S = 0.5
ALIVE_S = 15.0
THREADS_AT_ONCE = 1000
# Postgres refuses notifications of 8,000 bytes or more. One that would name more ids says `many` instead.
NAMED_AT_ONCE = 150
# Of chunks that a slow bus has not carried yet. Above this, the other processes read them from Postgres.
UNSENT_LIMIT_BYTES = 16 * 1024 * 1024
CHUNKS_AT_ONCE = 64
# A page of a thread's log ends with the chunk that reaches this.
PAGE_BYTES = 1024 * 1024
# After reading this much, the reader lets other work run.
YIELD_AFTER_BYTES = 16 * 1024
# The status of a run may be known before its last events are. They have this long to arrive.
LAST_EVENTS_WITHIN_S = 1.5
OVER = frozenset({"success", "error", "timeout", "interrupted"})


class WorkCallbacks(NamedTuple):
    """The worker's callbacks, for notifications of other processes about runs to claim or to cancel."""

    on_claims: Callable[[], None]
    on_cancels: Callable[[], None]


class RemoteSubscription:
    """The subscription of this process to one thread, for as long as somebody holds it."""

    __slots__ = ("__weakref__", "cursor", "has_existed", "is_recorded", "log")

    def __init__(self, log: EventLog) -> None:
        self.log = log
        # The number of the last chunk that was read.
        self.cursor = 0
        self.is_recorded = self.has_existed = False


class RemoteSubscriptions:
    """The threads that this process subscribes to."""

    def __init__(self, db: Database, process_id: UUID, hub: Hub) -> None:
        self._db = db
        self._process_id = process_id
        self._hub = hub
        self.by_thread: WeakValueDictionary[UUID, RemoteSubscription] = WeakValueDictionary()
        self._recorded: set[UUID] = set()
        self._seen_over: dict[UUID, float] = {}
        # One reader at a time, because a cursor must not pass a chunk that another reader has not applied yet.
        self._reading = asyncio.Lock()

    async def subscribe(self, log: EventLog, stream: RunStream | None = None) -> RemoteSubscription:
        """Subscribe to a thread; return when all that was written of it, and of a run of it, has been read.

        Raises the error of the database.
        """
        subscription = self._get(log)
        if (is_unread := subscription.cursor == 0) and stream is not None:
            # Nothing was read before this run had a stream here: it gets everything, though `read` may come first.
            stream.is_complete = True
        # Recorded before it reads: what is written later is written for it, and what was written before is read below.
        if not subscription.is_recorded:
            await self._record([log.thread_id])
            subscription.is_recorded = True
        async with self._reading:
            if is_unread:
                await self._read({log.thread_id: subscription})
            elif stream is not None and not stream.is_complete:
                # The thread was read before this run had a stream here, so its events may not have been kept.
                await self.fill(stream)
                stream.is_complete = True
        return subscription

    def follow_elsewhere(self, stream: RunStream) -> None:
        """Continue to follow a run that this process executed and another one continues with."""
        stream.continue_elsewhere(self._get(stream.log))

    async def read(self) -> None:
        """Read what was written of all subscribed threads."""
        async with self._reading:
            await self._read(dict(self.by_thread))

    def take(self, chunks: list[Chunk]) -> bool:
        """Take chunks that the bus carried; False if some must be read, because others before them are missing."""
        is_complete = True
        for chunk in chunks:
            subscription = self.by_thread.get(chunk.thread_id)
            if subscription is None or chunk.number <= subscription.cursor:
                continue
            # The bus may drop chunks. Taking this one would move the cursor past those that are missing.
            if self._reading.locked() or chunk.number != subscription.cursor + 1:
                is_complete = False
            else:
                self._apply(subscription, chunk)
        return is_complete

    async def fill(self, stream: RunStream) -> None:
        """Read all that was written of a run, for the run's followers alone."""
        cursor, has_more, pace = 0, True, _Pace()
        while has_more:
            rows = await self._db.fetch(
                sql.read_run_chunks,
                thread_id=stream.log.thread_id,
                run_id=stream.run_id,
                cursor=cursor,
                limit=CHUNKS_AT_ONCE,
                page_bytes=PAGE_BYTES,
            )
            for row in rows:
                cursor = row["number"]
                events = unpack_events(row["body"])
                own = list(takewhile(lambda event: event.name not in MARKERS, events))
                if own and not stream.is_local:
                    stream.log.fill(stream.run_id, own)
                    stream.mark_started()
                _pass_markers(events, stream)
                await pace.taken(len(row["body"]))
            has_more = bool(rows) and rows[-1]["has_more"]

    async def sync(self) -> None:
        """Make the rows in Postgres equal the subscriptions of this process."""
        gone = self._recorded - set(self.by_thread.keys())
        if gone:
            await self._db.execute(sql.remove_stream_subscriptions, process_id=self._process_id, thread_ids=list(gone))
            self._recorded -= gone
            # A client may have followed one of them again meanwhile, and the statement has deleted that row as well.
            for thread_id in gone:
                if (subscription := self.by_thread.get(thread_id)) is not None:
                    subscription.is_recorded = False
        subscriptions = list(self.by_thread.values())
        await self._record([each.log.thread_id for each in subscriptions if not each.is_recorded])
        for each in subscriptions:
            each.is_recorded = True

    def forget_recorded(self) -> None:
        """Assume that Postgres has no row of this process: others took it for dead."""
        for subscription in self.by_thread.values():
            subscription.is_recorded = False

    async def check(self) -> None:
        """End the streams of runs that are over and the logs of deleted threads, whichever process ended them."""
        subscriptions = dict(self.by_thread)
        if not subscriptions:
            return
        streams = [stream for stream in self._hub.remote_streams() if stream.log.thread_id in subscriptions]
        await self._check_runs(streams)
        rows = await self._db.fetch(sql.threads_that_exist, thread_ids=list(subscriptions))
        existing = {row["thread_id"] for row in rows}
        for thread_id, subscription in subscriptions.items():
            # A client may follow a thread before it exists. Runs of a deleted thread end first, each with its reason.
            if thread_id in existing:
                subscription.has_existed = True
            elif subscription.has_existed and not any(stream.log is subscription.log for stream in streams):
                self._hub.drop_thread(thread_id)

    async def _check_runs(self, streams: list[RunStream]) -> None:
        rows = await self._db.fetch(sql.run_statuses, run_ids=[each.run_id for each in streams]) if streams else []
        states = {
            row["run_id"]: (row["status"], row["was_started"], (row["error"] or {}).get("message")) for row in rows
        }
        now, seen, self._seen_over = time.monotonic(), self._seen_over, {}
        late: list[tuple[RunStream, str]] = []
        for stream in streams:
            status, was_started, reason = states.get(stream.run_id, ("gone", stream.is_started, None))
            if (status != "gone" and status not in OVER) or stream.is_local:
                continue
            # Its marker is most likely on its way, and ends the stream after its last events.
            first = self._seen_over[stream.run_id] = seen.get(stream.run_id, now)
            if not was_started and status != "gone":
                self._hub.finish_unstarted(stream, reason or "the run was cancelled before it began")
            elif now - first > LAST_EVENTS_WITHIN_S:
                late.append((stream, status))
        if late:
            await self._end_late(late)

    async def _end_late(self, streams: list[tuple[RunStream, str]]) -> None:
        """End streams of runs that are over, without their last marker, once all that was written has been read.

        The process that would have written the marker died. The log is read once more because a run's status and its
        events are written in different transactions: what was read last may be older than the status.
        """
        await self.read()
        for stream, status in streams:
            # The read may have found the marker. And a stream is opened before its run is admitted: a run that seemed
            # gone may have begun here meanwhile.
            if stream.ended.is_set() or stream.is_local:
                continue
            if stream.is_started:
                stream.log.receive(stream.run_id, [], end=False)
                stream.end()
            elif status == "gone":
                self._hub.finish_unstarted(stream, "the run was rolled back before it began")
            else:
                if stream.is_admitted_here and status == "success":
                    # These clients were to get every event, and the executing process died before it wrote any. A run
                    # that was cancelled after its first worker had died may have no events.
                    stream.fail_followers()
                stream.end()

    def _get(self, log: EventLog) -> RemoteSubscription:
        subscription = self.by_thread.get(log.thread_id)
        if subscription is None:
            subscription = self.by_thread[log.thread_id] = RemoteSubscription(log)
        return subscription

    async def _record(self, thread_ids: list[UUID]) -> None:
        if not thread_ids:
            return
        await self._db.execute(
            sql.add_stream_subscriptions, process_id=self._process_id, alive_s=ALIVE_S, thread_ids=thread_ids
        )
        self._recorded |= set(thread_ids)

    async def _read(self, subscriptions: dict[UUID, RemoteSubscription]) -> None:
        pace = _Pace()
        while subscriptions:
            rows = await self._db.fetch(
                sql.read_stream_chunks,
                thread_ids=list(subscriptions),
                cursors=[subscription.cursor for subscription in subscriptions.values()],
                limit=CHUNKS_AT_ONCE,
                page_bytes=PAGE_BYTES,
            )
            for row in rows:
                subscription = subscriptions[row["thread_id"]]
                if row["body"] is None:
                    # The events cannot be decrypted.
                    subscription.cursor = max(subscription.cursor, row["number"])
                    subscription.log.fail_followers()
                    if row["run_id"] is not None and (stream := self._hub.find(row["run_id"])) is not None:
                        stream.fail_followers()
                    continue
                chunk = Chunk(row["thread_id"], row["number"], row["run_id"], row["writer"], row["body"])
                self._apply(subscription, chunk)
                await pace.taken(len(chunk.body))
            subscriptions = {row["thread_id"]: subscriptions[row["thread_id"]] for row in rows if row["has_more"]}

    def _apply(self, subscription: RemoteSubscription, chunk: Chunk) -> None:
        subscription.cursor = max(subscription.cursor, chunk.number)
        # It may be deleted before `check` sees its row, and its followers must end then.
        subscription.has_existed = True
        if chunk.writer == self._process_id:
            # The event log has had these events since they were published.
            return
        log, events = subscription.log, chunk.events()
        # A run that this process claims next must continue with greater ids.
        self._hub.clock.advance_past(events[-1].event_id)
        if any(event.name == LOST for event in events):
            log.fail_followers()
        stream = self._hub.find(chunk.run_id) if chunk.run_id is not None else None
        # This process executes a local run itself: what others wrote of it is of an earlier attempt.
        if stream is None or not stream.is_local:
            end = next((event.data == b"true" for event in events if event.name == END), None)
            closing_id = next((event.event_id for event in events if event.name == CLOSING), "")
            plain = [event for event in events if event.name not in MARKERS]
            log.receive(chunk.run_id, plain, closing_id=closing_id, end=end)
            if stream is not None and events[0].name not in MARKERS:
                stream.mark_started()
        if stream is not None:
            _pass_markers(events, stream)


class _Pace:
    """Lets other work run between chunks: not after each, because there may be very many small ones."""

    def __init__(self) -> None:
        self._size = 0

    async def taken(self, size: int) -> None:
        """Note that a chunk was taken."""
        self._size += size
        if self._size > YIELD_AFTER_BYTES:
            self._size = 0
            await asyncio.sleep(0)


def _pass_markers(events: list[StreamEvent], stream: RunStream) -> None:
    """Fail or end a run's followers where markers among its events say so."""
    if any(event.name == LOST for event in events):
        stream.fail_followers()
    if any(event.name == END for event in events) and not stream.is_local:
        stream.end()


class PostgresTransport:
    """The transport of a process that shares its Postgres with others, whatever bus carries the notifications."""

    def __init__(self, db: Database, bus: Bus, hub: Hub, work: WorkCallbacks, draining: asyncio.Event) -> None:
        self.has_others = False
        self._db, self._bus, self._hub, self._work = db, bus, hub, work
        self._process_id = uuid4()
        self._draining = draining
        self._log = LogWriter(db, self._process_id, self._on_written)
        self._log.on_lost = lambda thread_id, run_id: hub.log_of(thread_id).note_lost(run_id)
        self._subscriptions = RemoteSubscriptions(db, self._process_id, hub)
        # Gathers until the next one is sent.
        self._notification = Notification(sender=self._process_id)
        self._unsent_chunks: list[Chunk] = []
        self._unsent_bytes = 0
        self._has_news, self._to_look, self._to_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._check_at = 0.0
        self._look_s, self._read_s = LOOK_S, READ_S
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        self._look_s, self._read_s = (RESTING_LOOK_S, RESTING_LOOK_S) if is_resting else (LOOK_S, READ_S)
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
            last = await self._db.fetchval(sql.last_stream_chunk, thread_id=start.thread_id)
            if last is not None:
                self._hub.clock.advance_past(unpack_events(last)[-1].event_id)
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
        carried = {chunk.thread_id for chunk in chunks}
        is_named = any(each in self._subscriptions.by_thread and each not in carried for each in news.written)
        if not self._subscriptions.take(chunks) or is_named or news.many:
            self._to_read.set()
        for stream in self._hub.remote_streams() if news.many else map(self._hub.find, news.ended):
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
        news, self._notification = self._notification, Notification(sender=self._process_id)
        chunks, self._unsent_chunks, self._unsent_bytes = self._unsent_chunks, [], 0
        if len(news.written) + len(news.ended) + len(news.followed) > NAMED_AT_ONCE and not self._bus.carries_chunks:
            news = Notification(sender=self._process_id, many=True)
        if not news.is_empty():
            await self._bus.send(news, chunks)

    async def _renew(self) -> None:
        """Renew this process's row, count the others, and compare the clocks."""
        began = time.time()
        row = await self._db.fetchrow(sql.renew_stream_process, process_id=self._process_id, alive_s=ALIVE_S)
        assert row is not None  # noqa: S101 - it always returns one row
        self._hub.clock.compare(row["seconds"], began, time.time())
        self.has_others = row["others"] > 0
        if row["was_dead"]:
            self._subscriptions.forget_recorded()

    async def _store_positions(self) -> None:
        positions = self._hub.positions()
        stored = self._stored_positions
        new = {key: position for key, position in positions.items() if position[0] and stored.get(key) != position}
        if new:
            event_ids, seqs = zip(*new.values(), strict=True)
            await self._db.execute(
                sql.store_stream_sequences, thread_ids=list(new), event_ids=list(event_ids), seqs=list(seqs)
            )
        self._stored_positions = positions

    async def _share_followed(self) -> None:
        """Look up which threads others follow, and write the events of these that they do not have."""
        logs = {log.thread_id: log for log in self._hub.unshared_logs(THREADS_AT_ONCE)}
        candidates = self.followed_elsewhere | set(logs)
        if not candidates:
            return
        rows = await self._db.fetch(sql.followed_elsewhere, process_id=self._process_id, thread_ids=list(candidates))
        # Threads that notifications named meanwhile are looked up the next time.
        self.followed_elsewhere = {row["thread_id"] for row in rows} | (self.followed_elsewhere - candidates)
        for thread_id in self.followed_elsewhere & set(logs):
            logs[thread_id].share()


async def _wait(event: asyncio.Event, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return
    event.clear()


async def _try(what: str, work: Callable[[], Awaitable[object]], within_s: float = WITHIN_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            await work()
    except Exception as exc:  # noqa: BLE001 - whatever it is, the next look may succeed
        log_failure(f"{what} failed, and is tried again", exc)
