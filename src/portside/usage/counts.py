"""Counts of traces in time buckets: granular usage as JSON and CSV, billed usage, and costs.

The billed usage counts a trace in the range in which it was received, and again in the range in which it became
long-lived. The CSV has one line for each combination of dimensions and bucket. Users choose the names in it, so its
cells are escaped by the rules of `kernel.escaping`.

Costs are traces, runs, tokens and money by workspace, project, user, API key or model. Traces are counted by their
receipt, as they are billed; runs, tokens and costs by the start of the runs. Past days come from totals that survive
the deletion of traces (`tracing`'s daily usage).

A background task stores the totals of past hours and days, so that a range of months is not counted trace by trace.
"""

import csv
import io
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.clock import now
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.escaping import escape_formula
from portside.kernel.reconcile import Status, Task
from portside.kernel.spool import spooled
from portside.limits.middleware import BudgetReader, RateBudget
from portside.tracing.quotas import LONGLIVED, TRACES, list_limits
from portside.tracing.sql import sql as counting
from portside.tracing.stats import counted_days
from portside.usage.ranges import Range, read_range
from portside.usage.sql import sql
from portside.usage.types import DateTimeText, GroupBy, Stride, Usage, UsageQuery, UsageRecord

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
        traces[bucket] = traces.get(bucket, 0) + int(count)

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
        **await range_arguments(db, within),
    }


async def range_arguments(db: Session, within: Range) -> dict[str, Any]:
    """Return the arguments of a range, split at the hours and days that are counted so far."""
    (until,) = await db.fetch(sql.counted_until)
    return {
        "start_time": within.start,
        "end_time": within.end,
        "stride": within.width,
        "origin": within.origin,
        **msgspec.structs.asdict(within.split(until["hours"], until["days"])),
    }


class BillingQuery(msgspec.Struct):
    """The range of the billed usage; there is only the current plan."""

    starting_on: DateTimeText
    ending_before: DateTimeText
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
    "Time Bucket Start",
    "Time Bucket End",
    "Workspace ID",
    "Workspace Name",
    "Project ID",
    "Project Name",
    "User ID",
    "User Email",
    "API Key Short Key",
    "Traces",
)
_DIMENSIONS = (
    "workspace_id",
    "workspace_name",
    "project_id",
    "project_name",
    "user_id",
    "user_email",
    "api_key_short_key",
)
_CHUNK_BYTES = 32_768


async def export_usage(db: Database, query: UsageQuery, within: Range, *, by: Actor) -> AsyncIterator[str]:
    """Yield the file in pieces, so that its size is not limited by memory.

    One statement reads all counts, so they are of one moment, however slowly the client reads the file. Raises
    DownloadTooLarge and TooManyDownloads before the first piece.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(HEADER)
    given = await arguments(db, query, within, by)

    @lru_cache(maxsize=1000)
    def cells_of_bucket(bucket: int) -> str:
        return f"{_iso_utc(within.bucket(bucket))},{_iso_utc(within.bucket(bucket + 1))}"

    async def read() -> AsyncGenerator[UsageSeries]:
        async with db.transaction() as tx:
            async for row in tx.stream(QUERIES[query.group_by], **given):
                yield read_series(row)

    async for series in spooled(read(), UsageSeries):
        cells = _cells(series.dimensions)
        buffer.writelines(f"{cells_of_bucket(bucket)},{cells},{traces}\r\n" for bucket, traces in series.traces.items())

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


# Costs

_COST_DIMENSIONS = {
    "workspace": ("workspace_id", "workspace_name"),
    "project": ("project_id", "project_name"),
    "user": ("user_id", "user_email"),
    "api_key": ("api_key_short_key",),
    "model": ("model_provider", "model_name"),
}
_COST_FIELDS = (
    "runs",
    "failed_runs",
    "prompt_tokens",
    "completion_tokens",
    "prompt_cost",
    "completion_cost",
    "total_cost",
    "unpriced_runs",
)
Dimensions = dict[str, str | None]
_CostKey = tuple[int, tuple[str | None, ...]]


class CostsQuery(msgspec.Struct, kw_only=True):
    """The runs that started, and traces that were received, in `[start_time, end_time)` in the given workspaces."""

    start_time: DateTimeText
    end_time: DateTimeText
    workspace_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]
    group_by: Literal["workspace", "project", "user", "api_key", "model"] = "project"


class CostRecord(msgspec.Struct, kw_only=True):
    """The usage of one bucket and combination of dimensions. Costs are decimal text; null without any price.

    `traces` is null for models. `unpriced_runs` used tokens and have no cost.
    """

    time_bucket: datetime
    dimensions: dict[str, Any]
    traces: int | None = 0
    runs: int = 0
    failed_runs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_cost: str | None = None
    completion_cost: str | None = None
    total_cost: str | None = None
    unpriced_runs: int = 0


class Costs(msgspec.Struct):
    """The records of a range, oldest first; the most expensive of each bucket first."""

    stride: Stride
    usage: list[CostRecord]


async def count_costs(db: Session, query: CostsQuery, *, by: Actor) -> Costs:
    """Return what was used in a range, in those of the requested workspaces that the actor may use.

    Raises Invalid and RangeEmpty for an invalid range.
    """
    within = read_range(query.start_time, query.end_time)
    if within.stride.days == 0:
        within = msgspec.structs.replace(within, stride=Stride(days=1))

    names = _COST_DIMENSIONS[query.group_by]
    usable = {workspace.id for workspace in await list_workspaces(db, by)}
    workspaces = sorted(usable.intersection(query.workspace_ids))
    found: dict[_CostKey, CostRecord] = {}
    period = await counted_days(db, within.start, within.end)

    rows = await db.fetch(
        sql.costs_by_dimension,
        workspace_ids=workspaces,
        group_by=query.group_by,
        stride=within.width,
        origin=within.origin,
        **period,
    )

    for row in rows:
        record = _record(found, within, row["bucket"], {name: _text(row[name]) for name in names})
        for name in _COST_FIELDS:
            setattr(record, name, row[name])

    if query.group_by == "model":
        for record in found.values():
            record.traces = None
    else:
        await _add_traces(db, found, query, within, by)

    # Decimal text is compared as numbers: costs of one bucket differ by orders of magnitude.
    ordered = sorted(found.values(), key=lambda one: (one.time_bucket, -float(one.total_cost or 0), -one.runs))
    return Costs(within.stride, ordered)


async def _add_traces(
    db: Session, found: dict[_CostKey, CostRecord], query: CostsQuery, within: Range, by: Actor
) -> None:
    group_by = GroupBy(query.group_by)
    counted = UsageQuery(
        start_time=query.start_time, end_time=query.end_time, workspace_ids=query.workspace_ids, group_by=group_by
    )

    for row in await db.fetch(QUERIES[group_by], **await arguments(db, counted, within, by)):
        series = read_series(row)
        for bucket, traces in series.traces.items():
            _record(found, within, bucket, series.dimensions).traces = traces


def _record(found: dict[_CostKey, CostRecord], within: Range, bucket: int, dimensions: Dimensions) -> CostRecord:
    key = (bucket, tuple(sorted(dimensions.items(), key=lambda item: item[0])))
    return found.setdefault(key, CostRecord(time_bucket=within.bucket(bucket), dimensions=dimensions))  # type: ignore[arg-type]


def csv_of(costs: Costs, query: CostsQuery) -> str:
    """Return records as CSV. Users choose names, so cells are escaped."""
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\r\n")
    names = _COST_DIMENSIONS[query.group_by]
    lines.writerow(["time_bucket", *names, "traces", *_COST_FIELDS])

    for record in costs.usage:
        cells = [escape_formula(record.dimensions.get(name) or "") for name in names]
        numbers = [getattr(record, name) for name in ("traces", *_COST_FIELDS)]
        lines.writerow([record.time_bucket.isoformat().replace("+00:00", "Z"), *cells, *numbers])

    return buffer.getvalue()


class MonthlyLimit(msgspec.Struct):
    """A limit of traces for the calendar month in UTC; without one, `limit_value` and `remaining` are null."""

    limit_type: str
    limit_value: int | None
    used: int
    remaining: int | None
    resets_at: datetime


class Limits(msgspec.Struct):
    """The limits in force: of the workspace for the month, and of the caller's requests."""

    monthly: list[MonthlyLimit]
    rates: list[RateBudget]


async def show_limits(db: Session, reader: BudgetReader | None, scope: Any, *, by: Actor) -> Limits:
    """Return the limits of the actor's workspace and of this caller, and what is left of each."""
    start = now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (start + timedelta(days=32)).replace(day=1)
    month = Range(start, end, Stride(days=1))
    within = {"workspace_ids": [by.workspace_id], **await range_arguments(db, month)}
    received = sum(sum(row["traces"]) for row in await db.fetch(QUERIES[GroupBy.WORKSPACE], **within))
    owner: dict[str, Any] = {"workspace_ids": [by.workspace_id], "start_time": start, "end_time": end}
    longlived = sum(row["traces"] for row in await db.fetch(sql.longlived_by_workspace, **owner))

    limits = {limit.limit_type: limit.limit_value for limit in await list_limits(db, by.workspace_id)}
    monthly = []
    for name, used in ((TRACES, received), (LONGLIVED, longlived)):
        limit = limits.get(name)
        monthly.append(MonthlyLimit(name, limit, used, None if limit is None else max(limit - used, 0), end))

    return Limits(monthly, await reader.read(scope) if reader else [])
