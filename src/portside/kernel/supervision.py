"""Runs background work that must not end silently: it logs each failure and runs the work again after a back-off.

A failure is any exception: a full disk, no free descriptor, a bug. Periodic tasks have their own driver
(`reconcile.py`), which activates them again after the next period.
"""

import asyncio
import contextlib
import signal
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
        self._first_s = first_s
        self._limit_s = limit_s
        self._reset_after_s = reset_after_s
        self._next_s = first_s

    def next(self, healthy_for_s: float = 0.0) -> float:
        """Return the seconds to wait. `healthy_for_s` is the time since the work last started."""
        if healthy_for_s >= self._reset_after_s:
            self._next_s = self._first_s

        delay = self._next_s
        self._next_s = min(self._next_s * 2, self._limit_s)
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
        self._name = name
        self._expected = expected
        self._on_failure = on_failure
        self._backoff = backoff or Backoff()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work until it returns, again after each failure, and return its result."""
        while True:
            start = time.monotonic()
            try:
                return await work()
            except Exception as exc:  # noqa: BLE001 - logged there
                delay_s = self._report(exc, time.monotonic() - start)

            await asyncio.sleep(delay_s)

    def run_in_thread(self, work: Callable[[], None], stop: threading.Event) -> None:
        """Like `run`, in the calling thread, until the work returns or `stop` is set."""
        while not stop.is_set():
            start = time.monotonic()
            try:
                return work()
            except Exception as exc:  # noqa: BLE001 - logged there
                delay_s = self._report(exc, time.monotonic() - start)

            stop.wait(delay_s)

        return None

    def _report(self, failure: Exception, ran_for_s: float) -> float:
        """Log a failure, and return the seconds until the next attempt."""
        delay_s = self._backoff.next(ran_for_s)
        message = "background work failed and is tried again"
        fields = {"work": self._name, "error": f"{type(failure).__name__}: {failure}", "again_in_s": delay_s}

        if isinstance(failure, self._expected) or is_retryable(failure):
            log.warning(message, **fields)
        else:
            log.error(message, **fields, exc_info=failure)

        if self._on_failure is not None:
            self._on_failure(failure, delay_s)

        return delay_s


def describe_exit(code: int) -> str:
    """Describe how a process ended, by its exit code, which is negative after a signal."""
    if code >= 0:
        return f"exited with code {code}"

    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"

    return f"was killed by signal {-code}"
