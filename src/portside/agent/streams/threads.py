"""A thread's events in this process: those of its runs one after the other, and changes of its state by people.

What a run leaves here is kept for a while after its end, for clients that come back and for those that come late
(contract: 12.4 and 13). Memory is bounded three times: a run keeps its newest events only, all threads together forget
the oldest runs first, and nobody's reading position is kept but in the reader's own bounded buffer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol
from uuid import UUID
from weakref import WeakSet

from portside.agent.streams.buffer import Buffer
from portside.agent.streams.chunks import Telling
from portside.agent.streams.events import (
    END,
    LAST_WORDS,
    LOST_EVENTS,
    SLOW_READER,
    Event,
    EventClock,
    Place,
    ThreadMode,
    place_of,
)
from portside.agent.streams.retention import Retention
from portside.kernel.codec import dump_api, dump_user

RUN_LIMIT_BYTES = 16 * 1024 * 1024
PATIENCE_S = 2.0
# How long a run's events are news to another process whose wish to follow it may still be on its way.
NEWS_S = 5.0
STATE_UPDATE = "state_update"


class Asked(NamedTuple):
    """A question of a run that stopped for an answer."""

    interrupt_id: str
    value: object


class RunEnd(NamedTuple):
    """How a run ended, as far as those need it who follow the thread."""

    status: Literal["completed", "interrupted", "failed"]
    graph_name: str
    error: str | None = None
    asked: tuple[Asked, ...] = ()


class Tap(Protocol):
    """Somebody who reads a thread's events as they are kept, for as long as the thread's feed lives."""

    @property
    def position(self) -> tuple[str, int]:
        """The last event that was read, and its number."""
        ...

    def take(self, segment: "Segment", event: Event) -> None:
        """Take an event."""
        ...

    def drop(self, segment: "Segment") -> None:
        """Forget the events of a run."""
        ...

    def end(self) -> None:
        """Let every reader go: the thread is no more."""
        ...


class Segment:
    """What is kept of one run, or of one change of the state."""

    __slots__ = (
        "_limit", "attempt", "ended_at", "events", "is_logged", "is_lost", "is_over", "is_remote", "last_id", "run_id",
        "size", "words_from",
    )  # fmt: skip

    def __init__(self, run_id: UUID | None, limit: int = RUN_LIMIT_BYTES) -> None:
        self.run_id = run_id
        self.events: deque[Event] = deque()
        self.size = 0
        self.last_id = ""
        self.attempt = 0
        self.ended_at: float | None = None
        # The id of the first event that is for the followers of the thread alone.
        self.words_from = ""
        # Whether its events are written to the log, were lost on the way there, or come from another process.
        self.is_logged = self.is_lost = self.is_remote = False
        # A run that is not over may go on in another process.
        self.is_over = False
        self._limit = limit

    def append(self, event: Event) -> None:
        """Keep an event; above the bound the oldest go."""
        self.last_id = event.event_id
        self.events.append(event)
        self.size += len(event.data)
        while self.size > self._limit:
            self.size -= len(self.events.popleft().data)

    @property
    def last(self) -> Place:
        """When the last event was."""
        return place_of(self.last_id) or (0, 0)


class ThreadSubscription(Buffer):
    """A follower of a thread."""

    def __init__(self, thread: "ThreadFeed", modes: frozenset[ThreadMode]) -> None:
        super().__init__(SLOW_READER)
        # The thread's feed lives as long as somebody follows it, with or without runs.
        self.thread = thread
        self.floor: Place = (0, 0)
        self.mirror: object = None
        self._modes = modes

    def offer(self, event: Event) -> None:
        """Take an event if it is asked for."""
        if not event.is_for_protocol_only and self._wants(event.name):
            self.push(event.wire(with_id=True))

    def _wants(self, name: str) -> bool:
        if name == STATE_UPDATE:
            return STATE_UPDATE in self._modes
        return "run_modes" in self._modes or ("lifecycle" in self._modes and name == "metadata")


class Outlet(Protocol):
    """Where events go that other processes may want."""

    @property
    def has_others(self) -> bool:
        """Whether there are any."""
        ...

    def tell(self, telling: Telling) -> None:
        """Write events down."""
        ...


class Step(NamedTuple):
    """Events on their way to a thread's followers, and whether they are the last of their run."""

    segment: Segment
    events: list[Event]
    is_last: bool


class ThreadFeed:
    """The events of one thread.

    Runs of a thread follow one another, but what a run in another process said last may arrive after the first word of
    the next one: that waits until the former has ended, or has been silent for too long.
    """

    def __init__(self, thread_id: UUID, clock: EventClock, retention: Retention, outlet: Outlet | None = None) -> None:
        self.thread_id = thread_id
        self.tap: Tap | None = None
        self._clock = clock
        self._retention = retention
        self._outlet = outlet
        self._segments: list[Segment] = []
        self._open: dict[UUID, Segment] = {}
        self._followers: WeakSet[ThreadSubscription] = WeakSet()
        self._held_by: Segment | None = None
        self._waiting: deque[Step] = deque()
        self._patience: asyncio.TimerHandle | None = None

    def open(self, run_id: UUID, *, attempt: int = 1, is_logged: bool = False) -> Segment:
        """Expect events of a run that is executed here, as the given attempt at it."""
        segment = self._open.get(run_id) or self._new(run_id)
        segment.attempt, segment.is_remote = attempt, False
        segment.is_logged = segment.is_logged or is_logged
        return segment

    def add(self, run_id: UUID, events: list[Event]) -> None:
        """Take events of a run."""
        segment = self._open.get(run_id) or self._new(run_id)
        self._tell(segment, events)
        self._pass(Step(segment, events, is_last=False))

    def finish(self, run_id: UUID, end: RunEnd | None, *, keeper: Retention | None, ids: Iterable[str] = ()) -> None:
        """Say how a run ended, under ids that were taken before; without an end it goes on in another process."""
        segment = self._open.get(run_id)
        if end is None:
            self._open.pop(run_id, None)
            if segment is not None:
                segment.is_remote = True
                self._retire(segment, keeper)
            return
        segment = segment or self._new(run_id)
        segment.is_over = True
        left = iter(ids)
        words = [Event(name, next(left, None) or self._clock.next(), data) for name, data in _last_words(run_id, end)]
        segment.words_from = words[0].event_id
        mark = Event(LAST_WORDS, segment.words_from, b"null")
        is_kept = b"true" if keeper is self._retention else b"false"
        self._tell(segment, [mark, *words, Event(END, words[-1].event_id, is_kept)])
        self._pass(Step(segment, words, is_last=True))
        self._open.pop(run_id, None)
        self._retire(segment, keeper)

    def receive(self, run_id: UUID | None, events: list[Event], *, end: bool | None = None) -> None:
        """Take events that another process made, each once; `end` tells that they are the last, and whether kept."""
        if run_id is None:
            known = {event.event_id for segment in self._segments if segment.run_id is None for event in segment.events}
            for event in events:
                if event.event_id not in known:
                    self._change(event, is_remote=True)
            return
        segment = self._open.get(run_id) or self._kept_of(run_id)
        if segment is None:
            segment = self._new(run_id)
            segment.is_remote = True
        last = segment.last
        new = [event for event in events if event.place > last]
        if (new or end is not None) and not segment.is_over:
            # Noted before they are passed on, which may have to wait: they may be told again meanwhile.
            segment.last_id = new[-1].event_id if new else segment.last_id
            self._pass(Step(segment, new, is_last=end is not None))
        if end is not None:
            segment.is_over = True
            self._open.pop(run_id, None)
            self._retire(segment, self._retention if end else None)

    def update(self, data: bytes) -> None:
        """Say that a person changed the state."""
        self._change(Event(STATE_UPDATE, self._clock.next(), data), is_remote=False)

    def drop(self, segment: Segment) -> None:
        """Forget what is kept of a run."""
        if segment in self._segments:
            self._segments.remove(segment)
            if self.tap is not None:
                self.tap.drop(segment)

    def forget_before(self, moment: Place) -> None:
        """Forget what is older than the thread itself: it is of one of the same id that is gone."""
        for segment in [part for part in self._segments if part.events and part.events[0].place < moment]:
            self.drop(segment)

    def end(self) -> None:
        """Let every follower go and forget everything: the thread is no more."""
        for follower in self._followers:
            follower.end()
        self._followers.clear()
        self._segments.clear()
        if self.tap is not None:
            self.tap.end()

    def lose(self) -> None:
        """Let every follower go with the word that events were lost on their way from another process."""
        for follower in self._followers:
            follower.fail(LOST_EVENTS)
        self._followers.clear()
        if self.tap is not None:
            self.tap.end()

    @property
    def has_past(self) -> bool:
        """Whether anything is kept."""
        return bool(self._segments)

    def kept(self) -> Iterator[tuple[Segment, Event]]:
        """Yield everything that is kept, oldest first."""
        for segment in self._segments:
            for event in segment.events:
                yield segment, event

    def follow(self, modes: frozenset[ThreadMode], *, after: Place | None = None) -> ThreadSubscription:
        """Follow the events from now on, or from after a place in time as far as they are kept."""
        subscription = ThreadSubscription(self, modes)
        subscription.floor = self._clock.now() if after is None else after
        if after is not None:
            for _, event in self.kept():
                if event.place > after:
                    subscription.offer(event)
        self._followers.add(subscription)
        return subscription

    def tell_all(self) -> None:
        """Write down what was kept to oneself so far: somebody in another process follows."""
        for segment in self._untold():
            segment.is_logged = True
            events: list[Event] = []
            for event in segment.events:
                if event.event_id == segment.words_from:
                    events.append(Event(LAST_WORDS, event.event_id, b"null"))
                events.append(event)
            if segment.is_over and events:
                events.append(Event(END, events[-1].event_id, b"false"))
            self._tell(segment, events)

    def has_untold(self) -> bool:
        """Whether there is what others do not know."""
        return bool(self._untold())

    def _untold(self) -> list[Segment]:
        oldest = time.monotonic() - NEWS_S
        return [
            part
            for part in self._segments
            if part.run_id is not None
            and not (part.is_logged or part.is_remote or part.is_lost)
            and (part.ended_at is None or part.ended_at > oldest)
        ]

    def note_lost(self, run_id: UUID | None) -> None:
        """Write no more of a run down whose events were lost on the way."""
        segment = self._open.get(run_id) if run_id else None
        if segment is not None:
            segment.is_logged, segment.is_lost = False, True

    def is_logged(self, run_id: UUID) -> bool:
        """Whether the events of a run are written down."""
        segment = self._open.get(run_id)
        return segment is not None and segment.is_logged

    def is_heard(self, run_id: UUID) -> bool:
        """Whether anybody follows the thread, or another process may want to."""
        has_others = self._outlet is not None and self._outlet.has_others
        return has_others or bool(self._followers) or self.tap is not None or self.is_logged(run_id)

    def _new(self, run_id: UUID) -> Segment:
        segment = self._open[run_id] = Segment(run_id)
        self._segments.append(segment)
        return segment

    def _kept_of(self, run_id: UUID) -> Segment | None:
        return next((segment for segment in self._segments if segment.run_id == run_id), None)

    def _change(self, event: Event, *, is_remote: bool) -> None:
        segment = Segment(None)
        segment.is_remote = is_remote
        self._segments.append(segment)
        segment.is_logged = not is_remote and self._outlet is not None and self._outlet.has_others
        self._tell(segment, [event])
        self._pass(Step(segment, [event], is_last=False))
        self._retention.keep(self, segment)

    def _tell(self, segment: Segment, events: list[Event]) -> None:
        if segment.is_logged and events and self._outlet is not None:
            self._outlet.tell(Telling(self.thread_id, segment.run_id, segment.attempt, events))

    def _retire(self, segment: Segment, keeper: Retention | None) -> None:
        if keeper is None:
            self.drop(segment)
        elif segment.ended_at is None:
            keeper.keep(self, segment)
        segment.ended_at = time.monotonic()

    def _pass(self, step: Step) -> None:
        segment = step.segment
        if self._held_by is not None and self._held_by is not segment:
            self._waiting.append(step)
            if self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._go_on)
            return
        self._spread(segment, step.events)
        if step.is_last:
            self._go_on()
        elif segment.is_remote and segment.run_id is not None:
            self._held_by = segment

    def _go_on(self) -> None:
        self._held_by = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        waiting, self._waiting = self._waiting, deque()
        for step in waiting:
            self._pass(step)

    def _spread(self, segment: Segment, events: list[Event]) -> None:
        followers = list(self._followers)
        for event in events:
            segment.append(event)
            for follower in followers:
                if not segment.is_remote or event.place > follower.floor:
                    follower.offer(event)
            if self.tap is not None:
                self.tap.take(segment, event)


def _last_words(run_id: UUID, end: RunEnd) -> Iterator[tuple[str, bytes]]:
    """Yield what those who follow the thread learn at a run's end, which is committed by then."""
    for asked in end.asked:
        # The value has two names: `payload` is the protocol's, `value` is where the Python SDK looks for it.
        question = {"interrupt_id": asked.interrupt_id, "payload": asked.value, "value": asked.value}
        yield "@input.requested", dump_user(question)
    last = {"event": end.status, "graph_name": end.graph_name}
    yield "@lifecycle", dump_user(last if end.error is None else {**last, "error": end.error})
    yield "metadata", dump_api({"status": "run_done", "run_id": str(run_id)})
