"""The states of threads over HTTP, and their histories."""

from uuid import UUID

from portside.agent.access.service import get_caller
from portside.agent.http.context import Context, Routes
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import ThreadInFlight
from portside.agent.types.access import Caller
from portside.agent.types.states import (
    Checkpoint,
    HistoryQuery,
    HistorySearch,
    NamedCheckpoint,
    StateAtCheckpoint,
    StatePatch,
    StateQuery,
    StateUpdate,
    ThreadState,
)
from portside.kernel.errors import BadRequest, NotFound
from portside.kernel.user_json import dump_user

routes = Routes("thread state")
READ = (ThreadNotFound, CheckpointNotFound, NotFound, BadRequest)
CHANGE = (*READ, ThreadInFlight)


@routes.get("/threads/{thread_id}/state", raises=READ, returns=ThreadState)
async def get_thread_state(ctx: Context, thread_id: UUID, query: StateQuery) -> bytes:
    """Return the latest state of a thread."""
    caller = await _authorize(ctx, thread_id)
    query_at = StateAtCheckpoint(Checkpoint(), query.subgraphs, query.select)
    return await ctx.services.states.read_json(thread_id, query_at, caller)


@routes.get(
    "/threads/{thread_id}/state/{checkpoint_id}", operation="thread_checkpoints_get", raises=READ, returns=ThreadState
)
async def get_state_at(ctx: Context, thread_id: UUID, checkpoint_id: str, query: StateQuery) -> bytes:
    """Return the state at a checkpoint."""
    caller = await _authorize(ctx, thread_id)
    query_at = StateAtCheckpoint(Checkpoint(checkpoint_id), query.subgraphs, query.select)
    return await ctx.services.states.read_json(thread_id, query_at, caller)


@routes.post(
    "/threads/{thread_id}/state/checkpoint",
    operation="thread_checkpoints_find",
    read_only=True,
    raises=READ,
    returns=ThreadState,
)
async def get_state_at_checkpoint(ctx: Context, thread_id: UUID, body: StateAtCheckpoint) -> bytes:
    """Return the state at a checkpoint, also of a subgraph."""
    caller = await _authorize(ctx, thread_id)
    return await ctx.services.states.read_json(thread_id, body, caller)


@routes.post("/threads/{thread_id}/state", raises=CHANGE, returns=NamedCheckpoint)
async def update_thread_state(ctx: Context, thread_id: UUID, body: StateUpdate) -> bytes:
    """Change the state as if a node had changed it."""
    caller = await _authorize(ctx, thread_id, "update")
    return dump_user(await ctx.services.states.update(thread_id, body, caller))


@routes.patch("/threads/{thread_id}/state", raises=READ, returns=NamedCheckpoint)
async def patch_thread_state(ctx: Context, thread_id: UUID, body: StatePatch) -> bytes:
    """Merge metadata into that of the latest checkpoint, or of a given one."""
    body = await ctx.services.access.authorize_thread_request(get_caller(ctx), "update", thread_id, body, ("metadata",))
    return dump_user(await ctx.services.states.patch(thread_id, body))


@routes.get("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def get_thread_history(ctx: Context, thread_id: UUID, query: HistoryQuery) -> bytes:
    """Return past states, newest first."""
    caller = await _authorize(ctx, thread_id)
    search = HistorySearch(limit=query.limit, before=query.before, select=query.select)
    return await ctx.services.states.history(thread_id, search, caller)


@routes.post("/threads/{thread_id}/history", read_only=True, raises=READ, returns=list[ThreadState])
async def search_thread_history(ctx: Context, thread_id: UUID, body: HistorySearch) -> bytes:
    """Return past states that match, newest first."""
    caller = await _authorize(ctx, thread_id)
    return await ctx.services.states.history(thread_id, body, caller)


async def _authorize(ctx: Context, thread_id: UUID, action: str = "read") -> Caller:
    """Authorize access to a thread, and return the caller."""
    caller = get_caller(ctx)
    await ctx.services.access.authorize_thread(caller, action, thread_id)
    return caller
