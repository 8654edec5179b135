"""A thread's events in this process: those of its runs one after the other, and changes of its state by people.

What a run leaves here is kept for a while after its end, for clients that come back and for those that come late
(contract: 12.4 and 13). Memory is bounded three times: a run keeps its newest events only, all threads together forget
the oldest runs first, and nobody's reading position is kept but in the reader's own bounded buffer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol
from uuid import UUID
from weakref import WeakSet

from portside.agent.streams.buffer import Buffer
from portside.agent.streams.events import SLOW_READER, Event, EventClock, Place, ThreadMode, place_of
from portside.kernel.codec import dump_api, dump_user

RUN_LIMIT_BYTES = 16 * 1024 * 1024
ALL_RUNS_LIMIT_BYTES = 128 * 1024 * 1024
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

    __slots__ = ("_limit", "events", "run_id", "size")

    def __init__(self, run_id: UUID | None, limit: int = RUN_LIMIT_BYTES) -> None:
        self.run_id = run_id
        self.events: deque[Event] = deque()
        self.size = 0
        self._limit = limit

    def append(self, event: Event) -> None:
        """Keep an event; above the bound the oldest go."""
        self.events.append(event)
        self.size += len(event.data)
        while self.size > self._limit:
            self.size -= len(self.events.popleft().data)


class ThreadSubscription(Buffer):
    """A follower of a thread."""

    def __init__(self, thread: "ThreadFeed", modes: frozenset[ThreadMode]) -> None:
        super().__init__(SLOW_READER)
        # The thread's feed lives as long as somebody follows it, with or without runs.
        self.thread = thread
        self._modes = modes

    def offer(self, event: Event) -> None:
        """Take an event if it is asked for."""
        if not event.is_for_protocol_only and self._wants(event.name):
            self.push(event.wire(with_id=True))

    def _wants(self, name: str) -> bool:
        if name == STATE_UPDATE:
            return STATE_UPDATE in self._modes
        return "run_modes" in self._modes or ("lifecycle" in self._modes and name == "metadata")


class Retention:
    """Says how long what ended is kept, and how much of it in this process; what ended first goes first."""

    def __init__(self, keep_s: float, limit_bytes: int = ALL_RUNS_LIMIT_BYTES) -> None:
        self._keep_s = keep_s
        self._limit_bytes = limit_bytes
        self._size = 0
        self._kept: deque[tuple[float, ThreadFeed, Segment]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, thread: "ThreadFeed", segment: Segment) -> None:
        """Keep what a run left for its time."""
        self._kept.append((time.monotonic() + self._keep_s, thread, segment))
        self._size += segment.size
        while self._kept and self._size > self._limit_bytes:
            self._forget_first()
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._kept:
            wait_s = max(0.0, self._kept[0][0] - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        while self._kept and self._kept[0][0] <= time.monotonic():
            self._forget_first()
        self._schedule()

    def _forget_first(self) -> None:
        _, thread, segment = self._kept.popleft()
        self._size -= segment.size
        thread.drop(segment)


class ThreadFeed:
    """The events of one thread."""

    def __init__(self, thread_id: UUID, clock: EventClock, retention: Retention) -> None:
        self.thread_id = thread_id
        self.tap: Tap | None = None
        self._clock = clock
        self._retention = retention
        self._segments: list[Segment] = []
        self._open: dict[UUID, Segment] = {}
        self._followers: WeakSet[ThreadSubscription] = WeakSet()

    def add(self, run_id: UUID, events: list[Event]) -> None:
        """Take events of a run."""
        segment = self._open.get(run_id)
        if segment is None:
            segment = self._open[run_id] = Segment(run_id)
            self._segments.append(segment)
        self._spread(segment, events)

    def finish(self, run_id: UUID, end: RunEnd | None, *, is_kept: bool) -> None:
        """Say how a run ended; without an end it goes on in another process."""
        if end is not None:
            self.add(run_id, [Event(name, self._clock.next(), data) for name, data in _last_words(run_id, end)])
        segment = self._open.pop(run_id, None)
        if segment is not None and is_kept:
            self._retention.keep(self, segment)
        elif segment is not None:
            self.drop(segment)

    def update(self, data: bytes) -> None:
        """Say that a person changed the state."""
        segment = Segment(None)
        self._segments.append(segment)
        self._spread(segment, [Event(STATE_UPDATE, self._clock.next(), data)])
        self._retention.keep(self, segment)

    def drop(self, segment: Segment) -> None:
        """Forget what is kept of a run."""
        if segment in self._segments:
            self._segments.remove(segment)
            if self.tap is not None:
                self.tap.drop(segment)

    def end(self) -> None:
        """Let every follower go and forget everything: the thread is no more."""
        for follower in self._followers:
            follower.end()
        self._followers.clear()
        self._segments.clear()
        if self.tap is not None:
            self.tap.end()

    def kept(self) -> Iterator[tuple[Segment, Event]]:
        """Yield everything that is kept, oldest first."""
        for segment in self._segments:
            for event in segment.events:
                yield segment, event

    def follow(self, modes: frozenset[ThreadMode], *, after: Place | None = None) -> ThreadSubscription:
        """Follow the events from now on, or from after a place in time as far as they are kept."""
        subscription = ThreadSubscription(self, modes)
        if after is not None:
            for _, event in self.kept():
                if (place_of(event.event_id) or after) > after:
                    subscription.offer(event)
        self._followers.add(subscription)
        return subscription

    def _spread(self, segment: Segment, events: list[Event]) -> None:
        followers = list(self._followers)
        for event in events:
            segment.append(event)
            for follower in followers:
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
