"""The HTTP routes of usage."""

from starlette.responses import StreamingResponse

from portside.kernel.http.routes import BaseServices, Context, Routes
from portside.usage.counts import BilledMetric, BillingQuery, billed, count_usage, export_usage, file_name
from portside.usage.ranges import RangeEmpty, read_range
from portside.usage.types import Usage, UsageQuery

routes = Routes[Context[BaseServices]]("usage")


@routes.get("/orgs/current/billing/usage", permission="organization:read", raises=(RangeEmpty,))
async def show_billed_usage(ctx: Context[BaseServices], query: BillingQuery) -> list[BilledMetric]:
    """Return the number of billed traces in a range, and of those that became long-lived."""
    return await billed(ctx.db, query, by=ctx.actor)


@routes.get("/orgs/current/billing/granular-usage", permission="organization:read", raises=(RangeEmpty,))
async def show_granular_usage(ctx: Context[BaseServices], query: UsageQuery) -> Usage:
    """Count the traces received, by workspace, project, user or API key."""
    return await count_usage(ctx.db, query, by=ctx.actor)


@routes.get(
    "/orgs/current/billing/granular-usage/export",
    permission="organization:read",
    raises=(RangeEmpty,),
    media_type="text/csv",
)
async def export_granular_usage(ctx: Context[BaseServices], query: UsageQuery) -> StreamingResponse:
    """Return the same counts as CSV. It always has all columns; `group_by` decides which are filled."""
    within = read_range(query.start_time, query.end_time)
    lines = export_usage(ctx.db, query, within, by=ctx.actor)
    return StreamingResponse(
        lines,
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{file_name(query, within)}"'},
    )
