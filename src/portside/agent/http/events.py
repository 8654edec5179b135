"""The events of threads over HTTP: streamed for all runs of a thread, and by the event streaming protocol."""

from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.http.context import Context, Routes, SocketContext, SocketRoutes
from portside.agent.protocol.channel_filters import CHANNELS, read_stream_request
from portside.agent.protocol.commands import Commands, ThreadAccess
from portside.agent.protocol.connection import ClientConnection
from portside.agent.protocol.sequence import EventSequence
from portside.agent.protocol.subscriptions import Subscriptions
from portside.agent.protocol.wire import CommandFailed
from portside.agent.streams.events import parse_thread_modes, resume_position
from portside.agent.types.threads import ThreadStreamQuery
from portside.kernel.errors import BadRequest
from portside.kernel.http.sse import EventStream
from portside.kernel.http.websockets import WEBSOCKET

protocol_routes = Routes("event streaming")
sockets = SocketRoutes("event streaming")
stream_routes = Routes("threads")
# The bodies of requests, for the OpenAPI document; `protocol/` checks them, and answers as the protocol does.
COMMAND = {
    "application/json": {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0}, "method": {"type": "string"}},
        "required": ["id", "method"],
    }
}
CHANNEL = {"type": "string", "pattern": rf"^({'|'.join(CHANNELS)}|custom:[^\u0000]+)$(?!\n)"}
CHANNEL_REQUEST = {
    "application/json": {
        "type": "object",
        "properties": {"channels": {"type": "array", "minItems": 1, "items": CHANNEL}},
        "required": ["channels"],
    }
}


@stream_routes.get(
    "/threads/{thread_id}/stream", media_type="text/event-stream", response_headers=("Location",), stays_open=True
)
async def stream_thread(ctx: Context, thread_id: UUID, query: ThreadStreamQuery) -> Response:
    """Follow a thread, which need not exist yet: the events of its runs, or only their starts and ends."""
    modes = parse_thread_modes([*(query.stream_modes or ()), *(query.stream_mode or ())])
    after = resume_position(ctx.request.headers.get("last-event-id"))
    check = await ctx.services.access.authorize_thread_follow(get_caller(ctx), thread_id)
    subscription = await ctx.services.hub.follow_thread(thread_id, modes, after)

    # The SDKs join here again if the response is cut off.
    ctx.headers["Location"] = "?".join(filter(None, (f"/threads/{thread_id}/stream", ctx.request.url.query)))
    return EventStream(check.filtered(subscription))


@protocol_routes.post(
    "/threads/{thread_id}/commands",
    raises=(BadRequest,),
    consumes=COMMAND,
    responses={400: CommandFailed},
    works_on_full_disk=True,
)
async def command_thread(ctx: Context, thread_id: UUID) -> Response:
    """Act on a command of the event streaming protocol, and answer as the protocol does."""
    response, is_command = await _build_commands(ctx, thread_id, None).act(await ctx.request.body())
    return Response(response, 200 if is_command else 400, media_type="application/json")


@protocol_routes.post(
    "/threads/{thread_id}/stream/events",
    raises=(BadRequest,),
    consumes=CHANNEL_REQUEST,
    media_type="text/event-stream",
    stays_open=True,
    works_on_full_disk=True,
)
async def stream_thread_events(ctx: Context, thread_id: UUID) -> Response:
    """Follow channels of a thread, from after the event with the number `since`."""
    channel_filter = read_stream_request(await ctx.request.body(), ctx.request.headers.get("last-event-id"))
    check = await _build_access(ctx, thread_id).authorize_follow()
    sequence = await EventSequence.join(ctx.services.hub, thread_id)
    return EventStream(check.filtered(sequence.read_sse(channel_filter)))


@sockets.add(WEBSOCKET, "/threads/{thread_id}/stream/events", stays_open=True)
async def serve_connection(ctx: SocketContext, thread_id: UUID) -> None:
    """Take commands and send the events that they subscribe to, over one connection."""
    subscriptions = Subscriptions(ctx.services.hub, thread_id)
    check = await _build_access(ctx, thread_id).authorize_follow()
    connection = ClientConnection(ctx.frames(), ctx.send, subscriptions=subscriptions, check=check)
    await connection.serve(_build_commands(ctx, thread_id, subscriptions))


def _build_access(ctx: Context | SocketContext, thread_id: UUID) -> ThreadAccess:
    return ThreadAccess(ctx.services.access, get_caller(ctx), thread_id)


def _build_commands(ctx: Context | SocketContext, thread_id: UUID, subscriptions: Subscriptions | None) -> Commands:
    services = (ctx.db, ctx.services.runs, ctx.services.states)
    return Commands(
        services,
        access=_build_access(ctx, thread_id),
        request_id=ctx.request.state.request_id,
        subscriptions=subscriptions,
    )
