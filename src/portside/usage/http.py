"""The routes of usage."""

from starlette.responses import StreamingResponse

from portside.kernel.http.routes import Context, Routes
from portside.usage.billing import BilledMetric, BillingQuery, billed
from portside.usage.counts import count_usage
from portside.usage.export import export_usage, file_name
from portside.usage.ranges import RangeEmpty, read_range
from portside.usage.types import Usage, UsageQuery

routes = Routes("usage")


@routes.get("/orgs/current/billing/usage", permission="organization:read", raises=(RangeEmpty,))
async def show_billed_usage(ctx: Context, query: BillingQuery) -> list[BilledMetric]:
    """Tell how many traces would be billed for a time, and how many that became long-lived."""
    return await billed(ctx.db, query, by=ctx.actor)


@routes.get("/orgs/current/billing/granular-usage", permission="organization:read", raises=(RangeEmpty,))
async def show_granular_usage(ctx: Context, query: UsageQuery) -> Usage:
    """Count the traces received, by workspace, project, user or API key."""
    return await count_usage(ctx.db, query, by=ctx.actor)


@routes.get(
    "/orgs/current/billing/granular-usage/export",
    permission="organization:read",
    raises=(RangeEmpty,),
    media_type="text/csv",
)
async def export_granular_usage(ctx: Context, query: UsageQuery) -> StreamingResponse:
    """Write the same counts as CSV: all columns always, filled as `group_by` says."""
    within = read_range(query.start_time, query.end_time)
    lines = export_usage(ctx.db, query, within, by=ctx.actor)
    return StreamingResponse(
        lines,
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{file_name(query, within)}"'},
    )
