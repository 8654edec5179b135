"""API keys: made, hashed, looked up and revoked.

A key is shown once. Looked-up keys are remembered for a few seconds, because trace ingest would otherwise ask the
database for the same key hundreds of times a second; revoking one in this process forgets it at once.
"""

import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor, Key, KeyRequest, NewKey
from portside.kernel.clock import now
from portside.kernel.db import Database, Session
from portside.kernel.errors import Forbidden, Invalid, NotFound, Unauthorized, UserMistake
from portside.kernel.ids import uuid7

PERSONAL, SERVICE = "lsv2_pt", "lsv2_sk"
MAX_KEY_LENGTH = 512
REMEMBER_S = 10.0
_REMEMBER_AT_MOST = 10_000


class KeyNotFound(NotFound):
    """No API key with this id exists in the workspace."""

    code = "api_key_not_found"


class Owner(msgspec.Struct, frozen=True):
    """Where a new key belongs; without a user it is a service key."""

    organization_id: UUID
    workspace_id: UUID
    user_id: UUID | None = None


def generate_key(prefix: str) -> str:
    """Make a random key."""
    return f"{prefix}_{secrets.token_hex(16)}_{secrets.token_hex(5)}"


def hash_key(key: str) -> bytes:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode()).digest()


def shorten(key: str) -> str:
    """Return the recognisable part of a key that may be shown for ever."""
    shown = min(4, len(key) // 4)
    return f"{key[:8] if len(key) >= 24 else ''}…{key[len(key) - shown :]}"


async def create_key(db: Session, owner: Owner, request: KeyRequest, *, key: str | None = None) -> NewKey:
    """Store a new key and return it, readable this once. Raises Invalid for an expiry in the past."""
    expires_at = None if request.expires_at is None else _future(request.expires_at)
    key = key or generate_key(PERSONAL if owner.user_id else SERVICE)
    row = await db.fetchrow(
        sql.insert_key,
        id=uuid7(),
        organization_id=owner.organization_id,
        workspace_id=owner.workspace_id,
        user_id=owner.user_id,
        description=request.description,
        short_key=shorten(key),
        key_hash=hash_key(key),
        permissions=request.permissions if request.permissions is not None else [EVERYTHING],
        expires_at=expires_at,
        is_org_scoped=request.is_org_scoped,
    )
    assert row is not None  # noqa: S101 - an insert returns its row
    return NewKey(**dict(row), key=key)


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


class Keyring:
    """Authenticates keys, and remembers for a short time which are good."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[bytes, tuple[float, Actor]] = {}

    async def authenticate(self, key: str | None) -> Actor:
        """Return the actor behind a key. Raises Unauthorized for none, an unknown, expired or revoked one."""
        if not key or len(key) > MAX_KEY_LENGTH:
            raise Unauthorized
        digest = hash_key(key)
        known = self._known.get(digest)
        if known is not None and known[0] > time.monotonic() and not _is_over(known[1]):
            return known[1]
        return await self._look_up(digest)

    async def _look_up(self, digest: bytes) -> Actor:
        row = await self._db.fetchrow(sql.key_by_hash, key_hash=digest)
        if row is None or not hmac.compare_digest(row["key_hash"], digest):
            self._known.pop(digest, None)
            raise Unauthorized
        actor = Actor(
            key_id=row["id"],
            short_key=row["short_key"],
            organization_id=row["organization_id"],
            workspace_id=row["workspace_id"],
            workspace_name=row["workspace_name"],
            tenant_handle=row["tenant_handle"],
            user_id=row["user_id"],
            user_email=row["email"],
            permissions=frozenset(row["permissions"]),
            expires_at=row["expires_at"],
            is_org_scoped=row["is_org_scoped"],
        )
        if len(self._known) >= _REMEMBER_AT_MOST:
            self._known.clear()
        self._known[digest] = (time.monotonic() + REMEMBER_S, actor)
        await self._db.execute(sql.touch_key, id=actor.key_id)
        return actor

    def forget(self, key_id: UUID) -> None:
        """Stop remembering a key that was revoked."""
        self._known = {digest: known for digest, known in self._known.items() if known[1].key_id != key_id}


def check_grant(actor: Actor, request: KeyRequest) -> None:
    """Refuse a key that could do more, or in more places, than the one that asks for it. Raises Forbidden."""
    if request.is_org_scoped and not (actor.is_org_scoped or (actor.user_id and actor.may("organization:manage"))):
        raise Forbidden("Only a user's key with organization:manage, or an org-scoped one, can make an org-scoped key.")
    wanted = request.permissions if request.permissions is not None else [EVERYTHING]
    beyond = [permission for permission in wanted if not actor.may(permission)]
    if beyond:
        raise Forbidden(f"A key can only grant what it may do itself; it lacks {', '.join(beyond)}.")


async def list_keys(db: Session, workspace_id: UUID) -> list[Key]:
    """List a workspace's keys, newest first."""
    return [Key(**dict(row)) for row in await db.fetch(sql.list_keys, workspace_id=workspace_id)]


async def revoke_key(db: Session, keyring: Keyring, actor: Actor, key_id: UUID) -> None:
    """Make a key worthless. Raises KeyNotFound, and Forbidden for the key that asks."""
    if key_id == actor.key_id:
        raise Forbidden("A key cannot revoke itself; use another one.")
    if await db.fetchval(sql.revoke_key, id=key_id, workspace_id=actor.workspace_id) is None:
        raise KeyNotFound
    keyring.forget(key_id)


def _is_over(actor: Actor) -> bool:
    return actor.expires_at is not None and actor.expires_at <= now()
