"""The codes of terminals that sign in: the statements behind the routes of `oauth.py`.

Codes live for minutes, are exchanged once, and are stored as hashes. A code that comes a second time ends the session
that it gave, because somebody else knows it.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import msgspec

from portside.identity import sessions
from portside.identity.authentication import Authenticator, hash_token
from portside.identity.sessions import LimitedKey, NewSession, Origin, SignIn
from portside.identity.sql import sql
from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest, TooManyRequests
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger

log = get_logger(__name__)

Flow = Literal["device", "browser"]
DEVICE_CODE_LIFETIME = timedelta(minutes=10)
AUTHORIZATION_CODE_LIFETIME = timedelta(seconds=60)
INTERVAL_S = 5
SLOW_DOWN_S = 5
# RFC 8628, 6.1: no vowels, so no words; nothing that looks like something else. Eight of twenty are 34 bits.
USER_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_USER_CODE_LENGTH = 8
_MAX_OPEN = 10_000
_MAX_OPEN_OF_ADDRESS = 30
MAX_ATTEMPTS = 20
ATTEMPTS_WITHIN = timedelta(minutes=10)
_CODE_BYTES = 32


class Decision(StrEnum):
    """What a person decided about a terminal, as its row stores it."""

    APPROVED = "approved"
    DENIED = "denied"


class TooManySignIns(TooManyRequests):
    """Too many terminals at this address wait for a sign-in; try again in some minutes."""

    code = "too_many_sign_ins"


class TooManyCodes(TooManyRequests):
    """You entered too many codes; try again in some minutes."""

    code = "too_many_codes"


class UserCodeUnknown(BadRequest):
    """No terminal waits with this code; check it, or run “portside login” again for a new one."""

    code = "user_code_unknown"


class AuthorizationPending(BadRequest):
    """Nobody has approved the sign-in yet; ask again after the interval."""

    code = error = "authorization_pending"


class SlowDown(BadRequest):
    """The terminal asks too often; it must wait five seconds longer between requests."""

    code = error = "slow_down"


class ExpiredToken(BadRequest):
    """The code has expired; begin the sign-in again."""

    code = error = "expired_token"


class AccessDenied(BadRequest):
    """The sign-in was refused in the browser; begin it again if that was a mistake."""

    code = error = "access_denied"


class InvalidGrant(BadRequest):
    """The code is unknown, used, expired, or of another sign-in; begin the sign-in again."""

    code = error = "invalid_grant"


class DeviceCodes(msgspec.Struct, frozen=True):
    """The secret of a terminal that waits, and the code that its user types."""

    device_code: str
    user_code: str


class PendingTerminal(msgspec.Struct, frozen=True):
    """A terminal that waits for a sign-in: the name of its machine, and the address of its request."""

    id: UUID
    host_name: str | None
    address: str


class RedirectTarget(msgspec.Struct, frozen=True):
    """Where the browser takes an authorization code, and the challenge of the terminal (PKCE)."""

    redirect_uri: str
    code_challenge: str
    host_name: str | None


class CodeExchange(msgspec.Struct, frozen=True):
    """An authorization code to exchange, and the verifier that proves that this terminal began the sign-in (PKCE)."""

    code: str
    redirect_uri: str
    code_verifier: str


async def create_device_codes(db: Database, host_name: str | None, address: str) -> DeviceCodes:
    """Make the codes of a terminal. Raises TooManySignIns."""
    letters = "".join(secrets.choice(USER_CODE_LETTERS) for _ in range(_USER_CODE_LENGTH))
    codes = DeviceCodes(secrets.token_urlsafe(_CODE_BYTES), f"{letters[:4]}-{letters[4:]}")
    await db.execute(sql.delete_old_cli_authorizations)

    authorization_id = await _insert_authorization(
        db,
        "device",
        codes.device_code,
        user_code_hash=_hash_user_code(codes.user_code),
        host_name=host_name,
        address=address,
        expires_at=now() + DEVICE_CODE_LIFETIME,
    )
    if authorization_id is None:
        raise TooManySignIns(headers={"Retry-After": str(int(DEVICE_CODE_LIFETIME.total_seconds()))})

    return codes


async def get_pending_terminal(db: Database, actor: Actor, user_code: str) -> PendingTerminal:
    """Return the terminal that waits with a user code. Raises LimitedKey, TooManyCodes and UserCodeUnknown."""
    _check_approver(actor)
    caller_id = actor.user_id or actor.key_id

    # The attempt is stored before it is counted, so that attempts at the same time see each other.
    await db.execute(sql.insert_user_code_attempt, caller_id=caller_id)
    attempts = await db.fetchval(sql.count_user_code_attempts, caller_id=caller_id, within=ATTEMPTS_WITHIN)
    if attempts > MAX_ATTEMPTS:
        log.warning("a user entered too many device codes", user_id=str(actor.user_id), key_id=str(actor.key_id))
        raise TooManyCodes(headers={"Retry-After": str(int(ATTEMPTS_WITHIN.total_seconds()))})

    digest = _hash_user_code(user_code)
    row = await db.fetchrow(sql.open_cli_authorization, user_code_hash=digest)
    if row is None or not hmac.compare_digest(row["user_code_hash"], digest):
        raise UserCodeUnknown

    return PendingTerminal(id=row["id"], host_name=row["host_name"], address=row["address"])


async def decide_terminal(db: Database, actor: Actor, user_code: str, *, approves: bool) -> None:
    """Approve or refuse the terminal that waits with a user code. Raises like `get_pending_terminal`."""
    terminal = await get_pending_terminal(db, actor, user_code)
    decision = Decision.APPROVED if approves else Decision.DENIED
    decided_id = await db.fetchval(sql.decide_cli_authorization, id=terminal.id, decision=decision, **_get_owner(actor))
    if decided_id is None:
        raise UserCodeUnknown

    log.info(
        "the sign-in of a terminal was approved or denied",
        decision=decision,
        user_id=str(actor.user_id),
        address=terminal.address,
    )


async def poll_device(db: Database, authenticator: Authenticator, device_code: str, origin: Origin) -> NewSession:
    """Return the session of an approved terminal, once.

    Raises AuthorizationPending, SlowDown, ExpiredToken, AccessDenied and InvalidGrant.
    """
    row = await db.fetchrow(sql.poll_cli_authorization, code_hash=hash_token(device_code), slow_down_s=SLOW_DOWN_S)
    if row is None:
        raise InvalidGrant

    if row["session_id"] is None:
        if row["is_expired"]:
            raise ExpiredToken
        if row["is_early"]:
            raise SlowDown
        if row["decision"] is None:
            raise AuthorizationPending
        if row["decision"] == Decision.DENIED:
            raise AccessDenied

    return await _exchange(db, authenticator, origin, code=device_code, proof=None)


async def approve_browser(db: Database, actor: Actor, target: RedirectTarget, address: str) -> str:
    """Return the authorization code that the browser brings to the terminal. Raises LimitedKey."""
    _check_approver(actor)
    code = secrets.token_urlsafe(_CODE_BYTES)
    await db.execute(sql.delete_old_cli_authorizations)

    await _insert_authorization(
        db,
        "browser",
        code,
        **msgspec.structs.asdict(target),
        **_get_owner(actor),
        address=address,
        decision=Decision.APPROVED,
        expires_at=now() + AUTHORIZATION_CODE_LIFETIME,
    )

    return code


async def redeem_code(db: Database, authenticator: Authenticator, exchange: CodeExchange, origin: Origin) -> NewSession:
    """Return the session for an authorization code, once. Raises InvalidGrant.

    A wrong verifier or address invalidates the code too: its sender has stolen it.
    """
    return await _exchange(db, authenticator, origin, code=exchange.code, proof=exchange)


def _check_approver(actor: Actor) -> None:
    """Raise LimitedKey unless the actor may give a terminal a session of its own."""
    if not actor.is_unlimited:
        raise LimitedKey


async def _insert_authorization(db: Database, flow: Flow, code: str, **values: Any) -> UUID | None:
    nulls = dict.fromkeys(("user_code_hash", "code_challenge", "redirect_uri", "decision", "user_id", "key_id"), None)
    authorization_id: UUID | None = await db.fetchval(
        sql.insert_cli_authorization,
        **(nulls | values),
        id=uuid7(),
        flow=flow,
        code_hash=hash_token(code),
        interval_s=INTERVAL_S,
        max_open=_MAX_OPEN,
        max_open_of_address=_MAX_OPEN_OF_ADDRESS,
    )

    return authorization_id


async def _exchange(
    db: Database,
    authenticator: Authenticator,
    origin: Origin,
    *,
    code: str,
    proof: CodeExchange | None,
) -> NewSession:
    """Return the session for an approved code, once; any other code is invalidated. Raises InvalidGrant.

    An authorization code needs a proof; a device code has none.
    """
    flow: Flow = "device" if proof is None else "browser"
    async with db.transaction() as tx:
        row = await tx.fetchrow(sql.lock_cli_authorization, code_hash=hash_token(code), flow=flow)
        if row is None:
            raise InvalidGrant

        if _is_redeemable(row, code, proof):
            sign_in = SignIn(
                kind="bearer",
                method=flow,
                lifetime=authenticator.session_rules.lifetime,
                user_id=row["user_id"],
                key_id=row["key_id"],
                origin=_add_host_name(origin, row["host_name"]),
            )

            session = await sessions.begin_session(tx, authenticator, sign_in)
            await tx.execute(sql.set_session_of_cli_authorization, id=row["id"], session_id=session.id)
            return session

        await tx.execute(sql.revoke_cli_authorization, id=row["id"])

    if row["session_id"] is not None:
        authenticator.forget(row["session_id"])

    log.warning(
        "an authorization code was refused: it was used before, or belongs to another sign-in",
        flow=flow,
        address=origin.address,
    )

    raise InvalidGrant


def _is_redeemable(row: Record, code: str, proof: CodeExchange | None) -> bool:
    if row["session_id"] is not None or row["decision"] != Decision.APPROVED or row["is_expired"]:
        return False
    if not hmac.compare_digest(row["code_hash"], hash_token(code)):
        return False
    if proof is None:
        return True

    digest = hashlib.sha256(proof.code_verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=")
    is_same_terminal = hmac.compare_digest(challenge, row["code_challenge"].encode())

    return is_same_terminal and hmac.compare_digest(proof.redirect_uri.encode(), row["redirect_uri"].encode())


def _get_owner(actor: Actor) -> dict[str, UUID | None]:
    """Return whose session the terminal gets: with a pasted key, one that ends with the key."""
    is_of_key = actor.key_id != actor.session_id
    return {"user_id": actor.user_id, "key_id": actor.key_id if is_of_key else None}


def _add_host_name(origin: Origin, host_name: str | None) -> Origin:
    if not host_name:
        return origin

    return Origin(origin.address, f"{origin.client or 'terminal'} on {host_name}")


def _hash_user_code(user_code: str) -> bytes:
    """Return the hash of a code as somebody typed it: without signs, in any case."""
    return hash_token("".join(char for char in user_code.upper() if char.isalnum()))
