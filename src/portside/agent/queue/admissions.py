"""Admitting runs, in batches.

Runs that are requested at the same moment are admitted in one statement. A batch waits for no lock. A run whose thread
is locked by another transaction is admitted alone, and so is a run that cancels others, that makes a thread which
another request may be making, that has an idempotency key which another request may bring, or whose input is large.
"""

from portside.agent.queue import statements
from portside.agent.queue.types import SUPERSEDING, Admission, AdmissionOutcome, Admitted
from portside.agent.queue.worker import Worker
from portside.kernel.batching import Batcher
from portside.kernel.db import Database
from portside.kernel.value_sizes import has_long_text


class AssistantChanged(Exception):
    """The assistant changed after the admission was prepared; nothing was admitted."""


class Admissions:
    """Admits the runs that clients of this process request."""

    def __init__(self, db: Database, worker: Worker) -> None:
        self._db = db
        self._worker = worker
        self._batches: Batcher[Admission, Admitted | None] = Batcher(self._admit_batch, on_orphan=self._return_orphan)

    async def admit(self, admission: Admission) -> Admitted:
        """Admit a run. Raises AssistantChanged, and DiskFull while the disk is nearly full."""
        if self._worker.disk is not None:
            self._worker.disk.check()

        admitted: Admitted | None = None
        is_alone = self._must_be_alone(admission)
        if not is_alone:
            admitted = await self._batches.submit(admission)
            is_alone = admitted is not None and admitted.outcome is AdmissionOutcome.LOCKED

        if is_alone:
            (admitted,) = await statements.admit_runs(self._db, [admission], self._worker.worker_id)

        if admitted is None:
            raise AssistantChanged

        return admitted

    def _must_be_alone(self, admission: Admission) -> bool:
        if self._db.codec is not None:
            # Each run has an encryption context of its own.
            return True

        # These may have to wait for another transaction.
        makes_lasting_thread = admission.new_thread is not None or (
            admission.create_thread and not admission.is_temporary
        )
        may_wait = makes_lasting_thread or admission.key is not None or admission.strategy in SUPERSEDING
        return may_wait or has_long_text(admission.kwargs)

    async def _admit_batch(self, batch: list[Admission]) -> list[Admitted | None]:
        return await statements.admit_runs(self._db, batch, self._worker.worker_id, wait=False)

    def _return_orphan(self, admitted: Admitted | None) -> None:
        """Return a run to the queue that was started for a client which has left."""
        if admitted is not None and admitted.outcome is AdmissionOutcome.RUNNING:
            self._worker.return_run(admitted.run_id, admitted.attempt)
