"""Billed usage: the traces and the long-lived traces of a range, by workspace.

A trace counts in the range in which it was received, and again in the range in which it became long-lived.
"""

from datetime import datetime
from typing import Annotated
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.identity.types import Actor
from portside.identity.workspaces import list_workspaces
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.usage.counts import build_range_arguments
from portside.usage.ranges import read_range
from portside.usage.sql import sql
from portside.usage.types import DateTimeText


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


async def list_billed_metrics(db: Session, query: BillingQuery, *, by: Actor) -> list[BilledMetric]:
    """List both metrics of the workspaces that the actor may use. Raises Invalid and RangeEmpty."""
    if not query.on_current_plan:
        raise Invalid.field(["query", "on_current_plan"], "must be true: there is no other plan", "not_supported")

    time_range = read_range(query.starting_on, query.ending_before)
    workspace_ids = sorted(workspace.id for workspace in await list_workspaces(db, by))

    range_arguments = await build_range_arguments(db, time_range)
    rows = await db.fetch(sql.usage_by_workspace, workspace_ids=workspace_ids, **range_arguments)
    traces = {str(row["workspace_id"]): sum(row["traces"]) for row in rows}

    rows = await db.fetch(
        sql.longlived_by_workspace,
        workspace_ids=workspace_ids,
        start_time=time_range.start,
        end_time=time_range.end,
    )
    longlived_traces = {str(row["workspace_id"]): row["traces"] for row in rows}

    return [
        BilledMetric(
            customer_id=by.organization_id,
            billable_metric_id=uuid5(NAMESPACE_URL, f"portside:metric:{name}"),
            billable_metric_name=name,
            start_timestamp=time_range.start,
            end_timestamp=time_range.end,
            value=sum(counts.values()),
            groups=counts,
        )
        for name, counts in (("Traces", traces), ("Long-lived traces", longlived_traces))
    ]
