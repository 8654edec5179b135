"""The leases of this worker as far as it knows: until when each surely holds, and which runs it wants to give back.

A worker that does not reach the database learns nothing of runs that were given to another. So a lease also ends by
the worker's own clock: what it cannot renew in time it stops executing, before or while somebody else takes it over.
A run that stopped because the database failed is given back when that answers again, and it counts no loss.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import LEASE_S, Cancellation, ClaimedRun
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LOOK_WITHIN_S = LEASE_S / 10
ANSWER_WITHIN_S = LEASE_S / 2
LONGEST_DELAY_S = 60.0


class Renewed(NamedTuple):
    """Runs whose leases were to be renewed; those of them that are still ours, each with what is asked of it."""

    asked: list[UUID]
    ours: dict[UUID, Cancellation | None]


class Asking(NamedTuple):
    """A renewal that is under way, since a moment of this process's clock."""

    run_ids: list[UUID]
    at: float
    answer: asyncio.Task[dict[UUID, Cancellation | None]]


class Lease(msgspec.Struct):
    """A run's attempt, and the moment of this process's clock until which it is surely this worker's."""

    attempt: int
    until: float


class Leases:
    """The leases that one worker holds."""

    def __init__(self, db: Database, worker_id: UUID) -> None:
        self._db = db
        self._worker_id = worker_id
        self._held: dict[UUID, Lease] = {}
        self._returning: dict[UUID, int] = {}
        self._asking: Asking | None = None
        self._renewed = asyncio.Event()

    def take(self, run: ClaimedRun) -> None:
        """Note the lease of a run that was just claimed."""
        self._held[run.run_id] = Lease(run.attempt, time.monotonic() + LEASE_S)

    def drop(self, run_id: UUID) -> None:
        """Forget the lease of a run that this worker is done with."""
        self._held.pop(run_id, None)

    def return_later(self, run_id: UUID, attempt: int) -> None:
        """Give a run back with one of the next renewals: through no fault of its own it stopped, or never began."""
        self._returning[run_id] = attempt

    def is_sure(self, run: ClaimedRun) -> bool:
        """Whether an attempt is surely this worker's: by its own clock, which goes on while it is paused."""
        lease = self._held.get(run.run_id)
        return lease is not None and lease.attempt == run.attempt and lease.until > time.monotonic()

    async def sure(self, run: ClaimedRun) -> None:
        """Wait until that is so. Whoever waits for what is lost is cancelled."""
        while not self.is_sure(run):
            await self._renewed.wait()

    def run_out(self, run_ids: Iterable[UUID]) -> list[UUID]:
        """Return those of the runs whose leases were not renewed in time."""
        moment = time.monotonic()
        return [run_id for run_id in run_ids if run_id in self._held and self._held[run_id].until < moment]

    async def renew(self, run_ids: Sequence[UUID]) -> Renewed | None:
        """Renew leases. None is no answer yet, or no good one; a slow answer is returned by a later call."""
        asking = self._asking
        if asking is not None and not asking.answer.done() and time.monotonic() - asking.at > ANSWER_WITHIN_S:
            # Not awaited: a call on a dead connection may not even notice that it is cancelled.
            asking.answer.cancel()
            asking.answer.add_done_callback(_look_at)
            asking = None
        if asking is None:
            call = lifecycle.renew_leases(self._db, self._worker_id, run_ids)
            asking = self._asking = Asking(list(run_ids), time.monotonic(), asyncio.create_task(call))
        await asyncio.wait([asking.answer], timeout=LOOK_WITHIN_S)
        if not asking.answer.done():
            log.warning("leases are not renewed yet: the database does not answer")
            return None
        self._asking = None
        if (failure := asking.answer.exception()) is not None:
            log.warning("leases could not be renewed", reason=f"{type(failure).__name__}: {failure}")
            return None
        ours = asking.answer.result()
        for run_id in ours:
            if run_id in self._held:
                self._held[run_id].until = asking.at + LEASE_S
        self._renewed.set()
        self._renewed = asyncio.Event()
        return Renewed(asking.run_ids, ours)

    def attempts(self, run_ids: Iterable[UUID]) -> dict[UUID, int]:
        """Return the attempts that this worker makes at runs."""
        return {run_id: self._held[run_id].attempt for run_id in run_ids if run_id in self._held}

    async def hand_back_returning(self) -> None:
        """Return the runs that stopped because of the database, to be begun again after a while."""
        if not self._returning:
            return
        attempts, self._returning = self._returning, {}
        try:
            for run_id, attempt in attempts.items():
                delay_s = min(LONGEST_DELAY_S, 2.0 ** (attempt - 1))
                await lifecycle.hand_back_runs(self._db, self._worker_id, {run_id: attempt}, delay_s=delay_s)
        except Exception as failure:  # noqa: BLE001 - tried again with the next renewal
            self._returning = {**attempts, **self._returning}
            log.warning("runs could not be given back yet", reason=f"{type(failure).__name__}: {failure}")


def _look_at(asking: asyncio.Task[Any]) -> None:
    """Take note of how an abandoned renewal ended, so that nobody complains that it was not looked at."""
    if not asking.cancelled():
        asking.exception()
