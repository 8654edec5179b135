"""Admitting runs: their batches, the limit of pending runs per caller, and the priorities of assistants.

Runs that are requested at the same moment are admitted in one statement. A batch waits for no lock. A run whose thread
is locked by another transaction is admitted alone, and so is a run that cancels others, that makes a thread which
another request may be making, or that has an idempotency key which another request may bring.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from portside.agent.queue import statements
from portside.agent.queue.statements import SUPERSEDING, Admission, Admitted, AssistantChanged
from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.kernel.batching import Batcher
from portside.kernel.db import Database
from portside.kernel.errors import Invalid, TooManyRequests

PRIORITY_FIELD = "run_priority"
HIGHEST_PRIORITY = -5
LOWEST_PRIORITY = 5
RETRY_AFTER_S = 5
COUNT_VALID_S = 5.0
# Each count lets this process admit a tenth of what is free: ten processes may then do so at once within the limit.
SHARE = 10
# Above this, the counts of callers without a request in progress are dropped.
CALLERS_AT_MOST = 10_000


class Admissions:
    """Admits the runs that clients of this process request."""

    def __init__(self, db: Database, worker: Worker) -> None:
        self._db = db
        self._worker = worker
        self._batches: Batcher[Admission, Admitted | None] = Batcher(
            lambda batch: statements.admit_runs(db, batch, worker.worker_id, wait=False), on_orphan=self._return_orphan
        )

    async def admit(self, admission: Admission) -> Admitted:
        """Admit a run. Raises AssistantChanged, and DiskFull while the disk is nearly full."""
        if self._worker.disk is not None:
            self._worker.disk.check()

        makes_thread = admission.create_thread and not admission.temporary
        is_alone = (
            # Where values are encrypted, each run has an encryption context of its own.
            self._db.codec is not None
            # These may have to wait for another transaction.
            or makes_thread
            or admission.key is not None
            or admission.new_thread is not None
            or admission.strategy in SUPERSEDING
        )
        if not is_alone:
            admitted = await self._batches.submit(admission)
            is_alone = admitted is not None and admitted.outcome == "locked"

        if is_alone:
            (admitted,) = await statements.admit_runs(self._db, [admission], self._worker.worker_id)

        if admitted is None:
            raise AssistantChanged

        return admitted

    def _return_orphan(self, admitted: Admitted | None) -> None:
        """Return a run to the queue that was started for a client which has left."""
        if admitted is not None and admitted.outcome == "running":
            self._worker.return_run(admitted.run_id, admitted.attempt)


def priority_of(metadata: dict[str, Any]) -> int:
    """Return the priority that an assistant's metadata gives its runs; 0 without one. Raises Invalid.

    A priority from -5 (first) to 5 (last) moves the queue position of a run by as many minutes: a run of -5 is claimed
    as if it had been requested five minutes earlier. So a run overtakes those that came a little before it, and none
    waits for ever behind others that keep coming. Runs of one thread stay in their order.
    """
    priority = metadata.get(PRIORITY_FIELD)
    if priority is None:
        return 0

    if (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY
    ):
        raise Invalid.field(
            ["body", "metadata", PRIORITY_FIELD],
            f"Expected an integer from {HIGHEST_PRIORITY} (first) to {LOWEST_PRIORITY} (last)",
        )

    return priority


class TooManyPendingRuns(TooManyRequests):
    """The caller has as many runs waiting as MAX_PENDING_RUNS_PER_CALLER allows; try again when some have begun."""

    code = "too_many_pending_runs"


class _CallerCount(msgspec.Struct):
    """How many runs of a caller may be admitted before the next count, and how many this process is admitting."""

    free: int = 0
    valid_until: float = 0.0
    in_progress: int = 0
    admitted: int = 0
    counting: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


def _needs_count(caller: _CallerCount, runs: int) -> bool:
    return caller.free < runs or caller.valid_until < time.monotonic()


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
                self._callers = {name: known for name, known in self._callers.items() if known.in_progress}
            caller = self._callers[key] = _CallerCount()

        if caller.counting.locked() or _needs_count(caller, runs):
            # One at a time, in the order in which they came: after the first count most of the others need none.
            async with caller.counting:
                if _needs_count(caller, runs):
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
        left = self._limit - waiting - caller.in_progress - (caller.admitted - admitted_before)
        if left < runs:
            raise TooManyPendingRuns(
                f"The caller has {waiting} runs waiting, and the limit is {self._limit} "
                "(setting MAX_PENDING_RUNS_PER_CALLER). Try again when some of them have begun.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

        caller.free = max(left // SHARE, runs)
        caller.valid_until = time.monotonic() + COUNT_VALID_S
