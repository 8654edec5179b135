"""Threads over HTTP."""

from uuid import UUID

from portside.agent.http.paging import show_page
from portside.agent.threads import records
from portside.agent.threads.records import ThreadExists, ThreadNotFound
from portside.agent.types.threads import Thread, ThreadCreate, ThreadPatch, ThreadSearch
from portside.kernel.http.routes import Context, Routes, refuse_field

routes = Routes("threads")
NOT_YET = ("ttl", "supersteps", "ids", "values", "select", "extract")


@routes.post("/threads", raises=(ThreadExists,))
async def create_thread(ctx: Context, body: ThreadCreate) -> Thread:
    """Make a thread."""
    _refuse_unsupported(body)
    return await records.create_thread(ctx.db, body)


@routes.post("/threads/search")
async def search_threads(ctx: Context, body: ThreadSearch) -> list[Thread]:
    """List the threads that match, last updated first."""
    _refuse_unsupported(body)
    return show_page(ctx, await records.search_threads(ctx.db, body), body.offset)


@routes.get("/threads/{thread_id}", raises=(ThreadNotFound,))
async def get_thread(ctx: Context, thread_id: UUID) -> Thread:
    """Return a thread with its last values."""
    return await records.get_thread(ctx.db, thread_id)


@routes.patch("/threads/{thread_id}", raises=(ThreadNotFound,))
async def patch_thread(ctx: Context, thread_id: UUID, body: ThreadPatch) -> Thread:
    """Merge metadata into a thread's."""
    _refuse_unsupported(body)
    return await records.patch_thread(ctx.db, thread_id, body)


@routes.delete("/threads/{thread_id}", raises=(ThreadNotFound,), status=204)
async def delete_thread(ctx: Context, thread_id: UUID) -> None:
    """Delete a thread with its runs and checkpoints."""
    await records.delete_thread(ctx.db, thread_id)


def _refuse_unsupported(body: ThreadCreate | ThreadSearch | ThreadPatch) -> None:
    """Refuse documented fields that are not acted on yet; an empty one asks for nothing."""
    for name in NOT_YET:
        if getattr(body, name, None):
            raise refuse_field(name, "not available yet")
