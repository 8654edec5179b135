"""API keys: made, hashed, listed and revoked. Who a request's key stands for is `keyring.py`'s business.

A key is shown once. A service key belongs to a workspace, or to the organization or some of its workspaces; a personal
key acts as its user, who may never do more with it than without.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.keyring import Keyring
from portside.identity.roles import ORGANIZATION_ROLES, READ_ONLY, WORKSPACE_ROLES, find_role
from portside.identity.sql import sql
from portside.identity.tokens import hash_token
from portside.identity.types import EVERYTHING, Actor, Key, KeyRequest, NewKey
from portside.kernel.clock import now
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden, Invalid, NotFound, UserMistake
from portside.kernel.ids import uuid7

PERSONAL, SERVICE = "lsv2_pt", "lsv2_sk"
MAX_KEY_LENGTH = 512


class KeyNotFound(NotFound):
    """No API key with this id exists where you look."""

    code = "api_key_not_found"


class Owner(msgspec.Struct, frozen=True):
    """Where a new key belongs; without a user it is a service key, without a workspace one of the organization.

    `workspaces` are those that a key of the organization may enter, None for all of them.
    """

    organization_id: UUID
    workspace_id: UUID | None
    user_id: UUID | None = None
    workspaces: Sequence[UUID] | None = None


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys are meant: those of a workspace, of a user, or all service keys of the organization."""

    organization_id: UUID
    workspace_id: UUID | None = None
    user_id: UUID | None = None
    of_services: bool = False


def generate_key(prefix: str) -> str:
    """Make a random key."""
    return f"{prefix}_{secrets.token_hex(16)}_{secrets.token_hex(5)}"


def shorten(key: str) -> str:
    """Return the recognisable part of a key that may be shown for ever."""
    shown = min(4, len(key) // 4)
    return f"{key[:8] if len(key) >= 24 else ''}…{key[len(key) - shown :]}"


async def create_key(db: Session, owner: Owner, request: KeyRequest, *, key: str | None = None) -> NewKey:
    """Store a new key and return it, readable this once.

    Raises Invalid for an expiry in the past, an unknown role or permissions beside a role.
    """
    expires_at = None if request.expires_at is None else _future(request.expires_at)
    key = key or generate_key(PERSONAL if owner.user_id else SERVICE)
    key_id = uuid7()
    await db.execute(
        sql.insert_key,
        id=key_id,
        organization_id=owner.organization_id,
        workspace_id=owner.workspace_id,
        workspaces=owner.workspaces,
        user_id=owner.user_id,
        description=request.description,
        short_key=shorten(key),
        key_hash=hash_token(key),
        permissions=granted(request),
        read_only=request.read_only,
        expires_at=expires_at,
    )
    (row,) = await _rows(db, Shelf(organization_id=owner.organization_id), key_id)
    return NewKey(**row, key=key)


def granted(request: KeyRequest) -> list[str]:
    """Return the permissions that a key is made with. Raises Invalid."""
    if request.permissions is not None and (request.role_id or request.org_role_id):
        raise Invalid.field(["body", "permissions"], "cannot be given beside a role")
    wanted = set(request.permissions if request.permissions is not None else ())
    if request.role_id:
        wanted.update(find_role(WORKSPACE_ROLES, request.role_id, "role_id").permissions)
    if request.org_role_id:
        wanted.update(find_role(ORGANIZATION_ROLES, request.org_role_id, "org_role_id").permissions)
    if request.permissions is None and not wanted:
        wanted = {EVERYTHING}
    if not request.read_only:
        return sorted(wanted)
    return sorted(permission for permission in READ_ONLY if _covers(wanted, permission))


def _covers(held: set[str], permission: str) -> bool:
    return not held.isdisjoint({permission, f"{permission.split(':', 1)[0]}:*", EVERYTHING})


def check_given_key(key: str) -> None:
    """Refuse a key that no request could bring. Raises UserMistake."""
    if len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise UserMistake(
            f"PORTSIDE_API_KEY must be at most {MAX_KEY_LENGTH} ASCII characters without spaces, as a header holds it"
        )


def _future(moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise Invalid.field(["body", "expires_at"], "must be a moment of the years 1 to 9999 in UTC") from None
    if moment <= now():
        raise Invalid.field(["body", "expires_at"], "must be in the future")
    return moment


def check_grant(actor: Actor, request: KeyRequest) -> None:
    """Refuse a key that could do more than the one that asks for it. Raises Forbidden and Invalid."""
    beyond = [permission for permission in granted(request) if not actor.may(permission)]
    if beyond:
        raise Forbidden(f"A key can only grant what it may do itself; it lacks {', '.join(beyond)}.")


def refuse_fields(request: KeyRequest, names: Sequence[str]) -> None:
    """Refuse fields that make no sense for the kind of key. Raises Invalid."""
    for name in names:
        if getattr(request, name) is not None:
            raise Invalid.field(["body", name], "is not for keys of this kind")


async def list_keys(db: Session, shelf: Shelf) -> list[Key]:
    """List keys, newest first."""
    return [Key(**row) for row in await _rows(db, shelf)]


async def _rows(db: Session, shelf: Shelf, key_id: UUID | None = None) -> list[dict[str, Any]]:
    rows = await db.fetch(sql.list_keys, id=key_id, **msgspec.structs.asdict(shelf))
    return [dict(row) for row in rows]


async def revoke_key(db: Session, keyring: Keyring, actor: Actor, key_id: UUID, shelf: Shelf) -> None:
    """Make a key worthless. Raises KeyNotFound, and Forbidden for the key that asks."""
    if key_id == actor.key_id:
        raise Forbidden("A key cannot revoke itself; use another one.")
    if await db.fetchval(sql.revoke_key, id=key_id, **msgspec.structs.asdict(shelf)) is None:
        raise KeyNotFound
    keyring.forget(key_id)
