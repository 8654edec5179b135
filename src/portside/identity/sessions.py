"""Sessions: made when somebody signs in, listed, and ended. `authentication.py` authenticates requests with them.

A session's token is random, stored as a hash, and never taken from the client. A browser holds it in a cookie that
scripts cannot read; a command line sends it as a bearer token. A sign-in always makes a new session, and ends the one
that the browser's cookie named.
"""

import secrets
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from starlette.requests import HTTPConnection

from portside.identity.authentication import (
    Authenticator,
    SessionEnded,
    SessionKind,
    get_cookie_name,
    hash_token,
    read_session_tokens,
)
from portside.identity.sql import sql
from portside.identity.types import Actor, LoginSession
from portside.kernel.clock import now
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden, NotFound
from portside.kernel.http.headers import is_tls
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_TOKEN_BYTES = 32
Method = Literal["password", "key", "oidc", "device", "browser", "link"]
_ANY_OWNER: dict[str, UUID | None] = {"user_id": None, "key_id": None}


class SessionNotFound(NotFound):
    """There is no session with this id that you may end."""

    code = "session_not_found"


class NotAUser(Forbidden):
    """Only a user can do this; sign in, or use a personal key instead of a service key."""

    code = "not_a_user"


class LimitedKey(Forbidden):
    """A limited key cannot set passwords, end sessions, revoke keys or approve devices; sign in, or use another key."""

    code = "limited_key"


class Origin(msgspec.Struct, frozen=True):
    """Where a sign-in comes from, as lists of sessions show it."""

    address: str | None = None
    client: str | None = None


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Who signs in, and how. A session with `key_id` may do what that key may.

    `password` is the stored hash that the password of the sign-in was checked against, if it needed one.
    """

    kind: SessionKind
    method: Method
    lifetime: timedelta
    user_id: UUID | None = None
    key_id: UUID | None = None
    password: bytes | None = None
    origin: Origin = Origin()


class NewSession(msgspec.Struct, frozen=True):
    """A session that was just made, with its token, which cannot be read again."""

    id: UUID
    token: str
    expires_at: datetime


async def begin_session(db: Session, authenticator: Authenticator, sign_in: SignIn) -> NewSession:
    """Make a session for somebody who has proved who they are.

    Raises SessionEnded if the password that proved it has been changed meanwhile.
    """
    session = NewSession(id=uuid7(), token=secrets.token_urlsafe(_TOKEN_BYTES), expires_at=now() + sign_in.lifetime)
    await db.execute(sql.delete_expired_sessions, idle=authenticator.session_rules.idle)
    row_count = await db.execute(
        sql.insert_session,
        id=session.id,
        user_id=sign_in.user_id,
        key_id=sign_in.key_id,
        kind=sign_in.kind,
        method=sign_in.method,
        token_hash=hash_token(session.token),
        address=sign_in.origin.address,
        client=sign_in.origin.client,
        expires_at=session.expires_at,
        password=sign_in.password,
    )
    if not row_count:
        raise SessionEnded

    log.info(
        "signed in",
        method=sign_in.method,
        user_id=str(sign_in.user_id),
        key_id=str(sign_in.key_id),
        session_id=str(session.id),
        address=sign_in.origin.address,
    )

    return session


async def list_own(db: Session, authenticator: Authenticator, actor: Actor) -> list[LoginSession]:
    """List the sessions of the actor's user, newest first; for a service key, those made with it."""
    return await _list_sessions(db, authenticator, actor, _get_owner(actor))


async def list_all(db: Session, authenticator: Authenticator, actor: Actor) -> list[LoginSession]:
    """List all sessions of the organization, newest first."""
    return await _list_sessions(db, authenticator, actor, _ANY_OWNER)


async def end_own(db: Session, authenticator: Authenticator, actor: Actor, session_id: UUID) -> None:
    """End one of the sessions of `list_own`. Raises SessionNotFound, and LimitedKey for a limited key."""
    if session_id != actor.session_id and not actor.is_unlimited:
        raise LimitedKey
    await _end_session(db, authenticator, actor, {"id": session_id, **_get_owner(actor)})


async def end_any(db: Session, authenticator: Authenticator, actor: Actor, session_id: UUID) -> None:
    """End a session of the organization. Raises SessionNotFound."""
    await _end_session(db, authenticator, actor, {"id": session_id, **_ANY_OWNER})


async def end_current(db: Session, authenticator: Authenticator, actor: Actor) -> None:
    """Sign out: end the session of the request; does nothing for a key."""
    if actor.session_id is not None:
        await _end_session(db, authenticator, actor, {"id": actor.session_id, **_ANY_OWNER})


async def end_cookie_sessions(db: Session, authenticator: Authenticator, request: HTTPConnection) -> None:
    """End every session that the browser's cookies name, whether it is still valid or not."""
    for token in read_session_tokens(request):
        session_id = await db.fetchval(sql.end_session_of_token, token_hash=hash_token(token))
        if session_id is not None:
            authenticator.forget(session_id)


def _get_owner(actor: Actor) -> dict[str, UUID | None]:
    return {"user_id": actor.user_id, "key_id": None if actor.user_id else actor.key_id}


async def _list_sessions(
    db: Session, authenticator: Authenticator, actor: Actor, owner: dict[str, UUID | None]
) -> list[LoginSession]:
    idle = authenticator.session_rules.idle
    rows = await db.fetch(sql.list_sessions, organization_id=actor.organization_id, idle=idle, **owner)
    return [LoginSession(**row, is_current=row["id"] == actor.session_id) for row in rows]


async def _end_session(
    db: Session, authenticator: Authenticator, actor: Actor, criteria: dict[str, UUID | None]
) -> None:
    session_id = await db.fetchval(sql.end_session, organization_id=actor.organization_id, **criteria)
    if session_id is None:
        raise SessionNotFound

    authenticator.forget(session_id)
    log.info("session ended", session_id=str(session_id), by=str(actor.user_id or actor.key_id))


def build_cookie(request: HTTPConnection, name: str, value: str, *, max_age_s: int) -> str:
    """Return a Set-Cookie header. Scripts cannot read the cookie, and other sites' forms do not send it."""
    secure = "; Secure" if is_tls(request) else ""
    return f"{get_cookie_name(name, request)}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}"
