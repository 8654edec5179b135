"""The HTTP routes of usage."""

from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse

from portside.kernel.http.downloads import download
from portside.kernel.http.routes import BaseServices, Context, Routes
from portside.kernel.spool import DownloadTooLarge, TooManyDownloads
from portside.limits.middleware import BudgetReader
from portside.usage.billing import BilledMetric, BillingQuery, list_billed_metrics
from portside.usage.costs import Costs, CostsQuery, count_costs
from portside.usage.counts import count_usage
from portside.usage.exports import build_file_name, costs_to_csv, export_usage
from portside.usage.limits import Limits, get_limits
from portside.usage.ranges import RangeEmpty, read_range
from portside.usage.types import Usage, UsageQuery


@dataclass(frozen=True, kw_only=True)
class UsageServices(BaseServices):
    """The services of usage; without rate limits there is no reader of budgets."""

    budgets: BudgetReader | None = None


routes = Routes[Context[UsageServices]]("usage")


@routes.get("/orgs/current/billing/usage", permission="organization:read", raises=(RangeEmpty,))
async def get_billed_usage(ctx: Context[UsageServices], query: BillingQuery) -> list[BilledMetric]:
    """Return the number of billed traces in a range, and of those that became long-lived."""
    return await list_billed_metrics(ctx.db, query, by=ctx.actor)


@routes.get("/orgs/current/billing/granular-usage", permission="organization:read", raises=(RangeEmpty,))
async def get_granular_usage(ctx: Context[UsageServices], query: UsageQuery) -> Usage:
    """Count the traces received, by workspace, project, user or API key."""
    return await count_usage(ctx.db, query, by=ctx.actor)


@routes.get(
    "/orgs/current/billing/granular-usage/export",
    permission="organization:read",
    raises=(RangeEmpty, DownloadTooLarge, TooManyDownloads),
    media_type="text/csv",
)
async def export_granular_usage(ctx: Context[UsageServices], query: UsageQuery) -> StreamingResponse:
    """Return the same counts as CSV. It always has all columns; `group_by` decides which are filled."""
    time_range = read_range(query.start_time, query.end_time)
    pieces = export_usage(ctx.db, query, time_range, by=ctx.actor)
    return await download(pieces, build_file_name(query, time_range), "text/csv")


@routes.get("/orgs/current/billing/costs", permission="organization:read", raises=(RangeEmpty,))
async def get_costs(ctx: Context[UsageServices], query: CostsQuery) -> Costs:
    """Return traces, runs, tokens and costs by workspace, project, user, API key or model, at least by day."""
    return await count_costs(ctx.db, query, by=ctx.actor)


@routes.get(
    "/orgs/current/billing/costs/export", permission="organization:read", raises=(RangeEmpty,), media_type="text/csv"
)
async def export_costs(ctx: Context[UsageServices], query: CostsQuery) -> Response:
    """Return the same figures as CSV."""
    costs = await count_costs(ctx.db, query, by=ctx.actor)
    headers = {"Content-Disposition": f'attachment; filename="costs-by-{query.group_by}.csv"'}
    return Response(costs_to_csv(costs, query), headers=headers, media_type="text/csv")


@routes.get("/limits", operation="limits_get", permission="workspaces:read")
async def get_limits_in_force(ctx: Context[UsageServices]) -> Limits:
    """Return the limits of the workspace for the month and of the caller's requests, and what is left of each."""
    return await get_limits(ctx.db, ctx.services.budgets, ctx.scope, by=ctx.actor)
