"""Days that are over are counted once, so that months are added up out of days instead of traces."""

from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task
from portside.usage.sql import sql


class DaysThatAreOver(Task):
    """Counts one day after the other, up to the last that is over."""

    every_s = 600.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count the next day, if it is over and no other process is at it."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(sql.begin_counting):
                return Status()
            day = await tx.fetchval(sql.next_day)
            if day is None or not await tx.fetchval(sql.is_day_over, day=day):
                return Status()
            await tx.execute(sql.count_day, day=day)
            await tx.execute(sql.close_day, day=day)
        return Status({"days": 1}, again=True)
