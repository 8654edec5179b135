"""Signing in terminals: the routes of `portside login`, a small OAuth server for this one public client, and its codes.

Two flows. `device`: the terminal shows a short user code, and the person types it in any browser (RFC 8628). `browser`:
the browser runs on the same machine and brings a code back to a port there (RFC 8252, with PKCE). Either way the
terminal gets a session of the kind `bearer`.

`/oauth/authorize` and `/device` are pages for people; their forms must come from this server's own pages, and approve
only with a click. The browser is redirected only to a port of its own machine. `/oauth/device` and `/oauth/token` are
for the terminal.

Codes live for minutes, are exchanged once, and are stored as hashes. A code that comes a second time ends the session
that it gave, because somebody else knows it.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.identity import pages, sessions
from portside.identity.authentication import Authenticator, hash_token
from portside.identity.pages import Approval
from portside.identity.services import Context, Routes, read_origin
from portside.identity.sessions import LimitedKey, NewSession, Origin, SignIn
from portside.identity.signin import (
    ANY_FIELDS,
    FORM,
    FORM_PAGE,
    MAX_FORM_BYTES,
    PAGE,
    browser_actor,
    decode_form,
    read_form,
    redirect,
)
from portside.identity.sql import sql
from portside.identity.types import Actor, LoggedIn
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest, TooManyRequests
from portside.kernel.http.headers import get_base_url
from portside.kernel.http.proxies import client_address
from portside.kernel.http.routes import RouteOptions
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger

log = get_logger(__name__)
routes = Routes("sign in", works_on_full_disk=True)
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
AUTHORIZE = "/oauth/authorize"
DEVICE = "/device"
DECISION = "/device/decision"
Client = Literal["portside-cli"]
# What the terminal says about itself; a page shows it.
HostName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9._-]*$(?!\n)")]
Secret = Annotated[str, msgspec.Meta(max_length=200)]
# The only addresses that get a code: a program on the browser's own machine listens there.
Loopback = Annotated[str, msgspec.Meta(pattern=r"^http://127\.0\.0\.1:[1-9][0-9]{0,4}/callback$(?!\n)", max_length=60)]
UserCode = Annotated[str, msgspec.Meta(max_length=100)]
Decision = Literal["approve", "deny"]
_NO_STORE = {"Cache-Control": "no-store"}
Flow = Literal["device", "browser"]
DEVICE_CODE_LIFETIME = timedelta(minutes=10)
AUTHORIZATION_CODE_LIFETIME = timedelta(seconds=60)
INTERVAL_S = SLOW_DOWN_S = 5
# RFC 8628, 6.1: no vowels, so no words; nothing that looks like something else. Eight of twenty are 34 bits.
USER_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_USER_CODE_LENGTH = 8
_MAX_OPEN = 10_000
_MAX_OPEN_OF_ADDRESS = 30
MAX_ATTEMPTS = 20
ATTEMPTS_WITHIN = timedelta(minutes=10)
_CODE_BYTES = 32


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


class AuthorizationRequest(msgspec.Struct):
    """The query with which a terminal opens the browser (RFC 6749, 7636 and 8252)."""

    response_type: Literal["code"]
    client_id: Client
    redirect_uri: Loopback
    state: Annotated[str, msgspec.Meta(min_length=16, max_length=200, pattern=r"^[A-Za-z0-9_-]+$(?!\n)")]
    code_challenge: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43}$(?!\n)", max_length=43)]
    code_challenge_method: Literal["S256"]
    host_name: HostName = ""


class AuthorizationForm(AuthorizationRequest, kw_only=True):
    """The request again, with the click."""

    decision: Decision


class DeviceForm(msgspec.Struct):
    """A terminal without a browser (RFC 8628)."""

    client_id: Client
    host_name: HostName = ""


class DeviceAuthorization(msgspec.Struct):
    """The codes of a terminal, and where its user types the user code."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class UserCodeQuery(msgspec.Struct):
    """The code that the page shows in its field."""

    user_code: UserCode = ""


class UserCodeForm(msgspec.Struct):
    """The code that somebody typed."""

    user_code: UserCode


class DecisionForm(UserCodeForm):
    """The code again, with the click."""

    decision: Decision


class TokenForm(msgspec.Struct):
    """What a terminal exchanges for a token: an authorization code with its proof, or a device code."""

    grant_type: Literal["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"]
    client_id: Client
    code: Secret = ""
    redirect_uri: Secret = ""
    code_verifier: Secret = ""
    device_code: Secret = ""


def _consumes(form: type) -> RouteOptions:
    _, described = msgspec.json.schema_components([form])
    return {
        "public": True,
        "consumes": {FORM: {**described[form.__name__], **ANY_FIELDS}},
        "max_body_bytes": MAX_FORM_BYTES,
    }


_BEGINS: RouteOptions = {**_consumes(DeviceForm), "raises": (TooManySignIns,)}
_EXCHANGES: RouteOptions = {
    **_consumes(TokenForm),
    "raises": (AuthorizationPending, SlowDown, ExpiredToken, AccessDenied, InvalidGrant),
}


@routes.get(AUTHORIZE, **PAGE)
async def show_authorization(ctx: Context, query: AuthorizationRequest) -> Response:
    """Show the page on which a signed-in person approves a terminal of the same machine."""
    actor = await browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(msgspec.structs.asdict(query))}")

    shown = Approval(
        action=AUTHORIZE,
        fields=msgspec.structs.asdict(query),
        account=_account(actor),
        host_name=query.host_name,
        address=_address(ctx),
    )

    # Browsers apply the policy to where a form's response leads, too.
    return pages.approval_page(shown, form_targets=f"'self' {query.redirect_uri.removesuffix('/callback')}")


@routes.post(AUTHORIZE, **FORM_PAGE)
async def decide_authorization(ctx: Context) -> Response:
    """Send the browser back to the terminal, with a code if the person approved."""
    form = await read_form(ctx, AuthorizationForm)
    actor = await browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(_to_request_fields(form))}")
    if form.decision == "deny":
        return redirect(f"{form.redirect_uri}?{urlencode({'error': AccessDenied.code, 'state': form.state})}")

    target = RedirectTarget(form.redirect_uri, form.code_challenge, form.host_name or None)
    try:
        code = await _approve_browser(ctx.db, actor, target, _address(ctx))
    except LimitedKey as refused:
        return pages.note_page("Not allowed", refused.message, refused.status)

    return redirect(f"{form.redirect_uri}?{urlencode({'code': code, 'state': form.state})}")


@routes.post("/oauth/device", **_BEGINS)
async def begin_device(ctx: Context) -> DeviceAuthorization:
    """Return the codes with which a terminal without a browser waits for its sign-in."""
    form = await decode_form(ctx, DeviceForm)
    codes = await _make_device_codes(ctx.db, form.host_name or None, _address(ctx))
    ctx.headers.update(_NO_STORE)
    page = f"{get_base_url(ctx.request)}{DEVICE}"

    return DeviceAuthorization(
        codes.device_code,
        codes.user_code,
        page,
        f"{page}?{urlencode({'user_code': codes.user_code})}",
        int(DEVICE_CODE_LIFETIME.total_seconds()),
        INTERVAL_S,
    )


@routes.get(DEVICE, **PAGE)
async def show_device(ctx: Context, query: UserCodeQuery) -> Response:
    """Show the page on which a signed-in person types the code of a terminal."""
    if await browser_actor(ctx) is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': query.user_code})}")
    return pages.user_code_page(query.user_code)


@routes.post(DEVICE, **FORM_PAGE)
async def confirm_device(ctx: Context) -> Response:
    """Show which terminal waits with the code, and ask."""
    form = await read_form(ctx, UserCodeForm)
    actor = await browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': form.user_code})}")

    try:
        waiting = await _find_waiting(ctx.db, actor, form.user_code)
    except (LimitedKey, TooManyCodes, UserCodeUnknown) as refused:
        return _refused(form.user_code, refused)

    return pages.approval_page(
        Approval(
            action=DECISION,
            fields={"user_code": form.user_code},
            account=_account(actor),
            host_name=waiting.host_name,
            address=waiting.address,
            user_code=form.user_code.upper(),
            is_elsewhere=waiting.address != _address(ctx),
        )
    )


@routes.post(DECISION, **FORM_PAGE)
async def decide_device(ctx: Context) -> Response:
    """Approve or refuse the terminal that waits with the code."""
    form = await read_form(ctx, DecisionForm)
    actor = await browser_actor(ctx)
    approves = form.decision == "approve"

    if actor is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': form.user_code})}")

    try:
        await _decide_waiting(ctx.db, actor, form.user_code, approves=approves)
    except (LimitedKey, TooManyCodes, UserCodeUnknown) as refused:
        return _refused(form.user_code, refused)

    if not approves:
        return pages.note_page("Refused", "The terminal gets nothing.")

    return pages.note_page("Approved", "The terminal is signed in within seconds. You can close this page.")


@routes.post("/oauth/token", **_EXCHANGES)
async def exchange_code(ctx: Context) -> LoggedIn:
    """Return a bearer token for a code that was approved."""
    form = await decode_form(ctx, TokenForm)
    ctx.headers.update(_NO_STORE)

    authenticator = ctx.services.authenticator
    origin = read_origin(ctx)
    if form.grant_type == DEVICE_GRANT:
        made = await _poll_device(ctx.db, authenticator, form.device_code, origin)
    else:
        redemption = CodeExchange(form.code, form.redirect_uri, form.code_verifier)
        made = await _redeem_code(ctx.db, authenticator, redemption, origin)

    return LoggedIn(made.token, made.expires_at)


def _sign_in_first(target: str) -> Response:
    return redirect(f"/login?next={quote(target, safe='')}")


def _refused(user_code: str, refused: LimitedKey | TooManyCodes | UserCodeUnknown) -> Response:
    response = pages.user_code_page(user_code, refused.message, refused.status)
    response.headers.update(refused.headers)
    return response


def _to_request_fields(form: AuthorizationForm) -> dict[str, Any]:
    return {name: getattr(form, name) for name in AuthorizationRequest.__struct_fields__}


def _account(actor: Actor) -> str:
    return actor.user_email or actor.short_key


def _address(ctx: Context) -> str:
    return client_address(ctx.scope, ctx.services.trusted_proxies)


# Codes of terminals


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


async def _make_device_codes(db: Database, host_name: str | None, address: str) -> DeviceCodes:
    """Make the codes of a terminal. Raises TooManySignIns."""
    letters = "".join(secrets.choice(USER_CODE_LETTERS) for _ in range(_USER_CODE_LENGTH))
    codes = DeviceCodes(secrets.token_urlsafe(_CODE_BYTES), f"{letters[:4]}-{letters[4:]}")
    await db.execute(sql.delete_old_cli_authorizations)

    made = await _insert(
        db,
        "device",
        codes.device_code,
        user_code_hash=_user_code_hash(codes.user_code),
        host_name=host_name,
        address=address,
        expires_at=now() + DEVICE_CODE_LIFETIME,
    )
    if made is None:
        raise TooManySignIns(headers={"Retry-After": str(int(DEVICE_CODE_LIFETIME.total_seconds()))})

    return codes


async def _find_waiting(db: Database, actor: Actor, user_code: str) -> PendingTerminal:
    """Return the terminal that waits with a user code. Raises LimitedKey, TooManyCodes and UserCodeUnknown."""
    _check_approver(actor)
    caller_id = actor.user_id or actor.key_id

    # The attempt is stored before it is counted, so that attempts at the same time see each other.
    await db.execute(sql.insert_user_code_attempt, caller_id=caller_id)
    if await db.fetchval(sql.count_user_code_attempts, caller_id=caller_id, within=ATTEMPTS_WITHIN) > MAX_ATTEMPTS:
        log.warning("a user entered too many device codes", user_id=str(actor.user_id), key_id=str(actor.key_id))
        raise TooManyCodes(headers={"Retry-After": str(int(ATTEMPTS_WITHIN.total_seconds()))})

    digest = _user_code_hash(user_code)
    row = await db.fetchrow(sql.open_cli_authorization, user_code_hash=digest)
    if row is None or not hmac.compare_digest(row["user_code_hash"], digest):
        raise UserCodeUnknown

    return PendingTerminal(row["id"], row["host_name"], row["address"])


async def _decide_waiting(db: Database, actor: Actor, user_code: str, *, approves: bool) -> None:
    """Approve or refuse the terminal that waits with a user code. Raises like `_find_waiting`."""
    waiting = await _find_waiting(db, actor, user_code)
    decision = "approved" if approves else "denied"
    if await db.fetchval(sql.decide_cli_authorization, id=waiting.id, decision=decision, **_owner(actor)) is None:
        raise UserCodeUnknown

    log.info(
        "the sign-in of a terminal was approved or denied",
        decision=decision,
        user_id=str(actor.user_id),
        address=waiting.address,
    )


async def _poll_device(db: Database, authenticator: Authenticator, device_code: str, origin: Origin) -> NewSession:
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

        if row["decision"] == "denied":
            raise AccessDenied

    return await _exchange(db, authenticator, ("device", device_code), None, origin)


async def _approve_browser(db: Database, actor: Actor, target: RedirectTarget, address: str) -> str:
    """Return the authorization code that the browser brings to the terminal. Raises LimitedKey."""
    _check_approver(actor)
    code = secrets.token_urlsafe(_CODE_BYTES)
    await db.execute(sql.delete_old_cli_authorizations)

    await _insert(
        db,
        "browser",
        code,
        **msgspec.structs.asdict(target),
        **_owner(actor),
        address=address,
        decision="approved",
        expires_at=now() + AUTHORIZATION_CODE_LIFETIME,
    )

    return code


async def _redeem_code(
    db: Database, authenticator: Authenticator, redemption: CodeExchange, origin: Origin
) -> NewSession:
    """Return the session for an authorization code, once. Raises InvalidGrant.

    A wrong verifier or address invalidates the code too: its sender has stolen it.
    """
    return await _exchange(db, authenticator, ("browser", redemption.code), redemption, origin)


def _check_approver(actor: Actor) -> None:
    """Raise LimitedKey unless the actor may give a terminal a session of its own."""
    if not actor.is_unlimited:
        raise LimitedKey


async def _insert(db: Database, flow: Flow, code: str, **values: Any) -> UUID | None:
    unset = dict.fromkeys(("user_code_hash", "code_challenge", "redirect_uri", "decision", "user_id", "key_id"), None)
    found: UUID | None = await db.fetchval(
        sql.insert_cli_authorization,
        **(unset | values),
        id=uuid7(),
        flow=flow,
        code_hash=hash_token(code),
        interval_s=INTERVAL_S,
        max_open=_MAX_OPEN,
        max_open_of_address=_MAX_OPEN_OF_ADDRESS,
    )

    return found


async def _exchange(
    db: Database, authenticator: Authenticator, grant: tuple[Flow, str], proof: CodeExchange | None, origin: Origin
) -> NewSession:
    flow, code = grant
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
                origin=_named(origin, row["host_name"]),
            )

            made = await sessions.begin(tx, authenticator, sign_in)
            await tx.execute(sql.set_session_of_cli_authorization, id=row["id"], session_id=made.id)
            return made

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
    if row["session_id"] is not None or row["decision"] != "approved" or row["is_expired"]:
        return False
    if not hmac.compare_digest(row["code_hash"], hash_token(code)):
        return False
    if proof is None:
        return True

    digest = hashlib.sha256(proof.code_verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=")
    is_same_terminal = hmac.compare_digest(challenge, row["code_challenge"].encode())

    return is_same_terminal and hmac.compare_digest(proof.redirect_uri.encode(), row["redirect_uri"].encode())


def _owner(actor: Actor) -> dict[str, UUID | None]:
    """Return whose session the terminal gets: with a pasted key, one that ends with the key."""
    is_of_key = actor.key_id != actor.session_id
    return {"user_id": actor.user_id, "key_id": actor.key_id if is_of_key else None}


def _named(origin: Origin, host_name: str | None) -> Origin:
    return Origin(origin.address, f"{origin.client or 'terminal'} on {host_name}" if host_name else origin.client)


def _user_code_hash(user_code: str) -> bytes:
    """Return the hash of a code as somebody typed it: without signs, in any case."""
    return hash_token("".join(char for char in user_code.upper() if char.isalnum()))
