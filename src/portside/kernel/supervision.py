"""Runs background work that must not end silently: it logs each failure and runs the work again after a back-off.

A failure is any exception: a full disk, no free descriptor, a bug. Periodic tasks have their own driver
(`reconcile.py`), which activates them again after the next period.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from portside.kernel.logs import get_logger
from portside.kernel.transient_errors import is_retryable

log = get_logger(__name__)
T = TypeVar("T")
OnFailure = Callable[[Exception, float], None]


class Backoff:
    """Delays that double from `first_s` up to `limit_s`, and start over after `reset_after_s` without a failure."""

    def __init__(self, first_s: float = 0.2, limit_s: float = 30.0, reset_after_s: float = 60.0) -> None:
        self._first_s, self._limit_s, self._reset_after_s = first_s, limit_s, reset_after_s
        self._next_s = first_s

    def next(self, healthy_for_s: float = 0.0) -> float:
        """Return the seconds to wait. `healthy_for_s` is the time since the work last started."""
        if healthy_for_s >= self._reset_after_s:
            self._next_s = self._first_s
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._limit_s)
        return delay

    def reset(self) -> None:
        """Start over with the shortest delay."""
        self._next_s = self._first_s


class Supervision:
    """Restarts one piece of background work after failures.

    `expected` failures and outages are logged without a traceback. `on_failure` is called with each failure and the
    seconds until the next attempt; it must not raise.
    """

    def __init__(
        self,
        name: str,
        *,
        backoff: Backoff | None = None,
        expected: tuple[type[Exception], ...] = (),
        on_failure: OnFailure | None = None,
    ) -> None:
        self._name, self._expected, self._on_failure = name, expected, on_failure
        self._backoff = backoff or Backoff()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work until it returns, again after each failure, and return its result."""
        while True:
            began = time.monotonic()
            try:
                return await work()
            except Exception as failure:  # noqa: BLE001 - logged there
                delay_s = self._failed(failure, began)
            await asyncio.sleep(delay_s)

    def run_in_thread(self, work: Callable[[], None], stop: threading.Event) -> None:
        """Like `run`, in the calling thread, until the work returns or `stop` is set."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                return work()
            except Exception as failure:  # noqa: BLE001 - logged there
                delay_s = self._failed(failure, began)
            stop.wait(delay_s)
        return None

    def _failed(self, failure: Exception, began: float) -> float:
        delay_s = self._backoff.next(time.monotonic() - began)
        is_expected = isinstance(failure, self._expected) or is_retryable(failure)
        write, more = (log.warning, {}) if is_expected else (log.error, {"exc_info": failure})
        error = f"{type(failure).__name__}: {failure}"
        write("background work failed and is tried again", work=self._name, error=error, again_in_s=delay_s, **more)
        if self._on_failure is not None:
            self._on_failure(failure, delay_s)
        return delay_s
