"""Threads: made, found, changed, copied and deleted.

Their state is looked after by `states`, and `lifetimes` deletes or prunes those that nobody has used for long.
"""

from typing import Any, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET

from portside.agent.sql import sql
from portside.agent.threads.paths import parse_paths
from portside.agent.types.access import Filter
from portside.agent.types.pages import Page
from portside.agent.types.threads import (
    ChannelSpace,
    ChannelValuesSpace,
    ShownTtl,
    Space,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadField,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    ThreadStorage,
    Ttl,
)
from portside.kernel.clock import iso
from portside.kernel.codec import load
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Conflict, NotFound
from portside.kernel.ids import uuid7

_ALL = frozenset(get_args(ThreadField)) - {"context"}
_MOMENTS = ("created_at", "updated_at", "state_updated_at")
_JSON = ("metadata", "config", "values", "interrupts", "error")


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


async def create_thread(db: Database, request: ThreadCreate, seen: Filter | None = None) -> Thread:
    """Make a thread, or return the one that is there, and seen, when the request allows it. Raises ThreadExists."""
    thread_id = request.thread_id or uuid7()
    made = await insert_thread(db, thread_id, request)
    return made or await existing_thread(db, thread_id, request, seen)


async def insert_thread(session: Session, thread_id: UUID, request: ThreadCreate) -> Thread | None:
    """Make a thread; None when there is one with this id."""
    values = {"thread_id": thread_id, "metadata": request.metadata or {}, **_lifetime(request.ttl)}
    row = await session.fetchrow(sql.insert_thread, **values)
    return _shown(row) if row else None


async def existing_thread(db: Database, thread_id: UUID, request: ThreadCreate, seen: Filter | None = None) -> Thread:
    """Return the thread that stood in the way of a new one, if it is seen and the request allows it.

    Raises ThreadExists.
    """
    is_seen = seen is None or await db.fetchval(sql.thread_fits, thread_id=thread_id, access=seen)
    if request.if_exists != "do_nothing" or not is_seen:
        raise ThreadExists(f"Thread with ID {thread_id} already exists")
    return await get_thread(db, thread_id)


async def get_thread(db: Session, thread_id: UUID, *, with_ttl: bool = False) -> Thread:
    """Return a thread. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.get_thread, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)
    thread = _shown(row)
    if with_ttl and row["ttl_minutes"] is not None:
        thread.ttl = ShownTtl(row["ttl_strategy"], row["ttl_minutes"], iso(row["expires_at"]))
    return thread


async def open_questions(db: Session, thread_id: UUID) -> list[str]:
    """Return the ids of the interrupts that a thread waits at; none while a run goes on, or without a thread."""
    row = await db.fetchrow(sql.open_questions, thread_id=thread_id)
    interrupts = None if row is None or row["interrupts"] is None else load(row["interrupts"])
    return [question["id"] for questions in (interrupts or {}).values() for question in questions]


async def search_threads(db: Database, query: ThreadSearch, seen: Filter | None = None) -> Page[Thread]:
    """Find threads that match and are seen, in the order that was asked for.

    Raises Invalid for a path without sense.
    """
    fields = frozenset(query.select or _ALL)
    rows = await db.fetch(
        sql.search_threads,
        ids=query.ids or None,
        metadata=query.metadata or None,
        values=query.values or None,
        status=query.status,
        sort=f"{query.sort_by or 'updated_at'} {query.sort_order or 'desc'}",
        limit=query.limit or 10,
        offset=query.offset or 0,
        fields=list(fields),
        extract=parse_paths(query.extract),
        access=seen,
    )
    # A thread may be deleted while it is being found.
    threads = [_shown(row, fields) for row in rows if row["thread_id"] is not None]
    return Page(threads, rows[0]["total"])


async def count_threads(db: Database, query: ThreadCount, seen: Filter | None = None) -> int:
    """Count the threads that match and are seen."""
    wanted = {"metadata": query.metadata or None, "values": query.values or None}
    count: int = await db.fetchval(sql.count_threads, **wanted, status=query.status, access=seen)
    return count


async def patch_thread(db: Database, thread_id: UUID, patch: ThreadPatch, *, is_shown: bool = True) -> Thread:
    """Merge metadata into a thread's and give it another lifetime; values are read only to be shown.

    Raises ThreadNotFound.
    """
    values = {"thread_id": thread_id, "metadata": patch.metadata, **_lifetime(patch.ttl)}
    row = await db.fetchrow(sql.patch_thread, **values, is_shown=is_shown)
    if row is None:
        raise ThreadNotFound.of(thread_id)
    return _shown(row)


async def delete_thread(db: Database, thread_id: UUID) -> bool:
    """Delete a thread with its runs and checkpoints, and return whether a run was under way, which stops.

    Its worker learns of that with the next renewal of the lease, unless it is told. Raises ThreadNotFound.
    """
    had_runs: bool | None = await db.fetchval(sql.delete_thread, thread_id=thread_id)
    if had_runs is None:
        raise ThreadNotFound.of(thread_id)
    return had_runs


async def copy_thread(
    db: Database, thread_id: UUID, target: UUID | None = None, metadata: dict[str, Any] | None = None
) -> Thread:
    """Copy a thread with its metadata, unless it gets other, its values and whole history, but not its runs.

    Raises ThreadNotFound.
    """
    target = target or uuid7()
    async with db.transaction(isolation="repeatable_read") as tx:
        row = await tx.fetchrow(sql.copy_thread, source=thread_id, target=target, metadata=metadata)
        if row is None:
            raise ThreadNotFound.of(thread_id)
        await tx.execute(sql.copy_checkpoints, source=str(thread_id), target=str(target))
    return _shown(row)


async def prune_threads(db: Database, request: ThreadPrune) -> int:
    """Delete threads, or all but their latest checkpoints; return how many. Those with a run are left as they are."""
    if request.strategy != "keep_latest":
        return await db.execute(sql.prune_threads, thread_ids=request.thread_ids)
    async with db.transaction() as tx:
        rows = await tx.fetch(sql.lock_idle_threads, thread_ids=request.thread_ids)
        await tx.execute(sql.keep_latest_checkpoints, thread_ids=[row["thread_id"] for row in rows])
    return len(rows)


async def measure_storage(db: Database, thread_id: UUID) -> ThreadStorage:
    """Measure what a thread's memory takes in the database. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.thread_storage, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)
    channels = msgspec.convert(row["channels"] or {}, dict[str, ChannelSpace])
    versions = sum(channel.versions for channel in channels.values())
    value_bytes = sum(channel.bytes for channel in channels.values())
    return ThreadStorage(
        thread_id=thread_id,
        total_bytes=row["checkpoint_bytes"] + value_bytes + row["write_bytes"],
        checkpoints=Space(row["checkpoints"], row["checkpoint_bytes"]),
        channel_values=ChannelValuesSpace(versions, value_bytes, channels),
        pending_writes=Space(row["writes"], row["write_bytes"]),
    )


def _lifetime(ttl: Ttl | float | None) -> dict[str, Any]:
    """Read a lifetime; a number of minutes alone means that the thread is deleted then."""
    if ttl is None:
        return {"ttl_minutes": None, "ttl_strategy": None}
    given = ttl if isinstance(ttl, Ttl) else Ttl(ttl)
    return {"ttl_minutes": given.ttl, "ttl_strategy": given.strategy or "delete"}


def _shown(row: Record, fields: frozenset[str] = _ALL) -> Thread:
    """Show a row, or the fields of it that were selected; JSON is passed on as it is."""
    shown: dict[str, Any] = {name: row[name] for name in ("thread_id", "status") if name in fields}
    shown.update({name: iso(row[name]) for name in _MOMENTS if name in fields})
    for name in _JSON:
        if name in fields:
            shown[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
    if row["interrupts"] is None:
        # Neither is known before the first run or change of the state has ended.
        shown.update({name: UNSET for name in ("interrupts", "error") if shown.get(name) is None})
    if "context" in fields:
        shown["context"] = {}
    if row.get("extracted") is not None:
        shown["extracted"] = msgspec.Raw(row["extracted"].encode())
    return Thread(**shown)
