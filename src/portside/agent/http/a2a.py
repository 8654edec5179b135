"""The A2A protocol over HTTP: cards of agents, and calls of JSON-RPC (contract: section 10)."""

import re
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from portside.agent.a2a.envelopes import BadCall, read_request
from portside.agent.a2a.params import Scope
from portside.agent.a2a.service import A2A, STREAMING, Answer, Incoming, Waiting, refuse_call
from portside.agent.access.service import caller_of
from portside.agent.assistants.descriptions import GraphFailed
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.config import AgentConfig
from portside.agent.http.waiting import answer_when_over
from portside.agent.settings import AgentSettings
from portside.kernel.codec import dump_api
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import EventStream

routes = Routes("a2a")
JSON, SSE = "application/json", "text/event-stream"
SCOPE_HEADERS = ("a2a-history-scope", "langgraph-a2a-history-scope")
UNSAID = {"code": -32602, "message": "Missing required query parameter: assistant_id"}
ON_CARD = (AssistantNotFound, GraphFailed, Forbidden)
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SCHEMES = frozenset({"http", "https"})


class CardQuery(msgspec.Struct):
    """Which agent's card."""

    assistant_id: str | None = None


@routes.get("/.well-known/agent-card.json", raises=ON_CARD)
async def get_agent_card(ctx: Context, query: CardQuery) -> Response:
    """Return the card of an agent, by an assistant's id or a graph's."""
    if not query.assistant_id:
        return _json({"detail": UNSAID["message"], "error": UNSAID}, 400)
    return await _card(ctx, query.assistant_id)


@routes.get("/a2a/{assistant_id}", raises=ON_CARD)
async def get_card_of_assistant(ctx: Context, assistant_id: str) -> Response:
    """Return the card of an agent."""
    return await _card(ctx, assistant_id)


@routes.get("/a2a/{assistant_id}/.well-known/agent-card.json", raises=ON_CARD)
async def get_well_known_card(ctx: Context, assistant_id: str) -> Response:
    """Return the card of an agent, where clients of its URL look for it."""
    return await _card(ctx, assistant_id)


@routes.post("/a2a/{assistant_id}", takes=("A2A-Version", "A2A-History-Scope"), raises=(Forbidden,), stays_open=True)
async def call_agent(ctx: Context, assistant_id: str) -> Response:
    """Answer a call of JSON-RPC: a message to an agent, or a question about a task of it."""
    incoming = _incoming(ctx, assistant_id, await ctx.request.body())
    try:
        request = read_request(incoming.body)
    except BadCall as bad:
        return _plain(refuse_call(incoming, bad))
    media = SSE if request.method in STREAMING else JSON
    if not _accepts(ctx.request, media):
        why = f"Accept header must include {media}"
        return _json({"detail": why, "error": why}, 400)
    reply = await ctx.get(A2A).call(caller_of(ctx), incoming, request)
    if isinstance(reply, Answer):
        return _plain(reply.body)
    if isinstance(reply, Waiting):
        return await answer_when_over(ctx, reply.body)
    return EventStream(reply.events)


async def _card(ctx: Context, assistant_id: str) -> Response:
    return _json(await ctx.get(A2A).card(caller_of(ctx), assistant_id, _base_url(ctx)))


def _incoming(ctx: Context, assistant_id: str, body: bytes) -> Incoming:
    headers = ctx.request.headers
    scopes: tuple[Any, ...] = tuple(headers[name] for name in SCOPE_HEADERS if headers.get(name) in get_args(Scope))
    return Incoming(
        body=body,
        agent=assistant_id,
        request_id=ctx.request.state.request_id,
        base_url=_base_url(ctx),
        version=headers.get("a2a-version", "").strip(),
        scope=scopes[0] if scopes else None,
    )


def _base_url(ctx: Context) -> str:
    """Return where clients find this server: what the operator says, else what the client itself says it called.

    Who sends a forged host gets it back, and nobody else does: answers that hold it are not to be stored.
    """
    settings = ctx.get(AgentSettings)
    prefix = ctx.get(AgentConfig).http.mount_prefix or settings.mount_prefix
    if settings.public_url:
        return settings.public_url.rstrip("/") + prefix
    request = ctx.request
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


def _plain(body: bytes) -> Response:
    return Response(body, media_type=JSON)
