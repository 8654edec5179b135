"""The routes that begin and end sessions, and change the password; `signin.py` has the pages for that."""

from uuid import UUID

from portside.identity import logins, sessions, sign_in_links
from portside.identity.authentication import SessionEnded
from portside.identity.logins import LoginRefused
from portside.identity.passwords import TooManyLogins
from portside.identity.services import Context, Routes, read_origin
from portside.identity.sessions import LimitedKey, NotAUser, SessionNotFound
from portside.identity.sign_in_links import SignInLink
from portside.identity.signin import MAX_FORM_BYTES, SIGN_IN
from portside.identity.types import Credentials, LoggedIn, LoginSession, NewPassword
from portside.kernel.http.audit_actions import Action

routes = Routes("identity", works_on_full_disk=True)


@routes.post(
    "/login",
    operation="sessions_create",
    public=True,
    raises=(LoginRefused, TooManyLogins, SessionEnded),
    max_body_bytes=MAX_FORM_BYTES,
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
