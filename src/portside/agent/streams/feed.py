"""One run's events in this process, and the subscriptions that follow it.

A feed lives on the API's event loop. Each follower has a buffer of its own, so a slow reader never slows the run; one
that falls too far behind is cut off. A resumable feed keeps its events, so that a client can come back with the id of
the last one it saw (contract: Join semantics).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from weakref import WeakSet

from portside.kernel.http.sse import sse_event

BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
REPLAY_ALL = frozenset({"-1", "0", "-"})


class Event(NamedTuple):
    """One event as it goes over the wire, and what is needed to choose it."""

    name: str
    event_id: str
    wire: bytes

    @property
    def mode(self) -> str:
        """The stream mode behind the name: `values|child:1` is `values`, `messages/partial` is `messages`."""
        return self.name.split("|", 1)[0].split("/", 1)[0]


class EventClock:
    """Makes event ids `<ms>-<seq>`, strictly increasing even within one millisecond (spec: Events)."""

    def __init__(self) -> None:
        self._millis, self._sequence = 0, 0

    def next(self) -> str:
        """Return the next id."""
        millis = max(time.time_ns() // 1_000_000, self._millis)
        self._sequence = self._sequence + 1 if millis == self._millis else 0
        self._millis = millis
        return f"{millis}-{self._sequence}"


class Subscription:
    """A follower of a feed: an async iterator of chunks, each holding every event that was waiting."""

    def __init__(self, modes: frozenset[str] | None) -> None:
        self._modes = modes
        self._buffer: list[bytes] = []
        self._size = 0
        self._ended = False
        self._wake = asyncio.Event()

    def offer(self, event: Event) -> None:
        """Take an event if it is asked for; a follower too far behind is ended."""
        if self._ended or (self._modes is not None and event.mode not in self._modes):
            return
        self._buffer.append(event.wire)
        self._size += len(event.wire)
        if self._size > BUFFER_LIMIT_BYTES:
            self._buffer.clear()
            self.end()
        self._wake.set()

    def end(self) -> None:
        """Let the iterator stop once the buffer is empty."""
        self._ended = True
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._buffer:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        chunk = b"".join(self._buffer)
        self._buffer.clear()
        self._size = 0
        return chunk


class Feed:
    """The events of one run."""

    def __init__(self, *, is_resumable: bool) -> None:
        self.is_resumable = is_resumable
        self._clock = EventClock()
        self._kept: list[Event] = []
        # Weak: a client that has gone takes its buffer with it, while the run goes on.
        self._followers: WeakSet[Subscription] = WeakSet()
        self.is_started = False
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.ending: Any = None

    def publish(self, events: list[tuple[str, bytes]]) -> None:
        """Give events, as names and JSON, to every follower."""
        self.is_started = True
        self.changed.set()
        for name, data in events:
            event_id = self._clock.next()
            event = Event(name, event_id, sse_event(name, data, event_id if self.is_resumable else None))
            if self.is_resumable:
                self._kept.append(event)
            for follower in self._followers:
                follower.offer(event)

    def end(self) -> None:
        """Say that no event follows."""
        self.changed.set()
        self.ended.set()
        for follower in self._followers:
            follower.end()
        self._followers.clear()

    def follow(self, *, after: str | None = None, modes: frozenset[str] | None = None) -> Subscription:
        """Follow the events from now on, or from after an event that is still kept."""
        subscription = Subscription(modes)
        if after is not None:
            for event in self._kept_after(after):
                subscription.offer(event)
        if self.ended.is_set():
            subscription.end()
        else:
            self._followers.add(subscription)
        return subscription

    def _kept_after(self, event_id: str) -> list[Event]:
        if event_id in REPLAY_ALL:
            return self._kept
        mark = _order(event_id)
        return [event for event in self._kept if _order(event.event_id) > mark]


def _order(event_id: str) -> tuple[int, int]:
    """Return an id's place; one that is no id comes after everything, so that nothing follows it."""
    millis, _, sequence = event_id.partition("-")
    if millis.isdigit() and (sequence or "0").isdigit():
        return int(millis), int(sequence or 0)
    return (1 << 63, 0)
