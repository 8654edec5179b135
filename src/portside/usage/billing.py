"""`GET /orgs/current/billing/usage`: what would be billed for a time: traces, and those that became long-lived.

A trace counts for the time in which it was received, and once more for that in which it became long-lived.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.usage.counts import QUERIES, arguments
from portside.usage.ranges import read_range
from portside.usage.sql import sql
from portside.usage.types import GroupBy, UsageQuery

Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"}, max_length=100)]


class BillingQuery(msgspec.Struct):
    """Which time; there is one plan, the current one."""

    starting_on: Moment
    ending_before: Moment
    on_current_plan: bool = True


class BilledMetric(msgspec.Struct):
    """How much of one metric a time holds; `groups` has it by workspace."""

    customer_id: UUID
    billable_metric_id: UUID
    billable_metric_name: str
    start_timestamp: datetime
    end_timestamp: datetime
    value: int
    groups: dict[str, int]


async def billed(db: Session, query: BillingQuery, *, by: Actor) -> list[BilledMetric]:
    """Return both metrics of the workspaces that the actor may enter. Raises Invalid and RangeEmpty."""
    if not query.on_current_plan:
        raise Invalid.field(["query", "on_current_plan"], "there is no other plan", "not_supported")
    within = read_range(query.starting_on, query.ending_before)
    workspaces = [workspace.id for workspace in await list_workspaces(db, by)]
    asked = UsageQuery(start_time=query.starting_on, end_time=query.ending_before, workspace_ids=workspaces)
    counted = await db.fetch(QUERIES[GroupBy.WORKSPACE], **await arguments(db, asked, within, by))
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
