"""Returns runs that this worker has claimed to the queue; they continue from their last checkpoints.

A run returns because it never started here, because the database or an executor failed, because its lease was lost, or
because the worker stops. The worker notes an attempt at once and returns it with the next renewal of its leases, until
the database answers. An attempt that is never returned, because the process is killed, ends with its lease, and counts
as lost.
"""

import asyncio
from uuid import UUID

from portside.agent.queue import statements
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
FINISHED_WITHIN_S = 5.0
LONGEST_DELAY_S = 60.0


class ReturningRuns:
    """The attempts that one worker has to return to the queue."""

    def __init__(self, db: Database, worker_id: UUID) -> None:
        self._db = db
        self._worker_id = worker_id
        # For each run its attempt, and whether an executor crashed with it.
        self._attempts: dict[UUID, tuple[int, bool]] = {}
        self._returning: asyncio.Task[None] | None = None

    def add(self, run_id: UUID, attempt: int, *, is_suspect: bool = False) -> None:
        """Note an attempt that has to be returned."""
        self._attempts[run_id] = attempt, is_suspect

    def start(self) -> None:
        """Return what was noted, in a task: a row may be locked, and the leases of other runs must be renewed."""
        if self._attempts and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self.return_noted())

    async def return_noted(self) -> None:
        """Return what was noted. Attempts that the database does not take now stay noted."""
        attempts, self._attempts = self._attempts, {}
        try:
            for run_id, (attempt, is_suspect) in attempts.items():
                delay_s = min(LONGEST_DELAY_S, 2.0 ** (attempt - 1))
                await statements.hand_back_runs(
                    self._db, self._worker_id, {run_id: attempt}, delay_s=delay_s, is_suspect=is_suspect
                )
        except Exception as failure:  # noqa: BLE001 - tried again with the next renewal
            self._attempts = {**attempts, **self._attempts}
            log.warning("runs could not be returned yet", reason=f"{type(failure).__name__}: {failure}")

    async def finish(self, stopped: dict[UUID, int]) -> None:
        """Hand back the attempts that were stopped with the worker, and return what was noted, in a bounded time."""
        for run_id in stopped:
            # It is handed back without a delay.
            self._attempts.pop(run_id, None)
        finishing = asyncio.create_task(self._finish(stopped))
        # Not cancelled after that: a call on a dead connection may not even notice it.
        await asyncio.wait([finishing], timeout=FINISHED_WITHIN_S)
        failure = finishing.exception() if finishing.done() else TimeoutError("the database does not answer")
        runs = len(stopped) + len(self._attempts)
        if failure is not None:
            log.warning("runs were not handed back; their leases will run out", runs=runs, reason=str(failure))
        elif stopped:
            log.info("runs handed back", runs=len(stopped))

    async def _finish(self, stopped: dict[UUID, int]) -> None:
        if stopped:
            await statements.hand_back_runs(self._db, self._worker_id, stopped)
        if self._returning is not None:
            await asyncio.wait([self._returning])
        await self.return_noted()
