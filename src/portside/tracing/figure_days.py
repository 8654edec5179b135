"""Figures of many runs out of days that were counted once, so that months are not added up run by run.

A percentile does not add up, so the runs of a day are counted by the places of their values: those of one place differ
by 5 % at most, and what is told of it is its middle. Where days that are over hold few runs nothing of this is used,
and percentiles are exact.
"""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

import msgspec

from portside.kernel.db import Database, Record, Session
from portside.kernel.reconcile import Status, Task
from portside.tracing.sql import sql

# Of no more runs percentiles are exact.
EXACT_RUNS = 1_000
SETTLED_S = 600.0
LOCK = "portside.tracing.figures"
_GROWTH = 1.05
_PLACES, _ONE = 2000, 1000
# In the order of `measured_runs`; amounts of tokens are whole.
_MEASURES = (
    "latency", "first_token", "prompt_tokens_spread", "completion_tokens_spread", "total_tokens_spread", "cost",
)  # fmt: skip
_WHOLE = frozenset({2, 3, 4})
_SHARES = (0.5, 0.99)
_DAY, _HOUR, _TICK = timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)
_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)
_BATCH = 1_000


class PlainQuestion(msgspec.Struct, kw_only=True, frozen=True):
    """Which runs, where nothing is asked but what days are counted by. Both moments are part of the time."""

    workspace_id: UUID
    projects: list[UUID] | None = None
    start: datetime | None = None
    end: datetime | None = None
    is_root: bool | None = None


class Division(msgspec.Struct, kw_only=True, frozen=True):
    """How the figures of days are put together: by project or not, by buckets of whole days, the largest ones."""

    by_project: bool
    stride: timedelta | None
    origin: datetime | None
    limit: int


async def figures_of_days(db: Session, asked: PlainQuestion, division: Division) -> list[dict[str, Any]] | None:
    """Return figures, the largest first; None where too little is counted for that and each run is to be looked at."""
    first_day, last_day = _whole_days(asked, await db.fetchval(sql.figured_until))
    if first_day >= last_day:
        return None
    rows = await db.fetch(sql.projects_of_workspace, workspace_id=asked.workspace_id, ids=asked.projects)
    projects = [row["id"] for row in rows]
    within = {"projects": projects, "first_day": first_day, "last_day": last_day, "is_root": asked.is_root}
    if await db.fetchval(sql.runs_of_days, **within) <= EXACT_RUNS:
        return None
    rest = {
        "workspace_id": asked.workspace_id,
        "start": asked.start or first_day,
        "before": asked.end and asked.end + _TICK,
    }
    rows = await db.fetch(sql.figures_of_days, **within, **rest, **msgspec.structs.asdict(division))
    return [_figures(row) for row in rows]


def _whole_days(asked: PlainQuestion, until: datetime | None) -> tuple[datetime, datetime]:
    """Return from which day until before which one the days of a question are whole, and counted."""
    if until is None or (asked.start is not None and asked.start >= until):
        return _BEGINNING, _BEGINNING
    first = _BEGINNING if asked.start is None else midnight(asked.start + _DAY - _TICK)
    last = until if asked.end is None or asked.end >= until else midnight(asked.end + _TICK)
    return first, last


def midnight(moment: datetime) -> datetime:
    """Return when the day of a moment began, in UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _figures(row: Record) -> dict[str, Any]:
    fields = dict(row)
    fields.update(spreads(fields.pop("places"), fields.pop("counts")))
    return fields


def spreads(places: list[int], counts: list[int]) -> Iterator[tuple[str, list[float] | None]]:
    """Yield the percentiles of each measure, out of how many values are at each place; None without a value."""
    for measure, name in enumerate(_MEASURES):
        first, last = (bisect_right(places, edge * _PLACES - 1) for edge in (measure, measure + 1))
        yield name, _percentiles(measure, places[first:last], counts[first:last]) if first < last else None


def _percentiles(measure: int, places: list[int], counts: list[int]) -> list[float]:
    """Return what Postgres' `percentile_cont` would, if each value were the middle of its place."""
    ends = list(accumulate(counts))

    def value(rank: int) -> float:
        return _value(measure, places[bisect_right(ends, rank)])

    found = []
    for share in _SHARES:
        rank, rest = divmod(share * (ends[-1] - 1), 1)
        below = value(int(rank))
        found.append(below + rest * (value(int(rank) + 1) - below) if rest else below)
    return found


def _value(measure: int, place: int) -> float:
    """Return the middle of a place."""
    power = place % _PLACES
    middle = _GROWTH ** (power - _ONE + 0.5) if power else 0.0
    return float(round(middle)) if measure in _WHOLE else middle


class FiguresOfDays(Task):
    """Counts the next day that is over, and days again in which runs were written or deleted since."""

    every_s = 300.0
    quiet_s = 900.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count one day of all projects, and some of the days that were touched, unless another process is at it."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(sql.begin_alone, name=LOCK):
                return Status()
            days = await self._count_next(tx)
            touched = await tx.fetch(sql.untouch_days, quiet_s=self.quiet_s, batch=_BATCH)
            await _count(tx, touched)
        did = {"days": days, "touched_days": len(touched)}
        return Status({name: count for name, count in did.items() if count}, again=bool(days) or len(touched) == _BATCH)

    async def _count_next(self, tx: Session) -> int:
        # Looked at first: what began before is there to be seen by the time the runs are looked at.
        over = await tx.fetchval(sql.over_until, settled_s=SETTLED_S)
        day = await tx.fetchval(sql.next_day_of_runs)
        if day is None or day > over - _DAY - _HOUR:
            return 0
        await _count(tx, await tx.fetch(sql.days_of_projects, day=day))
        await tx.execute(sql.close_figured_day, day=day)
        return 1


async def _count(tx: Session, days: list[Record]) -> None:
    """Count days of projects, in place of what was counted of them before."""
    for first in range(0, len(days), _BATCH):
        some = days[first : first + _BATCH]
        columns = {"project_ids": [row["project_id"] for row in some], "days": [row["day"] for row in some]}
        await tx.execute(sql.forget_days, **columns)
        await tx.execute(sql.count_days, **columns)
