"""Threads over HTTP."""

from uuid import UUID

from msgspec.structs import replace
from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.http.context import PAGING, Context, Routes, set_paging
from portside.agent.threads import records
from portside.agent.threads.records import ThreadExists, ThreadNotFound
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
from portside.kernel.http.routes import encode_response
from portside.kernel.ids import uuid7

routes = Routes("threads")
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
    set_paging(ctx, offset=body.offset or 0, count=page.thread_count, total=page.total)
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
async def update_thread(ctx: Context, thread_id: UUID, body: ThreadPatch) -> Response:
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
