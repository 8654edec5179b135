"""Carries events from the thread that executes a graph to the API's event loop: in order, one wake-up per burst."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Conduit(Generic[T]):
    """A one-way pipe between two event loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._waiting: deque[T] = deque()
        self._is_scheduled = False

    def push(self, item: T) -> None:
        """Hand over an item, from any thread."""
        self._waiting.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        # Cleared before the items are taken: a push in between schedules one flush too many, never one too few.
        self._is_scheduled = False
        items = []
        while self._waiting:
            items.append(self._waiting.popleft())
        if items:
            self._deliver(items)
