"""Usage limits that a workspace sets itself (contract: hosted API, section g)."""

from uuid import UUID

from portside.kernel.http.routes import Context, Routes
from portside.tracing import quotas
from portside.tracing.quotas import Quotas, UsageLimit, UsageLimitNotFound, UsageLimitRequest, UsageState

routes = Routes("tracing")


@routes.get("/usage-limits", permission="workspaces:read")
async def list_usage_limits(ctx: Context) -> list[UsageLimit]:
    """List what the workspace lets itself receive in a month."""
    return await quotas.list_limits(ctx.db, ctx.actor.workspace_id)


@routes.put("/usage-limits", permission="workspaces:manage")
async def put_usage_limit(ctx: Context, body: UsageLimitRequest) -> UsageLimit:
    """Set a limit, in place of one of its kind."""
    return await quotas.put_limit(ctx.db, ctx.get(Quotas), ctx.actor.workspace_id, body)


@routes.delete("/usage-limits/{limit_id}", status=204, permission="workspaces:manage", raises=(UsageLimitNotFound,))
async def delete_usage_limit(ctx: Context, limit_id: UUID) -> None:
    """Lift a limit."""
    await quotas.delete_limit(ctx.db, ctx.get(Quotas), ctx.actor.workspace_id, limit_id)


@routes.get("/workspaces/current/usage_limits", permission="workspaces:read")
async def show_usage_state(ctx: Context) -> UsageState:
    """Tell whether a limit is reached and deliveries are refused."""
    return await quotas.show_state(ctx.db, ctx.actor.workspace_id)
