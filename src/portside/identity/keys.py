"""API keys: create, list and revoke them. `authentication.py` authenticates requests.

A key is shown once. A service key belongs to a workspace, or to the organization or some of its workspaces. A personal
key acts as its user and never has more permissions than the user.
"""

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.authentication import (
    MAX_TOKEN_LENGTH,
    PERSONAL_PREFIX,
    SERVICE_PREFIX,
    Authenticator,
    hash_token,
)
from portside.identity.roles import ORGANIZATION_ROLES, READ_ONLY, WORKSPACE_ROLES, check_permissions, find_role
from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor, Key, KeyRequest, NewKey, includes
from portside.kernel.clock import now, read_utc
from portside.kernel.db import Session
from portside.kernel.errors import Conflict, Forbidden, Invalid, NotFound, UserMistake
from portside.kernel.ids import uuid7


class KeyNotFound(NotFound):
    """There is no API key with this id in this list of keys."""

    code = "api_key_not_found"


class KeyInUse(Conflict):
    """A part of the platform uses this key; replace it, or revoke it with force=true."""

    code = "api_key_in_use"


class Owner(msgspec.Struct, frozen=True):
    """The owner of a new key. Without a user it is a service key; without a workspace it belongs to the organization.

    `workspaces` are those that an organization's key may use, None for all. `created_by` is the actor that asks for the
    key, None for the platform itself.
    """

    organization_id: UUID
    workspace_id: UUID | None
    user_id: UUID | None = None
    workspaces: Sequence[UUID] | None = None
    created_by: Actor | None = None


class KeyFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the keys of a workspace, those of a user, or all service keys of the organization."""

    organization_id: UUID
    workspace_id: UUID | None = None
    user_id: UUID | None = None
    service_keys_only: bool = False


class Revocation(msgspec.Struct, frozen=True):
    """A key to revoke. A key that a part of the platform uses is revoked only with `force`."""

    key_id: UUID
    key_filter: KeyFilter
    force: bool = False


def generate_key(prefix: str) -> str:
    """Return a new random key."""
    return f"{prefix}_{secrets.token_hex(16)}_{secrets.token_hex(5)}"


def to_short_key(key: str) -> str:
    """Return a short form of a key that is safe to show."""
    tail_length = min(4, len(key) // 4)
    head = key[:8] if len(key) >= 24 else ""
    return f"{head}…{key[len(key) - tail_length :]}"


async def create_key(
    db: Session, owner: Owner, request: KeyRequest, *, key: str | None = None, used_by: str | None = None
) -> NewKey:
    """Store a new key and return it; it cannot be read again.

    `used_by` names the part of the platform that uses the key, if any. A key that was made with one that expires does
    so at the same time, or earlier. Raises Invalid for an expiry in the past or after the creator's, an unknown role,
    or both permissions and a role.
    """
    expires_at = _choose_expiry(request, None if used_by is not None else owner.created_by)
    key = key or generate_key(PERSONAL_PREFIX if owner.user_id else SERVICE_PREFIX)
    key_id = uuid7()
    creator = owner.created_by

    await db.execute(
        sql.insert_key,
        id=key_id,
        organization_id=owner.organization_id,
        workspace_id=owner.workspace_id,
        workspaces=owner.workspaces,
        user_id=owner.user_id,
        description=request.description,
        short_key=to_short_key(key),
        key_hash=hash_token(key),
        permissions=list_granted_permissions(request),
        read_only=request.read_only,
        expires_at=expires_at,
        used_by=used_by,
        created_by_user=creator and creator.user_id,
        # A session of a user has its own id as `key_id`, and a personal key acts as its user.
        created_by_key=creator.key_id if creator and creator.user_id is None else None,
    )

    (row,) = await _fetch_rows(db, KeyFilter(organization_id=owner.organization_id), key_id)
    return NewKey(**row, key=key)


def list_granted_permissions(request: KeyRequest) -> list[str]:
    """Return the permissions of a requested key. Raises Invalid."""
    if request.permissions is not None and (request.role_id or request.org_role_id):
        raise Invalid.field(["body", "permissions"], "cannot be combined with a role")

    permissions = set(request.permissions or ())
    if request.role_id:
        permissions.update(find_role(WORKSPACE_ROLES, request.role_id, "role_id").permissions)

    if request.org_role_id:
        permissions.update(find_role(ORGANIZATION_ROLES, request.org_role_id, "org_role_id").permissions)

    if request.permissions is None and not permissions:
        permissions = {EVERYTHING}

    if not request.read_only:
        return sorted(permissions)

    return sorted(permission for permission in READ_ONLY if includes(permissions, permission))


async def is_valid_key(db: Session, key: str) -> bool:
    """Whether this platform has the key, in any workspace."""
    return bool(await db.fetchval(sql.is_valid_key, key_hash=hash_token(key)))


def check_key_format(key: str) -> None:
    """Refuse a key that is not a valid header value. Raises UserMistake."""
    if len(key) > MAX_TOKEN_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise UserMistake(
            f"PORTSIDE_API_KEY must be at most {MAX_TOKEN_LENGTH} printable ASCII characters without spaces"
        )


def _choose_expiry(request: KeyRequest, creator: Actor | None) -> datetime | None:
    """Return when a new key expires, None for never. Raises Invalid."""
    latest = creator.key_expires_at if creator is not None else None
    if request.expires_at is None:
        return latest

    moment = read_utc(request.expires_at, ["body", "expires_at"])
    if moment <= now():
        raise Invalid.field(["body", "expires_at"], "must be in the future")

    if latest is not None and moment > latest:
        raise Invalid.field(
            ["body", "expires_at"],
            f"must not be after {latest.isoformat()}, when the key that you use expires; use another key or sign in",
        )

    return moment


def check_grant(actor: Actor, request: KeyRequest) -> None:
    """Refuse permissions that do not exist, or that the actor lacks. Raises Forbidden and Invalid."""
    check_permissions(request.permissions or ())
    missing = [permission for permission in list_granted_permissions(request) if not actor.may(permission)]
    if missing:
        raise Forbidden(f"You can only grant permissions that you have; you lack {', '.join(missing)}.")


def refuse_fields(request: KeyRequest, names: Sequence[str]) -> None:
    """Refuse fields that do not apply to this kind of key. Raises Invalid."""
    for name in names:
        if getattr(request, name) is not None:
            raise Invalid.field(["body", name], "does not apply to this kind of key")


async def list_keys(db: Session, key_filter: KeyFilter) -> list[Key]:
    """List keys, newest first."""
    return [Key(**row) for row in await _fetch_rows(db, key_filter)]


async def _fetch_rows(db: Session, key_filter: KeyFilter, key_id: UUID | None = None) -> list[dict[str, Any]]:
    rows = await db.fetch(sql.list_keys, id=key_id, **msgspec.structs.asdict(key_filter))
    return [dict(row) for row in rows]


async def expire_key(db: Session, key_id: UUID, *, after: timedelta) -> None:
    """Make a key expire after some time, unless it expires earlier."""
    await db.execute(sql.expire_key, id=key_id, after=after)


async def revoke_key(db: Session, authenticator: Authenticator, actor: Actor, revocation: Revocation) -> None:
    """Revoke a key.

    Raises KeyNotFound, Forbidden for the actor's own key, and, without `force`, KeyInUse for a key that a part of the
    platform uses.
    """
    key_id = revocation.key_id
    key_filter = revocation.key_filter

    if key_id == actor.key_id:
        raise Forbidden("A key cannot revoke itself; use another one.")

    values = {"id": key_id, "force": revocation.force, **msgspec.structs.asdict(key_filter)}
    if await db.fetchval(sql.revoke_key, **values) is None:
        rows = await _fetch_rows(db, key_filter, key_id)
        if not rows:
            raise KeyNotFound

        raise KeyInUse(
            f"This key is used by {rows[0]['used_by']}, whose requests would be refused until it gets another key. "
            "Replace it with `portside keys rotate`, or revoke it anyway with force=true (--force)."
        )

    authenticator.forget(key_id)
