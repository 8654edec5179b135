"""Counts of traces in time buckets: granular usage as JSON and CSV (spec: Granular usage), and billed usage.

The billed usage counts a trace in the range in which it was received, and again in the range in which it became
long-lived. The CSV has one line for each combination of dimensions and bucket. Users choose the names in it, so its
cells are escaped by the rules of `kernel.escaping`.

A background task stores the totals of past hours and days, so that a range of months is not counted trace by trace.
"""

import csv
import io
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.escaping import escape_formula
from portside.kernel.reconcile import Status, Task
from portside.tracing.sql import sql as counting
from portside.usage.ranges import Range, read_range
from portside.usage.sql import sql
from portside.usage.types import GroupBy, Usage, UsageQuery, UsageRecord

QUERIES = {
    GroupBy.WORKSPACE: sql.usage_by_workspace,
    GroupBy.PROJECT: sql.usage_by_project,
    GroupBy.USER: sql.usage_by_user,
    GroupBy.API_KEY: sql.usage_by_api_key,
}
_COUNTS = frozenset({"buckets", "traces"})


class UsageSeries(msgspec.Struct):
    """The counts of one combination of dimensions, by the numbers of their buckets in order of time."""

    dimensions: dict[str, str | None]
    traces: dict[int, int]


async def count_usage(db: Session, query: UsageQuery, *, by: Actor) -> Usage:
    """Count the traces received in a range, in those of the requested workspaces that the actor may use.

    Raises Invalid and RangeEmpty for an invalid range.
    """
    within = read_range(query.start_time, query.end_time)
    rows = await db.fetch(QUERIES[query.group_by], **await arguments(db, query, within, by))
    return Usage(within.stride, _in_order_of_time(map(read_series, rows), within))


def read_series(row: Record) -> UsageSeries:
    """Convert a row of one of the queries."""
    traces: dict[int, int] = {}
    for bucket, count in zip(row["buckets"], row["traces"], strict=True):
        traces[bucket] = traces.get(bucket, 0) + count
    dimensions = {name: _text(value) for name, value in row.items() if name not in _COUNTS}
    return UsageSeries(dimensions, dict(sorted(traces.items())))


def _text(value: str | UUID | None) -> str | None:
    return None if value is None else str(value)


def _in_order_of_time(series: Iterable[UsageSeries], within: Range) -> list[UsageRecord]:
    """Return the records of all series, the largest of each bucket first."""
    buckets: dict[int, list[tuple[int, dict[str, str | None]]]] = defaultdict(list)
    for one in series:
        for bucket, traces in one.traces.items():
            buckets[bucket].append((traces, one.dimensions))
    records: list[UsageRecord] = []
    for bucket in sorted(buckets):
        begin = within.bucket(bucket)
        largest_first = sorted(buckets[bucket], key=itemgetter(0), reverse=True)
        records += [UsageRecord(begin, dimensions, traces) for traces, dimensions in largest_first]
    return records


async def arguments(db: Session, query: UsageQuery, within: Range, actor: Actor) -> dict[str, Any]:
    """Return the arguments of all four queries."""
    usable = {workspace.id for workspace in await list_workspaces(db, actor)}
    return {
        "workspace_ids": sorted(usable.intersection(query.workspace_ids)),
        **await bounds(db, within),
    }


async def bounds(db: Session, within: Range) -> dict[str, Any]:
    """Return the arguments of a range, split at the hours and days that are counted so far."""
    (until,) = await db.fetch(sql.counted_until)
    return {
        "start_time": within.start,
        "end_time": within.end,
        "stride": within.width,
        "origin": within.origin,
        **msgspec.structs.asdict(within.split(until["hours"], until["days"])),
    }


Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"}, max_length=100)]


class BillingQuery(msgspec.Struct):
    """The range of the billed usage; there is only the current plan."""

    starting_on: Moment
    ending_before: Moment
    on_current_plan: Annotated[bool, msgspec.Meta(extra_json_schema={"const": True})] = True


class BilledMetric(msgspec.Struct):
    """The value of one metric in a range; `groups` has it by workspace."""

    customer_id: UUID
    billable_metric_id: UUID
    billable_metric_name: str
    start_timestamp: datetime
    end_timestamp: datetime
    value: int
    groups: dict[str, int]


async def billed(db: Session, query: BillingQuery, *, by: Actor) -> list[BilledMetric]:
    """Return both metrics of the workspaces that the actor may use. Raises Invalid and RangeEmpty."""
    if not query.on_current_plan:
        raise Invalid.field(["query", "on_current_plan"], "must be true: there is no other plan", "not_supported")
    within = read_range(query.starting_on, query.ending_before)
    workspaces = [workspace.id for workspace in await list_workspaces(db, by)]
    traces_query = UsageQuery(start_time=query.starting_on, end_time=query.ending_before, workspace_ids=workspaces)
    counted = await db.fetch(QUERIES[GroupBy.WORKSPACE], **await arguments(db, traces_query, within, by))
    received = {str(row["workspace_id"]): sum(row["traces"]) for row in counted}
    owner: dict[str, Any] = {"workspace_ids": workspaces, "start_time": within.start, "end_time": within.end}
    rows = await db.fetch(sql.longlived_by_workspace, **owner)
    longlived = {str(row["workspace_id"]): row["traces"] for row in rows}
    found = []
    for name, groups in (("Traces", received), ("Long-lived traces", longlived)):
        metric_id = uuid5(NAMESPACE_URL, f"portside:metric:{name}")
        total = sum(groups.values())
        found.append(BilledMetric(by.organization_id, metric_id, name, within.start, within.end, total, groups))
    return found


HEADER = (
    "Time Bucket Start", "Time Bucket End", "Workspace ID", "Workspace Name", "Project ID", "Project Name",
    "User ID", "User Email", "API Key Short Key", "Traces",
)  # fmt: skip
_DIMENSIONS = (
    "workspace_id", "workspace_name", "project_id", "project_name", "user_id", "user_email", "api_key_short_key",
)  # fmt: skip
_CHUNK_BYTES = 32_768


async def export_usage(db: Database, query: UsageQuery, within: Range, *, by: Actor) -> AsyncIterator[str]:
    """Yield the file in pieces, so that its size is not limited by memory."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(HEADER)
    given = await arguments(db, query, within, by)

    @lru_cache(maxsize=1000)
    def bounds(bucket: int) -> str:
        return f"{_iso_utc(within.bucket(bucket))},{_iso_utc(within.bucket(bucket + 1))}"

    async with db.transaction() as tx:
        async for row in tx.stream(QUERIES[query.group_by], **given):
            series = read_series(row)
            cells = _cells(series.dimensions)
            buffer.writelines(f"{bounds(bucket)},{cells},{traces}\r\n" for bucket, traces in series.traces.items())
            if buffer.tell() >= _CHUNK_BYTES:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()


def file_name(query: UsageQuery, within: Range) -> str:
    """Return the file name for browsers."""
    return f"usage-by-{query.group_by.value}-{within.start:%Y%m%d}-{within.end:%Y%m%d}.csv"


def _cells(dimensions: dict[str, str | None]) -> str:
    """Return the cells that all lines of a series share."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([escape_formula(dimensions.get(name) or "") for name in _DIMENSIONS])
    return line.getvalue()


def _iso_utc(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


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
            if not await tx.fetchval(counting.try_lock, name=TOTALS_LOCK):
                return Status()
            counted = {"hours": await _count_hours(tx), "days": await _count_day(tx)}
        return Status({name: count for name, count in counted.items() if count}, again=any(counted.values()))


async def _count_hours(tx: Session) -> int:
    """Count the past ones of the next 24 hours; return the number of hours."""
    # Read first: transactions that began before this moment have committed when the first trace is looked up.
    over = await tx.fetchval(counting.committed_until, settled_s=CLOSED_AFTER_S)
    since = await tx.fetchval(sql.next_hour)
    if since is None:
        return 0
    until = min(since + _ONE_DAY, over.replace(minute=0, second=0, microsecond=0))
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
