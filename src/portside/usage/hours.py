"""Hours that are over are counted once, and days out of them, so that months are not added up trace by trace."""

from datetime import timedelta

from portside.kernel.db import Database, Session
from portside.kernel.reconcile import Status, Task
from portside.tracing.sql import sql as counting
from portside.usage.sql import sql

SETTLED_S = 600.0
LOCK = "portside.usage.days"
_DAY = timedelta(days=1)


class HoursThatAreOver(Task):
    """Counts the hours of up to a day at once, up to the last that is over, and each day whose hours are counted."""

    every_s = 300.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count the next hours that are over and the next day, unless another process is at it."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(counting.begin_alone, name=LOCK):
                return Status()
            did = {"hours": await _count_hours(tx), "days": await _count_day(tx)}
        return Status({name: count for name, count in did.items() if count}, again=any(did.values()))


async def _count_hours(tx: Session) -> int:
    """Count what is over of the next 24 hours; return how many hours that were."""
    # Looked at first: what began before is there to be seen by the time the first trace is looked for.
    over = await tx.fetchval(counting.over_until, settled_s=SETTLED_S)
    since = await tx.fetchval(sql.next_hour)
    if since is None:
        return 0
    until = min(since + _DAY, over.replace(minute=0, second=0, microsecond=0))
    if until <= since:
        return 0
    await tx.execute(sql.count_hours, since=since, until=until)
    await tx.execute(sql.close_hours, until=until)
    return int((until - since) / timedelta(hours=1))


async def _count_day(tx: Session) -> int:
    """Add up the next day, if its hours are counted; return how many days that were."""
    day = await tx.fetchval(sql.next_day)
    if day is None:
        return 0
    await tx.execute(sql.count_day, day=day)
    await tx.execute(sql.count_day_of_projects, day=day)
    await tx.execute(sql.close_day, day=day)
    return 1
