"""Stops a run whose lease the server did not renew in time."""

import asyncio
import logging
import time
from collections.abc import Callable

from portside.executor import messages
from portside.executor.link import CallFailed, ServedCall

log = logging.getLogger(__name__)
# A run is stopped this long before the end of its lease, because that takes a moment.
STOP_EARLY_S = 0.5
# A renewal that arrived may not have been read yet.
READ_WITHIN_S = 0.05
# How long cancelled code may take to stop before the process ends itself.
STOPPED_WITHIN_S = 5.0


class RunLease:
    """Stops a run shortly before the server's lease of it ends: later another server may have it.

    So a run stops also if its server is paused or cut off. `on_stuck` is called when the run does not stop.
    """

    def __init__(self, call: ServedCall, until: float, on_stuck: Callable[[], None]) -> None:
        self.until = until
        """The end of the lease by the monotonic clock; 0 if the server has not sent it."""
        self.is_lost = False
        self._call = call
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._left_s(), self._check)

    def close(self) -> None:
        """Stop watching the run."""
        self._timer.cancel()

    def answer(self) -> None:
        """Answer the call as stopped, although the run has not stopped yet."""
        failure = CallFailed(messages.LEASE_LOST, "the server did not renew the lease in time, and it did not stop")
        self._call.link.fail(self._call.number, failure)

    def _left_s(self) -> float:
        return max(0.0, self.until - STOP_EARLY_S - time.monotonic()) if self.until else STOPPED_WITHIN_S

    def _check(self) -> None:
        left_s = self._left_s()
        if left_s:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self._timer = self._loop.call_later(READ_WITHIN_S, self._expire)

    def _expire(self) -> None:
        if self._left_s():
            self._check()
        elif not self._call.is_stopped:
            log.warning("a run is stopped: the server did not renew its lease in time")
            self.is_lost = True
            self._call.stop()
            self._timer = self._loop.call_later(STOPPED_WITHIN_S, self._give_up)

    def _give_up(self) -> None:
        self._timer = self._loop.call_later(STOPPED_WITHIN_S, self._give_up)
        self._on_stuck()
