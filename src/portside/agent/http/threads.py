"""Threads over HTTP, with their states, their histories and their events.

The events are streamed for all runs of a thread, and by the event streaming protocol.
"""

from uuid import UUID

from msgspec.structs import replace
from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.http.services import PAGING, Context, Routes, SocketContext, SocketRoutes, set_paging
from portside.agent.protocol.commands import ClientConnection, Commands, Subscriptions, ThreadAccess
from portside.agent.protocol.sequence import EventSequence
from portside.agent.protocol.wire import CHANNELS, CommandFailed, read_stream_request
from portside.agent.streams.events import parse_thread_modes, resume_position
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadExists, ThreadNotFound
from portside.agent.threads.states import ThreadInFlight
from portside.agent.types.access import Caller
from portside.agent.types.threads import (
    Checkpoint,
    HistoryQuery,
    HistorySearch,
    NamedCheckpoint,
    Pruned,
    StateAtCheckpoint,
    StatePatch,
    StateQuery,
    StateUpdate,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadQuery,
    ThreadSearch,
    ThreadState,
    ThreadStorage,
    ThreadStreamQuery,
)
from portside.kernel.errors import BadRequest, NotFound
from portside.kernel.http.routes import encode_response
from portside.kernel.http.sse import EventStream
from portside.kernel.http.websockets import WEBSOCKET
from portside.kernel.ids import uuid7
from portside.kernel.user_json import dump_user

routes = Routes("threads")
COMMAND = {
    "application/json": {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0}, "method": {"type": "string"}},
        "required": ["id", "method"],
    }
}
CHANNEL = {"type": "string", "pattern": rf"^({'|'.join(CHANNELS)}|custom:[^\u0000]+)$(?!\n)"}
WANTED = {
    "application/json": {
        "type": "object",
        "properties": {"channels": {"type": "array", "minItems": 1, "items": CHANNEL}},
        "required": ["channels"],
    }
}
protocol_routes = Routes("event streaming")
sockets = SocketRoutes("event streaming")
# The fields of a request that an authorization handler gets, and may change.
CREATED = ("thread_id", "metadata", "if_exists", "ttl")
SEARCHED = ("metadata", "values", "status", "limit", "offset", "ids")
COUNTED = ("metadata", "values", "status")
PATCHED = ("metadata", "ttl")


@routes.post("/threads", raises=(ThreadExists,))
async def create_thread(ctx: Context, body: ThreadCreate) -> Thread:
    """Create a thread, with a state if supersteps are given."""
    request = body if body.thread_id else replace(body, thread_id=uuid7())
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "threads.create", request, CREATED)
    return await ctx.services.states.create(body, visible)


@routes.post("/threads/search", read_only=True, response_headers=PAGING, returns=list[Thread])
async def search_threads(ctx: Context, body: ThreadSearch) -> bytes:
    """List the threads that match, last updated first."""
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "threads.search", body, SEARCHED)
    page = await ctx.services.searches.search(body, visible)
    set_paging(ctx, body.offset or 0, page.thread_count, page.total)
    return page.body


@routes.post("/threads/count", read_only=True)
async def count_threads(ctx: Context, body: ThreadCount) -> int:
    """Count the threads that match."""
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "threads.search", body, COUNTED)
    return await records.count_threads(ctx.db, body, visible)


@routes.post("/threads/prune", works_on_full_disk=True)
async def prune_threads(ctx: Context, body: ThreadPrune) -> Pruned:
    """Delete threads, or all but their latest checkpoints; threads with an active run are skipped."""
    thread_ids = await ctx.services.access.authorize_threads(get_caller(ctx), "delete", body.thread_ids)
    pruned = await records.prune_threads(ctx.db, replace(body, thread_ids=thread_ids))
    if body.strategy != "keep_latest":
        ctx.services.hub.threads_deleted(pruned)

    return Pruned(len(pruned))


@routes.get("/threads/{thread_id}", raises=(ThreadNotFound,))
async def get_thread(ctx: Context, thread_id: UUID, query: ThreadQuery) -> Thread:
    """Return a thread with its latest values."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "read", thread_id)
    return await records.get_thread(ctx.db, thread_id, with_ttl="ttl" in (query.include or ()))


@routes.patch("/threads/{thread_id}", raises=(ThreadNotFound,), returns=Thread, responses={204: None})
async def patch_thread(ctx: Context, thread_id: UUID, body: ThreadPatch) -> Response:
    """Merge metadata into a thread's, or change its lifetime; the response to `Prefer: return=minimal` is a 204."""
    body = await ctx.services.access.authorize_thread_request(get_caller(ctx), "update", thread_id, body, PATCHED)
    is_minimal = "return=minimal" in ctx.request.headers.get("prefer", "")
    thread = await records.patch_thread(ctx.db, thread_id, body, returns_thread=not is_minimal)

    if is_minimal:
        return Response(status_code=204, headers={"Preference-Applied": "return=minimal"})

    return encode_response(thread, 200)


@routes.delete("/threads/{thread_id}", raises=(ThreadNotFound,), status=204)
async def delete_thread(ctx: Context, thread_id: UUID) -> None:
    """Delete a thread with its runs and checkpoints."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "delete", thread_id)
    if await records.delete_thread(ctx.db, thread_id):
        ctx.services.runs.wake_workers()

    ctx.services.hub.threads_deleted([thread_id])


@routes.post("/threads/{thread_id}/copy", raises=(ThreadNotFound,))
async def copy_thread(ctx: Context, thread_id: UUID) -> Thread:
    """Copy a thread with its metadata, values and whole history."""
    copied = await ctx.services.access.authorize_thread_copy(get_caller(ctx), thread_id)
    return await records.copy_thread(ctx.db, thread_id, *copied)


@routes.get("/threads/{thread_id}/storage", raises=(ThreadNotFound,))
async def measure_thread(ctx: Context, thread_id: UUID) -> ThreadStorage:
    """Return the storage of a thread's checkpoints in the database."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "read", thread_id)
    return await records.measure_storage(ctx.db, thread_id)


state_routes = Routes("thread state")


READ = (ThreadNotFound, CheckpointNotFound, NotFound, BadRequest)
CHANGE = (*READ, ThreadInFlight)


@state_routes.get("/threads/{thread_id}/state", raises=READ, returns=ThreadState)
async def get_state(ctx: Context, thread_id: UUID, query: StateQuery) -> bytes:
    """Return the latest state of a thread."""
    caller = await _authorize(ctx, thread_id)
    query_at = StateAtCheckpoint(Checkpoint(), query.subgraphs, query.select)
    return await ctx.services.states.read_json(thread_id, query_at, caller)


@state_routes.get("/threads/{thread_id}/state/{checkpoint_id}", raises=READ, returns=ThreadState)
async def get_state_at(ctx: Context, thread_id: UUID, checkpoint_id: str, query: StateQuery) -> bytes:
    """Return the state at a checkpoint."""
    caller = await _authorize(ctx, thread_id)
    query_at = StateAtCheckpoint(Checkpoint(checkpoint_id), query.subgraphs, query.select)
    return await ctx.services.states.read_json(thread_id, query_at, caller)


@state_routes.post("/threads/{thread_id}/state/checkpoint", read_only=True, raises=READ, returns=ThreadState)
async def get_state_at_checkpoint(ctx: Context, thread_id: UUID, body: StateAtCheckpoint) -> bytes:
    """Return the state at a checkpoint, also of a subgraph."""
    caller = await _authorize(ctx, thread_id)
    return await ctx.services.states.read_json(thread_id, body, caller)


@state_routes.post("/threads/{thread_id}/state", raises=CHANGE, returns=NamedCheckpoint)
async def update_state(ctx: Context, thread_id: UUID, body: StateUpdate) -> bytes:
    """Change the state as if a node had changed it."""
    caller = await _authorize(ctx, thread_id, "update")
    return dump_user(await ctx.services.states.update(thread_id, body, caller))


@state_routes.patch("/threads/{thread_id}/state", raises=READ, returns=NamedCheckpoint)
async def patch_state(ctx: Context, thread_id: UUID, body: StatePatch) -> bytes:
    """Merge metadata into that of the latest checkpoint, or of a given one."""
    body = await ctx.services.access.authorize_thread_request(get_caller(ctx), "update", thread_id, body, ("metadata",))
    return dump_user(await ctx.services.states.patch(thread_id, body))


@state_routes.get("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def get_history(ctx: Context, thread_id: UUID, query: HistoryQuery) -> bytes:
    """Return past states, newest first."""
    caller = await _authorize(ctx, thread_id)
    search = HistorySearch(limit=query.limit, before=query.before, select=query.select)
    return await ctx.services.states.history(thread_id, search, caller)


@state_routes.post("/threads/{thread_id}/history", read_only=True, raises=READ, returns=list[ThreadState])
async def search_history(ctx: Context, thread_id: UUID, body: HistorySearch) -> bytes:
    """Return past states that match, newest first."""
    caller = await _authorize(ctx, thread_id)
    return await ctx.services.states.history(thread_id, body, caller)


async def _authorize(ctx: Context, thread_id: UUID, action: str = "read") -> Caller:
    """Authorize access to a thread, and return the caller."""
    caller = get_caller(ctx)
    await ctx.services.access.authorize_thread(caller, action, thread_id)
    return caller


@protocol_routes.post(
    "/threads/{thread_id}/commands",
    raises=(BadRequest,),
    consumes=COMMAND,
    responses={400: CommandFailed},
    works_on_full_disk=True,
)
async def command_thread(ctx: Context, thread_id: UUID) -> Response:
    """Act on a command of the event streaming protocol, and answer as the protocol does."""
    response, is_command = await _commands(ctx, thread_id, None).act(await ctx.request.body())
    return Response(response, 200 if is_command else 400, media_type="application/json")


@protocol_routes.post(
    "/threads/{thread_id}/stream/events",
    raises=(BadRequest,),
    consumes=WANTED,
    media_type="text/event-stream",
    stays_open=True,
    works_on_full_disk=True,
)
async def stream_thread_events(ctx: Context, thread_id: UUID) -> Response:
    """Follow channels of a thread, from after the event with the number `since`."""
    channel_filter = read_stream_request(await ctx.request.body(), ctx.request.headers.get("last-event-id"))
    check = await _access(ctx, thread_id).authorize_follow()
    sequence = await EventSequence.join(ctx.services.hub, thread_id)
    return EventStream(check.filtered(sequence.read_sse(channel_filter)))


@sockets.add(WEBSOCKET, "/threads/{thread_id}/stream/events", stays_open=True)
async def serve_connection(ctx: SocketContext, thread_id: UUID) -> None:
    """Take commands and send the events that they subscribe to, over one connection."""
    subscriptions = Subscriptions(ctx.services.hub, thread_id)
    check = await _access(ctx, thread_id).authorize_follow()
    connection = ClientConnection(ctx.frames(), ctx.send, subscriptions, check)
    await connection.serve(_commands(ctx, thread_id, subscriptions))


def _access(ctx: Context | SocketContext, thread_id: UUID) -> ThreadAccess:
    return ThreadAccess(ctx.services.access, get_caller(ctx), thread_id)


def _commands(ctx: Context | SocketContext, thread_id: UUID, subscriptions: Subscriptions | None) -> Commands:
    services = (ctx.db, ctx.services.runs, ctx.services.states)
    return Commands(services, _access(ctx, thread_id), ctx.request.state.request_id, subscriptions)


stream_routes = Routes("threads")


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
