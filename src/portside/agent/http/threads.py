"""Threads over HTTP."""

from uuid import UUID

from msgspec.structs import replace
from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.http.paging import PAGING, show_page
from portside.agent.runs.service import Runs
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.records import ThreadExists, ThreadNotFound
from portside.agent.threads.searches import Searches
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
from portside.kernel.ids import uuid7

routes = Routes("threads")
# What of a request a handler is told, and may change.
CREATED = ("thread_id", "metadata", "if_exists", "ttl")
SEARCHED = ("metadata", "values", "status", "limit", "offset", "ids")
COUNTED = ("metadata", "values", "status")
PATCHED = ("metadata", "ttl")


@routes.post("/threads", raises=(ThreadExists,))
async def create_thread(ctx: Context, body: ThreadCreate) -> Thread:
    """Make a thread, with a state where supersteps are given."""
    named = body if body.thread_id else replace(body, thread_id=uuid7())
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "threads.create", named, CREATED)
    return await ctx.get(States).create(body, seen)


@routes.post("/threads/search", headers=PAGING)
async def search_threads(ctx: Context, body: ThreadSearch) -> list[Thread]:
    """List the threads that match, last updated first."""
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "threads.search", body, SEARCHED)
    return show_page(ctx, await ctx.get(Searches).search(body, seen), body.offset or 0)


@routes.post("/threads/count")
async def count_threads(ctx: Context, body: ThreadCount) -> int:
    """Count the threads that match."""
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "threads.search", body, COUNTED)
    return await records.count_threads(ctx.db, body, seen)


@routes.post("/threads/prune")
async def prune_threads(ctx: Context, body: ThreadPrune) -> Pruned:
    """Delete threads, or all but their latest checkpoints; threads with a run are left alone."""
    thread_ids = await ctx.get(Access).see_threads(caller_of(ctx), "delete", body.thread_ids)
    return Pruned(await records.prune_threads(ctx.db, replace(body, thread_ids=thread_ids)))


@routes.get("/threads/{thread_id}", raises=(ThreadNotFound,))
async def get_thread(ctx: Context, thread_id: UUID, query: ThreadQuery) -> Thread:
    """Return a thread with its last values."""
    await ctx.get(Access).see_thread(caller_of(ctx), "read", thread_id)
    return await records.get_thread(ctx.db, thread_id, with_ttl="ttl" in (query.include or ()))


@routes.patch("/threads/{thread_id}", raises=(ThreadNotFound,), returns=Thread, answers={204: None})
async def patch_thread(ctx: Context, thread_id: UUID, body: ThreadPatch) -> Response:
    """Merge metadata into a thread's, or give it another lifetime; `Prefer: return=minimal` is answered with 204."""
    body = await ctx.get(Access).shape_thread(caller_of(ctx), "update", thread_id, body, PATCHED)
    is_minimal = "return=minimal" in ctx.request.headers.get("prefer", "")
    thread = await records.patch_thread(ctx.db, thread_id, body, is_shown=not is_minimal)
    if is_minimal:
        return Response(status_code=204, headers={"Preference-Applied": "return=minimal"})
    return encode_response(thread, 200)


@routes.delete("/threads/{thread_id}", raises=(ThreadNotFound,), status=204)
async def delete_thread(ctx: Context, thread_id: UUID) -> None:
    """Delete a thread with its runs and checkpoints."""
    await ctx.get(Access).see_thread(caller_of(ctx), "delete", thread_id)
    if await records.delete_thread(ctx.db, thread_id):
        ctx.get(Runs).tell_workers()
    ctx.get(Hub).forget(thread_id)


@routes.post("/threads/{thread_id}/copy", raises=(ThreadNotFound,))
async def copy_thread(ctx: Context, thread_id: UUID) -> Thread:
    """Copy a thread with its metadata, values and whole history."""
    copied = await ctx.get(Access).copy_thread(caller_of(ctx), thread_id)
    return await records.copy_thread(ctx.db, thread_id, *copied)


@routes.get("/threads/{thread_id}/storage", raises=(ThreadNotFound,))
async def measure_thread(ctx: Context, thread_id: UUID) -> ThreadStorage:
    """Tell what a thread's memory takes in the database."""
    await ctx.get(Access).see_thread(caller_of(ctx), "read", thread_id)
    return await records.measure_storage(ctx.db, thread_id)
