"""Carries the events of a run from the loop of its graph to the link."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from portside.executor import messages
from portside.executor.link import HIGH_WATER_BYTES, LinkClosed, ServedCall
from portside.kernel.timeouts import wait_at_most

EVENT_WAIT_LIMIT_S = 30.0
# While a run waits for the link, its graph may go on emitting: langgraph keeps that, and only memory shows how much.
LOOK_AT_MEMORY_S = 0.05
GROWTH_LIMIT_BYTES = 32 * 1024 * 1024
UNFOLLOWED_DELAY_S = 0.1
UNFOLLOWED_LIMIT_BYTES = 256 * 1024


class EventBatches:
    """Carries the events of a run from its graph loop to the link: what waits there is one item.

    While the server does not read, events wait here, and the run waits before its next event. Other runs of its loop go
    on meanwhile. A graph that goes on emitting within a step makes langgraph keep what nobody takes: once that takes
    much memory, the run blocks its loop, as nothing else stops such a graph. The events of a run that nobody follows
    wait for a moment, because most such runs have ended by then.
    """

    def __init__(self, call: ServedCall, *, is_unfollowed: bool) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._taken = threading.Condition()
        self._waiting: list[tuple[str, bytes]] = []
        self._size = 0

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
            return self._add_when_taken(event)

        self._add(event)
        return None

    def _add(self, event: tuple[str, bytes]) -> None:
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
        memory_before = messages.measure_memory("self")
        while not was_taken.is_set() and loop.time() < deadline:
            await wait_at_most(LOOK_AT_MEMORY_S, was_taken.wait())

            if messages.measure_memory("self") - memory_before > GROWTH_LIMIT_BYTES:
                self._block_until_taken(deadline - loop.time())

        self._add(event)

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
