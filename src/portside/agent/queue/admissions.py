"""Admitting runs: those on threads of their own go together with others that are asked for at the same moment.

They wait for nobody: no one else knows their threads. A run on a thread that is there waits for whoever has locked it,
and one with a key for whoever brings the same key, so those go alone.
"""

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Admission, Admitted, Asked, AssistantChanged
from portside.agent.queue.trips import SharedTrips
from portside.agent.queue.worker import Worker
from portside.kernel.db import Database


class Admissions:
    """The runs that clients of this process ask for."""

    def __init__(self, db: Database, worker: Worker) -> None:
        self._db = db
        self._worker = worker
        self._trips: SharedTrips[Asked, Admitted | None] = SharedTrips(self._send, self._left_behind)

    async def admit(self, admission: Admission, *, starts: bool, is_awaited: bool) -> Admitted:
        """Admit a run; where it `starts`, under this worker's lease if nothing is before it.

        Raises AssistantChanged.
        """
        if not _passes(admission) or self._db.codec is not None:
            return await lifecycle.admit_run(
                self._db, admission, self._worker.worker_id, has_free_slot=starts, is_awaited=is_awaited
            )
        admitted = await self._trips.ask(Asked(admission, starts, is_awaited))
        if admitted is None:
            raise AssistantChanged
        return admitted

    async def _send(self, asked: list[Asked]) -> list[Admitted | None]:
        return await lifecycle.admit_runs(self._db, asked, self._worker.worker_id)

    def _left_behind(self, admitted: Admitted | None) -> None:
        """Return a run to the queue that was begun for a client which left meanwhile."""
        if admitted is not None and admitted.outcome == "running":
            self._worker.give_back(admitted.run_id, admitted.attempt)


def _passes(admission: Admission) -> bool:
    return admission.temporary and admission.key is None and admission.access is None and admission.new_thread is None
