"""Daily rollups: the statistics of past days, counted once each day is over.

A query that filters on nothing but the project, the start time and root runs reads rollups, so months are not added up
run by run. When the finished days hold few runs, rollups are not used and percentiles are exact.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from portside.kernel.db import Database, Record, Session
from portside.kernel.reconcile import Status, Task
from portside.tracing.fields import to_utc
from portside.tracing.percentiles import compute_percentiles
from portside.tracing.runs import RunFilters
from portside.tracing.sql import sql

# Up to this many runs in finished days, percentiles are computed exactly.
EXACT_MAX_RUNS = 1_000
# Runs younger than this may still be committed: a clock may be set back, and not every transaction is visible.
COMMIT_MARGIN_S = 600.0
LOCK = "portside.tracing.statistics"
_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_MICROSECOND = timedelta(microseconds=1)
# The first whole day that no time zone moves out of the range of times.
_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)
_BATCH = 1_000
_ROLLUP_FIELDS = frozenset({"session", "start_time", "end_time", "is_root", "data_source_type"})
_ROOTS_FILTER = re.compile(r"\s*eq\(\s*is_root\s*,\s*true\s*\)\s*")
_UNSET: tuple[Any, ...] = (None, "", [])


class RollupQuery(msgspec.Struct, kw_only=True, frozen=True):
    """A filter that daily rollups can answer. `start` and `end` are inclusive."""

    workspace_id: UUID
    projects: list[UUID] | None = None
    start: datetime | None = None
    end: datetime | None = None
    is_root: bool | None = None


class RollupGrouping(msgspec.Struct, kw_only=True, frozen=True):
    """How rollups are grouped: by project or not, in buckets of whole days; the largest groups first."""

    by_project: bool
    stride: timedelta | None
    origin: datetime | None
    limit: int


def to_rollup_query(body: RunFilters, workspace_id: UUID) -> RollupQuery | None:
    """Return filters as a rollup query; None if they ask for more than project, start time and root runs."""
    is_roots_filter = body.filter is not None and _ROOTS_FILTER.fullmatch(body.filter) is not None
    allowed_fields = _ROLLUP_FIELDS
    if is_roots_filter and body.is_root is not False:
        allowed_fields = _ROLLUP_FIELDS | {"filter"}

    other_fields = set(RunFilters.__struct_fields__) - allowed_fields
    if any(getattr(body, name) not in _UNSET for name in other_fields):
        return None

    return RollupQuery(
        workspace_id=workspace_id,
        projects=body.session or None,
        start=body.start_time and to_utc(body.start_time, "start_time"),
        end=body.end_time and to_utc(body.end_time, "end_time"),
        is_root=True if is_roots_filter else body.is_root,
    )


def has_whole_days(stride: timedelta | None, origin: datetime | None) -> bool:
    """Whether buckets of a width, which begin at an origin, are made of whole days; all time is if there are none."""
    if stride is None:
        return True

    return not stride % _DAY and origin is not None and origin == _start_of_day(origin)


async def read_rollups(db: Session, query: RollupQuery, grouping: RollupGrouping) -> list[dict[str, Any]] | None:
    """Return statistics from rollups, the largest group first; None when they must be computed from each run."""
    first_day, end_day = _find_whole_days(query, await db.fetchval(sql.rollups_until))
    if first_day >= end_day:
        return None

    rows = await db.fetch(sql.projects_of_workspace, workspace_id=query.workspace_id, ids=query.projects)
    projects = [row["id"] for row in rows]

    days = {"projects": projects, "first_day": first_day, "last_day": end_day, "is_root": query.is_root}
    if await db.fetchval(sql.count_rollup_runs, **days) <= EXACT_MAX_RUNS:
        return None

    # The runs before and after these days are read one by one.
    period = {"start": query.start or first_day, "before": query.end and query.end + _MICROSECOND}
    rows = await db.fetch(
        sql.read_rollups, workspace_id=query.workspace_id, **days, **period, **msgspec.structs.asdict(grouping)
    )

    return [_to_statistics(row) for row in rows]


def _to_statistics(row: Record) -> dict[str, Any]:
    fields = dict(row)
    fields.update(compute_percentiles(fields.pop("bins"), fields.pop("counts")))
    return fields


async def find_counted_days(db: Session, start: datetime, end: datetime) -> dict[str, datetime]:
    """Split `[start, end)` at the whole days that are counted so far; return the arguments of `usage_between`."""
    query = RollupQuery(workspace_id=UUID(int=0), start=start, end=end - _MICROSECOND)
    first_day, end_day = _find_whole_days(query, await db.fetchval(sql.rollups_until))
    if first_day >= end_day:
        first_day = end_day = start

    return {"start_time": start, "first_day": first_day, "last_day": end_day, "end_time": end}


def _find_whole_days(query: RollupQuery, until: datetime | None) -> tuple[datetime, datetime]:
    """Return the first day and the end (exclusive) of the days that a query covers fully and that are counted."""
    if until is None or (query.start is not None and query.start >= until):
        return _BEGINNING, _BEGINNING

    first_day = _BEGINNING
    if query.start is not None:
        first_day = _start_of_day(query.start + _DAY - _MICROSECOND)

    end_day = until
    if query.end is not None and query.end < until:
        end_day = _start_of_day(query.end + _MICROSECOND)

    return first_day, end_day


def _start_of_day(moment: datetime) -> datetime:
    """Return the start of a moment's day in UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class DailyRollups(Task):
    """Counts the next finished day, and again the days whose runs were written or deleted since."""

    every_s = 300.0
    # A stale day is counted again once it has not changed for this long.
    quiet_s = 900.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count one day of all projects and some stale days, unless another process is counting."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(sql.try_lock, name=LOCK):
                return Status()

            day_count = await self._count_next_day(tx)
            stale_days = await tx.fetch(sql.take_stale_days, quiet_s=self.quiet_s, batch=_BATCH)
            await _count_days(tx, stale_days)

        counts = {"days": day_count, "stale_days": len(stale_days)}
        has_more = bool(day_count) or len(stale_days) == _BATCH
        return Status({name: count for name, count in counts.items() if count}, again=has_more)

    async def _count_next_day(self, tx: Session) -> int:
        """Count the next finished day; return how many were counted, 0 or 1."""
        # Read first: transactions that began before this moment are visible when the runs are read.
        committed_until = await tx.fetchval(sql.committed_until, settled_s=COMMIT_MARGIN_S)
        day = await tx.fetchval(sql.next_day_of_runs)

        # A run that began less than an hour ago leaves no mark when it changes, so its day is not counted yet.
        if day is None or day > committed_until - _DAY - _HOUR:
            return 0

        await _count_days(tx, await tx.fetch(sql.days_to_count, day=day))
        await tx.execute(sql.set_rollups_until, day=day)
        return 1


async def _count_days(tx: Session, days: list[Record]) -> None:
    """Count days of projects and replace their rollups."""
    for first in range(0, len(days), _BATCH):
        batch = days[first : first + _BATCH]
        columns = {"project_ids": [row["project_id"] for row in batch], "days": [row["day"] for row in batch]}
        await tx.execute(sql.delete_rollups, **columns)
        await tx.execute(sql.insert_rollups, **columns)
        await tx.execute(sql.delete_daily_usage, **columns)
        await tx.execute(sql.insert_daily_usage, **columns)
