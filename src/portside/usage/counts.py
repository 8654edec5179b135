"""Counts traces in buckets of time, by one of four dimensions."""

from typing import Any

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Session
from portside.usage.ranges import Range, read_range
from portside.usage.sql import sql
from portside.usage.types import GroupBy, Usage, UsageQuery, UsageRecord

QUERIES = {
    GroupBy.WORKSPACE: sql.usage_by_workspace,
    GroupBy.PROJECT: sql.usage_by_project,
    GroupBy.USER: sql.usage_by_user,
    GroupBy.API_KEY: sql.usage_by_api_key,
}
_NOT_DIMENSIONS = frozenset({"time_bucket", "traces"})


async def count_usage(db: Session, query: UsageQuery, *, by: Actor) -> Usage:
    """Count the traces received in a range. Workspaces that the actor may not read are left out without a word.

    Raises Invalid and RangeEmpty for a bad range.
    """
    within = read_range(query.start_time, query.end_time)
    rows = await db.fetch(QUERIES[query.group_by], **await arguments(db, query, within, by))
    records = [
        UsageRecord(
            row["time_bucket"],
            {name: value for name, value in row.items() if name not in _NOT_DIMENSIONS},
            row["traces"],
        )
        for row in rows
    ]
    return Usage(within.stride, records)


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
