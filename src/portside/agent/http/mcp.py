"""Assistants as tools of the Model Context Protocol."""

from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.http.context import Context, Routes
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
from portside.kernel.http.routes import JSON_OBJECT
from portside.kernel.http.sse import EventStream

routes = Routes("mcp")


# Some clients append a slash to the URL of a server. A redirect would lose the body of their POST.
@routes.post(
    "/mcp",
    "/mcp/",
    raises=HTTP_ERRORS,
    consumes=JSON_OBJECT,
    responses={202: None},
    stays_open=True,
    works_on_full_disk=True,
)
async def send_mcp_message(ctx: Context) -> Response:
    """Answer a message of the Model Context Protocol: list assistants as tools, or call one."""
    client = _read_client(ctx)
    message = read_body(await ctx.request.body())

    reply = await ctx.services.mcp.handle(message, ctx.request.headers, client)
    if reply.call is None:
        return Response(reply.body, reply.status, headers=reply.headers, media_type=JSON if reply.body else None)

    calls = ctx.services.mcp.calls
    call = reply.call
    if call.is_streamed:
        return EventStream(calls.stream(call))

    return await respond_when_over(ctx, calls.result(call), call.first_run.run)


@routes.get("/mcp", "/mcp/", status=405)
async def stream_mcp_messages(_ctx: Context) -> Response:
    """Refuse the optional stream of server messages: this server sends none."""
    return Response(status_code=405, headers={"Allow": "POST"})


@routes.delete("/mcp", "/mcp/", status=404, responses={204: None})
async def end_mcp_session(ctx: Context) -> Response:
    """End the session of a client that accepts questions; the server keeps nothing of it. Other clients have none."""
    return Response(status_code=204 if accepts_questions(ctx.request.headers) else 404)


def _read_client(ctx: Context) -> McpClient:
    """Check the headers of a request. Raises ForeignOrigin, NotAcceptable and WrongContentType."""
    request = ctx.request
    headers = request.headers
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
