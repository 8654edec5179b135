"""Who a request's key or login stands for, in which workspace.

Answers are remembered for a few seconds, because trace ingest would otherwise ask the database for the same key
hundreds of times a second; what this process revokes or changes it forgets at once.
"""

import hmac
import time
from collections.abc import Callable
from uuid import UUID

from portside.identity.roles import ORGANIZATION_ADMIN, permissions_of
from portside.identity.sql import sql
from portside.identity.tokens import hash_token
from portside.identity.types import EVERYTHING, Actor
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.errors import Forbidden, Unauthorized

MAX_TOKEN_LENGTH = 512
REMEMBER_S = 10.0
_REMEMBER_AT_MOST = 10_000


class LoginOver(Unauthorized):
    """The login has ended or never was; log in again with POST /login."""

    code = "login_over"


class Keyring:
    """Authenticates keys and logins, and remembers for a short time which are good."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[tuple[bytes, UUID | None], tuple[float, Actor]] = {}

    async def authenticate(self, key: str | None, tenant: UUID | None = None) -> Actor:
        """Return the actor behind an API key, in the workspace that `tenant` names or where the key begins.

        Raises Unauthorized for no key, an unknown, expired or revoked one; Forbidden for a workspace that it may not
        enter.
        """
        if not key or len(key) > MAX_TOKEN_LENGTH:
            raise Unauthorized
        digest = hash_token(key)
        actor = self._remembered(digest, tenant)
        if actor is not None:
            return actor
        row = await self._db.fetchrow(sql.key_by_hash, key_hash=digest, tenant=tenant)
        if row is None or not hmac.compare_digest(row["key_hash"], digest):
            raise Unauthorized
        actor = _actor(row, tenant, is_welcome=_may_enter, short_key=row["short_key"], held=row["permissions"])
        await self._db.execute(sql.touch_key, id=actor.key_id)
        return self._remember(digest, tenant, actor)

    async def authenticate_login(self, token: str, tenant: UUID | None = None) -> Actor:
        """Return the user who logged in, in the workspace that `tenant` names. Raises LoginOver and Forbidden."""
        digest = hash_token(token)
        actor = self._remembered(digest, tenant)
        if actor is not None:
            return actor
        row = await self._db.fetchrow(sql.login_by_hash, token_hash=digest, tenant=tenant)
        if row is None or not hmac.compare_digest(row["token_hash"], digest):
            raise LoginOver
        actor = _actor(row, tenant, is_welcome=_is_member, short_key="", held=[EVERYTHING])
        return self._remember(digest, tenant, actor)

    def forget(self, key_id: UUID) -> None:
        """Stop remembering a key or login that was revoked."""
        self._keep(lambda actor: actor.key_id != key_id)

    def forget_user(self, user_id: UUID) -> None:
        """Stop remembering a user whose roles have changed."""
        self._keep(lambda actor: actor.user_id != user_id)

    def forget_workspace(self, workspace_id: UUID) -> None:
        """Stop remembering who entered a workspace that is deleted."""
        self._keep(lambda actor: actor.workspace != workspace_id)

    def _keep(self, is_kept: Callable[[Actor], bool]) -> None:
        self._known = {digest: known for digest, known in self._known.items() if is_kept(known[1])}

    def _remembered(self, digest: bytes, tenant: UUID | None) -> Actor | None:
        until, actor = self._known.get((digest, tenant), (0.0, None))
        if actor is None or until <= time.monotonic() or _is_over(actor):
            self._known.pop((digest, tenant), None)
            return None
        return actor

    def _remember(self, digest: bytes, tenant: UUID | None, actor: Actor) -> Actor:
        if len(self._known) >= _REMEMBER_AT_MOST:
            self._known.clear()
        self._known[digest, tenant] = (time.monotonic() + REMEMBER_S, actor)
        return actor


def _actor(
    row: Record, tenant: UUID | None, *, is_welcome: Callable[[Record], bool], short_key: str, held: list[str]
) -> Actor:
    is_in = row["workspace_id"] is not None and is_welcome(row)
    if tenant is not None and not is_in:
        raise Forbidden("This key does not belong to the workspace that X-Tenant-Id names.")
    is_user = row["user_id"] is not None
    workspaces = row.get("workspaces")
    return Actor(
        key_id=row["id"],
        short_key=short_key,
        organization_id=row["organization_id"],
        workspace=row["workspace_id"] if is_in else None,
        workspace_name=row["workspace_name"] if is_in else None,
        tenant_handle=row["tenant_handle"] if is_in else None,
        user_id=row["user_id"],
        user_email=row["email"],
        permissions=frozenset(held),
        expires_at=row["expires_at"],
        role_permissions=permissions_of(row["organization_role"], row["workspace_role"]) if is_user else None,
        workspaces=frozenset(workspaces) if workspaces is not None else None,
        is_of_organization=not is_user and row.get("own_workspace_id") is None,
    )


def _is_member(row: Record) -> bool:
    return row["organization_role"] == ORGANIZATION_ADMIN or row["workspace_role"] is not None


def _may_enter(row: Record) -> bool:
    if row["user_id"] is not None:
        return _is_member(row)
    if row["own_workspace_id"] is not None:
        return bool(row["own_workspace_id"] == row["workspace_id"])
    return row["workspaces"] is None or row["workspace_id"] in row["workspaces"]


def _is_over(actor: Actor) -> bool:
    return actor.expires_at is not None and actor.expires_at <= now()
