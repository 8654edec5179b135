"""The state and history of threads over HTTP."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States, ThreadInFlight
from portside.agent.types.access import Caller
from portside.agent.types.states import NamedCheckpoint, ThreadState
from portside.agent.types.threads import (
    Checkpoint,
    HistoryQuery,
    HistorySearch,
    StateAtCheckpoint,
    StatePatch,
    StateQuery,
    StateUpdate,
)
from portside.kernel.codec import dump_user
from portside.kernel.errors import BadRequest, NotFound
from portside.kernel.http.routes import Context, Routes

routes = Routes("thread state")


READ = (ThreadNotFound, CheckpointNotFound, NotFound, BadRequest)
CHANGE = (*READ, ThreadInFlight)


@routes.get("/threads/{thread_id}/state", raises=READ, returns=ThreadState)
async def get_state(ctx: Context, thread_id: UUID, query: StateQuery) -> Response:
    """Return the latest state of a thread."""
    caller = await _see(ctx, thread_id)
    asked = StateAtCheckpoint(Checkpoint(), query.subgraphs, query.select)
    return _raw(await ctx.get(States).answer(thread_id, asked, caller))


@routes.get("/threads/{thread_id}/state/{checkpoint_id}", raises=READ, returns=ThreadState)
async def get_state_at(ctx: Context, thread_id: UUID, checkpoint_id: str, query: StateQuery) -> Response:
    """Return the state at a checkpoint."""
    caller = await _see(ctx, thread_id)
    asked = StateAtCheckpoint(Checkpoint(checkpoint_id), query.subgraphs, query.select)
    return _raw(await ctx.get(States).answer(thread_id, asked, caller))


@routes.post("/threads/{thread_id}/state/checkpoint", raises=READ, returns=ThreadState)
async def get_state_at_checkpoint(ctx: Context, thread_id: UUID, body: StateAtCheckpoint) -> Response:
    """Return the state at a checkpoint, which may be a subgraph's."""
    caller = await _see(ctx, thread_id)
    return _raw(await ctx.get(States).answer(thread_id, body, caller))


@routes.post("/threads/{thread_id}/state", raises=CHANGE, returns=NamedCheckpoint)
async def update_state(ctx: Context, thread_id: UUID, body: StateUpdate) -> Response:
    """Change the state as if a node had."""
    caller = await _see(ctx, thread_id, "update")
    return _json(await ctx.get(States).update(thread_id, body, caller))


@routes.patch("/threads/{thread_id}/state", raises=READ, returns=NamedCheckpoint)
async def patch_state(ctx: Context, thread_id: UUID, body: StatePatch) -> Response:
    """Merge metadata into that of the latest checkpoint, or of one that is named."""
    body = await ctx.get(Access).shape_thread(caller_of(ctx), "update", thread_id, body, ("metadata",))
    return _json(await ctx.get(States).patch(thread_id, body))


@routes.get("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def get_history(ctx: Context, thread_id: UUID, query: HistoryQuery) -> Response:
    """Return past states, newest first."""
    caller = await _see(ctx, thread_id)
    search = HistorySearch(limit=query.limit, before=query.before, select=query.select)
    return _json(await ctx.get(States).history(thread_id, search, caller))


@routes.post("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def search_history(ctx: Context, thread_id: UUID, body: HistorySearch) -> Response:
    """Return past states that match, newest first."""
    caller = await _see(ctx, thread_id)
    return _json(await ctx.get(States).history(thread_id, body, caller))


async def _see(ctx: Context, thread_id: UUID, action: str = "read") -> Caller:
    caller = caller_of(ctx)
    await ctx.get(Access).see_thread(caller, action, thread_id)
    return caller


def _json(value: Any) -> Response:
    return _raw(dump_user(value))


def _raw(body: bytes) -> Response:
    return Response(body, media_type="application/json")
