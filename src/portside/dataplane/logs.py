"""Ships a revision's log to the control plane: in batches, with bounded memory, without delaying the writer.

Lines are sent within a second. While the control plane is away they wait, up to a limit above which the oldest lines
are dropped. `compute/server_output.py` also keeps the output of servers in files.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any

from portside.dataplane.failures import ControlPlaneRefused, ControlPlaneUnreachable
from portside.dataplane.masking import MaskedOutput
from portside.kernel.shortening import shorten
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.kernel.user_json import storable
from portside.listener_api import NewLogEntry

_BATCH = 1000
_MAX_WAITING = 20_000
_MAX_MESSAGE = 8000
_BATCH_WINDOW_S = 0.5
# How long the lines of a closed log wait for the control plane: the last ones say why a build or a server failed.
_LINGER_S = 3600.0
_lingering = TaskSet()

Ship = Callable[[list[NewLogEntry]], Coroutine[Any, Any, None]]


class RevisionLog:
    """Takes the lines of one log of a revision and ships them in the background."""

    def __init__(self, ship: Ship) -> None:
        self._ship = ship
        self._mask: Callable[[str], str] = str
        self._waiting: deque[NewLogEntry] = deque(maxlen=_MAX_WAITING)
        self._has_lines = asyncio.Event()
        self._flushing = asyncio.Event()
        self._empty = asyncio.Event()

        self._empty.set()
        self._is_closed = False
        self._backoff = Backoff(limit_s=10)
        supervision = Supervision("log of a revision", backoff=self._backoff, expected=(ControlPlaneUnreachable,))
        self._task = asyncio.create_task(supervision.run(self._run))

    def hide(self, values: Iterable[str]) -> None:
        """Mask these values in lines that are added from now on."""
        self._mask = MaskedOutput(lambda _line: None, values).mask

    def add(self, message: str, level: str = "INFO", timestamp: float | None = None) -> None:
        """Add one line; `timestamp` is in milliseconds since 1970, now by default."""
        moment = int(time.time() * 1000) if timestamp is None else timestamp
        text = storable(shorten(self._mask(message), _MAX_MESSAGE))
        self._waiting.append(NewLogEntry(moment, level, text))
        self._empty.clear()
        self._has_lines.set()

    async def flush(self, within_s: float = 10.0) -> None:
        """Wait until all lines have been shipped, for at most this time."""
        self._flushing.set()
        await wait_at_most(within_s, self._empty.wait())

        self._flushing.clear()

    async def close(self, within_s: float = 5.0) -> None:
        """Flush and stop. What the control plane has not taken by then is shipped in the background."""
        self._is_closed = True
        try:
            await self.flush(within_s)
        except asyncio.CancelledError:
            self._task.cancel()
            raise

        if self._empty.is_set():
            await cancel_and_wait(self._task)
        elif self._task not in _lingering:
            _lingering.add(self._task)
            timer = asyncio.get_running_loop().call_later(_LINGER_S, self._task.cancel)
            self._task.add_done_callback(lambda _task: timer.cancel())

    async def _run(self) -> None:
        while not (self._is_closed and self._empty.is_set()):
            await self._has_lines.wait()
            await wait_at_most(_BATCH_WINDOW_S, self._flushing.wait())

            await self._ship_waiting()
            self._backoff.reset()

    async def _ship_waiting(self) -> None:
        size = _BATCH
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            try:
                await self._ship(batch)
            except ControlPlaneRefused as exc:
                is_too_large = exc.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                if is_too_large and len(batch) > 1:
                    self._put_back(batch)
                    size = len(batch) // 2
                # Otherwise the revision was deleted, so nobody can read these lines.
            except BaseException:
                self._put_back(batch)
                raise

        self._has_lines.clear()
        self._empty.set()

    def _put_back(self, batch: list[NewLogEntry]) -> None:
        """Put lines back in front, without pushing newer lines out at the other end."""
        count = min(_MAX_WAITING - len(self._waiting), len(batch))
        newest = batch[len(batch) - count :]
        self._waiting.extendleft(reversed(newest))
