"""The routes of the monthly limits that a workspace sets for itself."""

from uuid import UUID

from portside.kernel.http.audit_actions import Action
from portside.tracing import quotas
from portside.tracing.quotas import UsageLimit, UsageLimitNotFound, UsageLimitRequest, UsageState
from portside.tracing.services import Context, Routes

routes = Routes("tracing")


@routes.get("/usage-limits", permission="workspaces:read")
async def list_usage_limits(ctx: Context) -> list[UsageLimit]:
    """List the monthly limits that the workspace has set for itself."""
    return await quotas.list_limits(ctx.db, ctx.actor.workspace_id)


@routes.put(
    "/usage-limits",
    permission="workspaces:manage",
    works_on_full_disk=True,
    audit=Action("usage_limit.update", id_fields=("limit_type",)),
)
async def put_usage_limit(ctx: Context, body: UsageLimitRequest) -> UsageLimit:
    """Set a limit; it replaces the limit of the same type."""
    return await quotas.put_limit(ctx.db, ctx.services.quotas, ctx.actor.workspace_id, body)


@routes.delete(
    "/usage-limits/{limit_id}",
    status=204,
    permission="workspaces:manage",
    raises=(UsageLimitNotFound,),
    audit=Action("usage_limit.delete"),
)
async def delete_usage_limit(ctx: Context, limit_id: UUID) -> None:
    """Delete a limit."""
    await quotas.delete_limit(ctx.db, ctx.services.quotas, ctx.actor.workspace_id, limit_id)


@routes.get("/workspaces/current/usage_limits", permission="workspaces:read")
async def get_usage_state(ctx: Context) -> UsageState:
    """Return whether a limit is reached, so that new traces are refused."""
    return await quotas.get_state(ctx.db, ctx.actor.workspace_id)
