"""Signing in terminals: the routes of `portside login`, a small OAuth server for this one public client.

Two flows. `device`: the terminal shows a short user code, and the person types it in any browser (RFC 8628). `browser`:
the browser runs on the same machine and brings a code back to a port there (RFC 8252, with PKCE). Either way the
terminal gets a session of the kind `bearer`.

`/oauth/authorize` and `/device` are pages for people; their forms must come from this server's own pages, and approve
only with a click. The browser is redirected only to a port of its own machine. `/oauth/device` and `/oauth/token` are
for the terminal. `cli_authorizations.py` has the codes.
"""

from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from portside.identity import cli_authorizations, pages
from portside.identity.cli_authorizations import (
    DEVICE_CODE_LIFETIME,
    INTERVAL_S,
    AccessDenied,
    AuthorizationPending,
    CodeExchange,
    ExpiredToken,
    InvalidGrant,
    RedirectTarget,
    SlowDown,
    TooManyCodes,
    TooManySignIns,
    UserCodeUnknown,
)
from portside.identity.pages import Approval
from portside.identity.services import Context, Routes, read_origin
from portside.identity.sessions import LimitedKey
from portside.identity.signin import (
    FORM_PAGE,
    PAGE,
    SIGN_IN,
    build_form_options,
    decode_form,
    find_browser_actor,
    read_form,
    redirect,
)
from portside.identity.types import Actor, LoggedIn
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.kernel.http.headers import get_base_url
from portside.kernel.http.proxies import get_client_address
from portside.kernel.http.routes import RouteOptions

routes = Routes("sign in", works_on_full_disk=True)
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
AUTHORIZE = "/oauth/authorize"
DEVICE = "/device"
DECISION = "/device/decision"
_APPROVE = Action("session.approve", id_query="decide_cli_authorization", is_sign_in=True, by_browser=True)
_NO_STORE = {"Cache-Control": "no-store"}
Client = Literal["portside-cli"]
# What the terminal says about itself; a page shows it.
HostName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9._-]*$(?!\n)")]
Secret = Annotated[str, msgspec.Meta(max_length=200)]
# The only addresses that get a code: a program on the browser's own machine listens there.
Loopback = Annotated[str, msgspec.Meta(pattern=r"^http://127\.0\.0\.1:[1-9][0-9]{0,4}/callback$(?!\n)", max_length=60)]
UserCode = Annotated[str, msgspec.Meta(max_length=100)]
DecisionButton = Literal["approve", "deny"]


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

    decision: DecisionButton


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

    decision: DecisionButton


class TokenForm(msgspec.Struct):
    """What a terminal exchanges for a token: an authorization code with its proof, or a device code."""

    grant_type: Literal["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"]
    client_id: Client
    code: Secret = ""
    redirect_uri: Secret = ""
    code_verifier: Secret = ""
    device_code: Secret = ""


_BEGINS: RouteOptions = {**build_form_options(DeviceForm), "raises": (TooManySignIns,)}
_EXCHANGES: RouteOptions = {
    **build_form_options(TokenForm),
    "raises": (AuthorizationPending, SlowDown, ExpiredToken, AccessDenied, InvalidGrant),
}


@routes.get(AUTHORIZE, **PAGE)
async def get_authorization_page(ctx: Context, query: AuthorizationRequest) -> Response:
    """Show the page on which a signed-in person approves a terminal of the same machine."""
    actor = await find_browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(msgspec.structs.asdict(query))}")

    approval = Approval(
        action=AUTHORIZE,
        fields=msgspec.structs.asdict(query),
        account=_get_account(actor),
        host_name=query.host_name,
        address=_get_address(ctx),
    )

    # Browsers apply the policy to where a form's response leads, too.
    return pages.render_approval(approval, form_targets=f"'self' {query.redirect_uri.removesuffix('/callback')}")


@routes.post(AUTHORIZE, **FORM_PAGE, audit=_APPROVE)
async def decide_authorization(ctx: Context) -> Response:
    """Send the browser back to the terminal, with a code if the person approved."""
    form = await read_form(ctx, AuthorizationForm)
    actor = await find_browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(_to_request_fields(form))}")
    if form.decision == "deny":
        return redirect(f"{form.redirect_uri}?{urlencode({'error': AccessDenied.code, 'state': form.state})}")

    target = RedirectTarget(
        redirect_uri=form.redirect_uri, code_challenge=form.code_challenge, host_name=form.host_name or None
    )
    try:
        code = await cli_authorizations.approve_browser(ctx.db, actor, target, _get_address(ctx))
    except LimitedKey as exc:
        return pages.render_note("Not allowed", exc.message, exc.status)

    return redirect(f"{form.redirect_uri}?{urlencode({'code': code, 'state': form.state})}")


@routes.post(
    "/oauth/device",
    **_BEGINS,
    audit=Unrecorded("nobody has approved anything yet; the approval and the session are recorded"),
)
async def create_device_codes(ctx: Context) -> DeviceAuthorization:
    """Return the codes with which a terminal without a browser waits for its sign-in."""
    form = await decode_form(ctx, DeviceForm)
    codes = await cli_authorizations.create_device_codes(ctx.db, form.host_name or None, _get_address(ctx))
    ctx.headers.update(_NO_STORE)
    page = f"{get_base_url(ctx.request)}{DEVICE}"

    return DeviceAuthorization(
        device_code=codes.device_code,
        user_code=codes.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?{urlencode({'user_code': codes.user_code})}",
        expires_in=int(DEVICE_CODE_LIFETIME.total_seconds()),
        interval=INTERVAL_S,
    )


@routes.get(DEVICE, **PAGE)
async def get_device_page(ctx: Context, query: UserCodeQuery) -> Response:
    """Show the page on which a signed-in person types the code of a terminal."""
    if await find_browser_actor(ctx) is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': query.user_code})}")
    return pages.render_user_code(query.user_code)


@routes.post(DEVICE, **FORM_PAGE, audit=Unrecorded("shows whom a code belongs to, and changes nothing"))
async def confirm_device(ctx: Context) -> Response:
    """Show which terminal waits with the code, and ask."""
    form = await read_form(ctx, UserCodeForm)
    actor = await find_browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': form.user_code})}")

    try:
        terminal = await cli_authorizations.get_pending_terminal(ctx.db, actor, form.user_code)
    except (LimitedKey, TooManyCodes, UserCodeUnknown) as exc:
        return _build_refusal(form.user_code, exc)

    return pages.render_approval(
        Approval(
            action=DECISION,
            fields={"user_code": form.user_code},
            account=_get_account(actor),
            host_name=terminal.host_name,
            address=terminal.address,
            user_code=form.user_code.upper(),
            is_elsewhere=terminal.address != _get_address(ctx),
        )
    )


@routes.post(DECISION, **FORM_PAGE, audit=_APPROVE)
async def decide_device(ctx: Context) -> Response:
    """Approve or refuse the terminal that waits with the code."""
    form = await read_form(ctx, DecisionForm)
    actor = await find_browser_actor(ctx)
    approves = form.decision == "approve"

    if actor is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': form.user_code})}")

    try:
        await cli_authorizations.decide_terminal(ctx.db, actor, form.user_code, approves=approves)
    except (LimitedKey, TooManyCodes, UserCodeUnknown) as exc:
        return _build_refusal(form.user_code, exc)

    if not approves:
        return pages.render_note("Refused", "The terminal gets nothing.")

    return pages.render_note("Approved", "The terminal is signed in within seconds. You can close this page.")


@routes.post("/oauth/token", **_EXCHANGES, audit=SIGN_IN)
async def exchange_code(ctx: Context) -> LoggedIn:
    """Return a bearer token for a code that was approved."""
    form = await decode_form(ctx, TokenForm)
    ctx.headers.update(_NO_STORE)

    authenticator = ctx.services.authenticator
    origin = read_origin(ctx)
    if form.grant_type == DEVICE_GRANT:
        session = await cli_authorizations.poll_device(ctx.db, authenticator, form.device_code, origin)
    else:
        exchange = CodeExchange(code=form.code, redirect_uri=form.redirect_uri, code_verifier=form.code_verifier)
        session = await cli_authorizations.redeem_code(ctx.db, authenticator, exchange, origin)

    return LoggedIn(session.token, session.expires_at)


def _sign_in_first(target: str) -> Response:
    return redirect(f"/login?next={quote(target, safe='')}")


def _build_refusal(user_code: str, error: LimitedKey | TooManyCodes | UserCodeUnknown) -> Response:
    response = pages.render_user_code(user_code, error.message, error.status)
    response.headers.update(error.headers)
    return response


def _to_request_fields(form: AuthorizationForm) -> dict[str, Any]:
    return {name: getattr(form, name) for name in AuthorizationRequest.__struct_fields__}


def _get_account(actor: Actor) -> str:
    return actor.user_email or actor.short_key


def _get_address(ctx: Context) -> str:
    return get_client_address(ctx.scope, ctx.services.trusted_proxies)
