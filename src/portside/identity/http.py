"""The routes of identity: whom a key stands for, keys, workspaces."""

from uuid import UUID

from portside.identity import keys, workspaces
from portside.identity.keys import KeyNotFound, Keyring, Owner
from portside.identity.types import Actor, Identity, Key, KeyRequest, NewKey, Workspace
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Routes

routes = Routes("identity")


@routes.get("/auth")
async def show_identity(ctx: Context) -> Identity:
    """Say whom the key stands for."""
    actor: Actor = ctx.actor
    return Identity(
        organization_id=actor.organization_id,
        tenant_id=actor.workspace_id,
        workspace_name=actor.workspace_name,
        tenant_handle=actor.tenant_handle,
        user_id=actor.user_id,
        user_email=actor.user_email,
        short_key=actor.short_key,
        permissions=sorted(actor.permissions),
    )


@routes.get("/workspaces")
async def list_workspaces(ctx: Context) -> list[Workspace]:
    """List the workspaces of the organization."""
    return await workspaces.list_workspaces(ctx.db, ctx.actor.organization_id)


@routes.get("/api-key", permission="workspaces:read")
async def list_api_keys(ctx: Context) -> list[Key]:
    """List the workspace's API keys, newest first."""
    return await keys.list_keys(ctx.db, ctx.actor.workspace_id)


@routes.post("/api-key", permission="workspaces:manage", raises=(Forbidden,))
async def create_api_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Make a service key for the workspace; the key is shown this once."""
    keys.check_grant(ctx.actor, body)
    owner = Owner(ctx.actor.organization_id, ctx.actor.workspace_id)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete("/api-key/{key_id}", permission="workspaces:manage", raises=(KeyNotFound, Forbidden), status=204)
async def revoke_api_key(ctx: Context, key_id: UUID) -> None:
    """Revoke a key; requests with it are refused from now on."""
    await keys.revoke_key(ctx.db, ctx.get(Keyring), ctx.actor, key_id)
