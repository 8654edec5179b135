"""Costs: traces, runs, tokens and money in time buckets, by workspace, project, user, API key or model.

Traces are counted by their receipt, as they are billed; runs, tokens and costs by the start of the runs. Past days come
from totals that survive the deletion of traces (`tracing`'s daily usage), so a bucket is at least a day wide.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Session
from portside.tracing.rollups import find_counted_days
from portside.usage.counts import fetch_series, to_text
from portside.usage.ranges import Range, read_range
from portside.usage.sql import sql
from portside.usage.types import DateTimeText, Dimensions, GroupBy, Stride, UsageQuery

# The columns that say what a record counts, by what the query groups by.
COST_DIMENSIONS = {
    "workspace": ("workspace_id", "workspace_name"),
    "project": ("project_id", "project_name"),
    "user": ("user_id", "user_email"),
    "api_key": ("api_key_short_key",),
    "model": ("model_provider", "model_name"),
}
COST_FIELDS = (
    "runs",
    "failed_runs",
    "prompt_tokens",
    "completion_tokens",
    "prompt_cost",
    "completion_cost",
    "total_cost",
    "unpriced_runs",
)


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


class _CostTable:
    """The records of a range by bucket and dimensions: runs and traces are read apart, and meet in the same record."""

    def __init__(self, time_range: Range) -> None:
        self._time_range = time_range
        self._records: dict[tuple[int, frozenset[tuple[str, str | None]]], CostRecord] = {}

    def record(self, bucket: int, dimensions: Dimensions) -> CostRecord:
        """Return the record of a bucket and dimensions, which is added if it does not exist."""
        key = (bucket, frozenset(dimensions.items()))
        if key not in self._records:
            time_bucket = self._time_range.bucket_start(bucket)
            self._records[key] = CostRecord(time_bucket=time_bucket, dimensions=dimensions)

        return self._records[key]

    def list_records(self) -> list[CostRecord]:
        """List the records, oldest first; the most expensive of each bucket first."""

        def key(record: CostRecord) -> tuple[datetime, float, int]:
            # Decimal text is compared as numbers: costs of one bucket differ by orders of magnitude.
            return record.time_bucket, -float(record.total_cost or 0), -record.runs

        return sorted(self._records.values(), key=key)


async def count_costs(db: Session, query: CostsQuery, *, by: Actor) -> Costs:
    """Return what was used in a range, in those of the requested workspaces that the actor may use.

    Raises Invalid and RangeEmpty for an invalid range.
    """
    time_range = read_range(query.start_time, query.end_time)
    if time_range.stride.days == 0:
        time_range = msgspec.structs.replace(time_range, stride=Stride(days=1))

    table = _CostTable(time_range)
    await _add_runs(db, table, query, time_range, by=by)
    if query.group_by != "model":
        await _add_traces(db, table, query, time_range, by=by)

    return Costs(time_range.stride, table.list_records())


async def _add_runs(db: Session, table: _CostTable, query: CostsQuery, time_range: Range, *, by: Actor) -> None:
    """Add what the runs of a range used: runs, tokens and costs."""
    usable_ids = {workspace.id for workspace in await list_workspaces(db, by)}
    period = await find_counted_days(db, time_range.start, time_range.end)

    rows = await db.fetch(
        sql.costs_by_dimension,
        workspace_ids=sorted(usable_ids.intersection(query.workspace_ids)),
        group_by=query.group_by,
        stride=time_range.width,
        origin=time_range.origin,
        **period,
    )

    for row in rows:
        dimensions = {name: to_text(row[name]) for name in COST_DIMENSIONS[query.group_by]}
        record = table.record(row["bucket"], dimensions)
        for name in COST_FIELDS:
            setattr(record, name, row[name])

        if query.group_by == "model":
            # A trace may use several models.
            record.traces = None


async def _add_traces(db: Session, table: _CostTable, query: CostsQuery, time_range: Range, *, by: Actor) -> None:
    """Add the number of traces that were received in a range."""
    usage_query = UsageQuery(
        start_time=query.start_time,
        end_time=query.end_time,
        workspace_ids=query.workspace_ids,
        group_by=GroupBy(query.group_by),
    )

    for series in await fetch_series(db, usage_query, time_range, by=by):
        for bucket, traces in series.traces.items():
            table.record(bucket, series.dimensions).traces = traces
