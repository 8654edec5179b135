"""Agents as tools of the Model Context Protocol, over its streamable HTTP transport (contract: MCP)."""

from starlette.responses import Response

from portside.agent.access.service import caller_of
from portside.agent.config import AgentConfig
from portside.agent.http.waiting import answer_when_over
from portside.agent.mcp.calls import Client
from portside.agent.mcp.clients import (
    ForeignPage,
    NotAcceptable,
    NotJsonContent,
    check_content_type,
    check_origin,
    takes_streams,
)
from portside.agent.mcp.messages import NoMessage, NotJson, NoVersion, read_body
from portside.agent.mcp.methods import Methods
from portside.agent.settings import AgentSettings
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import EventStream

routes = Routes("mcp")
JSON = "application/json"
REFUSALS = (ForeignPage, NotAcceptable, NotJsonContent, NotJson, NoMessage, NoVersion)


@routes.post("/mcp", raises=REFUSALS, answers={202: None}, stays_open=True)
async def speak_mcp(ctx: Context) -> Response:
    """Answer a message of the Model Context Protocol: list assistants as tools, or call one."""
    client = _client(ctx)
    given = read_body(await ctx.request.body())
    answer = await ctx.get(Methods).act(given, ctx.request.headers, client)
    if answer.call is None:
        return Response(answer.body, answer.status, media_type=JSON if answer.body else None)
    calls, call = ctx.get(Methods).calls, answer.call
    if call.token is not None:
        return EventStream(calls.stream(call))
    return await answer_when_over(ctx, calls.answer(call), call.made.run)


@routes.get("/mcp", status=405)
async def stream_mcp(_ctx: Context) -> Response:
    """Refuse a stream of messages that nobody asked for: this server sends none."""
    return Response(status_code=405, headers={"Allow": "POST"})


@routes.delete("/mcp", status=404)
async def end_mcp_session(_ctx: Context) -> Response:
    """Find no session to end: this server has none."""
    return Response(status_code=404)


def _client(ctx: Context) -> Client:
    """Tell who asks. Raises ForeignPage, NotAcceptable and NotJsonContent for what no client of ours would send."""
    headers, request = ctx.request.headers, ctx.request
    check_origin(headers.get("origin"), ctx.get(AgentConfig).http.cors, ctx.get(AgentSettings).cors_allow_origins)
    is_streamed = takes_streams(headers.get("accept", ""))
    check_content_type(headers.get("content-type", ""))
    address = headers.get("x-forwarded-for") or (request.client.host if request.client else "")
    return Client(caller_of(ctx), address, headers.get("user-agent", ""), request.state.request_id, is_streamed)
