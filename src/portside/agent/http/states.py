"""The state and history of threads over HTTP."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States, ThreadInFlight
from portside.agent.types.threads import (
    Checkpoint,
    HistoryQuery,
    HistorySearch,
    StateAtCheckpoint,
    StateQuery,
    StateUpdate,
)
from portside.kernel.codec import dump_user
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import Context, Routes

routes = Routes("thread state")


@routes.get("/threads/{thread_id}/state", raises=(ThreadNotFound,))
async def get_state(ctx: Context, thread_id: UUID, query: StateQuery) -> Response:
    """Return the latest state of a thread."""
    return _json(await ctx.get(States).read(thread_id, subgraphs=query.subgraphs))


@routes.get("/threads/{thread_id}/state/{checkpoint_id}", raises=(ThreadNotFound,))
async def get_state_at(ctx: Context, thread_id: UUID, checkpoint_id: str, query: StateQuery) -> Response:
    """Return the state at a checkpoint."""
    at = Checkpoint(checkpoint_id)
    return _json(await ctx.get(States).read(thread_id, at=at, subgraphs=query.subgraphs))


@routes.post("/threads/{thread_id}/state/checkpoint", raises=(ThreadNotFound,))
async def get_state_at_checkpoint(ctx: Context, thread_id: UUID, body: StateAtCheckpoint) -> Response:
    """Return the state at a checkpoint, which may be a subgraph's."""
    return _json(await ctx.get(States).read(thread_id, at=body.checkpoint, subgraphs=body.subgraphs))


@routes.post("/threads/{thread_id}/state", raises=(ThreadNotFound, ThreadInFlight, BadRequest))
async def update_state(ctx: Context, thread_id: UUID, body: StateUpdate) -> Response:
    """Change the state as if a node had."""
    return _json(await ctx.get(States).update(thread_id, body))


@routes.get("/threads/{thread_id}/history", raises=(ThreadNotFound, BadRequest))
async def get_history(ctx: Context, thread_id: UUID, query: HistoryQuery) -> Response:
    """Return past states, newest first."""
    search = HistorySearch(limit=query.limit, before=query.before)
    return _json(await ctx.get(States).history(thread_id, search))


@routes.post("/threads/{thread_id}/history", raises=(ThreadNotFound, BadRequest))
async def search_history(ctx: Context, thread_id: UUID, body: HistorySearch) -> Response:
    """Return past states that match, newest first."""
    return _json(await ctx.get(States).history(thread_id, body))


def _json(value: Any) -> Response:
    return Response(dump_user(value), media_type="application/json")
