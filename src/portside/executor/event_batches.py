"""Carries the events of a run from the loop of its graph to the link."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from portside.executor.link import HIGH_WATER_BYTES, LinkClosed, ServedCall
from portside.executor.memory import measure_memory, return_free_memory
from portside.kernel.timeouts import wait_at_most

EVENT_WAIT_LIMIT_S = 30.0
# While a run waits for the link, its graph may go on emitting: langgraph keeps that, and only memory shows how much.
# A look follows soon after one that saw growth, as a graph can emit hundreds of megabytes in the longest interval.
SHORTEST_LOOK_S = 0.001
LONGEST_LOOK_S = 0.05
GROWTH_LIMIT_BYTES = 32 * 1024 * 1024
LITTLE_GROWTH_BYTES = GROWTH_LIMIT_BYTES // 16
UNFOLLOWED_DELAY_S = 0.1
UNFOLLOWED_LIMIT_BYTES = 256 * 1024


class EventBatches:
    """Carries the events of a run from its graph loop to the link: what waits there is one item.

    While the server does not read, events wait here, and the run waits before its next event. Other runs of its loop go
    on meanwhile. A graph that goes on emitting within a step makes langgraph keep what nobody takes: once that takes
    much memory, over all waits since langgraph last had nothing left, the run blocks its loop, as nothing else stops
    such a graph. The events of a run that nobody follows wait for a moment, because most such runs have ended by then.
    """

    def __init__(self, call: ServedCall, *, is_unfollowed: bool) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._taken = threading.Condition()
        self._waiting: list[tuple[str, bytes]] = []
        self._size = 0

        self._count = 0
        self._is_waiting = False
        self._memory_before: int | None = None
        """The memory before the first wait since langgraph last had no event left."""

        # Wakes the run that waits until its events are taken, on its own loop.
        self._wake: Callable[[], object] = lambda: None
        self._is_open = not is_unfollowed
        self._opening = self._loop.call_later(UNFOLLOWED_DELAY_S, self._open) if is_unfollowed else None
        self._is_scheduled = False
        self._draining: asyncio.Task[None] | None = None

    def add(self, event: tuple[str, bytes]) -> Awaitable[None] | None:
        """Add an event, on the loop of the graph; if this returns something, the event is added once that was awaited.

        It waits for the events before it and not for itself: a run that emits one large event goes on at once.
        """
        if self._size >= HIGH_WATER_BYTES:
            if not self._has_grown(measure_memory("self")):
                return self._add_when_taken(event)

            # Without a turn of the loop, in which the graph would emit more, until langgraph has nothing left.
            self._block_until_taken(EVENT_WAIT_LIMIT_S)

        self._add(event)
        return None

    def _add(self, event: tuple[str, bytes]) -> None:
        self._count += 1
        with self._taken:
            self._waiting.append(event)
            self._size += len(event[1])

            self._is_open = self._is_open or self._size > UNFOLLOWED_LIMIT_BYTES
            if self._is_open and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon_threadsafe(self._send)

    async def _add_when_taken(self, event: tuple[str, bytes]) -> None:
        """Wait until the link has taken the events so far, for at most EVENT_WAIT_LIMIT_S."""
        loop = asyncio.get_running_loop()
        was_taken = asyncio.Event()
        with self._taken:
            if self._size < HIGH_WATER_BYTES:
                was_taken.set()
            self._wake = partial(loop.call_soon_threadsafe, was_taken.set)

        deadline = loop.time() + EVENT_WAIT_LIMIT_S
        self._is_waiting = True
        try:
            await self._wait(was_taken, deadline)
        finally:
            self._is_waiting = False

        self._add(event)
        loop.call_soon(self._forget_memory_unless_more, self._count)

    async def _wait(self, was_taken: asyncio.Event, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        memory_seen = measure_memory("self")
        if self._memory_before is None:
            self._memory_before = memory_seen

        look_s = SHORTEST_LOOK_S
        while not was_taken.is_set() and loop.time() < deadline:
            await wait_at_most(look_s, was_taken.wait())
            memory = measure_memory("self")
            if self._has_grown(memory):
                self._block_until_taken(deadline - loop.time())

            is_growing = memory - memory_seen > LITTLE_GROWTH_BYTES
            look_s = SHORTEST_LOOK_S if is_growing else min(2 * look_s, LONGEST_LOOK_S)
            memory_seen = memory

    def _has_grown(self, memory: int) -> bool:
        """Whether this memory is much more than before the waits for the link."""
        return self._memory_before is not None and memory - self._memory_before > GROWTH_LIMIT_BYTES

    def _forget_memory_unless_more(self, count: int) -> None:
        """Forget the memory before the first wait once langgraph has nothing left.

        It gives what it has within one turn of the loop: the run adds that, or waits.
        """
        if self._is_waiting:
            return

        if self._count != count:
            asyncio.get_running_loop().call_soon(self._forget_memory_unless_more, self._count)
            return

        if self._has_grown(measure_memory("self")):
            # Else the next growth would be counted from here, and the memory would grow with each flood.
            return_free_memory()

        self._memory_before = None

    def _block_until_taken(self, within_s: float) -> None:
        with self._taken:
            if self._size >= HIGH_WATER_BYTES:
                self._taken.wait(within_s)

    def flush(self, *, is_last: bool = False) -> None:
        """Send what waits, although the server does not read; the last batch with the result, which follows at once."""
        if self._opening is not None:
            self._opening.cancel()

        with self._taken:
            events = self._waiting
            self._waiting = []
            self._size = 0
            self._is_scheduled = False

            self._taken.notify_all()
            wake = self._wake
            self._wake = lambda: None

        # The loop of the graph may be closed already.
        with contextlib.suppress(RuntimeError):
            wake()

        if events:
            self._call.send(events, is_last=is_last)

    def _open(self) -> None:
        # Under the lock, because `add` reads and writes the flag in another thread.
        with self._taken:
            self._is_open = True
            is_waiting = bool(self._waiting)

        if is_waiting:
            self._send()

    def _send(self) -> None:
        if self._call.link.is_congested:
            self._draining = self._loop.create_task(self._drain())
        else:
            self.flush()

    async def _drain(self) -> None:
        # The call ends with the link: nobody reads the events then.
        with contextlib.suppress(LinkClosed):
            await self._call.drain()
        self._send()
