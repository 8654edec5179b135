"""The event log of a thread in this process: all events of its runs arrive here, and are kept here.

Events are kept once, in segments: one for each run, and one for each change of the thread's state by a person. A
follower of a run reads the run's segment. A follower of the thread, and the observer that makes the sequence of the
event streaming protocol, read the `history`, which holds the segments in order. Everything here runs on the API's
event loop, except methods that are documented as safe in any thread.

Memory is bounded three times: a run keeps its newest events only, `KeptSegments` forgets ended runs of all threads,
oldest first, and a slow follower has a bounded buffer of its own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol
from uuid import UUID
from weakref import WeakSet, WeakValueDictionary

from portside.agent.streams.buffers import ReplayBuffer
from portside.agent.streams.chunks import BatchSink, EventBatch
from portside.agent.streams.events import (
    CLOSING,
    END,
    EVENT_RULES,
    LOST_EVENTS,
    PROTOCOL_ONLY,
    SLOW_READER,
    STATE_UPDATE,
    EventClock,
    Position,
    RunEnd,
    StreamEvent,
    ThreadMode,
    ThreadView,
    closing_events,
    parse_event_id,
)
from portside.agent.streams.history import BlockGroup, Cursor, History
from portside.agent.streams.replay_budget import ReplayBudget
from portside.kernel.http.sse import sse_event

# The limits include the memory that events take in addition to their data.
RUN_LIMIT_BYTES = 32 * 1024 * 1024
RESUMABLE_RUN_LIMIT_BYTES = 48 * 1024 * 1024
KEPT_LIMIT_BYTES = 128 * 1024 * 1024
# How long events wait for the end of the run before them, which another process may not have written yet.
REORDER_TIMEOUT_S = 2.0
# How long another process may take to learn of events that it wants: its subscription may still be on its way.
SHARE_WITHIN_S = 5.0


class Segment(BlockGroup[StreamEvent]):
    """The kept events of one run, or of one change of the state."""

    __slots__ = (
        "__weakref__",
        "attempt",
        "closing_id",
        "ended_at",
        "followers",
        "is_logged",
        "is_lost",
        "is_over",
        "is_remote",
        "is_resumable",
        "last_id",
        "run_id",
    )

    def __init__(self, run_id: UUID | None) -> None:
        super().__init__(EVENT_RULES, RUN_LIMIT_BYTES)
        self.run_id = run_id
        self.last_id = ""
        self.attempt = 0
        self.ended_at: float | None = None

        # The id of the first event that is for followers of the thread alone.
        self.closing_id = ""
        # Whether events are written to the log in Postgres, were lost on the way there, or come from another process.
        self.is_logged = False
        self.is_lost = False
        self.is_remote = False

        # A run that has ended in this process, but is not over, continues in another one.
        self.is_over = False
        self.is_resumable = False

        # Weak: a client that leaves takes its buffer with it, and the run continues. None until the first one follows.
        self.followers: WeakSet[LogSubscription] | None = None

    def make_resumable(self) -> None:
        """Let clients come back for events: more of them are kept."""
        self.is_resumable = True
        self.limit = RESUMABLE_RUN_LIMIT_BYTES

    def hides(self, event: StreamEvent) -> bool:
        """Whether an event is for followers of the thread alone, or for the event streaming protocol."""
        if event.name == "metadata" and self.closing_id:
            return event.position >= (parse_event_id(self.closing_id) or (0, 0))

        return event.name[:1] == PROTOCOL_ONLY

    def newer(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Return the events after the last one that the segment has taken."""
        last = parse_event_id(self.last_id) or (0, 0)
        return [event for event in events if event.position > last]


class RunView(NamedTuple):
    """Every event of a run, or those of some modes and the error that ends the run."""

    segment: Segment
    modes: frozenset[str] | None
    with_ids: bool

    @property
    def key(self) -> "RunView":
        """Equal for equal frames."""
        return self

    def wants(self, event: StreamEvent) -> bool:
        """Whether the follower gets an event of the segment."""
        return self.matches(event) and not self.segment.hides(event)

    def matches(self, event: StreamEvent) -> bool:
        """Whether the follower asked for an event's mode."""
        return self.modes is None or event.mode in self.modes

    def frame(self, event: StreamEvent) -> bytes:
        """Encode an event."""
        return sse_event(event.name, event.data, event.event_id if self.with_ids else None)


class LogSubscription(ReplayBuffer[StreamEvent]):
    """A follower of a run or of a thread. It keeps the thread's log alive, with or without runs."""

    view: RunView | ThreadView

    def __init__(self, log: "EventLog", view: RunView | ThreadView) -> None:
        super().__init__(view, log.replays, SLOW_READER)
        self.log = log

        # Events of other processes may arrive late. The follower joined after those up to this position, so it gets
        # none.
        self.floor: Position = (0, 0)
        # Keeps the subscription to other processes alive.
        self.remote: object = None


class Observer(Protocol):
    """Reads a thread's events in order while they are kept, for as long as the log lives."""

    @property
    def position(self) -> tuple[str, int]:
        """The id of the last event that was read, and its number."""
        ...

    def take(self, segment: Segment, event: StreamEvent) -> None:
        """Take an event."""
        ...

    def drop(self, segment: Segment) -> None:
        """Forget the events of a run."""
        ...

    def end(self) -> None:
        """End every reader: the thread was deleted."""
        ...

    def cut(self) -> None:
        """Cut every reader: this process stops, and the thread continues."""
        ...


class KeptSegments:
    """The segments of ended runs of all threads, for a time and up to a size.

    Above that size the oldest end goes first, of the segments that are larger than an equal share of it. So a few large
    runs do not take from many small ones what they kept.
    """

    def __init__(
        self, keep_s: float, limit_bytes: int = KEPT_LIMIT_BYTES, *, read_clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s = keep_s
        self._read_clock = read_clock
        self._limit_bytes = limit_bytes
        self._size = 0
        self._kept: deque[tuple[EventLog, Segment, float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, log: "EventLog", segment: Segment) -> None:
        """Keep a segment for its time."""
        segment.ended_at = time.monotonic()
        self._kept.append((log, segment, segment.ended_at, segment.size))

        self._size += segment.size
        while self._kept and self._size > self._limit_bytes:
            self._drop(self._oldest_large())

        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._kept:
            wait_s = max(0.0, self._kept[0][2] + self._keep_s - self._read_clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        while self._kept and self._kept[0][2] + self._keep_s <= self._read_clock():
            self._drop(0)

        self._schedule()

    def _oldest_large(self) -> int:
        share = self._limit_bytes / len(self._kept)
        return next(place for place, (_log, _segment, _ended_at, size) in enumerate(self._kept) if size > share)

    def _drop(self, place: int) -> None:
        log, segment, ended_at, size = self._kept[place]
        del self._kept[place]
        self._size -= size

        # A run that came back to this process continues in its segment.
        if segment.ended_at == ended_at:
            log.drop(segment)


class HeldEvents(NamedTuple):
    """Events of a run that wait for the end of an earlier run, and whether they are the run's last ones."""

    segment: Segment
    events: list[StreamEvent]
    is_last: bool


class EventLog:
    """The events of one thread.

    Runs of a thread follow one another, but the last events of a run in another process may arrive after the first
    events of the next one. These wait until the former run has ended, or until the reorder timeout is over.
    """

    def __init__(
        self, thread_id: UUID, clock: EventClock, kept_segments: KeptSegments, replays: ReplayBudget, sink: BatchSink
    ) -> None:
        self.thread_id = thread_id
        self.replays = replays

        # In the order in which followers of the thread got the events.
        self.history: History[StreamEvent] = History(EVENT_RULES)
        self.observer: Observer | None = None
        self._clock = clock
        self._kept = kept_segments
        self._sink = sink
        self._segments: list[Segment] = []

        # The segments of runs that have not ended in this process.
        self._open: dict[UUID, Segment] = {}
        # The segments of all runs that are kept, or that have followers.
        self._known: WeakValueDictionary[UUID, Segment] = WeakValueDictionary()
        self._followers: WeakSet[LogSubscription] = WeakSet()
        self._blocking: Segment | None = None
        self._held: deque[HeldEvents] = deque()
        self._release_timer: asyncio.TimerHandle | None = None

    def segment(self, run_id: UUID) -> Segment:
        """Return the segment of a run, which is created empty if the run is not known."""
        segment = self._known.get(run_id)
        if segment is None:
            segment = self._known[run_id] = Segment(run_id)

        return segment

    def start(self, run_id: UUID, *, attempt: int = 1, is_logged: bool = False) -> Segment:
        """Expect events of a run that this process executes, as the given attempt at it."""
        segment = self._opened(run_id)
        segment.attempt = attempt
        segment.is_remote = False
        segment.is_logged = segment.is_logged or is_logged
        return segment

    def append(self, run_id: UUID, events: list[StreamEvent]) -> None:
        """Take events of a run that this process executes."""
        segment = self._open.get(run_id) or self._opened(run_id)
        self._write(segment, events)
        self._deliver(segment, events, is_last=False)

    def finish(self, run_id: UUID, end: RunEnd | None, *, keeper: KeptSegments | None, ids: Iterable[str] = ()) -> None:
        """Record how a run ended, under ids that were taken before; without an end another process continues it."""
        segment = self._open.get(run_id)
        if end is None:
            self._open.pop(run_id, None)
            if segment is not None:
                segment.is_remote = True
                self._retire(segment, keeper)

            return

        segment = segment or self._opened(run_id)
        segment.is_over = True

        if keeper is None and self._is_unfollowed(segment):
            # The end of most stateless runs: nobody would get the closing events.
            self._open.pop(run_id, None)
            self.drop(segment)
            return

        spare_ids = iter(ids)
        closing = [
            StreamEvent(name, next(spare_ids, None) or self._clock.next(), data)
            for name, data in closing_events(run_id, end)
        ]

        segment.closing_id = closing[0].event_id
        marker = StreamEvent(CLOSING, segment.closing_id, b"null")
        is_kept = b"true" if keeper is self._kept else b"false"

        self._write(segment, [marker, *closing, StreamEvent(END, closing[-1].event_id, is_kept)])
        self._deliver(segment, closing, is_last=True)
        self._open.pop(run_id, None)
        self._retire(segment, keeper)

    def receive(
        self, run_id: UUID | None, events: list[StreamEvent], *, closing_id: str = "", end: bool | None = None
    ) -> None:
        """Add events of another process, each once. `end` is None while more follow, else whether they are kept."""
        if run_id is None:
            event_ids = {event.event_id for segment in self._segments if segment.run_id is None for event in segment}
            for event in events:
                if event.event_id not in event_ids:
                    self._add_state_update(event, is_remote=True)

            return

        segment = self.segment(run_id)
        if segment.is_over:
            return

        if run_id not in self._open and segment not in self._segments:
            self._opened(run_id).is_remote = True

        new = segment.newer(events)
        segment.closing_id = segment.closing_id or closing_id

        if new or end is not None:
            self._deliver(segment, new, is_last=end is not None)

        if end is not None:
            segment.is_over = True
            self._open.pop(run_id, None)
            self._retire(segment, self._kept if end else None)

    def fill(self, run_id: UUID, events: list[StreamEvent]) -> None:
        """Take earlier events of a run out of the log in Postgres, for followers of the run alone."""
        segment = self.segment(run_id)
        new = segment.newer(events)
        if new:
            segment.last_id = new[-1].event_id

        for event in new:
            segment.append(event, is_private=True)
            if segment.followers and not segment.hides(event):
                _offer(event, list(segment.followers), segment if segment.is_resumable else None, is_remote=True)

    def add_state_update(self, data: bytes) -> None:
        """Record that a person changed the state."""
        self._add_state_update(StreamEvent(STATE_UPDATE, self._clock.next(), data), is_remote=False)

    def drop(self, segment: Segment) -> None:
        """Forget the events of a run. A stream of the run that is still kept continues holding them."""
        if segment in self._segments:
            self._segments.remove(segment)
            self.history.drop(segment)
            if self.observer is not None:
                self.observer.drop(segment)

    def drop_before(self, position: Position) -> None:
        """Forget events that are older than the thread: they belong to a deleted one with the same id."""
        for segment in [*self._segments]:
            first_event = next(iter(segment), None)
            if first_event is not None and first_event.position < position:
                self.drop(segment)

    def end(self) -> None:
        """End every follower and forget everything: the thread was deleted."""
        for follower in self._followers:
            follower.end()

        self._followers.clear()
        self._segments.clear()

        # Cursors continue reading the former history.
        self.history = History(EVENT_RULES)
        if self.observer is not None:
            self.observer.end()

    def fail_followers(self) -> None:
        """End every follower with an error: events were lost on their way from another process."""
        for follower in self._followers:
            follower.fail(LOST_EVENTS)

        self._followers.clear()
        if self.observer is not None:
            self.observer.end()

    def cut_followers(self) -> None:
        """Cut every follower: this process stops, and the thread continues."""
        for follower in self._followers:
            follower.cut()

        if self.observer is not None:
            self.observer.cut()

    def follow(self, modes: frozenset[ThreadMode], *, after: Position | None = None) -> LogSubscription:
        """Follow the thread from now on, or from after a position as far as events are kept."""
        subscription = LogSubscription(self, ThreadView(modes))
        subscription.floor = self._clock.now() if after is None else after
        if after is not None and self.history.has_after(after):
            subscription.cursor = Cursor(self.history, after=after)

        self._followers.add(subscription)
        return subscription

    def keeps(self, segment: Segment) -> bool:
        """Whether the events of a run are kept."""
        return segment in self._segments

    def share(self) -> None:
        """Write the events that were kept in this process alone: another process follows the thread."""
        for segment in self.unshared():
            segment.is_logged = True
            events: list[StreamEvent] = []
            for event in segment:
                if event.event_id == segment.closing_id:
                    events.append(StreamEvent(CLOSING, event.event_id, b"null"))
                events.append(event)

            if segment.is_over and events:
                events.append(StreamEvent(END, events[-1].event_id, b"false"))

            self._write(segment, events)

    def unshared(self) -> list[Segment]:
        """Return the segments that other processes do not know: of runs, and of changes of the state."""
        oldest = self._sink.looked_at - SHARE_WITHIN_S
        return [
            segment
            for segment in self._segments
            if not (segment.is_logged or segment.is_remote or segment.is_lost)
            and (segment.ended_at is None or segment.ended_at > oldest)
        ]

    def note_lost(self, run_id: UUID | None) -> None:
        """Write no more events of a run: earlier ones were lost on the way."""
        if run_id is not None and (segment := self._open.get(run_id)) is not None:
            segment.is_logged = False
            segment.is_lost = True

    def is_logged(self, run_id: UUID) -> bool:
        """Whether the events of a run are written to the log in Postgres. Safe to call in any thread."""
        segment = self._open.get(run_id)
        return segment is not None and segment.is_logged

    def has_listeners(self, run_id: UUID, *, among_others: bool) -> bool:
        """Whether anybody follows the thread, or another process may want to. Safe to call in any thread.

        Without `among_others` only those of other processes count that are known to follow.
        """
        may_be_elsewhere = among_others and self._sink.has_others
        return may_be_elsewhere or bool(self._followers) or self.observer is not None or self.is_logged(run_id)

    def _is_unfollowed(self, segment: Segment) -> bool:
        """Whether nobody follows a run or its thread, and no events of other runs wait behind it."""
        is_followed = bool(segment.followers) or segment.is_resumable or segment.is_logged or bool(self._followers)
        return not (is_followed or self.observer is not None or self._blocking is not None or self._held)

    def _opened(self, run_id: UUID) -> Segment:
        segment = self._open[run_id] = self.segment(run_id)
        segment.ended_at = None
        if segment not in self._segments:
            self._segments.append(segment)

        return segment

    def _add_state_update(self, event: StreamEvent, *, is_remote: bool) -> None:
        segment = Segment(None)
        segment.is_remote = is_remote
        self._segments.append(segment)
        segment.is_logged = not is_remote and self._sink.has_others

        self._write(segment, [event])
        self._deliver(segment, [event], is_last=False)
        self._kept.add(self, segment)

    def _write(self, segment: Segment, events: list[StreamEvent]) -> None:
        if segment.is_logged and events:
            self._sink.write(EventBatch(self.thread_id, segment.run_id, segment.attempt, events))

    def _retire(self, segment: Segment, keeper: KeptSegments | None) -> None:
        if keeper is None:
            self.drop(segment)
        elif segment.ended_at is None:
            keeper.add(self, segment)

    def _deliver(self, segment: Segment, events: list[StreamEvent], *, is_last: bool) -> None:
        """Keep events and send them: to followers of the run at once, to those of the thread in the thread's order."""
        if events:
            # Set at once, though followers of the thread may have to wait: events may be received twice meanwhile.
            segment.last_id = events[-1].event_id

        is_remote = segment.is_remote
        is_held = self._blocking not in (None, segment)
        history = None if is_held else self.history
        run_history = segment if segment.is_resumable else None

        # Listed once for a burst: walking a weak set costs as much as encoding an event.
        run_followers = list(segment.followers) if segment.followers else None
        thread_followers = list(self._followers) if self._followers and not is_held else None
        observer = None if is_held else self.observer
        for event in events:
            segment.append(event, history)
            if run_followers and not segment.hides(event):
                _offer(event, run_followers, run_history, is_remote=is_remote)

            if thread_followers:
                _offer(event, thread_followers, history, is_remote=is_remote)

            if observer is not None:
                observer.take(segment, event)

        if is_held:
            self._held.append(HeldEvents(segment, events, is_last))
            self._schedule_release()
        elif is_last:
            self._release()
        elif is_remote and segment.run_id is not None:
            self._blocking = segment

    def _schedule_release(self) -> None:
        if self._release_timer is None:
            self._release_timer = asyncio.get_running_loop().call_later(REORDER_TIMEOUT_S, self._release)

    def _release(self) -> None:
        """Send the held events to followers of the thread, up to a run that blocks those behind it in turn."""
        self._blocking = None
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None

        waiting = self._held
        self._held = deque()
        for batch in waiting:
            segment = batch.segment
            if self._blocking not in (None, segment):
                self._held.append(batch)
                continue

            self.history.link(segment)

            for event in batch.events:
                # A cursor of the history would begin with an item behind this one, so they are pushed.
                _offer(event, list(self._followers), None, is_remote=segment.is_remote)
                if self.observer is not None:
                    self.observer.take(segment, event)

            if segment not in self._segments:
                self.history.drop(segment)

            if batch.is_last:
                self._release()
            elif segment.is_remote and segment.run_id is not None:
                self._blocking = segment

        if self._held:
            self._schedule_release()


def _offer(
    event: StreamEvent,
    followers: list[LogSubscription],
    history: "History[StreamEvent] | BlockGroup[StreamEvent] | None",
    *,
    is_remote: bool,
) -> None:
    """Send an event to the followers that want it. It is encoded once: they all get the same bytes."""
    frame = b""
    for follower in followers:
        if follower.cursor is not None or not follower.view.matches(event):
            continue

        if not is_remote or event.position > follower.floor:
            frame = frame or follower.view.frame(event)
            follower.offer(frame, history, follower.floor if is_remote else None)
