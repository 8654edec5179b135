"""Granular usage: the traces received in time buckets, by workspace, project, user or API key.

Traces are counted by the time of their receipt. The queries of this module return series; billed usage, costs, limits
and the CSV export read the same queries, so all of them agree.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Record, Session
from portside.usage.ranges import Range, read_range
from portside.usage.sql import sql
from portside.usage.types import Dimensions, GroupBy, Usage, UsageQuery, UsageRecord

QUERIES = {
    GroupBy.WORKSPACE: sql.usage_by_workspace,
    GroupBy.PROJECT: sql.usage_by_project,
    GroupBy.USER: sql.usage_by_user,
    GroupBy.API_KEY: sql.usage_by_api_key,
}
_COUNT_COLUMNS = frozenset({"buckets", "traces"})


class UsageSeries(msgspec.Struct):
    """The counts of one combination of dimensions."""

    dimensions: Dimensions
    # The number of traces by the number of their bucket, in order of time.
    traces: dict[int, int]


async def count_usage(db: Session, query: UsageQuery, *, by: Actor) -> Usage:
    """Count the traces received in a range, in those of the requested workspaces that the actor may use.

    Raises Invalid and RangeEmpty for an invalid range.
    """
    time_range = read_range(query.start_time, query.end_time)
    series = await fetch_series(db, query, time_range, by=by)

    return Usage(time_range.stride, _to_records(series, time_range))


def _to_records(all_series: Iterable[UsageSeries], time_range: Range) -> list[UsageRecord]:
    """Convert series to records in order of time, the largest of each bucket first."""
    buckets: dict[int, list[tuple[int, Dimensions]]] = defaultdict(list)
    for series in all_series:
        for bucket, traces in series.traces.items():
            buckets[bucket].append((traces, series.dimensions))

    records: list[UsageRecord] = []
    for bucket in sorted(buckets):
        time_bucket = time_range.bucket_start(bucket)
        largest_first = sorted(buckets[bucket], key=itemgetter(0), reverse=True)
        records += [UsageRecord(time_bucket, dimensions, traces) for traces, dimensions in largest_first]

    return records


async def fetch_series(db: Session, query: UsageQuery, time_range: Range, *, by: Actor) -> Iterator[UsageSeries]:
    """Fetch the counts of a range, in those of the requested workspaces that the actor may use."""
    arguments = await build_arguments(db, query, time_range, by=by)
    rows = await db.fetch(QUERIES[query.group_by], **arguments)

    return map(to_series, rows)


def to_series(row: Record) -> UsageSeries:
    """Convert a row of one of the queries."""
    traces: dict[int, int] = {}
    for bucket, count in zip(row["buckets"], row["traces"], strict=True):
        # A bucket of counted days and single traces occurs once for each.
        traces[bucket] = traces.get(bucket, 0) + int(count)

    dimensions = {name: to_text(value) for name, value in row.items() if name not in _COUNT_COLUMNS}
    return UsageSeries(dimensions, traces=dict(sorted(traces.items())))


def to_text(value: str | UUID | None) -> str | None:
    """Convert the value of a dimension: ids become text."""
    return None if value is None else str(value)


async def build_arguments(db: Session, query: UsageQuery, time_range: Range, *, by: Actor) -> dict[str, Any]:
    """Return the arguments of all four queries."""
    usable_ids = {workspace.id for workspace in await list_workspaces(db, by)}
    workspace_ids = sorted(usable_ids.intersection(query.workspace_ids))

    return {"workspace_ids": workspace_ids, **await build_range_arguments(db, time_range)}


async def build_range_arguments(db: Session, time_range: Range) -> dict[str, Any]:
    """Return the arguments of a range, split at the hours and days that have totals so far."""
    (until,) = await db.fetch(sql.counted_until)
    parts = time_range.split(hours_until=until["hours"], days_until=until["days"])

    return {
        "start_time": time_range.start,
        "end_time": time_range.end,
        "stride": time_range.width,
        "origin": time_range.origin,
        **msgspec.structs.asdict(parts),
    }
