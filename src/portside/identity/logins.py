"""Checks and changes passwords. `POST /login` gives a bearer token for 12 hours.

Passwords are stored as scrypt hashes. A login with an unknown email takes as long as one with a wrong password, so that
the response time does not reveal which emails exist.
"""

import asyncio
import hashlib
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from portside.identity.authentication import Authenticator
from portside.identity.sessions import LimitedKey, NotAUser, Origin, SignIn, begin
from portside.identity.sql import sql
from portside.identity.types import Actor, Credentials, LoggedIn, NewPassword
from portside.kernel.db import Database, Session
from portside.kernel.errors import TooManyRequests, Unauthorized
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_SALT_BYTES = 16
_HASH_BYTES = 32
# 64 MB and about 0.1 seconds, as OWASP recommends for scrypt.
_COST = {"n": 2**16, "r": 8, "p": 1}
_MEMORY_BYTES = 2**27
# A flood of logins must not exhaust the memory, nor the default thread pool that everything shares.
MAX_CONCURRENT = 2
MAX_WAITING = 20


class TooManyLogins(TooManyRequests):
    """Too many passwords are being checked right now; try again in a moment."""

    code = "too_many_logins"


class _PasswordWorkers:
    """The thread pool that hashes passwords, with a limit on waiting calls."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, "passwords")
        self._in_progress = 0

    async def derive(self, password: str, salt: bytes) -> bytes:
        if self._in_progress >= MAX_CONCURRENT + MAX_WAITING:
            raise TooManyLogins(headers={"Retry-After": "1"})

        self._in_progress += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _derive, password, salt)
        finally:
            self._in_progress -= 1


_workers = _PasswordWorkers()


async def hash_password(password: str) -> bytes:
    """Return the salted hash of a password. Raises TooManyLogins."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + await _workers.derive(password, salt)


async def verify_password(password: str, stored: bytes | None) -> bool:
    """Whether a password matches its stored hash; takes as long without one. Raises TooManyLogins."""
    salt = (stored or bytes(_SALT_BYTES))[:_SALT_BYTES]
    derived = await _workers.derive(password, salt)
    return hmac.compare_digest(derived, (stored or bytes(_SALT_BYTES + _HASH_BYTES))[_SALT_BYTES:])


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=_MEMORY_BYTES, dklen=_HASH_BYTES, **_COST)


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
    """Return a bearer token for a user. Raises LoginRefused, TooManyLogins, and SessionEnded as `begin` does."""
    user = await check_credentials(db, credentials, origin)
    sign_in = SignIn(
        kind="bearer",
        method="password",
        lifetime=LOGIN_LIFETIME,
        user_id=user.id,
        password=user.password,
        origin=origin,
    )

    made = await begin(db, authenticator, sign_in)
    return LoggedIn(made.token, made.expires_at)


async def set_password(db: Database, authenticator: Authenticator, actor: Actor, body: NewPassword) -> None:
    """Change the actor's password.

    Raises NotAUser, LimitedKey, and LoginRefused for a wrong current password.
    """
    if actor.user_id is None:
        raise NotAUser
    if not actor.is_unlimited:
        raise LimitedKey

    row = await db.fetchrow(sql.password_of_user, email=None, id=actor.user_id)
    stored = row["password"] if row else None
    if stored is None and actor.key_expires_at is not None:
        raise LimitedKey("A key that expires cannot set its user's first password, which would outlast it; sign in.")
    if stored is not None and not await verify_password(body.current or "", stored):
        raise LoginRefused("The current password is wrong.")

    password = await hash_password(body.new)
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_user, id=actor.user_id)
        await tx.execute(sql.set_password, id=actor.user_id, session_id=actor.session_id, password=password)

    authenticator.forget_user(actor.user_id)
