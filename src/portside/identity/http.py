"""The HTTP routes of identity: the caller's identity, sessions, the organization, workspaces, members and API keys.

`signin.py` has the pages on which people sign in.
"""

from uuid import UUID

from portside.identity import keys, logins, members, sessions, sign_in_links, workspaces
from portside.identity.authentication import SessionEnded
from portside.identity.keys import KeyFilter, KeyInUse, KeyNotFound, Owner, Revocation
from portside.identity.logins import LoginRefused
from portside.identity.members import LastAdmin, MemberNotFound, MemberTaken
from portside.identity.passwords import TooManyLogins
from portside.identity.roles import ORGANIZATION_ROLES, WORKSPACE_ROLES
from portside.identity.services import Context, Routes, read_origin
from portside.identity.sessions import LimitedKey, NotAUser, SessionNotFound
from portside.identity.sign_in_links import SignInLink
from portside.identity.signin import SIGN_IN
from portside.identity.types import (
    Actor,
    Credentials,
    Identity,
    Key,
    KeyRequest,
    LoggedIn,
    LoginSession,
    Member,
    MemberRequest,
    NewKey,
    NewPassword,
    Organization,
    PublicIdentity,
    RevokeQuery,
    Role,
    RoleChange,
    Workspace,
    WorkspaceMemberRequest,
    WorkspacePatch,
    WorkspaceRequest,
    WorkspaceRequired,
)
from portside.identity.workspaces import WorkspaceNeeded, WorkspaceNotFound, WorkspaceOccupied, WorkspaceTaken
from portside.kernel.errors import Forbidden
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import RouteOptions

routes = Routes("identity", works_on_full_disk=True)
_IN_WORKSPACE = (WorkspaceRequired,)
_CREATE_KEY = Action("key.create", id_query="insert_key")
_REVOKE_KEY = Action("key.revoke", id_fields=("key_id",))
_CURRENT = "/api-key/current"
_TOKENS = "/orgs/current/personal-access-tokens"
_LISTS_OWN_KEYS: RouteOptions = {"permission": "organization:read", "raises": (NotAUser,)}
_CREATES_OWN_KEYS: RouteOptions = {"permission": "organization:pats:create", "raises": (NotAUser, Forbidden)}
_REVOKES_OWN_KEYS: RouteOptions = {
    "permission": "organization:read",
    "raises": (NotAUser, LimitedKey, KeyNotFound, Forbidden),
    "status": 204,
}


@routes.get("/auth")
async def get_identity(ctx: Context) -> Identity:
    """Return the identity of the key or session."""
    return Identity.of(ctx.actor)


@routes.get("/auth/public")
async def get_public_identity(ctx: Context) -> PublicIdentity:
    """Return the identity of the key or session in a short form."""
    actor: Actor = ctx.actor
    return PublicIdentity(
        organization_id=actor.organization_id,
        tenant_id=actor.workspace,
        user_id=actor.user_id,
        user_email=actor.user_email,
        ls_user_id=actor.user_id,
    )


# Sessions


@routes.post(
    "/login",
    operation="sessions_create",
    public=True,
    raises=(LoginRefused, TooManyLogins, SessionEnded),
    audit=SIGN_IN,
)
async def log_in(ctx: Context, body: Credentials) -> LoggedIn:
    """Return a bearer token for a user; it lasts twelve hours."""
    return await logins.log_in(ctx.db, ctx.services.authenticator, body, read_origin(ctx))


@routes.post("/logout", operation="current_session_end", status=204, audit=Action("session.end"))
async def log_out(ctx: Context) -> None:
    """End the caller's session."""
    await sessions.end_current(ctx.db, ctx.services.authenticator, ctx.actor)


@routes.get("/users/me/sessions", permission="organization:read")
async def list_own_sessions(ctx: Context) -> list[LoginSession]:
    """List the caller's sessions, newest first."""
    return await sessions.list_own(ctx.db, ctx.services.authenticator, ctx.actor)


@routes.delete(
    "/users/me/sessions/{session_id}",
    permission="organization:read",
    status=204,
    raises=(SessionNotFound, LimitedKey),
    audit=Action("session.end"),
)
async def end_own_session(ctx: Context, session_id: UUID) -> None:
    """End one of the caller's sessions."""
    await sessions.end_own(ctx.db, ctx.services.authenticator, ctx.actor, session_id)


@routes.post(
    "/users/me/sign-in-links",
    permission="organization:read",
    status=201,
    raises=(LimitedKey,),
    audit=Action("sign_in_link.create", id_query="insert_sign_in_link"),
)
async def create_sign_in_link(ctx: Context) -> SignInLink:
    """Return an address that signs a browser in as the caller, once, within a minute."""
    return await sign_in_links.create_link(ctx.db, ctx.actor)


@routes.get("/orgs/current/sessions", permission="organization:manage")
async def list_sessions(ctx: Context) -> list[LoginSession]:
    """List the sessions of all members, newest first."""
    return await sessions.list_all(ctx.db, ctx.services.authenticator, ctx.actor)


@routes.delete(
    "/orgs/current/sessions/{session_id}",
    permission="organization:manage",
    status=204,
    raises=(SessionNotFound,),
    audit=Action("session.end"),
)
async def end_session(ctx: Context, session_id: UUID) -> None:
    """End a session of any member."""
    await sessions.end_any(ctx.db, ctx.services.authenticator, ctx.actor, session_id)


@routes.put(
    "/users/me/password", status=204, raises=(NotAUser, LimitedKey, LoginRefused), audit=Action("user.set_password")
)
async def set_password(ctx: Context, body: NewPassword) -> None:
    """Change the caller's password."""
    await logins.set_password(ctx.db, ctx.services.authenticator, ctx.actor, body)


# The organization and its workspaces


@routes.get("/orgs/current", permission="organization:read")
async def get_organization(ctx: Context) -> Organization:
    """Return the organization."""
    return await workspaces.get_organization(ctx.db, ctx.actor)


@routes.patch("/orgs/current", permission="organization:manage", audit=Action("organization.update"))
async def update_organization(ctx: Context, body: WorkspacePatch) -> Organization:
    """Rename the organization."""
    return await workspaces.rename_organization(ctx.db, ctx.actor, body.display_name)


@routes.get("/orgs/current/roles", permission="organization:read")
async def list_roles(_ctx: Context) -> list[Role]:
    """List the roles of organizations and workspaces with their permissions."""
    return [*ORGANIZATION_ROLES.values(), *WORKSPACE_ROLES.values()]


@routes.get("/workspaces")
async def list_workspaces(ctx: Context) -> list[Workspace]:
    """List the workspaces that the caller may use."""
    return await workspaces.list_workspaces(ctx.db, ctx.actor)


@routes.post(
    "/workspaces",
    permission="organization:manage",
    raises=(WorkspaceTaken,),
    audit=Action("workspace.create", id_query="insert_workspace"),
)
async def create_workspace(ctx: Context, body: WorkspaceRequest) -> Workspace:
    """Create a workspace; the user who creates it becomes its admin."""
    return await workspaces.create_workspace(ctx.db, ctx.actor, body)


@routes.patch(
    "/workspaces/{workspace_id}",
    permission="organization:manage",
    raises=(WorkspaceNotFound,),
    audit=Action("workspace.update"),
)
async def update_workspace(ctx: Context, workspace_id: UUID, body: WorkspacePatch) -> Workspace:
    """Rename a workspace; its handle stays."""
    return await workspaces.rename_workspace(ctx.db, ctx.actor, workspace_id, body.display_name)


@routes.delete(
    "/workspaces/{workspace_id}",
    permission="organization:manage",
    status=204,
    raises=(WorkspaceNotFound, WorkspaceNeeded, WorkspaceOccupied, Forbidden),
    audit=Action("workspace.delete"),
)
async def delete_workspace(ctx: Context, workspace_id: UUID) -> None:
    """Delete a workspace without deployments, with its keys, traces, datasets, prompts and integrations."""
    await workspaces.delete_workspace(
        ctx.db, ctx.services.authenticator, ctx.actor, workspace_id, checks=ctx.services.deletion_checks
    )


# Members


@routes.get("/orgs/current/members", permission="organization:read")
async def list_members(ctx: Context) -> list[Member]:
    """List the members of the organization."""
    return await members.list_members(ctx.db, ctx.actor)


@routes.post(
    "/orgs/current/members",
    permission="organization:manage",
    raises=(MemberTaken, Forbidden),
    audit=Action("member.add", id_query="insert_user"),
)
async def add_member(ctx: Context, body: MemberRequest) -> Member:
    """Add a user to the organization and to workspaces."""
    return await members.add_member(ctx.db, ctx.actor, body)


@routes.patch(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    raises=(MemberNotFound, LastAdmin, Forbidden),
    audit=Action("member.update"),
)
async def update_member(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Change the role of a member of the organization."""
    return await members.set_role(ctx.db, ctx.services.authenticator, ctx.actor, user_id, role_name=body.role_id)


@routes.delete(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    status=204,
    raises=(MemberNotFound, LastAdmin, Forbidden),
    audit=Action("member.remove"),
)
async def remove_member(ctx: Context, user_id: UUID) -> None:
    """Remove a user from the organization, with all keys and sessions."""
    await members.remove_member(ctx.db, ctx.services.authenticator, ctx.actor, user_id)


@routes.get("/workspaces/current/members", permission="workspaces:read", raises=_IN_WORKSPACE)
async def list_workspace_members(ctx: Context) -> list[Member]:
    """List the members of the workspace."""
    return await members.list_workspace_members(ctx.db, ctx.actor)


@routes.post(
    "/workspaces/current/members",
    permission="workspaces:manage",
    raises=(MemberTaken, Forbidden, *_IN_WORKSPACE),
    audit=Action("workspace_member.add", id_fields=("user_id",)),
)
async def add_workspace_member(ctx: Context, body: WorkspaceMemberRequest) -> Member:
    """Add a user of the organization to the workspace."""
    return await members.add_workspace_member(ctx.db, ctx.services.authenticator, ctx.actor, body)


@routes.patch(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    raises=(MemberNotFound, Forbidden, *_IN_WORKSPACE),
    audit=Action("workspace_member.update"),
)
async def update_workspace_member(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Change the role of a member of the workspace."""
    return await members.set_workspace_role(
        ctx.db, ctx.services.authenticator, ctx.actor, user_id, role_name=body.role_id
    )


@routes.delete(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    status=204,
    raises=(MemberNotFound, Forbidden, *_IN_WORKSPACE),
    audit=Action("workspace_member.remove"),
)
async def remove_workspace_member(ctx: Context, user_id: UUID) -> None:
    """Remove a user from the workspace."""
    await members.remove_workspace_member(ctx.db, ctx.services.authenticator, ctx.actor, user_id)


# Keys of the workspace


@routes.get("/api-key", permission="workspaces:read", raises=_IN_WORKSPACE)
async def list_api_keys(ctx: Context) -> list[Key]:
    """List the workspace's service keys, newest first."""
    return await keys.list_keys(ctx.db, _select_workspace_keys(ctx.actor))


@routes.post("/api-key", permission="workspaces:manage", raises=(Forbidden, *_IN_WORKSPACE), audit=_CREATE_KEY)
async def create_api_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a service key for the workspace; the key is shown once."""
    keys.refuse_fields(body, ("workspaces", "org_role_id", "default_workspace_id"))
    keys.check_grant(ctx.actor, body)
    owner = Owner(ctx.actor.organization_id, ctx.actor.workspace_id, created_by=ctx.actor)
    return await keys.create_key(ctx.db, owner, body)


@routes.delete(
    "/api-key/{key_id}",
    permission="workspaces:manage",
    raises=(KeyNotFound, KeyInUse, Forbidden, *_IN_WORKSPACE),
    status=204,
    audit=_REVOKE_KEY,
)
async def revoke_api_key(ctx: Context, key_id: UUID, query: RevokeQuery) -> None:
    """Revoke a key; requests with it are refused from then on."""
    revocation = Revocation(key_id, _select_workspace_keys(ctx.actor), query.force)
    await keys.revoke_key(ctx.db, ctx.services.authenticator, ctx.actor, revocation)


def _select_workspace_keys(actor: Actor) -> KeyFilter:
    return KeyFilter(organization_id=actor.organization_id, workspace_id=actor.workspace_id, service_keys_only=True)


# Keys of the caller


@routes.get(_CURRENT, **_LISTS_OWN_KEYS)
async def list_personal_keys(ctx: Context) -> list[Key]:
    """List the caller's personal keys, newest first."""
    return await keys.list_keys(ctx.db, _select_user_keys(ctx.actor))


@routes.get(_TOKENS, **_LISTS_OWN_KEYS)
async def list_personal_access_tokens(ctx: Context) -> list[Key]:
    """List the caller's personal keys (an alias that clients use)."""
    return await keys.list_keys(ctx.db, _select_user_keys(ctx.actor))


@routes.post(_CURRENT, **_CREATES_OWN_KEYS, audit=_CREATE_KEY)
async def create_personal_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a personal key of the caller; it is shown once."""
    return await _create_personal_key(ctx, body)


@routes.post(_TOKENS, **_CREATES_OWN_KEYS, audit=_CREATE_KEY)
async def create_personal_access_token(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a personal key of the caller (an alias that clients use)."""
    return await _create_personal_key(ctx, body)


@routes.delete(f"{_CURRENT}/{{key_id}}", **_REVOKES_OWN_KEYS, audit=_REVOKE_KEY)
async def revoke_personal_key(ctx: Context, key_id: UUID) -> None:
    """Revoke one of the caller's personal keys."""
    await _revoke_personal_key(ctx, key_id)


@routes.delete(f"{_TOKENS}/{{key_id}}", **_REVOKES_OWN_KEYS, audit=_REVOKE_KEY)
async def revoke_personal_access_token(ctx: Context, key_id: UUID) -> None:
    """Revoke one of the caller's personal keys (an alias that clients use)."""
    await _revoke_personal_key(ctx, key_id)


async def _create_personal_key(ctx: Context, body: KeyRequest) -> NewKey:
    actor: Actor = ctx.actor
    user_id = _select_user_keys(actor).user_id
    keys.refuse_fields(body, ("workspaces", "org_role_id", "role_id"))

    if body.permissions is not None or not actor.is_unlimited:
        keys.check_grant(actor, body)

    if body.default_workspace_id is not None:
        await workspaces.check_workspaces(ctx.db, actor, [body.default_workspace_id], "default_workspace_id")

    owner = Owner(actor.organization_id, body.default_workspace_id or actor.workspace, user_id, created_by=actor)
    return await keys.create_key(ctx.db, owner, body)


async def _revoke_personal_key(ctx: Context, key_id: UUID) -> None:
    actor: Actor = ctx.actor
    key_filter = _select_user_keys(actor)

    # A caller who may create keys may revoke them. Unlimited users may always revoke their own keys.
    if not actor.is_unlimited and not actor.may("organization:pats:create"):
        raise LimitedKey

    await keys.revoke_key(ctx.db, ctx.services.authenticator, actor, Revocation(key_id, key_filter))


def _select_user_keys(actor: Actor) -> KeyFilter:
    if actor.user_id is None:
        raise NotAUser

    return KeyFilter(organization_id=actor.organization_id, user_id=actor.user_id)


# Service keys of the organization


@routes.get("/orgs/current/service-keys", permission="organization:manage")
async def list_service_keys(ctx: Context) -> list[Key]:
    """List all service keys of the organization, newest first."""
    return await keys.list_keys(ctx.db, _select_organization_keys(ctx.actor))


@routes.post("/orgs/current/service-keys", permission="organization:manage", raises=(Forbidden,), audit=_CREATE_KEY)
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
    audit=_REVOKE_KEY,
)
async def revoke_service_key(ctx: Context, key_id: UUID, query: RevokeQuery) -> None:
    """Revoke a service key of the organization or of one of its workspaces."""
    revocation = Revocation(key_id, _select_organization_keys(ctx.actor), query.force)
    await keys.revoke_key(ctx.db, ctx.services.authenticator, ctx.actor, revocation)


def _select_organization_keys(actor: Actor) -> KeyFilter:
    return KeyFilter(organization_id=actor.organization_id, service_keys_only=True)
