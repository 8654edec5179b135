"""Carries events from the thread that executes a graph to the API's event loop: in order, one wake-up per burst.

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


class Conduit(Generic[T]):
    """A one-way pipe between two event loops, for items of a known weight in bytes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None], weigh: Callable[[T], int]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._weigh = weigh
        self._waiting: list[T] = []
        self._weight = 0
        self._taken = threading.Condition()

    def push(self, item: T) -> None:
        """Hand over an item, from any thread but that of the loop it goes to."""
        with self._taken:
            if not self._waiting:
                self._loop.call_soon_threadsafe(self._flush)
            self._waiting.append(item)
            self._weight += self._weigh(item)
            if self._weight > ON_THE_WAY_LIMIT_BYTES:
                self._taken.wait(WAITS_AT_MOST_S)

    def _flush(self) -> None:
        with self._taken:
            items, self._waiting, self._weight = self._waiting, [], 0
            self._taken.notify_all()
        self._deliver(items)
