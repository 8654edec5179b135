"""The routes of the personal keys of the caller, which clients also know as tokens."""

from uuid import UUID

from portside.identity import keys, workspaces
from portside.identity.http.service_keys import CREATE_KEY, REVOKE_KEY
from portside.identity.keys import KeyFilter, KeyNotFound, Owner, Revocation
from portside.identity.services import Context, Routes
from portside.identity.sessions import LimitedKey, NotAUser
from portside.identity.types import Actor, Key, KeyRequest, NewKey
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import RouteOptions

routes = Routes("identity", works_on_full_disk=True)
_CURRENT = "/api-key/current"
_TOKENS = "/orgs/current/personal-access-tokens"
_LISTS_OWN_KEYS: RouteOptions = {"permission": "organization:read", "raises": (NotAUser,)}
_CREATES_OWN_KEYS: RouteOptions = {"permission": "organization:pats:create", "raises": (NotAUser, Forbidden)}
_REVOKES_OWN_KEYS: RouteOptions = {
    "permission": "organization:read",
    "raises": (NotAUser, LimitedKey, KeyNotFound, Forbidden),
    "status": 204,
}


@routes.get(_CURRENT, **_LISTS_OWN_KEYS)
async def list_personal_keys(ctx: Context) -> list[Key]:
    """List the caller's personal keys, newest first."""
    return await keys.list_keys(ctx.db, _select_user_keys(ctx.actor))


@routes.get(_TOKENS, **_LISTS_OWN_KEYS)
async def list_personal_access_tokens(ctx: Context) -> list[Key]:
    """List the caller's personal keys (an alias that clients use)."""
    return await keys.list_keys(ctx.db, _select_user_keys(ctx.actor))


@routes.post(_CURRENT, **_CREATES_OWN_KEYS, audit=CREATE_KEY)
async def create_personal_key(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a personal key of the caller; it is shown once."""
    return await _create_personal_key(ctx, body)


@routes.post(_TOKENS, **_CREATES_OWN_KEYS, audit=CREATE_KEY)
async def create_personal_access_token(ctx: Context, body: KeyRequest) -> NewKey:
    """Create a personal key of the caller (an alias that clients use)."""
    return await _create_personal_key(ctx, body)


@routes.delete(f"{_CURRENT}/{{key_id}}", **_REVOKES_OWN_KEYS, audit=REVOKE_KEY)
async def revoke_personal_key(ctx: Context, key_id: UUID) -> None:
    """Revoke one of the caller's personal keys."""
    await _revoke_personal_key(ctx, key_id)


@routes.delete(f"{_TOKENS}/{{key_id}}", **_REVOKES_OWN_KEYS, audit=REVOKE_KEY)
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
