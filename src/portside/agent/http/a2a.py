"""Assistants as agents of the A2A protocol: their cards, and calls to them."""

import hashlib
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, get_args

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from portside.agent.a2a.params import Scope
from portside.agent.a2a.rpc import MalformedRequest, read_request, refuse_content_type
from portside.agent.a2a.service import STREAMING, DelayedReply, HttpCall, Reply, encode_malformed
from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.http.context import Context, Routes
from portside.agent.http.request_headers import get_base_url, names_etag
from portside.agent.http.waiting import respond_when_over
from portside.agent.mcp.rpc import (
    JSON,
)
from portside.executor.errors import GraphFailed
from portside.kernel.codec import dump_api
from portside.kernel.errors import Forbidden
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

    return await _respond_with_card(ctx, name, query)


# Some clients append a slash to the URL of a card. A redirect would lose the body of their POST.
@routes.get("/a2a/{assistant_id}", "/a2a/{assistant_id}/", **ON_CARD)
async def get_assistant_card(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    """Return the card of an agent."""
    return await _respond_with_card(ctx, assistant_id, query)


@routes.get("/a2a/{assistant_id}/.well-known/agent-card.json", **ON_CARD)
async def get_well_known_card(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    """Return the card of an agent, at the well-known path below its URL."""
    return await _respond_with_card(ctx, assistant_id, query)


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
    call = _build_call(ctx, assistant_id, await ctx.request.body())
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


async def _respond_with_card(ctx: Context, assistant_id: str, query: CardVersionQuery) -> Response:
    version = _read_version(ctx) or query.version.strip()
    card = await ctx.services.a2a.card(get_caller(ctx), assistant_id, get_base_url(ctx), version)
    body = dump_api(card.fields)
    headers = {
        # A card repeats the address that its client used, and access may hide it from other callers.
        "Cache-Control": "private, max-age=0, must-revalidate",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Last-Modified": format_datetime(card.changed_at, usegmt=True),
        "Vary": "A2A-Version",
    }
    if _is_not_modified(ctx.request.headers, headers["ETag"], card.changed_at):
        return Response(status_code=304, headers=headers)

    return Response(body, headers=headers, media_type=JSON)


def _is_not_modified(headers: Headers, etag: str, changed_at: datetime) -> bool:
    """Whether the client has the current card already (RFC 9110, 13.2.2)."""
    if_none_match = headers.get("if-none-match")
    if if_none_match is not None:
        return names_etag(if_none_match, etag)

    try:
        since = parsedate_to_datetime(headers.get("if-modified-since", ""))
        return changed_at.replace(microsecond=0) <= since
    except (TypeError, ValueError):
        return False


def _build_call(ctx: Context, assistant_id: str, body: bytes) -> HttpCall:
    headers = ctx.request.headers
    scopes: tuple[Any, ...] = tuple(headers[name] for name in SCOPE_HEADERS if headers.get(name) in get_args(Scope))
    return HttpCall(
        body=body,
        agent=assistant_id,
        request_id=ctx.request.state.request_id,
        base_url=get_base_url(ctx),
        version=_read_version(ctx),
        scope=scopes[0] if scopes else None,
    )


def _read_version(ctx: Context) -> str:
    return ctx.request.headers.get("a2a-version", "").strip()


def _accepts(request: Request, media: str) -> bool:
    header = request.headers.get("accept", "*/*")
    media_types = {part.split(";")[0].strip().lower() for part in header.split(",")}
    return not media_types.isdisjoint({media, f"{media.partition('/')[0]}/*", "*/*"})


def _json(value: Any, status: int = 200) -> Response:
    return Response(dump_api(value), status, headers={"Cache-Control": "no-store"}, media_type=JSON)


def _json_bytes(body: bytes) -> Response:
    return Response(body, media_type=JSON)
