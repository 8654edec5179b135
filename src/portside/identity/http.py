"""The routes of identity: whom a key stands for, keys, the organization, its workspaces and members, logins."""

from typing import Any
from uuid import UUID

from portside.identity import keys, logins, members, workspaces
from portside.identity.keyring import Keyring
from portside.identity.keys import KeyNotFound, Owner, Shelf
from portside.identity.logins import LimitedKey, LoginRefused, NotAUser
from portside.identity.members import LastAdmin, MemberNotFound, MemberTaken
from portside.identity.passwords import TooManyLogins
from portside.identity.roles import ORGANIZATION_ROLES, WORKSPACE_ROLES, Role
from portside.identity.types import (
    Actor,
    Credentials,
    Identity,
    Key,
    KeyRequest,
    LoggedIn,
    Member,
    MemberRequest,
    NewKey,
    NewPassword,
    Organization,
    PublicIdentity,
    RoleChange,
    Workspace,
    WorkspaceMemberRequest,
    WorkspacePatch,
    WorkspaceRequest,
    WorkspaceRequired,
)
from portside.identity.workspaces import (
    Occupants,
    WorkspaceNeeded,
    WorkspaceNotFound,
    WorkspaceOccupied,
    WorkspaceTaken,
)
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Routes

routes = Routes("identity")
_IN_WORKSPACE = (WorkspaceRequired,)


@routes.get("/auth")
async def show_identity(ctx: Context) -> Identity:
    """Say whom the key stands for."""
    actor: Actor = ctx.actor
    return Identity(
        organization_id=actor.organization_id,
        tenant_id=actor.workspace,
        workspace_name=actor.workspace_name,
        tenant_handle=actor.tenant_handle,
        user_id=actor.user_id,
        user_email=actor.user_email,
        key_id=actor.key_id,
        short_key=actor.short_key,
        permissions=actor.effective_permissions(),
    )


@routes.get("/auth/public")
async def show_public_identity(ctx: Context) -> PublicIdentity:
    """Say whom the key stands for, in the short form that clients ask for."""
    actor: Actor = ctx.actor
    user_id, email = actor.user_id, actor.user_email
    return PublicIdentity(actor.organization_id, actor.workspace, user_id, email, user_id)


# Logins


@routes.post("/login", public=True, raises=(LoginRefused, TooManyLogins))
async def log_in(ctx: Context, body: Credentials) -> LoggedIn:
    """Return a bearer token for a user; it lasts twelve hours."""
    return await logins.log_in(ctx.db, body)


@routes.post("/logout", status=204)
async def log_out(ctx: Context) -> None:
    """End the login that asks."""
    await logins.log_out(ctx.db, ctx.get(Keyring), ctx.actor)


@routes.put("/users/me/password", status=204, raises=(NotAUser, LimitedKey, LoginRefused))
async def set_password(ctx: Context, body: NewPassword) -> None:
    """Give the user who asks another password."""
    await logins.set_password(ctx.db, ctx.get(Keyring), ctx.actor, body)


# The organization and its workspaces


@routes.get("/orgs/current", permission="organization:read")
async def show_organization(ctx: Context) -> Organization:
    """Return the organization."""
    return await workspaces.show_organization(ctx.db, ctx.actor)


@routes.patch("/orgs/current", permission="organization:manage")
async def rename_organization(ctx: Context, body: WorkspacePatch) -> Organization:
    """Give the organization another name."""
    return await workspaces.rename_organization(ctx.db, ctx.actor, body.display_name)


@routes.get("/orgs/current/roles", permission="organization:read")
async def list_roles(_ctx: Context) -> list[Role]:
    """List the roles of organizations and workspaces, and what each permits."""
    return [*ORGANIZATION_ROLES.values(), *WORKSPACE_ROLES.values()]


@routes.get("/workspaces")
async def list_workspaces(ctx: Context) -> list[Workspace]:
    """List the workspaces of the organization that the caller may enter."""
    return await workspaces.list_workspaces(ctx.db, ctx.actor)


@routes.post("/workspaces", permission="organization:manage", raises=(WorkspaceTaken,))
async def create_workspace(ctx: Context, body: WorkspaceRequest) -> Workspace:
    """Make a workspace; the user who makes it is its admin."""
    return await workspaces.create_workspace(ctx.db, ctx.actor, body)


@routes.patch("/workspaces/{workspace_id}", permission="organization:manage", raises=(WorkspaceNotFound,))
async def rename_workspace(ctx: Context, workspace_id: UUID, body: WorkspacePatch) -> Workspace:
    """Give a workspace another name; its handle stays."""
    return await workspaces.rename_workspace(ctx.db, ctx.actor, workspace_id, body.display_name)


@routes.delete(
    "/workspaces/{workspace_id}",
    permission="organization:manage",
    status=204,
    raises=(WorkspaceNotFound, WorkspaceNeeded, WorkspaceOccupied, Forbidden),
)
async def delete_workspace(ctx: Context, workspace_id: UUID) -> None:
    """Delete a workspace in which nothing is deployed, with its keys, traces, datasets, prompts and integrations."""
    await workspaces.delete_workspace(ctx.db, ctx.get(Keyring), ctx.actor, workspace_id, ctx.get(Occupants))


# Members


@routes.get("/orgs/current/members", permission="organization:read")
async def list_members(ctx: Context) -> list[Member]:
    """List the members of the organization."""
    return await members.list_members(ctx.db, ctx.actor)


@routes.post("/orgs/current/members", permission="organization:manage", raises=(MemberTaken, Forbidden))
async def add_member(ctx: Context, body: MemberRequest) -> Member:
    """Make a user of the organization, and let them into workspaces."""
    return await members.add_member(ctx.db, ctx.actor, body)


@routes.patch(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    raises=(MemberNotFound, LastAdmin, Forbidden),
)
async def set_role(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Give a member of the organization another role."""
    return await members.set_role(ctx.db, ctx.get(Keyring), ctx.actor, user_id, body.role_id)


@routes.delete(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    status=204,
    raises=(MemberNotFound, LastAdmin, Forbidden),
)
async def remove_member(ctx: Context, user_id: UUID) -> None:
    """Remove a user from the organization, with all keys and logins."""
    await members.remove_member(ctx.db, ctx.get(Keyring), ctx.actor, user_id)


@routes.get("/workspaces/current/members", permission="workspaces:read", raises=_IN_WORKSPACE)
async def list_workspace_members(ctx: Context) -> list[Member]:
    """List the members of the workspace."""
    return await members.list_workspace_members(ctx.db, ctx.actor)


@routes.post(
    "/workspaces/current/members", permission="workspaces:manage", raises=(MemberTaken, Forbidden, *_IN_WORKSPACE)
)
async def add_workspace_member(ctx: Context, body: WorkspaceMemberRequest) -> Member:
    """Let a user of the organization into the workspace."""
    return await members.add_workspace_member(ctx.db, ctx.get(Keyring), ctx.actor, body)


@routes.patch(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    raises=(MemberNotFound, Forbidden, *_IN_WORKSPACE),
)
async def set_workspace_role(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Give a member of the workspace another role."""
    return await members.set_workspace_role(ctx.db, ctx.get(Keyring), ctx.actor, user_id, body.role_id)


@routes.delete(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    status=204,
    raises=(MemberNotFound, Forbidden, *_IN_WORKSPACE),
)
async def remove_workspace_member(ctx: Context, user_id: UUID) -> None:
    """Take a user out of the workspace."""
    await members.remove_workspace_member(ctx.db, ctx.get(Keyring), ctx.actor, user_id)


# Keys of the workspace


@routes.get("/api-key", permission="workspaces:read", raises=_IN_WORKSPACE)
async def list_api_keys(ctx: Context) -> list[Key]:
    """List the workspace's service keys, newest first."""
    return await keys.list_keys(ctx.db, _of_workspace(ctx.actor))


@routes.post("/api-key", permission="workspaces:manage", raises=(Forbidden, *_IN_WORKSPACE))
async def create_api_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Make a service key for the workspace; the key is shown this once."""
    keys.refuse_fields(body, ("workspaces", "org_role_id", "default_workspace_id"))
    keys.check_grant(ctx.actor, body)
    owner = Owner(ctx.actor.organization_id, ctx.actor.workspace_id)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete(
    "/api-key/{key_id}",
    permission="workspaces:manage",
    raises=(KeyNotFound, Forbidden, *_IN_WORKSPACE),
    status=204,
)
async def revoke_api_key(ctx: Context, key_id: UUID) -> None:
    """Revoke a key; requests with it are refused from now on."""
    await keys.revoke_key(ctx.db, ctx.get(Keyring), ctx.actor, key_id, _of_workspace(ctx.actor))


def _of_workspace(actor: Actor) -> Shelf:
    return Shelf(organization_id=actor.organization_id, workspace_id=actor.workspace_id, of_services=True)


# Keys of the user who asks


_CURRENT, _TOKENS = "/api-key/current", "/orgs/current/personal-access-tokens"
_ON_LIST: dict[str, Any] = {"permission": "organization:read", "raises": (NotAUser,)}
_ON_MAKE: dict[str, Any] = {"permission": "organization:pats:create", "raises": (NotAUser, Forbidden)}
_ON_REVOKE: dict[str, Any] = {
    "permission": "organization:read", "raises": (NotAUser, LimitedKey, KeyNotFound, Forbidden), "status": 204,
}  # fmt: skip


@routes.get(_CURRENT, **_ON_LIST)
async def list_personal_keys(ctx: Context) -> list[Key]:
    """List the keys of the user who asks, newest first."""
    return await keys.list_keys(ctx.db, _of_user(ctx.actor))


@routes.get(_TOKENS, **_ON_LIST)
async def list_personal_access_tokens(ctx: Context) -> list[Key]:
    """List the keys of the user who asks, at the other address that clients know."""
    return await keys.list_keys(ctx.db, _of_user(ctx.actor))


@routes.post(_CURRENT, **_ON_MAKE)
async def create_personal_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Make a key that acts as the user who asks; it is shown this once."""
    return await _create_personal_key(ctx, body)


@routes.post(_TOKENS, **_ON_MAKE)
async def create_personal_access_token(ctx: Context, body: KeyRequest) -> NewKey:
    """Make a key that acts as the user who asks, at the other address that clients know."""
    return await _create_personal_key(ctx, body)


@routes.delete(f"{_CURRENT}/{{key_id}}", **_ON_REVOKE)
async def revoke_personal_key(ctx: Context, key_id: UUID) -> None:
    """Revoke one of one's own keys."""
    await _revoke_personal_key(ctx, key_id)


@routes.delete(f"{_TOKENS}/{{key_id}}", **_ON_REVOKE)
async def revoke_personal_access_token(ctx: Context, key_id: UUID) -> None:
    """Revoke one of one's own keys, at the other address that clients know."""
    await _revoke_personal_key(ctx, key_id)


async def _create_personal_key(ctx: Context, body: KeyRequest) -> NewKey:
    actor: Actor = ctx.actor
    user_id = _of_user(actor).user_id
    keys.refuse_fields(body, ("workspaces", "org_role_id", "role_id"))
    if body.permissions is not None or not actor.is_unlimited:
        keys.check_grant(actor, body)
    if body.default_workspace_id is not None:
        await workspaces.check_workspaces(ctx.db, actor, [body.default_workspace_id])
    owner = Owner(actor.organization_id, body.default_workspace_id or actor.workspace, user_id)
    return await keys.create_key(ctx.db, owner, body)


async def _revoke_personal_key(ctx: Context, key_id: UUID) -> None:
    actor: Actor = ctx.actor
    shelf = _of_user(actor)
    # Whoever may make keys may end them; users who may not make any, or not any more, still end those that they have.
    if not actor.is_unlimited and not actor.may("organization:pats:create"):
        raise LimitedKey
    await keys.revoke_key(ctx.db, ctx.get(Keyring), actor, key_id, shelf)


def _of_user(actor: Actor) -> Shelf:
    if actor.user_id is None:
        raise NotAUser
    return Shelf(organization_id=actor.organization_id, user_id=actor.user_id)


# Service keys of the organization


@routes.get("/orgs/current/service-keys", permission="organization:manage")
async def list_service_keys(ctx: Context) -> list[Key]:
    """List all service keys of the organization, newest first."""
    return await keys.list_keys(ctx.db, _of_organization(ctx.actor))


@routes.post("/orgs/current/service-keys", permission="organization:manage", raises=(Forbidden,))
async def create_service_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Make a service key for the organization, or for the workspaces that it names; it is shown this once."""
    actor: Actor = ctx.actor
    keys.refuse_fields(body, ("default_workspace_id",))
    keys.check_grant(actor, body)
    workspaces.check_held_there(actor, keys.granted(body), body.workspaces)
    if body.workspaces is not None:
        await workspaces.check_workspaces(ctx.db, actor, body.workspaces)
    owner = Owner(actor.organization_id, None, workspaces=body.workspaces)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete(
    "/orgs/current/service-keys/{key_id}",
    permission="organization:manage",
    raises=(KeyNotFound, Forbidden),
    status=204,
)
async def revoke_service_key(ctx: Context, key_id: UUID) -> None:
    """Revoke a service key of the organization or of one of its workspaces."""
    await keys.revoke_key(ctx.db, ctx.get(Keyring), ctx.actor, key_id, _of_organization(ctx.actor))


def _of_organization(actor: Actor) -> Shelf:
    return Shelf(organization_id=actor.organization_id, of_services=True)
