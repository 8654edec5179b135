"""Signs in with passwords and changes them. `POST /login` gives a bearer token for 12 hours.

A login with an unknown email takes as long as one with a wrong password, so that the response time does not reveal
which emails exist.
"""

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from portside.identity.authentication import Authenticator
from portside.identity.passwords import hash_password, verify_password
from portside.identity.sessions import LimitedKey, NotAUser, Origin, SignIn, begin_session
from portside.identity.sql import sql
from portside.identity.types import Actor, Credentials, LoggedIn, NewPassword
from portside.kernel.db import Database, Session
from portside.kernel.errors import Unauthorized
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LOGIN_LIFETIME = timedelta(hours=12)


class LoginRefused(Unauthorized):
    """The email or the password is wrong."""

    code = "login_refused"


class ProvenUser(NamedTuple):
    """A user whose password was right, and the stored hash of that password."""

    id: UUID
    password: bytes


async def check_credentials(db: Session, credentials: Credentials, origin: Origin) -> ProvenUser:
    """Return the user that an email and a password belong to. Raises LoginRefused and TooManyLogins."""
    row = await db.fetchrow(sql.password_of_user, email=credentials.email, id=None)
    is_right = await verify_password(credentials.password, row["password"] if row else None)
    if row is None or row["password"] is None or not is_right:
        log.warning("sign-in refused", method="password", address=origin.address)
        raise LoginRefused

    return ProvenUser(row["id"], row["password"])


async def log_in(db: Session, authenticator: Authenticator, credentials: Credentials, origin: Origin) -> LoggedIn:
    """Return a bearer token for a user. Raises LoginRefused, TooManyLogins, and what `begin_session` raises."""
    user = await check_credentials(db, credentials, origin)
    sign_in = SignIn(
        kind="bearer",
        method="password",
        lifetime=LOGIN_LIFETIME,
        user_id=user.id,
        password=user.password,
        origin=origin,
    )

    session = await begin_session(db, authenticator, sign_in)
    return LoggedIn(session.token, session.expires_at)


async def set_password(db: Database, authenticator: Authenticator, actor: Actor, body: NewPassword) -> None:
    """Change the actor's password.

    Raises NotAUser, LimitedKey, and LoginRefused for a wrong current password.
    """
    if actor.user_id is None:
        raise NotAUser
    if not actor.is_unlimited:
        raise LimitedKey

    row = await db.fetchrow(sql.password_of_user, email=None, id=actor.user_id)
    password_hash = row["password"] if row else None
    if password_hash is None and actor.key_expires_at is not None:
        raise LimitedKey("A key that expires cannot set its user's first password, which would outlast it; sign in.")
    if password_hash is not None and not await verify_password(body.current or "", password_hash):
        raise LoginRefused("The current password is wrong.")

    new_hash = await hash_password(body.new)
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_user, id=actor.user_id)
        await tx.execute(sql.set_password, id=actor.user_id, session_id=actor.session_id, password=new_hash)

    authenticator.forget_user(actor.user_id)
