"""The state and history of threads over HTTP."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import CheckpointNotFound, States, ThreadInFlight
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
    asked = StateAtCheckpoint(Checkpoint(), query.subgraphs, query.select)
    return _json(await ctx.get(States).read(thread_id, asked))


@routes.get("/threads/{thread_id}/state/{checkpoint_id}", raises=READ, returns=ThreadState)
async def get_state_at(ctx: Context, thread_id: UUID, checkpoint_id: str, query: StateQuery) -> Response:
    """Return the state at a checkpoint."""
    asked = StateAtCheckpoint(Checkpoint(checkpoint_id), query.subgraphs, query.select)
    return _json(await ctx.get(States).read(thread_id, asked))


@routes.post("/threads/{thread_id}/state/checkpoint", raises=READ, returns=ThreadState)
async def get_state_at_checkpoint(ctx: Context, thread_id: UUID, body: StateAtCheckpoint) -> Response:
    """Return the state at a checkpoint, which may be a subgraph's."""
    return _json(await ctx.get(States).read(thread_id, body))


@routes.post("/threads/{thread_id}/state", raises=CHANGE, returns=NamedCheckpoint)
async def update_state(ctx: Context, thread_id: UUID, body: StateUpdate) -> Response:
    """Change the state as if a node had."""
    return _json(await ctx.get(States).update(thread_id, body))


@routes.patch("/threads/{thread_id}/state", raises=READ, returns=NamedCheckpoint)
async def patch_state(ctx: Context, thread_id: UUID, body: StatePatch) -> Response:
    """Merge metadata into that of the latest checkpoint, or of one that is named."""
    return _json(await ctx.get(States).patch(thread_id, body))


@routes.get("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def get_history(ctx: Context, thread_id: UUID, query: HistoryQuery) -> Response:
    """Return past states, newest first."""
    search = HistorySearch(limit=query.limit, before=query.before, select=query.select)
    return _json(await ctx.get(States).history(thread_id, search))


@routes.post("/threads/{thread_id}/history", raises=READ, returns=list[ThreadState])
async def search_history(ctx: Context, thread_id: UUID, body: HistorySearch) -> Response:
    """Return past states that match, newest first."""
    return _json(await ctx.get(States).history(thread_id, body))


def _json(value: Any) -> Response:
    return Response(dump_user(value), media_type="application/json")
