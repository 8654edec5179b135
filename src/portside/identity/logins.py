"""Logins: a user's password for a token that lasts half a day (contract: Bearer Auth)."""

import secrets
from datetime import timedelta

from portside.identity.keyring import Keyring
from portside.identity.passwords import hash_password, is_password
from portside.identity.sql import sql
from portside.identity.tokens import hash_token
from portside.identity.types import Actor, Credentials, LoggedIn, NewPassword
from portside.kernel.clock import now
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden, Unauthorized
from portside.kernel.ids import uuid7

LASTS = timedelta(hours=12)


class LoginRefused(Unauthorized):
    """No user has this email and password."""

    code = "login_refused"


class NotAUser(Forbidden):
    """Only a user can do this; the key is not one of a user."""

    code = "not_a_user"


class LimitedKey(Forbidden):
    """A key that may not do all that its user may cannot set passwords or revoke keys; log in, or use another."""

    code = "limited_key"


async def log_in(db: Session, credentials: Credentials) -> LoggedIn:
    """Return a token for a user. Raises LoginRefused, after as long as a good login takes."""
    row = await db.fetchrow(sql.password_of_user, email=credentials.email, id=None)
    is_right = await is_password(credentials.password, row["password"] if row else None)
    if row is None or row["password"] is None or not is_right:
        raise LoginRefused
    token, expires_at = secrets.token_urlsafe(32), now() + LASTS
    await db.execute(sql.forget_old_logins)
    await db.execute(
        sql.insert_login, id=uuid7(), user_id=row["id"], token_hash=hash_token(token), expires_at=expires_at
    )
    return LoggedIn(token, expires_at)


async def log_out(db: Session, keyring: Keyring, actor: Actor) -> None:
    """End the login that asks; nothing happens where a key asks."""
    await db.execute(sql.delete_login, id=actor.key_id)
    keyring.forget(actor.key_id)


async def set_password(db: Session, keyring: Keyring, actor: Actor, body: NewPassword) -> None:
    """Give the user who asks another password.

    Raises NotAUser, LimitedKey, and LoginRefused for a wrong current one.
    """
    if actor.user_id is None:
        raise NotAUser
    if not actor.is_unlimited:
        raise LimitedKey
    row = await db.fetchrow(sql.password_of_user, email=None, id=actor.user_id)
    stored = row["password"] if row else None
    if stored is not None and not await is_password(body.current or "", stored):
        raise LoginRefused("The current password is wrong.")
    await db.execute(sql.set_password, id=actor.user_id, login_id=actor.key_id, password=await hash_password(body.new))
    keyring.forget_user(actor.user_id)
