"""Threads: made, found, changed and deleted."""

from uuid import UUID

from portside.agent.rows import from_row
from portside.agent.sql import sql
from portside.agent.types.pages import Page
from portside.agent.types.threads import Thread, ThreadCreate, ThreadPatch, ThreadSearch
from portside.kernel.db import Database
from portside.kernel.errors import Conflict, NotFound
from portside.kernel.ids import uuid7


class ThreadNotFound(NotFound):
    """No thread with this id exists."""

    code = "thread_not_found"

    @classmethod
    def of(cls, thread_id: UUID) -> "ThreadNotFound":
        """Name the thread."""
        return cls(f"Thread with ID {thread_id} not found")


class ThreadExists(Conflict):
    """A thread with this id exists already; send if_exists=do_nothing to get it."""

    code = "thread_exists"


async def create_thread(db: Database, request: ThreadCreate) -> Thread:
    """Make a thread, or return the one that is there when the request allows it. Raises ThreadExists."""
    thread_id = request.thread_id or uuid7()
    row = await db.fetchrow(sql.insert_thread, thread_id=thread_id, metadata=request.metadata or {})
    if row is not None:
        return from_row(Thread, row)
    if request.if_exists != "do_nothing":
        raise ThreadExists(f"Thread with ID {thread_id} already exists")
    return await get_thread(db, thread_id)


async def get_thread(db: Database, thread_id: UUID) -> Thread:
    """Return a thread. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.get_thread, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)
    return from_row(Thread, row)


async def search_threads(db: Database, query: ThreadSearch) -> Page[Thread]:
    """Find threads that match, last updated first."""
    matching = {"metadata": query.metadata, "status": query.status}
    rows = await db.fetch(sql.search_threads, **matching, limit=query.limit, offset=query.offset)
    total = await db.fetchval(sql.count_threads, **matching)
    return Page([from_row(Thread, row) for row in rows], total)


async def patch_thread(db: Database, thread_id: UUID, patch: ThreadPatch) -> Thread:
    """Merge metadata into a thread's. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.patch_thread, thread_id=thread_id, metadata=patch.metadata or {})
    if row is None:
        raise ThreadNotFound.of(thread_id)
    return from_row(Thread, row)


async def delete_thread(db: Database, thread_id: UUID) -> None:
    """Delete a thread with its runs and checkpoints; a run under way stops. Raises ThreadNotFound."""
    if await db.fetchval(sql.delete_thread, thread_id=thread_id) is None:
        raise ThreadNotFound.of(thread_id)
