"""Forgets what was written of streams in its time, and what dead processes left. Safe on every node at once."""

from typing import ClassVar

from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task

# Nobody reads more slowly than that, however short the time is for which events are to be kept.
LEAST_S = 15.0


class OldStreams(Task):
    """Deletes the events of runs that are over for long enough."""

    every_s: ClassVar[float] = 10.0
    batch: ClassVar[int] = 2000

    def __init__(self, db: Database, keep_s: float) -> None:
        super().__init__()
        self._db = db
        self._keep_s = max(keep_s, LEAST_S)

    async def activate(self) -> Status:
        """Delete one batch."""
        chunks = await self._db.execute(sql.delete_old_chunks, keep_s=self._keep_s, limit=self.batch)
        dead = await self._db.execute(sql.delete_dead_processes)
        await self._db.execute(sql.delete_old_heads)
        await self._db.execute(sql.delete_old_sequences)
        return Status(did={"chunks": chunks, "dead_processes": dead}, again=chunks == self.batch)
