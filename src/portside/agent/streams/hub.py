"""Finds the event logs of threads and the streams of runs in this process.

Events of runs in this process reach their followers without a hop. A `Transport` brings events from other processes
and takes those that others want; `NullTransport` is for a process that is alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple, Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.streams.chunks import EventBatch
from portside.agent.streams.event_log import SHARE_WITHIN_S, EventLog, KeptSegments, LogSubscription
from portside.agent.streams.events import EventClock, Position, RunEnd, ThreadMode
from portside.agent.streams.replay_budget import ReplayBudget, ReplayLimits
from portside.agent.streams.run_stream import RunStream
from portside.executor.requests import LifecycleEvent
from portside.kernel.codec import dump_api

EPHEMERAL_LIMIT_BYTES = 64 * 1024 * 1024
CLOSING_EVENTS_LIMIT = 16
# The clock of a process that just connected to a busy database may be off by this much. A client may therefore get
# events of a deleted thread with the same id, which is better than losing events of its own.
CLOCK_ERROR_MS = 1000
# After this time without a look, old events are forgotten all the same.
LOOK_WITHIN_S = 60.0


class AttemptStart(NamedTuple):
    """The start of an attempt at a run. Events of a temporary thread are not kept after its run."""

    run_id: UUID
    thread_id: UUID
    graph_id: str
    attempt: int
    is_resumable: bool
    is_temporary: bool
    was_started: bool = False
    is_streamed_elsewhere: bool = False


class Transport(Protocol):
    """The hub's connection to other processes."""

    has_others: bool

    @property
    def followed_elsewhere(self) -> Container[UUID]:
        """The threads that other processes follow, as far as this one knows."""
        ...

    @property
    def subscribed(self) -> Container[UUID]:
        """The threads whose events this process follows from other processes."""
        ...

    async def start(self) -> None:
        """Connect. Raises the error of the database."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    def write(self, batch: EventBatch) -> None:
        """Write events to the log in Postgres."""
        ...

    async def flush(self) -> None:
        """Wait until all events that were given to `write` are in the log."""
        ...

    def rest(self, *, is_resting: bool) -> None:
        """Look less often while nothing happens, or as often as before."""
        ...

    def check_subscriptions(self) -> None:
        """Soon look which threads others follow; assume that there are others until they are counted."""
        ...

    def notify_run_ended(self, run_id: UUID) -> None:
        """Notify others that a run is over."""
        ...

    def delete_threads(self, thread_ids: Sequence[UUID]) -> None:
        """Notify others that threads were deleted, and delete their logs in Postgres."""
        ...

    def notify_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Notify others of runs to claim or to cancel."""
        ...

    async def subscribe(self, log: EventLog, stream: RunStream | None = None, /) -> object:
        """Follow a thread's events from other processes while the caller holds the result; read those so far now."""
        ...

    async def last_numbered(self, thread_id: UUID, /) -> tuple[str, int] | None:
        """Return the last event of a thread that the event streaming protocol numbered, and its number, if stored."""
        ...

    async def thread_created_at(self, thread_id: UUID, /) -> int | None:
        """Return when a thread was created, in milliseconds as event ids have them; None if it does not exist."""
        ...

    def follow_elsewhere(self, stream: RunStream, /) -> bool:
        """Follow a run that another process continues; return False if this process is about to stop."""
        ...

    async def catch_up(self, start: AttemptStart, stream: RunStream) -> None:
        """Read the earlier events of a run and of its thread before this process continues the run."""
        ...


class NullTransport:
    """The transport of a process that is alone: nothing is sent, and nothing arrives."""

    has_others = False
    followed_elsewhere: Container[UUID] = ()
    subscribed: Container[UUID] = ()

    async def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def write(self, batch: EventBatch) -> None:
        """Do nothing."""

    async def flush(self) -> None:
        """Return at once."""

    def rest(self, *, is_resting: bool) -> None:
        """Do nothing."""

    def check_subscriptions(self) -> None:
        """Do nothing."""

    def notify_run_ended(self, run_id: UUID) -> None:
        """Do nothing."""

    def delete_threads(self, thread_ids: Sequence[UUID]) -> None:
        """Do nothing."""

    def notify_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Do nothing."""

    async def subscribe(self, _log: EventLog, _stream: RunStream | None = None, /) -> object:
        """Return None."""
        return None

    async def last_numbered(self, _thread_id: UUID, /) -> tuple[str, int] | None:
        """Return None."""
        return None

    async def thread_created_at(self, _thread_id: UUID, /) -> int | None:
        """Return None."""
        return None

    def follow_elsewhere(self, _stream: RunStream, /) -> bool:
        """Return False."""
        return False

    async def catch_up(self, start: AttemptStart, stream: RunStream) -> None:
        """Return at once."""


class Hub:
    """The event logs and run streams of this process. Each lives for as long as somebody follows, fills or keeps it."""

    def __init__(self, *, keep_s: float, replays: ReplayLimits | None = None) -> None:
        self.clock = EventClock()
        self.replays = ReplayBudget(replays)
        self.transport: Transport = NullTransport()

        # Whether the process is about to end: followers and waiting clients must then connect to another process.
        self.is_stopped = False
        # Weak: followers, running graphs and the collections below hold what they need, and nothing has to clean up.
        self._streams: WeakValueDictionary[UUID, RunStream] = WeakValueDictionary()
        self._logs: WeakValueDictionary[UUID, EventLog] = WeakValueDictionary()
        self._running: dict[UUID, RunStream] = {}

        # Resumable runs that ended, and announced runs that have not started.
        self._kept_streams: set[RunStream] = set()
        self._keep_s = keep_s
        self._closing_ids: dict[UUID, list[str]] = {}

        # Logs of threads whose last run ended, or whose state was changed, so recently that another process's
        # subscription may still be on its way.
        self._recently_changed: deque[tuple[float, EventLog]] = deque()
        self._kept = KeptSegments(keep_s)
        self._kept_briefly = KeptSegments(SHARE_WITHIN_S, EPHEMERAL_LIMIT_BYTES, read_clock=lambda: self.looked_at)
        self._looked_at: float | None = None

    @asynccontextmanager
    async def connected(self, make_transport: Callable[["Hub"], Transport]) -> AsyncIterator[None]:
        """Stay connected with the other processes of the database. Raises the error of the database."""
        self.transport = make_transport(self)
        await self.transport.start()
        try:
            yield
        finally:
            await self.transport.close()

    def rest(self, *, is_resting: bool) -> None:
        """Look less often for news of other processes while the server rests, or as often as before."""
        self.transport.rest(is_resting=is_resting)

    def get_log(self, thread_id: UUID) -> EventLog:
        """Return the log of a thread, which need not exist yet."""
        log = self._logs.get(thread_id)
        if log is None:
            log = self._logs[thread_id] = EventLog(
                thread_id, clock=self.clock, kept_segments=self._kept, replays=self.replays, sink=self
            )

        return log

    def open(self, run_id: UUID, thread_id: UUID, *, is_resumable: bool) -> RunStream:
        """Return the stream of a run; create it if there is none that continues."""
        stream = self._streams.get(run_id)
        if stream is None or stream.ended.is_set():
            log = self.get_log(thread_id)
            stream = self._streams[run_id] = RunStream(run_id, log, self.clock, is_resumable=is_resumable)

        return stream

    def find(self, run_id: UUID) -> RunStream | None:
        """Return the stream of a run, or None if nobody in this process uses it."""
        return self._streams.get(run_id)

    async def prepare(self, start: AttemptStart) -> RunStream:
        """Open the stream of a run that is about to start here, and read its earlier events; mostly there are none."""
        # Whether this process admitted the run, or has a client that waits for it.
        is_expected = start.run_id in self._streams
        stream = self.open(start.run_id, start.thread_id, is_resumable=start.is_resumable)
        if start.was_started or start.attempt > 1 or start.thread_id in self.transport.subscribed:
            await self.transport.catch_up(start, stream)
        elif start.is_streamed_elsewhere or (not is_expected and self.transport.has_others):
            # Another process admitted it, and its clients may follow by now. Looking is not awaited: the log keeps the
            # run's first events until it is known who wants them.
            self.transport.check_subscriptions()

        return stream

    def begin(self, start: AttemptStart) -> RunStream:
        """Open the stream of a run that this process executes from now on, and publish its first events."""
        stream = self.open(start.run_id, start.thread_id, is_resumable=start.is_resumable)
        stream.begin(is_temporary=start.is_temporary, is_resumable=start.is_resumable)

        # A resumable run is logged for nobody yet: its client may come back through another process.
        is_logged = (
            start.is_resumable or start.is_streamed_elsewhere or start.thread_id in self.transport.followed_elsewhere
        )
        stream.log.start(start.run_id, attempt=start.attempt, is_logged=is_logged)

        self._running[start.run_id] = stream
        stream.publish(
            [
                ("metadata", dump_api({"run_id": str(start.run_id), "attempt": start.attempt})),
                ("@lifecycle", dump_api({"event": LifecycleEvent.RUNNING, "graph_name": start.graph_id})),
            ]
        )

        return stream

    def pending_writes(self, stream: RunStream) -> Awaitable[None] | None:
        """Return a wait for a run's events to be in the log, or None if no other process wants them. Thread-safe."""
        return self.transport.flush() if stream.log.is_logged(stream.run_id) else None

    async def flush_run(self, run_id: UUID) -> None:
        """Write a run's events before its end is committed: then the thread's next run may start in another process.

        The closing events are written after the end, under ids that are taken here, before those of the next run.
        """
        stream = self._running.get(run_id)
        if stream is not None and stream.log.is_logged(run_id):
            self._closing_ids[run_id] = [self.clock.next() for _ in range(CLOSING_EVENTS_LIMIT)]
            await self.transport.flush()

    def finish(self, run_id: UUID, end: RunEnd | None, result: object = None) -> None:
        """End the stream of a run with its result. Without an end the run continues in another process."""
        stream = self._running.pop(run_id, None) or self._streams.get(run_id)
        if stream is None:
            return

        # A run that was handed back continues in whichever process claims it next. Its clients stay connected here and
        # get the events of that process, unless this one stops too.
        if end is not None:
            stream.end(result)
        elif not stream.followers() or not self.transport.follow_elsewhere(stream):
            self._cut(stream)

        # Other processes find the end of a private run at their next look, without a notification.
        is_private = stream.is_private and end is not None and not stream.log.is_logged(run_id)

        keeper: KeptSegments | None = self._kept
        if stream.is_temporary:
            # The thread is deleted with its run, so only followers in other processes may still miss its events.
            keeper = self._kept_briefly if self.transport.has_others else None

        stream.log.finish(run_id, end, keeper=keeper, ids=self._closing_ids.pop(run_id, ()))

        if not stream.is_temporary or self.transport.has_others:
            self._keep_unshared(stream.log)

        if not is_private:
            self.transport.notify_run_ended(run_id)

        if stream.segment.is_resumable and end is not None:
            self._kept_streams.add(stream)
            asyncio.get_running_loop().call_later(self._keep_s, self._kept_streams.discard, stream)

    def stop(self) -> None:
        """Cut the streams that are left, of runs and of threads: this process executes nothing any more."""
        self.is_stopped = True
        for stream in list(self._streams.values()):
            if not stream.ended.is_set():
                self._cut(stream)

        for log in list(self._logs.values()):
            log.cut_followers()

    def _cut(self, stream: RunStream) -> None:
        stream.cut()
        # Later followers get a stream with the events of the process that continues the run.
        if self._streams.get(stream.run_id) is stream:
            del self._streams[stream.run_id]

    def finish_unstarted(self, stream: RunStream, reason: str, result: object = None) -> None:
        """End the stream of a run that no worker started; if it was announced, its thread's followers see it fail."""
        stream.end(result)
        if stream.graph_id is not None:
            stream.log.start(stream.run_id, is_logged=self.transport.has_others)
            stream.log.finish(stream.run_id, RunEnd(LifecycleEvent.FAILED, stream.graph_id, reason), keeper=self._kept)
            self._keep_unshared(stream.log)

    async def announce(self, stream: RunStream, graph_id: str) -> None:
        """Keep the stream of a run until the run starts or ends, so that followers of its thread see either.

        Another process may claim the run, so the thread is followed there too.
        """
        if stream.is_local or stream.is_started or stream.ended.is_set():
            return

        stream.graph_id = graph_id
        stream.remote = await self.transport.subscribe(stream.log, stream)
        self._kept_streams.add(stream)
        stream.on_start = lambda: self._kept_streams.discard(stream)

    async def follow(self, stream: RunStream, *, after: str | None, modes: frozenset[str] | None) -> LogSubscription:
        """Follow a run in whatever process it executes, from now on or from after a kept event."""
        # Subscribed first: every event is then read before the follower joins, or delivered to it afterwards.
        remote = None if stream.is_local else await self.transport.subscribe(stream.log, stream)
        subscription = stream.follow(after=after, modes=modes)
        subscription.remote = remote

        if after is None or not stream.segment.is_resumable:
            subscription.floor = self.clock.now()

        return subscription

    async def follow_thread(
        self, thread_id: UUID, modes: frozenset[ThreadMode], after: Position | None
    ) -> LogSubscription:
        """Follow a thread, in whatever processes its runs execute."""
        log, remote = await self.join(thread_id)
        subscription = log.follow(modes, after=after)
        subscription.remote = remote

        if self.is_stopped:
            subscription.cut()

        return subscription

    async def join(self, thread_id: UUID) -> tuple[EventLog, object]:
        """Return the log of a thread with the events of other processes, and the object that keeps them coming.

        A deleted thread of the same id may have left events here: the followers of the new one must not get them.
        """
        log = self.get_log(thread_id)
        remote = await self.transport.subscribe(log)

        if log.history.last_number >= 0:
            created_at = await self.transport.thread_created_at(thread_id)
            if created_at is not None:
                log.drop_before((created_at - CLOCK_ERROR_MS, 0))

        return log, remote

    def publish_state_update(self, thread_id: UUID, data: bytes) -> None:
        """Notify the followers of a thread that a person changed its state."""
        log = self.get_log(thread_id)
        log.add_state_update(data)
        self._keep_unshared(log)

    def threads_deleted(self, thread_ids: Sequence[UUID]) -> None:
        """End the followers of deleted threads, in all processes."""
        for thread_id in thread_ids:
            self.drop_thread(thread_id)

        self.transport.delete_threads(thread_ids)

    def drop_thread(self, thread_id: UUID) -> None:
        """End the followers of a thread in this process."""
        log = self._logs.pop(thread_id, None)
        if log is not None:
            log.end()

    def remote_streams(self) -> list[RunStream]:
        """Return the streams that somebody follows, or waits for, of runs in other processes."""
        streams = list(self._streams.values())
        return [stream for stream in streams if not stream.is_local and not stream.ended.is_set()]

    def positions(self) -> dict[UUID, tuple[str, int]]:
        """Return the last event that observers have numbered, and its number, for each thread."""
        logs = list(self._logs.items())
        return {thread_id: log.observer.position for thread_id, log in logs if log.observer is not None}

    def unshared_logs(self, limit: int) -> list[EventLog]:
        """Return logs with events that other processes may want and do not have."""
        self._drop_shared_logs()
        running = (stream.log for stream in self._running.values())
        recent = (log for _, log in islice(reversed(self._recently_changed), limit))
        return [log for log in (*running, *recent) if log.unshared()]

    @property
    def looked_at(self) -> float:
        """When the last look at who follows which thread began; now for a process that never looks.

        By this clock events become too old to be shared. While the process is paused, or the database does not answer,
        nobody looks, and what others follow meanwhile must be found afterwards.
        """
        now = time.monotonic()
        return now if self._looked_at is None else max(self._looked_at, now - LOOK_WITHIN_S)

    def note_look(self, began_at: float) -> None:
        """Note that a look which began at this time has written what others follow."""
        self._looked_at = began_at

    def _keep_unshared(self, log: EventLog) -> None:
        """Keep a log for other processes, which this one may not have counted yet."""
        self._drop_shared_logs()
        self._recently_changed.append((time.monotonic() + SHARE_WITHIN_S, log))

    def _drop_shared_logs(self) -> None:
        while self._recently_changed and self._recently_changed[0][0] < self.looked_at:
            self._recently_changed.popleft()

    @property
    def has_others(self) -> bool:
        """Whether other processes serve the same database."""
        return self.transport.has_others

    def write(self, batch: EventBatch) -> None:
        """Write events to the log in Postgres, for other processes."""
        self.transport.write(batch)
