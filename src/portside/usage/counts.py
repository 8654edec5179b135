"""Counts traces in buckets of time, by one of four dimensions."""

from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Record, Session
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


class Series(msgspec.Struct):
    """What one combination of dimensions has in which buckets, by their numbers in order of time."""

    dimensions: dict[str, str | None]
    traces: dict[int, int]


async def count_usage(db: Session, query: UsageQuery, *, by: Actor) -> Usage:
    """Count the traces received in a range. Workspaces that the actor may not read are left out without a word.

    Raises Invalid and RangeEmpty for a bad range.
    """
    within = read_range(query.start_time, query.end_time)
    rows = await db.fetch(QUERIES[query.group_by], **await arguments(db, query, within, by))
    return Usage(within.stride, _in_order_of_time(map(read_series, rows), within))


def read_series(row: Record) -> Series:
    """Read what one of the queries answers."""
    traces: dict[int, int] = {}
    for bucket, count in zip(row["buckets"], row["traces"], strict=True):
        traces[bucket] = traces.get(bucket, 0) + count
    dimensions = {name: _text(value) for name, value in row.items() if name not in _COUNTS}
    return Series(dimensions, dict(sorted(traces.items())))


def _text(value: str | UUID | None) -> str | None:
    return None if value is None else str(value)


def _in_order_of_time(series: Iterable[Series], within: Range) -> list[UsageRecord]:
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
    """Return the arguments that all of the queries take."""
    enterable = {workspace.id for workspace in await list_workspaces(db, actor)}
    return {
        "workspace_ids": sorted(enterable.intersection(query.workspace_ids)),
        **await bounds(db, within),
    }


async def bounds(db: Session, within: Range) -> dict[str, Any]:
    """Return the arguments that a range gives, cut at what is counted by now. That grows, and never changes."""
    (until,) = await db.fetch(sql.counted_until)
    return {
        "start_time": within.start,
        "end_time": within.end,
        "stride": within.width,
        "origin": within.origin,
        **msgspec.structs.asdict(within.cut(until["hours"], until["days"])),
    }
