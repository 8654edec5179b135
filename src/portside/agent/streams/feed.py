"""One run's events in this process, and the subscriptions that follow it.

A feed lives on the API's event loop and is the one place where a run's events come in; it hands them on to its thread.
A resumable feed keeps its events, so that a client can come back with the id of the last one it saw (contract: Join
semantics). Above its bound it forgets the oldest: who comes back from before them gets what is left.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID
from weakref import WeakSet

from portside.agent.streams.buffer import Buffer
from portside.agent.streams.events import LOST_EVENTS, REPLAY_ALL, SLOW_READER, Event, EventClock, Place, place_of
from portside.agent.streams.threads import ThreadFeed

KEPT_LIMIT_BYTES = 32 * 1024 * 1024
_ALWAYS = frozenset({"error"})


class Subscription(Buffer):
    """A follower of a run: every event, or those of some modes and the error that ends the run."""

    def __init__(self, modes: frozenset[str] | None, *, with_ids: bool) -> None:
        super().__init__(SLOW_READER)
        self._modes = None if modes is None else modes | _ALWAYS
        self._with_ids = with_ids
        # Only what another process tells can come late; it is not news to who joined after it.
        self.floor: Place = (0, 0)
        self.mirror: object = None

    def offer(self, event: Event) -> None:
        """Take an event if it is asked for."""
        if self._modes is None or event.mode in self._modes:
            self.push(event.wire(with_id=self._with_ids))


class Feed:
    """The events of one run."""

    def __init__(self, run_id: UUID, thread: ThreadFeed, clock: EventClock, *, is_resumable: bool) -> None:
        self.run_id = run_id
        self.thread = thread
        self.is_resumable = is_resumable
        self.is_stateless = False
        self._clock = clock
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        # Weak: a client that has gone takes its buffer with it, while the run goes on.
        self._followers: WeakSet[Subscription] = WeakSet()
        self.is_started = self.is_local = False
        # Most likely it begins here, so there is nothing to ask the database for a while.
        self.is_admitted_here = False
        # Whether what others tell of the run can be taken as it comes: all before it is here, or nobody wants it.
        self.is_whole = False
        self.mirror: object = None
        self.ended = asyncio.Event()
        self.ending: Any = None
        # Of a run whose beginning was announced: the graph's name.
        self.graph_id: str | None = None
        self._on_start: Callable[[], None] | None = None
        self._change = asyncio.Event()
        self._last_id = ""

    def publish(self, events: list[tuple[str, bytes]]) -> None:
        """Give events, as names and JSON, to every follower of the run and of its thread."""
        self._start()
        made = [Event(name, self._clock.next(), data) for name, data in events]
        if made:
            self._last_id = made[-1].event_id
        # Asked once for a burst: walking a weak set costs as much as encoding an event.
        followers = list(self._followers)
        for event in made:
            if event.is_for_protocol_only:
                continue
            if self.is_resumable:
                self._keep(event)
            for follower in followers:
                follower.offer(event)
        self.thread.add(self.run_id, made)

    def receive(self, events: list[Event]) -> None:
        """Take events of the run that another process made, each once whatever is said twice or late."""
        last = place_of(self._last_id) or (0, 0)
        new = [event for event in events if event.place > last]
        if self.is_local or not new:
            return
        self._start()
        self._last_id = new[-1].event_id
        followers = list(self._followers)
        for event in new:
            if event.is_for_protocol_only:
                continue
            if self.is_resumable:
                self._keep(event)
            for follower in followers:
                if event.place > follower.floor:
                    follower.offer(event)

    def lose(self) -> None:
        """Let the followers go with the word that events were lost on their way; the run goes on."""
        for follower in self._followers:
            follower.fail(LOST_EVENTS)
        self._followers.clear()

    def end(self) -> None:
        """Say that no event follows."""
        self.ended.set()
        self._begun()
        self.nudge()
        for follower in self._followers:
            follower.end()
        self._followers.clear()

    def on_start(self, call: Callable[[], None]) -> None:
        """Have something called when the run begins, or ends without."""
        self._on_start = call

    @property
    def is_heard(self) -> bool:
        """Whether anybody follows the run or its thread, or may want what it told before. Asked in any thread."""
        is_passing = self.is_stateless and not self.is_resumable
        return not is_passing or bool(self._followers) or self.thread.is_heard(self.run_id)

    def nudge(self) -> None:
        """Say to those who wait that it is worth another look."""
        self._change.set()
        self._change = asyncio.Event()

    async def change(self) -> None:
        """Wait until the run begins or ends, or there is another reason to look."""
        await self._change.wait()

    def followers(self) -> list[Subscription]:
        """Return who follows the run."""
        return list(self._followers)

    def _start(self) -> None:
        if not self.is_started:
            self.is_started = True
            self._begun()
            self.nudge()

    def _begun(self) -> None:
        call, self._on_start = self._on_start, None
        if call is not None:
            call()

    def follow(self, *, after: str | None = None, modes: frozenset[str] | None = None) -> Subscription:
        """Follow the events from now on, or from after an event that is kept; after what is no id there is nothing."""
        subscription = Subscription(modes, with_ids=self.is_resumable)
        if after is not None and self.is_resumable:
            for event in self._kept_after(after):
                subscription.offer(event)
        if self.ended.is_set() or (after is not None and self.is_resumable and not _is_id(after)):
            subscription.end()
        else:
            self._followers.add(subscription)
        return subscription

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._kept_bytes += len(event.data)
        while self._kept_bytes > KEPT_LIMIT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().data)

    def _kept_after(self, event_id: str) -> list[Event]:
        if event_id in REPLAY_ALL:
            return list(self._kept)
        mark = place_of(event_id)
        if mark is None:
            return []
        return [event for event in self._kept if (place_of(event.event_id) or mark) > mark]


def _is_id(text: str) -> bool:
    return text in REPLAY_ALL or place_of(text) is not None
