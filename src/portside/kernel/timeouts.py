"""Time limits for a block of code, which also hold in the cleanup of a task that was cancelled.

Before Python 3.11.3, `asyncio.timeout` raises CancelledError in place of TimeoutError in a task that was cancelled
earlier, and whatever handles the TimeoutError is left out. Debian 12 has Python 3.11.2.

The module needs nothing but the standard library, because executors import it.
"""

import asyncio
import sys
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self


class CleanupTimeout(asyncio.Timeout):  # type: ignore[misc]
    """A time limit that raises TimeoutError in every task.

    Its base is final for type checkers. This class uses nothing private of it.
    """

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        self._earlier_cancellations = 0 if task is None else task.cancelling()

        await super().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(exc_type, exc, traceback)
        if not self.expired() or exc_type is not asyncio.CancelledError:
            return

        task = asyncio.current_task()
        if task is not None and task.cancelling() <= self._earlier_cancellations:
            raise TimeoutError from exc


def cleanup_timeout(delay_s: float | None) -> asyncio.Timeout:
    """Return what `asyncio.timeout` returns, for Pythons in which it fails in cleanup."""
    return CleanupTimeout(None if delay_s is None else asyncio.get_running_loop().time() + delay_s)


timeout = asyncio.timeout if sys.version_info >= (3, 11, 3) else cleanup_timeout
"""Limits a block of code to some seconds, or not at all for None. Raises TimeoutError."""


async def wait_at_most(delay_s: float | None, work: Awaitable[Any]) -> bool:
    """Await something for at most some seconds, then cancel it; return whether it ended in time.

    `asyncio.wait_for` is no substitute: on Python 3.11 it may drop the cancellation of the task that calls it, and a
    loop that waits would never end.
    """
    try:
        async with timeout(delay_s):
            await work
    except TimeoutError:
        return False

    return True
