"""Totals of past hours and days, so that a range of months is not counted trace by trace."""

from datetime import timedelta

from portside.kernel.db import Database, Session
from portside.kernel.reconcile import Status, Task
from portside.tracing.sql import sql as tracing_sql
from portside.usage.sql import sql

# A margin for clocks that are set back, and for transactions that this role may not see (`committed_until`).
CLOSED_AFTER_S = 600.0
TOTALS_LOCK = "portside.usage.days"
_ONE_DAY = timedelta(days=1)


class PastHours(Task):
    """Counts past hours, up to 24 of them per activation, and days whose hours are all counted."""

    every_s = 300.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count the next past hours and the next day, unless another process is doing so."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(tracing_sql.try_lock, name=TOTALS_LOCK):
                return Status()

            hours = await _count_hours(tx)
            days = await _count_day(tx)

        counts = {"hours": hours, "days": days}
        return Status({unit: count for unit, count in counts.items() if count}, again=any(counts.values()))


async def _count_hours(tx: Session) -> int:
    """Count the past ones of the next 24 hours; return the number of hours."""
    # Read first: transactions that began before this moment have committed when the first trace is looked up.
    committed_until = await tx.fetchval(tracing_sql.committed_until, settled_s=CLOSED_AFTER_S)
    since = await tx.fetchval(sql.next_hour)
    if since is None:
        return 0

    last_full_hour = committed_until.replace(minute=0, second=0, microsecond=0)
    until = min(since + _ONE_DAY, last_full_hour)
    if until <= since:
        return 0

    await tx.execute(sql.count_hours, since=since, until=until)
    await tx.execute(sql.close_hours, until=until)
    return int((until - since) / timedelta(hours=1))


async def _count_day(tx: Session) -> int:
    """Add up the next day, if its hours are counted; return the number of days."""
    day = await tx.fetchval(sql.next_day)
    if day is None:
        return 0

    await tx.execute(sql.count_day, day=day)
    await tx.execute(sql.count_day_of_projects, day=day)
    await tx.execute(sql.close_day, day=day)
    return 1
