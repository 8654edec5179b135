"""Admitting runs: those that are asked for at the same moment go together.

What goes together waits for nobody. A run on a thread that somebody else has locked goes alone, and so does one that
stops others, makes a thread that another request may be making, or has a key that another one may bring.
"""

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Admission, Admitted, Asked, AssistantChanged
from portside.agent.queue.worker import Worker
from portside.kernel.db import Database
from portside.kernel.trips import SharedTrips


class Admissions:
    """The runs that clients of this process ask for."""

    def __init__(self, db: Database, worker: Worker) -> None:
        self._db = db
        self._worker = worker
        self._trips: SharedTrips[Asked, Admitted | None] = SharedTrips(self._send, on_orphan=self._left_behind)

    async def admit(self, admission: Admission, *, starts: bool, is_awaited: bool) -> Admitted:
        """Admit a run; where it `starts`, under this worker's lease if nothing is before it.

        Raises AssistantChanged.
        """
        admitted = None
        if self._db.codec is None and _waits_for_nobody(admission):
            admitted = await self._trips.ask(Asked(admission, starts, is_awaited))
            if admitted is None:
                raise AssistantChanged
        if admitted is None or admitted.outcome == "locked":
            return await lifecycle.admit_run(
                self._db, admission, self._worker.worker_id, has_free_slot=starts, is_awaited=is_awaited
            )
        return admitted

    async def _send(self, asked: list[Asked]) -> list[Admitted | None]:
        return await lifecycle.admit_runs(self._db, asked, self._worker.worker_id, waits=False)

    def _left_behind(self, admitted: Admitted | None) -> None:
        """Return a run to the queue that was begun for a client which left meanwhile."""
        if admitted is not None and admitted.outcome == "running":
            self._worker.give_back(admitted.run_id, admitted.attempt)


def _waits_for_nobody(admission: Admission) -> bool:
    knows_its_thread = admission.temporary or not admission.create_thread
    stands_alone = admission.key is None and admission.new_thread is None
    return knows_its_thread and stands_alone and not admission.supersedes
