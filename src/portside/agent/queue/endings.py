"""Ending runs: the ends of several go together, and bring what is to be begun in the slots that they leave."""

from typing import Protocol
from uuid import UUID

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import ClaimedRun, End, Ended, Ending, Held
from portside.kernel.db import Database
from portside.kernel.trips import SharedTrips

ALONE_ABOVE = 64 * 1024


class Slots(Protocol):
    """Who executes runs, as far as an end concerns it."""

    def hold(self, ending: int) -> Held:
        """Hold the slots that are free, and those that so many runs leave."""
        ...

    def fill(self, held: Held, claimed: list[ClaimedRun], *, has_looked: bool) -> None:
        """Begin what was claimed, and hold nothing any more."""
        ...


class Endings:
    """The ends of the runs that one worker holds."""

    def __init__(self, db: Database, worker_id: UUID, slots: Slots) -> None:
        self._db = db
        self._worker_id = worker_id
        self._slots = slots
        self._trips: SharedTrips[End, Ended] = SharedTrips(self._send)

    async def end(self, run: ClaimedRun, ending: Ending) -> Ended:
        """End a run, with others that end at the same moment; large values and encrypted ones go alone."""
        end = End(run, ending)
        if self._db.codec is not None or len(ending.values or b"") > ALONE_ABOVE:
            return (await self._send([end], waits=True))[0]
        ended = await self._trips.ask(end)
        if ended.outcome == "locked":
            return (await self._send([end], waits=True))[0]
        return ended

    async def _send(self, ends: list[End], *, waits: bool = False) -> list[Ended]:
        held = self._slots.hold(len(ends))
        ended: list[Ended] = []
        claimed: list[ClaimedRun] = []
        try:
            ended, claimed = await lifecycle.end_runs(self._db, self._worker_id, ends, held, waits=waits)
        finally:
            has_looked = bool(ended) and (held.looks or any(one.has_next for one in ended))
            self._slots.fill(held, claimed, has_looked=has_looked)
        return ended
