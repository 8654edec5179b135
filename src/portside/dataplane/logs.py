"""The log of a revision on its way to the control plane: batched, bounded, never in the way of the work.

Lines are sent within a second of being written. While the control plane is away they wait, up to a limit beyond which
the oldest are given up. The output of servers is also kept in files, which is the affair of `compute/output.py`.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from portside.dataplane.backoff import Backoff
from portside.dataplane.builds.output import Output
from portside.dataplane.failures import Refused, Unreachable
from portside.dataplane.types import LogEntry
from portside.kernel.codec import storable

_BATCH = 1000
_MAX_WAITING = 20_000
_MAX_MESSAGE = 8000
_BATCH_WINDOW_S = 0.5

Ship = Callable[[list[LogEntry]], Coroutine[Any, Any, None]]


class RevisionLog:
    """Takes the lines of one log of one revision and ships them in the background."""

    def __init__(self, ship: Ship) -> None:
        self._ship = ship
        self._mask: Callable[[str], str] = str
        self._waiting: deque[LogEntry] = deque(maxlen=_MAX_WAITING)
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task = asyncio.create_task(self._run())

    def hide(self, values: Iterable[str]) -> None:
        """Let values not show in what is written from now on."""
        self._mask = Output(lambda _line: None, values).mask

    def add(self, message: str, level: str = "INFO", timestamp: int | None = None) -> None:
        """Write one line; `timestamp` is epoch milliseconds, now by default."""
        moment = int(time.time() * 1000) if timestamp is None else timestamp
        text = storable(self._mask(message)[:_MAX_MESSAGE])
        self._waiting.append(LogEntry(moment, level, text))
        self._empty.clear()
        self._wake.set()

    async def flush(self, within_s: float = 10.0) -> None:
        """Wait until all lines have arrived, or until the time is up."""
        self._hurry.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), within_s)
        self._hurry.clear()

    async def close(self, within_s: float = 5.0) -> None:
        """Flush and stop."""
        try:
            await self.flush(within_s)
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff(limit_s=10)
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _BATCH_WINDOW_S)
            try:
                await self._ship_waiting()
                backoff.reset()
            except Unreachable:
                await asyncio.sleep(backoff.next())

    async def _ship_waiting(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._ship(batch)
            except Refused:
                continue  # The revision is gone, and so is the reader of these lines.
            except BaseException:
                room = _MAX_WAITING - len(self._waiting)
                self._waiting.extendleft(reversed(batch[len(batch) - min(room, len(batch)) :]))
                raise
        self._wake.clear()
        self._empty.set()
