"""Authentication of API keys and sessions: the actor behind a token, in a workspace.

Actors are cached for a few seconds, because trace ingest would otherwise query the database for the same key hundreds
of times a second. Revocations and changes of roles in this process take effect at once.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec
from starlette.requests import HTTPConnection

from portside.identity.roles import ORGANIZATION_ADMIN, get_permissions
from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.errors import Forbidden, Unauthorized
from portside.kernel.http.headers import is_tls, parse_bearer, parse_cookies

PERSONAL_PREFIX = "lsv2_pt"
SERVICE_PREFIX = "lsv2_sk"
MAX_TOKEN_LENGTH = 512
CACHE_S = 10.0
_MAX_CACHED = 10_000
# The names of all cookies of the platform begin so: agents neither see nor set any of these.
COOKIE_PREFIX = "portside_"
SESSION_COOKIE = f"{COOKIE_PREFIX}session"
# How a caller presents a token: as an API key, as the bearer token of a command line, or as the cookie of a browser.
Credential = Literal["key", "bearer", "cookie"]
SessionKind = Literal["bearer", "cookie"]
# The kind of a credential, its hash, and the workspace that the request names.
_CacheKey = tuple[Credential, bytes, UUID | None]


def hash_token(token: str) -> bytes:
    """Return the hash under which a key or login is stored. Tokens are long and random, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).digest()


class PresentedCredential(NamedTuple):
    """The credential that a request presents, and its kind."""

    kind: Credential
    token: str | None


def get_cookie_name(name: str, request: HTTPConnection) -> str:
    """Return the name under which a browser keeps a cookie of the platform.

    Over TLS it has the prefix with which browsers accept a cookie only from this very host. Otherwise a page of another
    host of the domain, such as an agent's, could set it for the whole domain. Without TLS browsers refuse the prefix.
    """
    return f"__Host-{name}" if is_tls(request) else name


def read_session_tokens(request: HTTPConnection) -> list[str]:
    """Return the tokens in the session cookies of a request."""
    return parse_cookies(request.headers.get("cookie"), get_cookie_name(SESSION_COOKIE, request))


def is_key(token: str) -> bool:
    """Whether a bearer token has the form of an API key; others are tokens of sessions."""
    return token.startswith((PERSONAL_PREFIX, SERVICE_PREFIX))


def read_credential(request: HTTPConnection) -> PresentedCredential:
    """Return the credential that counts: an API key before a bearer token, and both before a session's cookie.

    Two session cookies count as none: without TLS a page of a subdomain may have set the second one.
    """
    headers = request.headers
    if key := headers.get("x-api-key"):
        return PresentedCredential("key", key)
    if (token := parse_bearer(headers.get("authorization"))) is not None:
        return PresentedCredential("key" if is_key(token) else "bearer", token)

    cookies = read_session_tokens(request)
    return PresentedCredential("cookie", cookies[0]) if len(cookies) == 1 else PresentedCredential("key", None)


class SessionEnded(Unauthorized):
    """The session is unknown or has ended; sign in again."""

    code = "session_ended"


class SessionRules(msgspec.Struct, frozen=True):
    """How long sessions last; a browser's session also ends when it is not used."""

    lifetime: timedelta = timedelta(days=7)
    idle: timedelta = timedelta(days=1)


class Authenticator:
    """Authenticates keys and sessions, and caches the actors for a short time."""

    def __init__(self, db: Database, rules: SessionRules | None = None) -> None:
        self._db = db
        self.session_rules = rules or SessionRules()
        self._cache: dict[_CacheKey, tuple[float, Actor]] = {}

        # How often actors were dropped. An actor that was read before the last time may be outdated.
        self._drops = 0

    async def authenticate_request(self, presented: PresentedCredential, tenant: UUID | None = None) -> Actor:
        """Return the actor of a request's credential. Raises Unauthorized, SessionEnded and Forbidden."""
        if presented.kind == "key":
            return await self.authenticate(presented.token, tenant)
        return await self.authenticate_session(presented.token or "", presented.kind, tenant)

    async def authenticate(self, key: str | None, tenant: UUID | None = None) -> Actor:
        """Return the actor of an API key, in the workspace `tenant` or the key's own.

        Raises Unauthorized for a missing, unknown, expired or revoked key; Forbidden for a workspace that the key may
        not use.
        """
        if not key or len(key) > MAX_TOKEN_LENGTH:
            raise Unauthorized

        digest = hash_token(key)
        cache_key: _CacheKey = ("key", digest, tenant)
        actor = self._find_cached(cache_key)
        if actor is not None:
            return actor

        drops = self._drops
        actor = await self._read_key_actor(digest, tenant)
        return self._store(cache_key, actor, drops)

    async def _read_key_actor(self, digest: bytes, tenant: UUID | None) -> Actor:
        row = await self._db.fetchrow(sql.key_by_hash, key_hash=digest, tenant=tenant)
        if row is None or not hmac.compare_digest(row["key_hash"], digest):
            raise Unauthorized

        actor = _to_actor(
            row, tenant, may_enter=_key_may_enter, short_key=row["short_key"], permissions=row["permissions"]
        )
        await self._db.execute(sql.touch_key, id=actor.key_id)
        return msgspec.structs.replace(actor, key_expires_at=row["expires_at"])

    async def authenticate_session(self, token: str, kind: SessionKind, tenant: UUID | None = None) -> Actor:
        """Return the actor of a session, in the workspace `tenant`.

        A session that was made with an API key may do what the key may. Raises SessionEnded and Forbidden.
        """
        if not token or len(token) > MAX_TOKEN_LENGTH:
            raise SessionEnded

        digest = hash_token(token)
        cache_key: _CacheKey = (kind, digest, tenant)
        actor = self._find_cached(cache_key)
        if actor is not None:
            return actor

        drops = self._drops
        row = await self._db.fetchrow(
            sql.session_by_hash, token_hash=digest, kind=kind, tenant=tenant, idle=self.session_rules.idle
        )
        if row is None or not hmac.compare_digest(row["token_hash"], digest):
            raise SessionEnded

        if row["key_hash"] is None:
            actor = _to_actor(row, tenant, may_enter=_is_member, short_key="", permissions=[EVERYTHING])
        else:
            actor = await self._read_key_actor(row["key_hash"], tenant)

        ends_at = min(row["expires_at"], actor.expires_at or row["expires_at"])
        await self._db.execute(sql.touch_session, id=row["id"])
        actor = msgspec.structs.replace(actor, session_id=row["id"], expires_at=ends_at, is_browser=kind == "cookie")

        return self._store(cache_key, actor, drops)

    def forget(self, key_id: UUID) -> None:
        """Drop a revoked key or an ended session from the cache."""
        self._drop(lambda actor: key_id in {actor.key_id, actor.session_id})

    def forget_user(self, user_id: UUID) -> None:
        """Drop a user whose roles have changed from the cache."""
        self._drop(lambda actor: actor.user_id == user_id)

    def forget_workspace(self, workspace_id: UUID) -> None:
        """Drop the actors of a deleted workspace from the cache."""
        self._drop(lambda actor: actor.workspace == workspace_id)

    def _drop(self, is_outdated: Callable[[Actor], bool]) -> None:
        self._drops += 1
        self._cache = {cache_key: entry for cache_key, entry in self._cache.items() if not is_outdated(entry[1])}

    def _find_cached(self, cache_key: _CacheKey) -> Actor | None:
        until, actor = self._cache.get(cache_key, (0.0, None))
        if actor is None or until <= time.monotonic() or _is_expired(actor):
            self._cache.pop(cache_key, None)
            return None

        return actor

    def _store(self, cache_key: _CacheKey, actor: Actor, drops: int) -> Actor:
        """Cache an actor that was read when actors had been dropped `drops` times, and return it.

        If one was dropped since, it may be this one: its key was revoked after the row was read. It is not cached then.
        """
        if drops == self._drops:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[cache_key] = (time.monotonic() + CACHE_S, actor)

        return actor


def _to_actor(
    row: Record, tenant: UUID | None, *, may_enter: Callable[[Record], bool], short_key: str, permissions: list[str]
) -> Actor:
    has_workspace = row["workspace_id"] is not None and may_enter(row)
    if tenant is not None and not has_workspace:
        raise Forbidden("This key does not belong to the workspace that X-Tenant-Id names.")

    is_user = row["user_id"] is not None
    role_names = (row["organization_role"], row["workspace_role"])
    workspaces = row.get("workspaces")
    return Actor(
        key_id=row["id"],
        short_key=short_key,
        organization_id=row["organization_id"],
        workspace=row["workspace_id"] if has_workspace else None,
        workspace_name=row["workspace_name"] if has_workspace else None,
        tenant_handle=row["tenant_handle"] if has_workspace else None,
        user_id=row["user_id"],
        user_email=row["email"],
        permissions=frozenset(permissions),
        expires_at=row["expires_at"],
        role_permissions=get_permissions(*role_names) if is_user else None,
        roles=frozenset(filter(None, role_names)) if is_user else frozenset(),
        workspaces=frozenset(workspaces) if workspaces is not None else None,
        is_of_organization=not is_user and row.get("own_workspace_id") is None,
    )


def _is_member(row: Record) -> bool:
    return row["organization_role"] == ORGANIZATION_ADMIN or row["workspace_role"] is not None


def _key_may_enter(row: Record) -> bool:
    if row["user_id"] is not None:
        return _is_member(row)
    if row["own_workspace_id"] is not None:
        return bool(row["own_workspace_id"] == row["workspace_id"])

    return row["workspaces"] is None or row["workspace_id"] in row["workspaces"]


def _is_expired(actor: Actor) -> bool:
    return actor.expires_at is not None and actor.expires_at <= now()
