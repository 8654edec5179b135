"""The event streaming protocol over HTTP and WebSocket (contract: section 13)."""

import asyncio
from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.protocol.commands import Commands
from portside.agent.protocol.conversation import Conversation
from portside.agent.protocol.doors import Door
from portside.agent.protocol.filters import read_stream_request
from portside.agent.protocol.session import Session
from portside.agent.protocol.subscriptions import Subscriptions
from portside.agent.runs.service import Runs
from portside.agent.streams.hub import Hub
from portside.agent.threads.states import States
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import EventStream
from portside.kernel.http.websockets import WEBSOCKET, SocketContext

routes = Routes("event streaming")
sockets = Routes("event streaming")


@routes.post("/threads/{thread_id}/commands", raises=(BadRequest,))
async def command_thread(ctx: Context, thread_id: UUID) -> Response:
    """Do what a command of the event streaming protocol says, and answer as the protocol does."""
    subscriptions = Subscriptions(ctx.get(Hub), thread_id)
    answer, is_command = await _commands(ctx, thread_id, subscriptions).act(await ctx.request.body())
    return Response(answer, 200 if is_command else 400, media_type="application/json")


@routes.post(
    "/threads/{thread_id}/stream/events", raises=(BadRequest,), media_type="text/event-stream", stays_open=True
)
async def stream_thread_events(ctx: Context, thread_id: UUID) -> Response:
    """Follow a thread's channels, from after the event whose number `since` names."""
    wanted = read_stream_request(await ctx.request.body(), ctx.request.headers.get("last-event-id"))
    watch = await _door(ctx, thread_id).watch()
    joined = await Session.join(ctx.get(Hub), thread_id)
    reader, _ = joined.read(wanted, is_sse=True)
    return EventStream(watch.over(reader), draining=ctx.get(asyncio.Event))


@sockets.add(WEBSOCKET, "/threads/{thread_id}/stream/events", stays_open=True)
async def converse(ctx: SocketContext, thread_id: UUID) -> None:
    """Take commands and send what they subscribe to, over one connection."""
    conversation = Conversation(ctx.frames(), ctx.send, await _door(ctx, thread_id).watch())
    subscriptions = Subscriptions(ctx.get(Hub), thread_id, conversation.begin)
    await conversation.hold(_commands(ctx, thread_id, subscriptions))


def _door(ctx: Context, thread_id: UUID) -> Door:
    return Door(ctx.get(Access), caller_of(ctx), thread_id)


def _commands(ctx: Context, thread_id: UUID, subscriptions: Subscriptions) -> Commands:
    services = (ctx.db, ctx.get(Runs), ctx.get(States))
    return Commands(services, _door(ctx, thread_id), ctx.request.state.request_id, subscriptions)
