"""Assistants for other programs over HTTP: as A2A agents and MCP tools; and the React components of web pages."""

import hashlib
import re
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Annotated, Any, get_args

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from portside.agent.a2a.rpc import MalformedRequest, Scope, read_request, refuse_content_type
from portside.agent.a2a.service import STREAMING, DelayedReply, HttpCall, Reply, encode_malformed
from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.http.services import Context, Routes
from portside.agent.http.waiting import respond_when_over
from portside.agent.mcp.elicitation import accepts_questions
from portside.agent.mcp.rpc import (
    HTTP_ERRORS,
    JSON,
    accepts_streams,
    check_content_type,
    check_origin,
    knows_links,
    read_body,
)
from portside.agent.mcp.service import McpClient
from portside.agent.ui import BundleFile, ComponentsNotFound
from portside.executor.errors import GraphFailed
from portside.kernel.codec import dump_api
from portside.kernel.errors import Forbidden
from portside.kernel.http.proxies import get_prefix
from portside.kernel.http.routes import JSON_OBJECT, RouteOptions
from portside.kernel.http.sse import EventStream

routes = Routes("a2a")
SSE = "text/event-stream"
SCOPE_HEADERS = ("a2a-history-scope", "langgraph-a2a-history-scope")
NO_ASSISTANT = {"code": -32602, "message": "Missing required query parameter: assistant_id"}
WHY_NO_DEFAULT = "this server has several graphs and A2A_DEFAULT_ASSISTANT names no default"
ON_CARD: RouteOptions = {
    "raises": (AssistantNotFound, GraphFailed, Forbidden),
    "request_headers": ("A2A-Version", "If-None-Match", "If-Modified-Since"),
    "response_headers": ("ETag", "Last-Modified"),
    "responses": {304: None},
}
_ON_DEFAULT_CARD: RouteOptions = {**ON_CARD, "responses": {304: None, 400: dict[str, Any]}}
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SCHEMES = frozenset({"http", "https"})
_LOOPBACK = re.compile(r"http://(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?:[:/]|$)")


class CardVersionQuery(msgspec.Struct):
    """The version of the protocol that the client reads, for clients that send no header."""

    version: str = msgspec.field(name="A2A-Version", default="")


class CardQuery(CardVersionQuery, kw_only=True):
    """The agent whose card to return."""

    assistant_id: str | None = None


@routes.get("/.well-known/agent-card.json", **_ON_DEFAULT_CARD)
async def get_agent_card(ctx: Context, query: CardQuery) -> Response:
    """Return the card of an agent, by an assistant's id or a graph's; without either, the default agent's."""
    name = query.assistant_id or ctx.services.a2a.default_agent
    if name is None:
        return _json({"detail": f"{NO_ASSISTANT['message']}; {WHY_NO_DEFAULT}", "error": NO_ASSISTANT}, 400)

    return await _card(ctx, name, query)


# Some clients append a slash to the URL of a card. A redirect would lose the body of their POST.
@routes.get("/a2a/{assistant_id}", "/a2a/{assistant_id}/", **ON_CARD)
async def get_card_of_assistant(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    """Return the card of an agent."""
    return await _card(ctx, assistant_id, query)


@routes.get("/a2a/{assistant_id}/.well-known/agent-card.json", **ON_CARD)
async def get_well_known_card(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    """Return the card of an agent, at the well-known path below its URL."""
    return await _card(ctx, assistant_id, query)


@routes.post(
    "/a2a/{assistant_id}",
    "/a2a/{assistant_id}/",
    request_headers=("A2A-Version", "A2A-History-Scope"),
    raises=(Forbidden,),
    consumes=JSON_OBJECT,
    stays_open=True,
    works_on_full_disk=True,
)
async def call_agent(ctx: Context, assistant_id: str) -> Response:
    """Answer a JSON-RPC call: a message to an agent, or a request about one of its tasks."""
    call = _http_call(ctx, assistant_id, await ctx.request.body())
    try:
        refuse_content_type(ctx.request.headers.get("content-type", ""))
        request = read_request(call.body)
    except MalformedRequest as bad:
        return _json_bytes(encode_malformed(call, bad))

    media = SSE if request.method in STREAMING else JSON
    if not _accepts(ctx.request, media):
        why = f"Accept header must include {media}"
        return _json({"detail": why, "error": why}, 400)

    reply = await ctx.services.a2a.call(get_caller(ctx), call, request)
    if isinstance(reply, Reply):
        return _json_bytes(reply.body)
    if isinstance(reply, DelayedReply):
        return await respond_when_over(ctx, reply.body)

    return EventStream(reply.events)


async def _card(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    version = _version(ctx) or query.version.strip()
    card = await ctx.services.a2a.card(get_caller(ctx), assistant_id, _base_url(ctx), version)
    body = dump_api(card.fields)

    headers = {
        # A card repeats the address that its client used, and access may hide it from other callers.
        "Cache-Control": "private, max-age=0, must-revalidate",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Last-Modified": format_datetime(card.changed_at, usegmt=True),
        "Vary": "A2A-Version",
    }
    if _is_not_modified(ctx.request.headers, headers["ETag"], card.changed_at):
        return Response(None, 304, headers)

    return Response(body, 200, headers, JSON)


def _is_not_modified(headers: Headers, etag: str, changed_at: datetime) -> bool:
    """Whether the client has the current card already (RFC 9110, 13.2.2)."""
    if (known := headers.get("if-none-match")) is not None:
        return _names_etag(known, etag)

    try:
        since = parsedate_to_datetime(headers.get("if-modified-since", ""))
        return changed_at.replace(microsecond=0) <= since
    except (TypeError, ValueError):
        return False


def _names_etag(known: str, etag: str) -> bool:
    """Whether the header If-None-Match names a version."""
    return known.strip() == "*" or etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}


def _http_call(ctx: Context, assistant_id: str, body: bytes) -> HttpCall:
    headers = ctx.request.headers
    scopes: tuple[Any, ...] = tuple(headers[name] for name in SCOPE_HEADERS if headers.get(name) in get_args(Scope))
    return HttpCall(
        body=body,
        agent=assistant_id,
        request_id=ctx.request.state.request_id,
        base_url=_base_url(ctx),
        version=_version(ctx),
        scope=scopes[0] if scopes else None,
    )


def _version(ctx: Context) -> str:
    return ctx.request.headers.get("a2a-version", "").strip()


def _base_url(ctx: Context) -> str:
    """Return the public URL of this server: the operator's setting, else the address that the client itself called.

    A client that forges its Host header gets it back, and nobody else does: such responses must not be stored.
    """
    settings = ctx.services.settings
    request = ctx.request

    prefix = get_prefix(request.scope)
    if settings.public_url:
        return settings.public_url.rstrip("/") + prefix

    scheme = _first(request, "x-forwarded-proto")
    host = _first(request, "x-forwarded-host") or request.headers.get("host", "")
    shown = host if _HOST.fullmatch(host) else f"{settings.host}:{settings.port}"

    return f"{scheme if scheme in _SCHEMES else request.url.scheme}://{shown}{prefix}"


def _first(request: Request, header: str) -> str:
    return request.headers.get(header, "").split(",")[0].strip()


def _accepts(request: Request, media: str) -> bool:
    given = request.headers.get("accept", "*/*")
    taken = {part.split(";")[0].strip().lower() for part in given.split(",")}
    return not taken.isdisjoint({media, f"{media.partition('/')[0]}/*", "*/*"})


def _json(value: Any, status: int = 200) -> Response:
    return Response(dump_api(value), status, {"Cache-Control": "no-store"}, JSON)


def _json_bytes(body: bytes) -> Response:
    return Response(body, media_type=JSON)


mcp_routes = Routes("mcp")


# Some clients append a slash to the URL of a server. A redirect would lose the body of their POST.
@mcp_routes.post(
    "/mcp",
    "/mcp/",
    raises=HTTP_ERRORS,
    consumes=JSON_OBJECT,
    responses={202: None},
    stays_open=True,
    works_on_full_disk=True,
)
async def speak_mcp(ctx: Context) -> Response:
    """Answer a message of the Model Context Protocol: list assistants as tools, or call one."""
    client = _client(ctx)
    message = read_body(await ctx.request.body())

    reply = await ctx.services.mcp.handle(message, ctx.request.headers, client)
    if reply.call is None:
        return Response(reply.body, reply.status, reply.headers, JSON if reply.body else None)

    calls = ctx.services.mcp.calls
    call = reply.call
    if call.is_streamed:
        return EventStream(calls.stream(call))

    return await respond_when_over(ctx, calls.result(call), call.made.run)


@mcp_routes.get("/mcp", "/mcp/", status=405)
async def stream_mcp(_ctx: Context) -> Response:
    """Refuse the optional stream of server messages: this server sends none."""
    return Response(status_code=405, headers={"Allow": "POST"})


@mcp_routes.delete("/mcp", "/mcp/", status=404, responses={204: None})
async def end_mcp_session(ctx: Context) -> Response:
    """End the session of a client that accepts questions; the server keeps nothing of it. Other clients have none."""
    return Response(status_code=204 if accepts_questions(ctx.request.headers) else 404)


def _client(ctx: Context) -> McpClient:
    """Check the headers of a request. Raises ForeignOrigin, NotAcceptable and WrongContentType."""
    headers = ctx.request.headers
    request = ctx.request
    check_origin(headers.get("origin"), ctx.services.config.http.cors, ctx.services.settings.cors_allow_origins)
    is_streamed = accepts_streams(headers.get("accept", ""))

    check_content_type(headers.get("content-type", ""))
    return McpClient(
        caller=get_caller(ctx),
        address=headers.get("x-forwarded-for") or (request.client.host if request.client else ""),
        user_agent=headers.get("user-agent", ""),
        request_id=request.state.request_id,
        accepts_streams=is_streamed,
        knows_links=knows_links(headers),
        accepts_questions=is_streamed and accepts_questions(headers),
    )


ui_routes = Routes("ui")


class ComponentRequest(msgspec.Struct):
    """A component, by the name that the code of a graph pushes."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


@ui_routes.post("/ui/{name}", media_type="text/html", raises=(ComponentsNotFound,), returns=str, read_only=True)
async def get_component(ctx: Context, name: str, body: ComponentRequest) -> Response:
    """Return the HTML with which a page loads a React component of the project."""
    page = await ctx.services.bundles.page(name, body.name, _address_for_pages(ctx))
    return Response(page, 200, {"Cache-Control": "no-store"}, "text/html")


# Browsers request scripts and style sheets of other origins without the headers of a client.
@ui_routes.get(
    "/ui/{name}/{file}",
    public=True,
    media_type="text/javascript",
    raises=(ComponentsNotFound,),
    returns=str,
    request_headers=("If-None-Match",),
    response_headers=("ETag",),
    responses={304: None},
)
async def get_bundle(ctx: Context, name: str, file: str) -> Response:
    """Return the script or the style sheet of a project's React components."""
    found: BundleFile = await ctx.services.bundles.file(name, file)
    headers = {"Cache-Control": "no-cache", "ETag": found.etag, "X-Content-Type-Options": "nosniff"}
    if _names_etag(ctx.request.headers.get("if-none-match", ""), found.etag):
        return Response(None, 304, headers)

    return Response(found.content, 200, headers, found.media_type)


def _address_for_pages(ctx: Context) -> str:
    """Return the public URL; without a scheme if a proxy may have received the request over TLS and does not say so."""
    url = _base_url(ctx)
    is_known = ctx.services.settings.public_url or "x-forwarded-proto" in ctx.request.headers or _LOOPBACK.match(url)
    return url if is_known else url.removeprefix("http:")
