"""The order in which the servers of deployments start.

After a restart of the machine all deployments start. Each start takes a second of CPU or more, so hundreds at once
would make each of them as slow as all together, and none would answer for minutes. `StartQueue` lets a few start at
once, the most urgent first. A start has a slot until its server answers `GET /ok`; one that takes long lets the next
begin, so that servers that hang do not hold up the others.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import NamedTuple

# An ordinary server answers after a second or two of CPU.
SLOT_FOR_S = 30.0
NOW = 0
WORK = 1
LATER = 2
Slot = Callable[[], AbstractAsyncContextManager[None]]
NO_QUEUE: Slot = nullcontext


class Urgency(NamedTuple):
    """How urgent a start is: lower is earlier.

    `rank` is NOW if somebody waits for the server, WORK if runs do, else LATER. Among equals the deployment that was
    used last comes first: `minus_used_at` is the time of its last use, in seconds since 1970, with a minus sign.
    """

    rank: int = NOW
    minus_used_at: float = 0.0


def count_start_slots() -> int:
    """Return how many builds, or starts, run at once: as many as the machine has cores, and at least two."""
    return max(2, os.cpu_count() or 1)


class StartQueue:
    """Gives slots to starts. Without a number there are as many slots as cores, and at least two."""

    def __init__(self, slots: int | None = None, slot_for_s: float = SLOT_FOR_S) -> None:
        self._free = slots or count_start_slots()
        self._slot_for_s = slot_for_s
        self._waiting: list[tuple[Callable[[], Urgency], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, urgency: Callable[[], Urgency]) -> AsyncIterator[None]:
        """Wait for a slot, and give it back at the end of the block, at the latest after a while.

        `urgency` is called whenever a slot is free: it may change while the start waits.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (urgency, turn)
        self._waiting.append(entry)
        self._grant()

        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back()
            elif entry in self._waiting:
                self._waiting.remove(entry)

            raise

        has_slot = True

        def give_back() -> None:
            nonlocal has_slot
            if has_slot:
                has_slot = False
                self._give_back()

        limit = asyncio.get_running_loop().call_later(self._slot_for_s, give_back)
        try:
            yield
        finally:
            limit.cancel()
            give_back()

    def _give_back(self) -> None:
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            most_urgent = min(self._waiting, key=lambda entry: entry[0]())
            self._waiting.remove(most_urgent)
            _urgency, turn = most_urgent

            # A start that was cancelled just now is still listed.
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
