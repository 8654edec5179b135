"""How many runs of one caller wait to be executed, in all processes of the database, so that nobody fills the queue.

Waiting runs are counted by the database, but not for each run that comes. What a count leaves free, this process may
use a part of for a few seconds without asking again, and other processes as well; near the limit each run is counted.
Runs that are being admitted here are added to what the database tells. So the limit is never missed by one process, and
by several only by what they admit at the same moment.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.errors import TooManyRequests

RETRY_AFTER_S = 5
COUNTED_FOR_S = 5.0
# As many processes may use what is free at once, and not exceed it.
PART = 10
KNOWN_AT_MOST = 10_000


class TooManyPendingRuns(TooManyRequests):
    """The caller has as many runs waiting as MAX_PENDING_RUNS_PER_CALLER allows; try again when some have begun."""

    code = "too_many_pending_runs"


class _Known(msgspec.Struct):
    """What is known of a caller: how many runs may come without a count and until when, and what is under way here."""

    free: int = 0
    until: float = 0.0
    under_way: int = 0
    admitted: int = 0


class Crowding:
    """The runs that wait, by who asked for them; with `most` 0 nobody is counted."""

    def __init__(self, db: Database, most: int) -> None:
        self._db = db
        self._most = most
        self._callers: dict[str, _Known] = {}

    def name(self, caller: str | None) -> str | None:
        """Return under which name the runs of a caller are counted, if they are."""
        return caller if self._most else None

    @asynccontextmanager
    async def room_for(self, runs: int, name: str | None) -> AsyncIterator[None]:
        """Keep room for runs while they are admitted. Raises TooManyPendingRuns."""
        if name is None:
            yield
            return
        known = self._known(name)
        if known.free < runs or known.until < time.monotonic():
            await self._count(name, known, runs)
        known.free -= runs
        known.under_way += runs
        try:
            yield
        finally:
            known.under_way -= runs
            known.admitted += runs

    async def _count(self, name: str, known: _Known, runs: int) -> None:
        before = known.admitted
        waiting: int = await self._db.fetchval(sql.count_waiting, asked_by=name, most=self._most)
        # What was under way at any time since may or may not be among those that were counted.
        left = self._most - waiting - known.under_way - (known.admitted - before)
        if left < runs:
            raise TooManyPendingRuns(
                f"The caller has {waiting} runs waiting, and the limit is {self._most} "
                "(setting MAX_PENDING_RUNS_PER_CALLER). Try again when some of them have begun.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        known.free, known.until = max(left // PART, runs), time.monotonic() + COUNTED_FOR_S

    def _known(self, name: str) -> _Known:
        known = self._callers.get(name)
        if known is None:
            if len(self._callers) >= KNOWN_AT_MOST:
                self._callers = {name: known for name, known in self._callers.items() if known.under_way}
            known = self._callers[name] = _Known()
        return known
