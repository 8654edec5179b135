"""The limits in force for a caller, and what is left of each.

The limits of a workspace for the month are set in `tracing`, those of requests in `limits`; this module reads both.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Session
from portside.limits.middleware import BudgetReader, RateBudget
from portside.tracing.quotas import LONGLIVED, TRACES, list_limits
from portside.usage.counts import build_range_arguments
from portside.usage.ranges import Range
from portside.usage.sql import sql
from portside.usage.types import Stride


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


async def get_limits(db: Session, reader: BudgetReader | None, scope: Any, *, by: Actor) -> Limits:
    """Return the limits of the actor's workspace and of this caller, and what is left of each."""
    monthly = await _list_monthly_limits(db, by.workspace_id)
    rates = await reader.read(scope) if reader else []

    return Limits(monthly, rates)


async def _list_monthly_limits(db: Session, workspace_id: UUID) -> list[MonthlyLimit]:
    """List the limit of traces and that of long-lived traces."""
    start = now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (start + timedelta(days=32)).replace(day=1)

    range_arguments = await build_range_arguments(db, Range(start, end, Stride(days=1)))
    rows = await db.fetch(sql.usage_by_workspace, workspace_ids=[workspace_id], **range_arguments)
    traces = sum(sum(row["traces"]) for row in rows)

    rows = await db.fetch(sql.longlived_by_workspace, workspace_ids=[workspace_id], start_time=start, end_time=end)
    longlived_traces = sum(row["traces"] for row in rows)

    limit_values = {limit.limit_type: limit.limit_value for limit in await list_limits(db, workspace_id)}
    monthly: list[MonthlyLimit] = []
    for limit_type, used in ((TRACES, traces), (LONGLIVED, longlived_traces)):
        limit_value = limit_values.get(limit_type)
        remaining = None if limit_value is None else max(limit_value - used, 0)
        limit = MonthlyLimit(
            limit_type=limit_type,
            limit_value=limit_value,
            used=used,
            remaining=remaining,
            resets_at=end,
        )
        monthly.append(limit)

    return monthly
