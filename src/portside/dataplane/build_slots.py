"""How many builds of a listener run at once, and what has to wait until none runs.

Builds share caches of packages, which can only be emptied while no build uses them. Who needs that goes before the
builds that wait, or the caches would grow as long as there is always another build.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from portside.kernel.timeouts import wait_at_most


class BuildSlots:
    """Lets `count` builds run at once, in the order in which they came."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running = 0

        # Why no further build may begin, while something waits for the end of those that run.
        self._paused: str | None = None
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def has_builds(self) -> bool:
        """Whether a build runs."""
        return self._running > 0

    @contextlib.asynccontextmanager
    async def take(self, on_wait: Callable[[str], object] = str) -> AsyncIterator[None]:
        """Wait for a slot and hold it; `on_wait` hears why there is none yet, and again when the reason changes."""
        last_reason = None
        while (reason := self._find_obstacle()) is not None:
            if reason != last_reason:
                on_wait(reason)

            last_reason = reason
            await self._changed.wait()

        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._ended.set()
            self._notify()

    @contextlib.asynccontextmanager
    async def alone(self, reason: str) -> AsyncIterator[None]:
        """Let no further build begin, wait until those that run have ended, and hold all slots."""
        self._paused = reason
        self._notify()
        try:
            while self._running:
                await self._changed.wait()
            yield
        finally:
            self._paused = None
            self._notify()

    async def wait_for_end(self, within_s: float) -> None:
        """Wait until a build has ended since the last call, for at most this time."""
        await wait_at_most(within_s, self._ended.wait())

        self._ended.clear()

    def _find_obstacle(self) -> str | None:
        if self._paused is not None:
            return self._paused
        if self._running >= self._count:
            return f"{self._count} builds run at once, and others began earlier"

        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
