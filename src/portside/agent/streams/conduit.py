"""Carries events from the thread that executes a graph to the API's event loop: in order, one wake-up per burst.

What nobody listens to waits for a moment and is dropped if the run is over by then, which saves the API's loop from
being woken for most stateless runs.

Who pushes faster than the API's loop takes waits for it, so that a graph that tells without a pause costs no more
memory than what may be on the way.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
ON_THE_WAY_LIMIT_BYTES = 16 * 1024 * 1024
# A loop that takes nothing for so long is ending, or stands still for a reason that waiting makes no better.
WAITS_AT_MOST_S = 5.0
NOBODY_WAITS_S = 0.1
KEPT_FOR_NOBODY_BYTES = 256 * 1024


class Conduit(Generic[T]):
    """A one-way pipe to an event loop, for items of a known weight in bytes. Make it and close it on that loop.

    `is_wanted` tells whether anybody may listen; it is asked in any thread.
    """

    def __init__(
        self,
        deliver: Callable[[list[T]], None],
        weigh: Callable[[T], int],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._weigh = weigh
        self._is_wanted = is_wanted
        self._waiting: list[T] = []
        self._weight = 0
        self._taken = threading.Condition()
        self._is_open = is_wanted()
        self._opens = None if self._is_open else self._loop.call_later(NOBODY_WAITS_S, self._open)
        self._is_called = False

    def push(self, item: T) -> None:
        """Hand over an item, from any thread but that of the loop it goes to."""
        with self._taken:
            self._waiting.append(item)
            self._weight += self._weigh(item)
            self._is_open = self._is_open or self._weight > KEPT_FOR_NOBODY_BYTES or self._is_wanted()
            if self._is_open and not self._is_called:
                self._is_called = True
                self._loop.call_soon_threadsafe(self._flush)
            if self._weight > ON_THE_WAY_LIMIT_BYTES:
                self._taken.wait(WAITS_AT_MOST_S)

    def close(self) -> None:
        """Deliver what is on the way, if it is wanted; nothing follows."""
        if self._opens is not None:
            self._opens.cancel()
        if self._is_open or self._is_wanted():
            self._flush()

    def _open(self) -> None:
        self._is_open = True
        self._flush()

    def _flush(self) -> None:
        with self._taken:
            items, self._waiting, self._weight = self._waiting, [], 0
            self._is_called = False
            self._taken.notify_all()
        if items:
            self._deliver(items)
