"""Threads over HTTP."""

from uuid import UUID

from starlette.responses import Response

from portside.agent.http.paging import PAGING, show_page
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.records import ThreadExists, ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.threads import (
    Pruned,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadQuery,
    ThreadSearch,
    ThreadStorage,
)
from portside.kernel.http.routes import Context, Routes, encode_response

routes = Routes("threads")


@routes.post("/threads", raises=(ThreadExists,))
async def create_thread(ctx: Context, body: ThreadCreate) -> Thread:
    """Make a thread, with a state where supersteps are given."""
    return await ctx.get(States).create(body)


@routes.post("/threads/search", headers=PAGING)
async def search_threads(ctx: Context, body: ThreadSearch) -> list[Thread]:
    """List the threads that match, last updated first."""
    return show_page(ctx, await records.search_threads(ctx.db, body), body.offset or 0)


@routes.post("/threads/count")
async def count_threads(ctx: Context, body: ThreadCount) -> int:
    """Count the threads that match."""
    return await records.count_threads(ctx.db, body)


@routes.post("/threads/prune")
async def prune_threads(ctx: Context, body: ThreadPrune) -> Pruned:
    """Delete threads, or all but their latest checkpoints; threads with a run are left alone."""
    return Pruned(await records.prune_threads(ctx.db, body))


@routes.get("/threads/{thread_id}", raises=(ThreadNotFound,))
async def get_thread(ctx: Context, thread_id: UUID, query: ThreadQuery) -> Thread:
    """Return a thread with its last values."""
    return await records.get_thread(ctx.db, thread_id, with_ttl="ttl" in (query.include or ()))


@routes.patch("/threads/{thread_id}", raises=(ThreadNotFound,), returns=Thread, answers={204: None})
async def patch_thread(ctx: Context, thread_id: UUID, body: ThreadPatch) -> Response:
    """Merge metadata into a thread's, or give it another lifetime; `Prefer: return=minimal` is answered with 204."""
    is_minimal = "return=minimal" in ctx.request.headers.get("prefer", "")
    thread = await records.patch_thread(ctx.db, thread_id, body, is_shown=not is_minimal)
    if is_minimal:
        return Response(status_code=204, headers={"Preference-Applied": "return=minimal"})
    return encode_response(thread, 200)


@routes.delete("/threads/{thread_id}", raises=(ThreadNotFound,), status=204)
async def delete_thread(ctx: Context, thread_id: UUID) -> None:
    """Delete a thread with its runs and checkpoints."""
    await records.delete_thread(ctx.db, thread_id)
    ctx.get(Hub).forget(thread_id)


@routes.post("/threads/{thread_id}/copy", raises=(ThreadNotFound,))
async def copy_thread(ctx: Context, thread_id: UUID) -> Thread:
    """Copy a thread with its metadata, values and whole history."""
    return await records.copy_thread(ctx.db, thread_id)


@routes.get("/threads/{thread_id}/storage", raises=(ThreadNotFound,))
async def measure_thread(ctx: Context, thread_id: UUID) -> ThreadStorage:
    """Tell what a thread's memory takes in the database."""
    return await records.measure_storage(ctx.db, thread_id)
