"""The routes with which `portside login` signs a terminal in: a small OAuth server for this one public client.

`/oauth/authorize` and `/device` are pages for people; their forms must come from this server's own pages, and approve
only with a click. A browser is sent to no address but a port of its own machine. `/oauth/device` and `/oauth/token` are
for the terminal.
"""

from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from portside.identity import cli_authorization, pages
from portside.identity.cli_authorization import (
    DEVICE_CODE_LIFETIME,
    INTERVAL_S,
    AccessDenied,
    AuthorizationPending,
    ExpiredToken,
    InvalidGrant,
    Redemption,
    SlowDown,
    Target,
    TooManyCodes,
    TooManySignIns,
    UserCodeUnknown,
)
from portside.identity.pages import Approval
from portside.identity.services import Context, Routes, origin_of
from portside.identity.sessions import LimitedKey
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
from portside.identity.types import Actor, LoggedIn
from portside.kernel.http.headers import base_url_of
from portside.kernel.http.proxies import client_address
from portside.kernel.http.routes import RouteOptions

routes = Routes("sign in", works_on_full_disk=True)
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
AUTHORIZE, DEVICE, DECISION = "/oauth/authorize", "/device", "/device/decision"
Client = Literal["portside-cli"]
# What the terminal says about itself; a page shows it.
HostName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9._-]*$(?!\n)")]
Secret = Annotated[str, msgspec.Meta(max_length=200)]
# A browser is sent nowhere else, so that no other program than one on its own machine gets a code.
Loopback = Annotated[str, msgspec.Meta(pattern=r"^http://127\.0\.0\.1:[1-9][0-9]{0,4}/callback$(?!\n)", max_length=60)]
UserCode = Annotated[str, msgspec.Meta(max_length=100)]
Decision = Literal["approve", "deny"]
_NO_STORE = {"Cache-Control": "no-store"}


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
    **_consumes(TokenForm), "raises": (AuthorizationPending, SlowDown, ExpiredToken, AccessDenied, InvalidGrant),
}  # fmt: skip


@routes.get(AUTHORIZE, **PAGE)
async def show_authorization(ctx: Context, query: AuthorizationRequest) -> Response:
    """Show the page on which a signed-in person approves a terminal of the same machine."""
    actor = await browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(msgspec.structs.asdict(query))}")
    shown = Approval(
        action=AUTHORIZE, fields=msgspec.structs.asdict(query), account=_account(actor),
        host_name=query.host_name, address=_address(ctx),
    )  # fmt: skip
    # Browsers apply the policy to where a form's response leads, too.
    return pages.approval_page(shown, form_targets=f"'self' {query.redirect_uri.removesuffix('/callback')}")


@routes.post(AUTHORIZE, **FORM_PAGE)
async def decide_authorization(ctx: Context) -> Response:
    """Send the browser back to the terminal, with a code if the person approved."""
    form = await read_form(ctx, AuthorizationForm)
    actor = await browser_actor(ctx)
    if actor is None:
        return _sign_in_first(f"{AUTHORIZE}?{urlencode(_request_of(form))}")
    if form.decision == "deny":
        return redirect(f"{form.redirect_uri}?{urlencode({'error': AccessDenied.code, 'state': form.state})}")
    target = Target(form.redirect_uri, form.code_challenge, form.host_name or None)
    try:
        code = await cli_authorization.approve_browser(ctx.db, actor, target, _address(ctx))
    except LimitedKey as refused:
        return pages.note_page("Not allowed", refused.message, refused.status)
    return redirect(f"{form.redirect_uri}?{urlencode({'code': code, 'state': form.state})}")


@routes.post("/oauth/device", **_BEGINS)
async def begin_device(ctx: Context) -> DeviceAuthorization:
    """Return the codes with which a terminal without a browser waits for its sign-in."""
    form = await decode_form(ctx, DeviceForm)
    codes = await cli_authorization.begin_device(ctx.db, form.host_name or None, _address(ctx))
    ctx.headers.update(_NO_STORE)
    page = f"{base_url_of(ctx.request)}{DEVICE}"
    return DeviceAuthorization(
        codes.device_code, codes.user_code, page, f"{page}?{urlencode({'user_code': codes.user_code})}",
        int(DEVICE_CODE_LIFETIME.total_seconds()), INTERVAL_S,
    )  # fmt: skip


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
        waiting = await cli_authorization.find_waiting(ctx.db, actor, form.user_code)
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
    actor, approves = await browser_actor(ctx), form.decision == "approve"
    if actor is None:
        return _sign_in_first(f"{DEVICE}?{urlencode({'user_code': form.user_code})}")
    try:
        await cli_authorization.decide_device(ctx.db, actor, form.user_code, approves=approves)
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
    authenticator, origin = ctx.services.authenticator, origin_of(ctx)
    if form.grant_type == DEVICE_GRANT:
        made = await cli_authorization.poll_device(ctx.db, authenticator, form.device_code, origin)
    else:
        redemption = Redemption(form.code, form.redirect_uri, form.code_verifier)
        made = await cli_authorization.redeem_code(ctx.db, authenticator, redemption, origin)
    return LoggedIn(made.token, made.expires_at)


def _sign_in_first(target: str) -> Response:
    return redirect(f"/login?next={quote(target, safe='')}")


def _refused(user_code: str, refused: LimitedKey | TooManyCodes | UserCodeUnknown) -> Response:
    response = pages.user_code_page(user_code, refused.message, refused.status)
    response.headers.update(refused.headers)
    return response


def _request_of(form: AuthorizationForm) -> dict[str, Any]:
    return {name: getattr(form, name) for name in AuthorizationRequest.__struct_fields__}


def _account(actor: Actor) -> str:
    return actor.user_email or actor.short_key


def _address(ctx: Context) -> str:
    return client_address(ctx.scope, ctx.services.trusted_proxies)
