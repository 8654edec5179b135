"""The routes of usage."""

from portside.kernel.http.routes import Context, Routes
from portside.usage.counts import count_usage
from portside.usage.ranges import RangeEmpty
from portside.usage.types import Usage, UsageQuery

routes = Routes("usage")


@routes.get("/orgs/current/billing/granular-usage", permission="organization:read", raises=(RangeEmpty,))
async def show_granular_usage(ctx: Context, query: UsageQuery) -> Usage:
    """Count the traces received, by workspace, project, user or API key."""
    return await count_usage(ctx.db, query, by=ctx.actor)
