"""Handing attempts at runs back to the queue, also while the database does not answer."""

import asyncio
from typing import NamedTuple
from uuid import UUID

from portside.agent.queue.statements import hand_back_runs
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
# How long a worker that stops waits until its runs have returned to the queue.
RETURNED_WITHIN_S = 5.0
LONGEST_DELAY_S = 60.0


class Attempt(NamedTuple):
    """An attempt at a run that has to be returned, by its number, and whether an executor crashed with it."""

    number: int
    is_suspect: bool


class ReturningRuns:
    """The attempts that one worker has to return to the queue; they continue from their last checkpoints.

    A run returns because it never started here, because the database or an executor failed, because its lease was lost,
    or because the worker stops. The worker notes an attempt at once and returns it with the next renewal of its leases,
    until the database answers. An attempt that is never returned, because the process is killed, ends with its lease,
    and counts as lost.
    """

    def __init__(self, db: Database, worker_id: UUID) -> None:
        self._db = db
        self._worker_id = worker_id
        self._attempts: dict[UUID, Attempt] = {}
        self._returning: asyncio.Task[None] | None = None

    def add(self, run_id: UUID, attempt: int, *, is_suspect: bool = False) -> None:
        """Note an attempt that has to be returned."""
        self._attempts[run_id] = Attempt(attempt, is_suspect)

    def start(self) -> None:
        """Return the attempts in a task: a row may be locked, and the leases of other runs must be renewed."""
        if self._attempts and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self.return_attempts())

    async def return_attempts(self) -> None:
        """Return the attempts to the queue. Those that the database does not take now are tried again later."""
        attempts = self._attempts
        self._attempts = {}

        try:
            for run_id, attempt in attempts.items():
                await hand_back_runs(
                    self._db,
                    self._worker_id,
                    {run_id: attempt.number},
                    delay_s=min(LONGEST_DELAY_S, 2.0 ** (attempt.number - 1)),
                    is_suspect=attempt.is_suspect,
                )
        except Exception as failure:  # noqa: BLE001 - tried again with the next renewal
            self._attempts = {**attempts, **self._attempts}
            log.warning("runs could not be returned yet", reason=f"{type(failure).__name__}: {failure}")

    async def finish(self, last_attempts: dict[UUID, int]) -> None:
        """Hand back the attempts that stopped with the worker, and return the others, in a bounded time."""
        for run_id in last_attempts:
            # It is handed back without a delay.
            self._attempts.pop(run_id, None)

        finishing = asyncio.create_task(self._finish(last_attempts))
        # Not cancelled after that: a call on a dead connection may not even notice it.
        await asyncio.wait([finishing], timeout=RETURNED_WITHIN_S)

        failure = finishing.exception() if finishing.done() else TimeoutError("the database does not answer")
        if failure is not None:
            runs = len(last_attempts) + len(self._attempts)
            log.warning("runs were not handed back; their leases will run out", runs=runs, reason=str(failure))
        elif last_attempts:
            log.info("runs handed back", runs=len(last_attempts))

    async def _finish(self, last_attempts: dict[UUID, int]) -> None:
        if last_attempts:
            await hand_back_runs(self._db, self._worker_id, last_attempts)

        if self._returning is not None:
            await asyncio.wait([self._returning])

        await self.return_attempts()
