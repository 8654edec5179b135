"""The events of a graph on their way from its thread to the API's event loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# The thread of a graph that emits faster than the API's loop takes waits before its next event when this much is on its
# way.
BRIDGE_LIMIT_BYTES = 16 * 1024 * 1024
# A loop that takes nothing for this long is closing or blocked, and a longer wait would not help.
BRIDGE_WAIT_LIMIT_S = 5.0
# Events that nobody listens to wait this long, or up to this size, for a listener before they wake the API's loop.
UNFOLLOWED_DELAY_S = 0.1
UNFOLLOWED_LIMIT_BYTES = 256 * 1024


def size_of_event(event: tuple[str, bytes]) -> int:
    """Return the bytes of an event of a graph."""
    return len(event[1])


class ThreadBridge(Generic[T]):
    """A one-way queue to an event loop, for items of a known weight in bytes: in order, one wake-up for each burst.

    Create and close it on that loop. `is_wanted` says whether anybody listens, and is called in any thread. Until
    somebody does, items wait for a moment, and are dropped if the bridge closes first: most stateless runs never wake
    the API's loop.

    A producer in another thread pushes items, and waits while too many are on their way. A producer on the loop itself
    delivers its items: if it waited, nobody would take them.
    """

    def __init__(
        self,
        deliver: Callable[[list[T]], None],
        weigh: Callable[[T], int],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._deliver = deliver
        self._weigh = weigh
        self._is_wanted = is_wanted
        self._waiting: list[T] = []
        self._weight = 0

        # Guards what waits, and is notified when the loop has taken it.
        self._condition = threading.Condition()
        # Once it is open, items are delivered as they come.
        self._is_open = is_wanted()
        self._opening = None if self._is_open else self._loop.call_later(UNFOLLOWED_DELAY_S, self._open)
        self._is_flush_scheduled = False

    def push(self, item: T) -> None:
        """Hand over an item, from another thread. Raises RuntimeError on the receiving loop."""
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError("the receiving loop would wait for itself: deliver items there")

        with self._condition:
            if self._weight >= BRIDGE_LIMIT_BYTES:
                # A graph that emits without a pause must cost no more memory than this and one item.
                self._condition.wait(BRIDGE_WAIT_LIMIT_S)

            self._add([item])
            if self._is_open and not self._is_flush_scheduled:
                self._is_flush_scheduled = True
                self._loop.call_soon_threadsafe(self._flush)

    def deliver(self, items: list[T]) -> None:
        """Deliver items on the receiving loop: at once, or after the moment in which they wait for a listener."""
        with self._condition:
            self._add(items)

        if self._is_open:
            self._flush()

    def is_followed(self) -> bool:
        """Whether an item that is pushed now is delivered, as far as is known. Thread-safe."""
        return self._is_open or self._is_wanted()

    def close(self) -> None:
        """Deliver the items on their way, if they are wanted; no more may follow."""
        if self._opening is not None:
            self._opening.cancel()

        if self._is_open or self._is_wanted():
            self._flush()

    def _add(self, items: list[T]) -> None:
        self._waiting += items
        self._weight += sum(map(self._weigh, items))
        self._is_open = self._is_open or self._weight > UNFOLLOWED_LIMIT_BYTES or self._is_wanted()

    def _open(self) -> None:
        self._is_open = True
        self._flush()

    def _flush(self) -> None:
        with self._condition:
            items = self._waiting
            self._waiting = []
            self._weight = 0
            self._is_flush_scheduled = False

            self._condition.notify_all()

        if items:
            self._deliver(items)
