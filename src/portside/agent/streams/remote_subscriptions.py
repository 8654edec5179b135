"""The threads that this process follows in other processes: their rows in Postgres, and reading what is written there.

Each follower of a thread in this process holds the thread's `RemoteSubscription`. While it lives, Postgres has a row
for it, and the process that executes a run of the thread writes the run's events to the log. A subscription first reads
all that the log has of its thread, then what is new. Event logs take each event once, so reading twice does no harm.

When to read, and when to compare the rows with the subscriptions, is decided by the transport (`postgres_transport`).
"""

import asyncio
import time
from itertools import takewhile
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.sql import sql
from portside.agent.streams.chunks import Chunk, unpack_events
from portside.agent.streams.event_log import EventLog
from portside.agent.streams.events import CLOSING, END, LOST, MARKERS, StreamEvent
from portside.agent.streams.hub import Hub
from portside.agent.streams.run_stream import RunStream
from portside.agent.types.runs import TERMINAL, RunStatus
from portside.kernel.db import Database

# Other processes take one whose row is older than this for dead.
ALIVE_S = 15.0
CHUNKS_AT_ONCE = 64
# A page of a thread's log ends with the chunk that reaches this.
PAGE_BYTES = 1024 * 1024
# After reading this much, the reader lets other work run.
YIELD_AFTER_BYTES = 16 * 1024
# The status of a run may be known before its last events are. They have this long to arrive.
LAST_EVENTS_WITHIN_S = 1.5


class RemoteSubscription:
    """The subscription of this process to one thread, for as long as somebody holds it."""

    __slots__ = ("__weakref__", "cursor", "has_existed", "is_recorded", "log")

    def __init__(self, log: EventLog) -> None:
        self.log = log
        # The number of the last chunk that was read.
        self.cursor = 0
        # Whether Postgres has a row for it.
        self.is_recorded = False
        # Whether the thread was seen in the database, so that it is deleted when it is not there any more.
        self.has_existed = False


class RemoteSubscriptions:
    """The threads that this process subscribes to."""

    def __init__(self, db: Database, process_id: UUID, hub: Hub) -> None:
        self._db = db
        self._process_id = process_id
        self._hub = hub
        self.by_thread: WeakValueDictionary[UUID, RemoteSubscription] = WeakValueDictionary()
        # The threads of the rows in Postgres, also of subscriptions that are gone.
        self._recorded: set[UUID] = set()
        # When `check` first saw that a run was over, of which this process still has a stream.
        self._seen_over: dict[UUID, float] = {}

        # One reader at a time, because a cursor must not pass a chunk that another reader has not applied yet.
        self._reading = asyncio.Lock()

    async def subscribe(self, log: EventLog, stream: RunStream | None = None) -> RemoteSubscription:
        """Subscribe to a thread; return when all that was written of it, and of a run of it, has been read.

        Raises the error of the database.
        """
        subscription = self._get(log)
        is_unread = subscription.cursor == 0
        if is_unread and stream is not None:
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
        cursor = 0
        has_more = True
        pace = _Pace()
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

                run_events = list(takewhile(lambda event: event.name not in MARKERS, events))
                if run_events and not stream.is_local:
                    stream.log.fill(stream.run_id, run_events)
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
                remaining = self.by_thread.get(thread_id)
                if remaining is not None:
                    remaining.is_recorded = False

        subscriptions = list(self.by_thread.values())
        unrecorded_ids = [item.log.thread_id for item in subscriptions if not item.is_recorded]
        await self._record(unrecorded_ids)
        for subscription in subscriptions:
            subscription.is_recorded = True

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
        run_ids = [stream.run_id for stream in streams]
        rows = await self._db.fetch(sql.run_statuses, run_ids=run_ids) if run_ids else []
        # A run without a row was rolled back, or its thread is deleted.
        states = {
            row["run_id"]: (row["status"], row["was_started"], (row["error"] or {}).get("message")) for row in rows
        }
        now = time.monotonic()
        earlier = self._seen_over
        self._seen_over = {}

        late: list[tuple[RunStream, str | None]] = []
        for stream in streams:
            status, was_started, reason = states.get(stream.run_id, (None, stream.is_started, None))
            if (status is not None and status not in TERMINAL) or stream.is_local:
                continue

            # Its marker is most likely on its way, and ends the stream after its last events.
            first = self._seen_over[stream.run_id] = earlier.get(stream.run_id, now)
            if not was_started and status is not None:
                self._hub.finish_unstarted(stream, reason or "the run was cancelled before it began")
            elif now - first > LAST_EVENTS_WITHIN_S:
                late.append((stream, status))

        if late:
            await self._end_late(late)

    async def _end_late(self, streams: list[tuple[RunStream, str | None]]) -> None:
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
            elif status is None:
                self._hub.finish_unstarted(stream, "the run was rolled back before it began")
            else:
                if stream.is_admitted_here and status == RunStatus.SUCCESS:
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

                chunk = Chunk(
                    thread_id=row["thread_id"],
                    number=row["number"],
                    run_id=row["run_id"],
                    writer=row["writer"],
                    body=row["body"],
                )
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

        log = subscription.log
        events = chunk.events()

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
