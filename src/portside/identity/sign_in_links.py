"""Addresses that sign a browser in, once, within a minute.

`portside up` prints one for the browser on the same machine. The token is stored as a hash. The session belongs to the
key or login that asked for the address, and ends with the key, so it has no more permissions than these.
"""

import secrets
from datetime import timedelta

import msgspec

from portside.identity.authentication import Authenticator, hash_token
from portside.identity.sessions import LimitedKey, Origin, SignIn
from portside.identity.sql import sql
from portside.identity.types import Actor
from portside.kernel.clock import Moment, now
from portside.kernel.db import Database
from portside.kernel.errors import Unauthorized
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger

LIFETIME = timedelta(minutes=1)
PATH = "/login/link"
_TOKEN_BYTES = 32
log = get_logger(__name__)


class LinkSpent(Unauthorized):
    """The address was used already, or is older than a minute; run “portside console” for a new one."""

    code = "sign_in_link_spent"


class SignInLink(msgspec.Struct):
    """An address that signs a browser in once, as a path of this server."""

    path: str
    expires_at: Moment


async def create_link(db: Database, actor: Actor) -> SignInLink:
    """Make an address that signs in as the actor. Raises LimitedKey for a limited key."""
    if not actor.is_unlimited:
        raise LimitedKey

    token = secrets.token_urlsafe(_TOKEN_BYTES)
    expires_at = now() + LIFETIME
    is_of_key = actor.key_id != actor.session_id
    await db.execute(sql.delete_expired_sign_in_links)

    await db.execute(
        sql.insert_sign_in_link,
        id=uuid7(),
        token_hash=hash_token(token),
        user_id=actor.user_id,
        key_id=actor.key_id if is_of_key else None,
        expires_at=expires_at,
    )

    return SignInLink(f"{PATH}?token={token}", expires_at)


async def redeem_link(db: Database, authenticator: Authenticator, token: str, origin: Origin) -> SignIn:
    """Spend a token, and return the sign-in that it allows. Raises LinkSpent."""
    row = await db.fetchrow(sql.spend_sign_in_link, token_hash=hash_token(token))
    if row is None:
        log.warning("sign-in refused", method="link", address=origin.address)
        raise LinkSpent

    lifetime: timedelta = authenticator.session_rules.lifetime
    return SignIn(
        kind="cookie", method="link", lifetime=lifetime, user_id=row["user_id"], key_id=row["key_id"], origin=origin
    )
