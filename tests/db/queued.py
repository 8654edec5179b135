"""Runs that tests take through the queue one at a time."""

from uuid import UUID

from portside.agent.queue import statements
from portside.agent.queue.types import Admission, Admitted, ClaimedRun, FinishedRun, RunResult
from portside.kernel.db import Database, Session


async def admit_run(db: Session, admission: Admission, worker_id: UUID, *, starts: bool = False) -> Admitted:
    """Admit a run that a client waits for."""
    admission.starts = starts
    admission.is_awaited = True
    (admitted,) = await statements.admit_runs(db, [admission], worker_id)
    assert admitted is not None
    return admitted


async def end_run(db: Database, worker_id: UUID, run: ClaimedRun, result: RunResult) -> str:
    """End a run, however long its thread is locked by others; return the outcome."""
    outcomes, _ = await statements.end_runs(db, worker_id, [FinishedRun(run, result)], wait=True)
    return outcomes[0].outcome
