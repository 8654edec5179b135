"""Counts traces in buckets of time, by one of four dimensions."""

from typing import Any
from uuid import UUID

from portside.identity.types import Actor
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
    rows = await db.fetch(QUERIES[query.group_by], **arguments(query, within, by))
    records = [
        UsageRecord(
            row["time_bucket"],
            {name: value for name, value in row.items() if name not in _NOT_DIMENSIONS},
            row["traces"],
        )
        for row in rows
    ]
    return Usage(within.stride, records)


def arguments(query: UsageQuery, within: Range, actor: Actor) -> dict[str, Any]:
    """Return the arguments that all of the queries take."""
    return {
        "workspace_ids": _readable(query.workspace_ids, actor),
        "start_time": within.start,
        "end_time": within.end,
        "stride": within.width,
        "origin": within.origin,
    }


def _readable(workspace_ids: list[UUID], actor: Actor) -> list[UUID]:
    return [workspace_id for workspace_id in set(workspace_ids) if workspace_id == actor.workspace_id]
