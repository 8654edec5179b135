"""How long what ended is kept in this process, and how much of it; what ended first goes first."""

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portside.agent.streams.threads import Segment, ThreadFeed

ALL_RUNS_LIMIT_BYTES = 128 * 1024 * 1024


class Retention:
    """Keeps what runs left, for a time and up to a size."""

    def __init__(self, keep_s: float, limit_bytes: int = ALL_RUNS_LIMIT_BYTES) -> None:
        self._keep_s = keep_s
        self._limit_bytes = limit_bytes
        self._size = 0
        self._kept: deque[tuple[float, ThreadFeed, Segment]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, thread: "ThreadFeed", segment: "Segment") -> None:
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
