"""The routes of the service keys of a workspace, and of the organization."""

from uuid import UUID

from portside.identity import keys, workspaces
from portside.identity.keys import KeyFilter, KeyInUse, KeyNotFound, Owner, Revocation
from portside.identity.services import Context, Routes
from portside.identity.types import Actor, Key, KeyRequest, NewKey, RevokeQuery, WorkspaceRequired
from portside.kernel.errors import Forbidden
from portside.kernel.http.audit_actions import Action

routes = Routes("identity", works_on_full_disk=True)
CREATE_KEY = Action("key.create", id_query="insert_key")
REVOKE_KEY = Action("key.revoke", id_fields=("key_id",))


@routes.get("/api-key", permission="workspaces:read", raises=(WorkspaceRequired,))
async def list_api_keys(ctx: Context) -> list[Key]:
    """List the workspace's service keys, newest first."""
    return await keys.list_keys(ctx.db, _select_workspace_keys(ctx.actor))


@routes.post("/api-key", permission="workspaces:manage", raises=(Forbidden, WorkspaceRequired), audit=CREATE_KEY)
async def create_api_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a service key for the workspace; the key is shown once."""
    keys.refuse_fields(body, ("workspaces", "org_role_id", "default_workspace_id"))
    keys.check_grant(ctx.actor, body)
    owner = Owner(ctx.actor.organization_id, ctx.actor.workspace_id, created_by=ctx.actor)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete(
    "/api-key/{key_id}",
    permission="workspaces:manage",
    raises=(KeyNotFound, KeyInUse, Forbidden, WorkspaceRequired),
    status=204,
    audit=REVOKE_KEY,
)
async def revoke_api_key(ctx: Context, key_id: UUID, query: RevokeQuery) -> None:
    """Revoke a key; requests with it are refused from then on."""
    revocation = Revocation(key_id, _select_workspace_keys(ctx.actor), query.force)
    await keys.revoke_key(ctx.db, ctx.services.authenticator, ctx.actor, revocation)


def _select_workspace_keys(actor: Actor) -> KeyFilter:
    return KeyFilter(organization_id=actor.organization_id, workspace_id=actor.workspace_id, service_keys_only=True)


@routes.get("/orgs/current/service-keys", permission="organization:manage")
async def list_service_keys(ctx: Context) -> list[Key]:
    """List all service keys of the organization, newest first."""
    return await keys.list_keys(ctx.db, _select_organization_keys(ctx.actor))


@routes.post("/orgs/current/service-keys", permission="organization:manage", raises=(Forbidden,), audit=CREATE_KEY)
async def create_service_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a service key for the organization or for some of its workspaces; it is shown once."""
    actor: Actor = ctx.actor
    keys.refuse_fields(body, ("default_workspace_id",))
    keys.check_grant(actor, body)
    workspaces.check_grant_in_workspaces(actor, keys.list_granted_permissions(body), body.workspaces)

    if body.workspaces is not None:
        await workspaces.check_workspaces(ctx.db, actor, body.workspaces)

    owner = Owner(actor.organization_id, None, workspaces=body.workspaces, created_by=actor)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete(
    "/orgs/current/service-keys/{key_id}",
    permission="organization:manage",
    raises=(KeyNotFound, KeyInUse, Forbidden),
    status=204,
    audit=REVOKE_KEY,
)
async def revoke_service_key(ctx: Context, key_id: UUID, query: RevokeQuery) -> None:
    """Revoke a service key of the organization or of one of its workspaces."""
    revocation = Revocation(key_id, _select_organization_keys(ctx.actor), query.force)
    await keys.revoke_key(ctx.db, ctx.services.authenticator, ctx.actor, revocation)


def _select_organization_keys(actor: Actor) -> KeyFilter:
    return KeyFilter(organization_id=actor.organization_id, service_keys_only=True)
