"""The pages on which people sign in with a browser, and out again. Each way to sign in ends in `_begin_session`.

Forms must come from this server's own pages, also before anybody is signed in: else another site could sign its visitor
in as somebody else. After the sign-in the browser goes to a path of this server only.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from portside.identity import pages, sessions, sign_in_links
from portside.identity.authentication import COOKIE_PREFIX, SESSION_COOKIE, get_cookie_name, read_credential
from portside.identity.guard import NotSameOrigin, check_same_origin
from portside.identity.logins import check_credentials
from portside.identity.oidc import FLOW_S, OidcNotAllowed, ProviderReturn
from portside.identity.pages import SignInPage
from portside.identity.passwords import TooManyLogins
from portside.identity.provisioning import admit
from portside.identity.services import Context, OidcSignIn, Routes, read_origin
from portside.identity.sessions import SignIn, build_cookie
from portside.identity.types import Actor, Credentials
from portside.kernel.errors import Forbidden, Unauthorized, Unavailable
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.decode import convert
from portside.kernel.http.headers import get_base_url, parse_cookies
from portside.kernel.http.routes import RouteOptions
from portside.kernel.logs import get_logger
from portside.kernel.outbound import AddressNotAllowed

T = TypeVar("T", bound=msgspec.Struct)
log = get_logger(__name__)
routes = Routes("sign in", works_on_full_disk=True)
HOME = "/login"
CALLBACK = "/login/oidc/callback"
CONSOLE = "/console/"
# Where a sign-in may lead: the pages of the platform for people who are signed in, and all below the console. Behind
# other paths are pages of agents, and addresses that sign the browser in as somebody else.
_OWN_PAGES = frozenset({"/", HOME, "/console", "/device", "/oauth/authorize"})
_DOTS = frozenset({".", "..", "%2e", ".%2e", "%2e.", "%2e%2e"})
OIDC_COOKIE = f"{COOKIE_PREFIX}oidc"
MAX_FORM_BYTES = 16 * 1024
_MAX_FIELDS = 20
FORM = "application/x-www-form-urlencoded"
# Unknown fields of a form are ignored, whatever they are called and hold.
ANY_FIELDS: dict[str, Any] = {"propertyNames": {}, "additionalProperties": {}}
Path = Annotated[str, msgspec.Meta(max_length=1000)]
PAGE: RouteOptions = {"public": True, "media_type": "text/html"}
# A refused sign-in is the page again, with the reason.
_LINK_PAGE: RouteOptions = {**PAGE, "raises": (NotSameOrigin,), "responses": {401: None}}
_OIDC_PAGE: RouteOptions = {**PAGE, "responses": {401: None, 403: None, 429: None, 503: None}}
SIGN_IN = Action("session.create", id_query="insert_session", is_sign_in=True)
FORM_PAGE: RouteOptions = {
    **PAGE,
    "consumes": {FORM: {"type": "object", **ANY_FIELDS}},
    "max_body_bytes": MAX_FORM_BYTES,
    "raises": (NotSameOrigin,),
}
_PROOF_PAGE: RouteOptions = {**FORM_PAGE, "responses": {401: None, 429: None}}


class KeyRefused(Unauthorized):
    """The API key is unknown, revoked or expired; use another one."""

    code = "key_refused"


class NextQuery(msgspec.Struct):
    """Where the browser goes after the sign-in: a page of the platform."""

    next: Path = ""


class PasswordForm(Credentials):
    """The form with an email and a password."""

    next: Path = ""


class KeyForm(msgspec.Struct):
    """The form with an API key."""

    key: Annotated[str, msgspec.Meta(max_length=1000)]
    next: Path = ""


class LinkQuery(msgspec.Struct):
    """The token of an address that signs in once."""

    token: Path = ""


class EmptyForm(msgspec.Struct):
    """A form without fields."""


@routes.get("/login", **PAGE)
async def get_sign_in_page(ctx: Context, query: NextQuery) -> Response:
    """Show the sign-in page. Somebody who is signed in already can continue or sign out."""
    actor = await find_browser_actor(ctx)
    target = to_local_path(query.next)
    if actor is None:
        return pages.render_sign_in(_build_page(ctx, target))

    return redirect(target) if target != HOME else pages.render_signed_in(actor.user_email or actor.short_key)


@routes.post("/login/password", operation="password_sign_ins_create", **_PROOF_PAGE, audit=SIGN_IN)
async def sign_in_with_password(ctx: Context) -> Response:
    """Sign a browser in with an email and a password."""
    form = await read_form(ctx, PasswordForm)

    async def prove() -> Response:
        user = await check_credentials(ctx.db, form, read_origin(ctx))
        sign_in = _build_sign_in(ctx, "password", user_id=user.id, password=user.password)
        return await _begin_session(ctx, sign_in, to_local_path(form.next))

    return await _attempt(prove, _build_page(ctx, to_local_path(form.next), email=form.email))


@routes.post("/login/key", operation="key_sign_ins_create", **_PROOF_PAGE, audit=SIGN_IN)
async def sign_in_with_key(ctx: Context) -> Response:
    """Sign a browser in with an API key; the session may do what the key may."""
    form = await read_form(ctx, KeyForm)

    async def prove() -> Response:
        try:
            actor = await ctx.services.authenticator.authenticate(form.key.strip())
        except Unauthorized as exc:
            log.warning("sign-in refused", method="key", address=read_origin(ctx).address)
            raise KeyRefused from exc

        sign_in = _build_sign_in(ctx, "key", user_id=actor.user_id, key_id=actor.key_id)
        return await _begin_session(ctx, sign_in, to_local_path(form.next))

    return await _attempt(prove, _build_page(ctx, to_local_path(form.next)))


@routes.get(sign_in_links.PATH, operation="link_sign_ins_create", **_LINK_PAGE, audit=SIGN_IN)
async def sign_in_with_link(ctx: Context, query: LinkQuery) -> Response:
    """Sign in the browser that opens an address of `POST /users/me/sign-in-links`, once."""
    _check_opened_by_hand(ctx)

    async def prove() -> Response:
        sign_in = await sign_in_links.redeem_link(ctx.db, ctx.services.authenticator, query.token, read_origin(ctx))
        return await _begin_session(ctx, sign_in, CONSOLE)

    return await _attempt(prove, _build_page(ctx, CONSOLE))


def _check_opened_by_hand(ctx: Context) -> None:
    """Raise NotSameOrigin if a page of another site leads to this one, or the browser only fetches in advance.

    Another site could sign its visitor in as somebody else; fetching in advance would spend the address.
    """
    headers = ctx.request.headers
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or headers.get("sec-purpose"):
        raise NotSameOrigin


@routes.post("/login/out", operation="sign_ins_end", **FORM_PAGE, audit=Action("session.end", by_browser=True))
async def sign_out(ctx: Context) -> Response:
    """End the browser's session."""
    await read_form(ctx, EmptyForm)
    await sessions.end_cookie_sessions(ctx.db, ctx.services.authenticator, ctx.request)

    response = redirect(HOME)
    _remove_cookie(ctx, response, SESSION_COOKIE)
    return response


@routes.get("/login/oidc", operation="oidc_sign_ins_start", **_OIDC_PAGE)
async def start_oidc(ctx: Context, query: NextQuery) -> Response:
    """Send the browser to the OpenID Connect provider."""
    target = to_local_path(query.next)

    async def leave() -> Response:
        start = await _get_oidc(ctx).provider.begin(f"{get_base_url(ctx.request)}{CALLBACK}", target)

        response = redirect(start.url)
        _set_cookie(ctx, response, OIDC_COOKIE, start.cookie, max_age_s=FLOW_S)
        return response

    return await _attempt(leave, _build_page(ctx, target))


@routes.get(CALLBACK, operation="oidc_sign_ins_finish", **_OIDC_PAGE, audit=SIGN_IN)
async def finish_oidc(ctx: Context, query: ProviderReturn) -> Response:
    """Sign in the browser that comes back from the OpenID Connect provider."""

    async def finish() -> Response:
        oidc = _get_oidc(ctx)
        cookies = parse_cookies(ctx.request.headers.get("cookie"), get_cookie_name(OIDC_COOKIE, ctx.request))
        sign_in = await oidc.provider.finish(cookies[0] if len(cookies) == 1 else None, query)
        user_id = await admit(ctx.db, ctx.services.authenticator, oidc.rules, sign_in.claims)
        return await _begin_session(ctx, _build_sign_in(ctx, "oidc", user_id=user_id), to_local_path(sign_in.next))

    response = await _attempt(finish, _build_page(ctx, HOME))
    if response.status_code >= 400:
        log.warning("sign-in refused", method="oidc", status=response.status_code, address=read_origin(ctx).address)

    _remove_cookie(ctx, response, OIDC_COOKIE)
    return response


def _get_oidc(ctx: Context) -> OidcSignIn:
    if ctx.services.oidc is None:
        raise OidcNotAllowed("No sign-in provider is configured here.")
    return ctx.services.oidc


def _build_page(ctx: Context, target: str, email: str = "") -> SignInPage:
    oidc = ctx.services.oidc
    return SignInPage(next=target, email=email, provider=oidc.provider.name if oidc else None)


async def find_browser_actor(ctx: Context) -> Actor | None:
    """Return who is signed in with this browser, if anybody."""
    presented = read_credential(ctx.request)
    if presented.kind != "cookie":
        return None

    try:
        return await ctx.services.authenticator.authenticate_request(presented)
    except Unauthorized:
        return None


def _build_sign_in(ctx: Context, method: sessions.Method, **owner: Any) -> SignIn:
    lifetime = ctx.services.authenticator.session_rules.lifetime
    return SignIn(kind="cookie", method=method, lifetime=lifetime, origin=read_origin(ctx), **owner)


async def _attempt(step: Callable[[], Awaitable[Response]], page: SignInPage) -> Response:
    """Take a step of a sign-in, or show the page again with the reason."""
    try:
        return await step()
    except (Unauthorized, Forbidden, TooManyLogins, Unavailable, AddressNotAllowed) as exc:
        response = pages.render_sign_in(msgspec.structs.replace(page, problem=exc.message), exc.status)
        response.headers.update(exc.headers)
        return response


async def _begin_session(ctx: Context, sign_in: SignIn, target: str) -> Response:
    """Make a new session, whatever the browser had before, and continue."""
    await sessions.end_cookie_sessions(ctx.db, ctx.services.authenticator, ctx.request)
    session = await sessions.begin_session(ctx.db, ctx.services.authenticator, sign_in)

    response = redirect(target)
    _set_cookie(ctx, response, SESSION_COOKIE, session.token, max_age_s=int(sign_in.lifetime.total_seconds()))
    return response


def _set_cookie(ctx: Context, response: Response, name: str, value: str, *, max_age_s: int) -> None:
    response.headers.append("Set-Cookie", build_cookie(ctx.request, name, value, max_age_s=max_age_s))


def _remove_cookie(ctx: Context, response: Response, name: str) -> None:
    _set_cookie(ctx, response, name, "", max_age_s=0)


def redirect(target: str) -> Response:
    """Send the browser on with a GET. `target` must come from `to_local_path`, or be checked by the caller."""
    return Response(status_code=303, headers={"Location": target, "Cache-Control": "no-store"})


def to_local_path(text: str) -> str:
    """Return the address of a page of the platform as given, and the sign-in page for anything that may lead elsewhere.

    Browsers also read paths that begin with two slashes or backslashes, and paths with tabs inside, as other hosts.
    They resolve segments of dots before they ask, so none may lead from one of our pages to another path.
    """
    is_plain = all("!" <= char <= "~" for char in text) and "\\" not in text
    path = text.partition("#")[0].partition("?")[0]
    segments = path.lower().split("/")
    is_direct = _DOTS.isdisjoint(segments) and not any(mark in path.lower() for mark in ("%2f", "%5c"))
    is_own = path in _OWN_PAGES or path.startswith(CONSOLE)

    return text if is_plain and is_own and is_direct else HOME


async def read_form(ctx: Context, kind: type[T]) -> T:
    """Return the fields of a form that one of our pages sent. Raises NotSameOrigin and Invalid."""
    check_same_origin(ctx.request.headers)
    return await decode_form(ctx, kind)


async def decode_form(ctx: Context, kind: type[T]) -> T:
    """Return the fields of a form, whoever sent it. Raises Invalid."""
    body = (await ctx.request.body()).decode("utf-8", "replace")
    try:
        fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        fields = {}

    form: T = convert(fields, kind, "body", strict=False)
    return form


def build_form_options(kind: type[msgspec.Struct]) -> RouteOptions:
    """Return the options of a public route that reads its form with `decode_form`."""
    _, schemas = msgspec.json.schema_components([kind])
    return {
        "public": True,
        "consumes": {FORM: {**schemas[kind.__name__], **ANY_FIELDS}},
        "max_body_bytes": MAX_FORM_BYTES,
    }
