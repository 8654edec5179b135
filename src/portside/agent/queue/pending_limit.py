"""The limit of runs that wait for one caller."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.errors import TooManyRequests

RETRY_AFTER_S = 5
COUNT_VALID_S = 5.0
# Each count lets this process admit a tenth of what is free: ten processes may then do so at once within the limit.
SHARE = 10
# Above this, the counts of callers without a request in progress are dropped.
CALLERS_AT_MOST = 10_000


class TooManyPendingRuns(TooManyRequests):
    """The caller has as many runs waiting as MAX_PENDING_RUNS_PER_CALLER allows; try again when some have begun."""

    code = "too_many_pending_runs"


class _CallerCount(msgspec.Struct):
    """What this process knows of one caller's waiting runs."""

    free: int = 0
    """How many runs may be admitted before the next count."""
    valid_until: float = 0.0
    """When the last count is out of date, of the monotonic clock."""
    in_progress: int = 0
    """How many runs this process is admitting now."""
    admitted: int = 0
    """How many runs this process has admitted since it knows the caller."""
    counting: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def is_out_of_date(self, runs: int) -> bool:
        """Whether the database has to count again before this many runs are admitted."""
        return self.free < runs or self.valid_until < time.monotonic()


class PendingRunLimit:
    """Limits the runs of one caller that wait to be executed, over all processes of the database; 0 disables the limit.

    The database counts waiting runs, but not for each new run. A share of what a count leaves free may be admitted for
    a few seconds without another count; near the limit each run is counted. Runs that this process is admitting are
    added to the count. So one process never exceeds the limit, and several exceed it only by what they admit at the
    same moment.
    """

    def __init__(self, db: Database, limit: int) -> None:
        self.is_enabled = limit > 0
        """Whether runs have to name their caller: only then they are counted."""
        self._db = db
        self._limit = limit
        self._callers: dict[str, _CallerCount] = {}

    @asynccontextmanager
    async def reserve(self, runs: int, key: str | None) -> AsyncIterator[None]:
        """Reserve places for a caller's runs while they are admitted; None has no limit. Raises TooManyPendingRuns."""
        if key is None:
            yield
            return

        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_AT_MOST:
                self._callers = {name: count for name, count in self._callers.items() if count.in_progress}

            caller = _CallerCount()
            self._callers[key] = caller

        if caller.counting.locked() or caller.is_out_of_date(runs):
            # One at a time, in the order in which they came: after the first count most of the others need none.
            async with caller.counting:
                if caller.is_out_of_date(runs):
                    await self._count(key, caller, runs)

        caller.free -= runs
        caller.in_progress += runs
        try:
            yield
        finally:
            caller.in_progress -= runs
            caller.admitted += runs

    async def _count(self, key: str, caller: _CallerCount, runs: int) -> None:
        admitted_before = caller.admitted
        waiting: int = await self._db.fetchval(sql.count_pending, caller=key, limit=self._limit)

        # Runs that this process was admitting during the count may be in it or not: subtract them all.
        admitted_meanwhile = caller.admitted - admitted_before
        free = self._limit - waiting - caller.in_progress - admitted_meanwhile
        if free < runs:
            raise TooManyPendingRuns(
                f"The caller has {waiting} runs waiting, and the limit is {self._limit} "
                "(setting MAX_PENDING_RUNS_PER_CALLER). Try again when some of them have begun.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

        caller.free = max(free // SHARE, runs)
        caller.valid_until = time.monotonic() + COUNT_VALID_S
