"""Threads: created, found, changed, copied and deleted, also at the end of their lifetime.

`states` reads and changes their state. A search may return values at paths such as `values.messages[-1].content`.
"""

import re
from collections.abc import Mapping
from typing import Any, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET

from portside.agent.config import ThreadTtl
from portside.agent.encryption.codec import find_encryptor
from portside.agent.encryption.rebinding import rebind_checkpoints
from portside.agent.rows import SearchPage
from portside.agent.sql import sql
from portside.agent.threads.long_values import find_matching_threads, with_long_values
from portside.agent.types.access import Filter
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
from portside.kernel.clock import in_utc, iso, now
from portside.kernel.codec import load
from portside.kernel.db import Database, Session
from portside.kernel.errors import Conflict, Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task

_ALL = frozenset(get_args(ThreadField)) - {"context"}
_TIMES = ("created_at", "updated_at", "state_updated_at")
_JSON = ("metadata", "config", "values", "interrupts", "error")
PATH_ROOTS = ("values", "metadata", "config", "interrupts")
MAX_PATH_CHARACTERS = 1000
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9})\]")
# A thousand years; Postgres cannot represent the expiry of much longer lifetimes.
MAX_TTL_MINUTES = 525_600_000.0
# Histories are pruned under the locks of their threads; a batch of this size blocks others for less than a second.
PRUNE_BATCH = 50


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


async def create_thread(db: Database, request: ThreadCreate, visible: Filter | None = None) -> Thread:
    """Create a thread, or return the existing one if the request allows it and the filter matches.

    Raises ThreadExists.
    """
    thread_id = request.thread_id or uuid7()
    thread = await insert_thread(db, thread_id, request)
    if thread is None:
        return await get_existing_thread(db, thread_id, request, visible=visible)

    if request.created_at or request.updated_at:
        await restore_times(db, thread_id, request)
        return await get_thread(db, thread_id)

    return thread


async def insert_thread(session: Session, thread_id: UUID, request: ThreadCreate) -> Thread | None:
    """Create a thread; return None if there is one with this id."""
    values = {"thread_id": thread_id, "metadata": request.metadata or {}, **_to_lifetime_columns(request.ttl)}
    row = await session.fetchrow(sql.insert_thread, **values)
    return _to_thread(row) if row else None


async def restore_times(session: Session, thread_id: UUID, request: ThreadCreate) -> None:
    """Give a new thread the times that it had at another server, as far as the request has them.

    The lifetime of a thread counts from its last change here.
    """
    times = [request.created_at, request.updated_at]
    if any(times):
        created_at, updated_at = [None if time is None else min(in_utc(time), now()) for time in times]
        await session.execute(
            sql.restore_thread_times, thread_id=thread_id, created_at=created_at, updated_at=updated_at
        )


async def get_existing_thread(
    db: Database, thread_id: UUID, request: ThreadCreate, visible: Filter | None = None
) -> Thread:
    """Return the existing thread of an id, if the request allows it and the filter matches.

    Raises ThreadExists.
    """
    is_visible = visible is None or await db.fetchval(sql.thread_matches, thread_id=thread_id, access=visible)
    if request.if_exists != "do_nothing" or not is_visible:
        raise ThreadExists(f"Thread with ID {thread_id} already exists")

    return await get_thread(db, thread_id)


async def get_thread(db: Session, thread_id: UUID, *, with_ttl: bool = False) -> Thread:
    """Return a thread. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.get_thread, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)

    [complete] = await with_long_values(db, [row])
    thread = _to_thread(complete)
    if with_ttl and row["ttl_minutes"] is not None:
        thread.ttl = ShownTtl(row["ttl_strategy"], row["ttl_minutes"], iso(row["expires_at"]))

    return thread


async def list_pending_interrupts(db: Session, thread_id: UUID) -> list[str] | None:
    """Return the ids of the interrupts that a thread waits at; None if it is not interrupted or does not exist."""
    row = await db.fetchrow(sql.pending_interrupts, thread_id=thread_id)
    if row is None:
        return None

    interrupts = None if row["interrupts"] is None else load(row["interrupts"])
    return [interrupt["id"] for task in (interrupts or {}).values() for interrupt in task]


async def search_threads(db: Database, query: ThreadSearch, visible: Filter | None = None) -> SearchPage[Thread]:
    """Find the threads that match both the query and the filter.

    Raises Invalid for a bad path, and for a filter by a list that too many threads have.
    """
    fields = frozenset(query.select or _ALL)
    extract = parse_paths(query.extract)
    filters = _build_filters(query, visible) | {"ids": query.ids or None}

    rows = await db.fetch(
        sql.search_threads,
        **filters,
        sort=f"{query.sort_by or 'updated_at'} {query.sort_order or 'desc'}",
        limit=query.limit or 10,
        offset=query.offset or 0,
        fields=list(fields),
        extract=extract,
        matched_ids=await find_matching_threads(db, filters),
    )

    # The statement counts and reads in two steps, and a thread may be deleted between them.
    threads: list[Any] = [row for row in rows if row["thread_id"] is not None]
    if "values" in fields or extract:
        threads = await with_long_values(db, threads, extract, marks=True)

    return SearchPage([_to_thread(row, fields) for row in threads], rows[0]["total"])


async def count_threads(db: Database, query: ThreadCount, visible: Filter | None = None) -> int:
    """Count the threads that match both the query and the filter.

    Raises Invalid for a filter by a list that too many threads have.
    """
    filters = _build_filters(query, visible)
    matched_ids = await find_matching_threads(db, filters | {"ids": None})
    count: int = await db.fetchval(sql.count_threads, **filters, matched_ids=matched_ids)
    return count


def _build_filters(query: ThreadSearch | ThreadCount, visible: Filter | None) -> dict[str, Any]:
    return {
        "metadata": query.metadata or None,
        "values": query.values or None,
        "status": query.status,
        "access": visible,
    }


async def patch_thread(db: Database, thread_id: UUID, patch: ThreadPatch, *, returns_thread: bool = True) -> Thread:
    """Merge metadata into a thread's and change its lifetime. Raises ThreadNotFound.

    Without `returns_thread` the values of the returned thread are not read.
    """
    values = {"thread_id": thread_id, "metadata": patch.metadata, **_to_lifetime_columns(patch.ttl)}
    row = await db.fetchrow(sql.patch_thread, **values, is_returned=returns_thread)
    if row is None:
        raise ThreadNotFound.of(thread_id)

    [complete] = await with_long_values(db, [row])
    return _to_thread(complete)


async def delete_thread(db: Database, thread_id: UUID) -> bool:
    """Delete a thread with its runs and checkpoints; return whether it had an active run. Raises ThreadNotFound.

    The run's worker stops it at the next renewal of the lease, or earlier if it is notified.
    """
    had_runs: bool | None = await db.fetchval(sql.delete_thread, thread_id=thread_id)
    if had_runs is None:
        raise ThreadNotFound.of(thread_id)

    return had_runs


async def copy_thread(
    db: Database, thread_id: UUID, target: UUID | None = None, metadata: dict[str, Any] | None = None
) -> Thread:
    """Copy a thread with its values and whole history, but without its runs. Raises ThreadNotFound.

    The copy has the given metadata, or that of the original.
    """
    target = target or uuid7()
    async with db.transaction(isolation="repeatable_read") as tx:
        columns: dict[str, Any] = {"metadata": metadata, "config": None, "values": None}
        encryptor = find_encryptor(tx)
        if encryptor is not None:
            # Ciphertext is bound to its thread: decrypt here, and encrypt for the copy.
            original = await tx.fetchrow(sql.get_thread, thread_id=thread_id)
            if original is None:
                raise ThreadNotFound.of(thread_id)

            columns["metadata"] = load(original["metadata"]) if metadata is None else metadata
            columns["config"] = None if original["config"] is None else load(original["config"])
            columns["values"] = original["values"]

        row = await tx.fetchrow(sql.copy_thread, source=thread_id, target=target, **columns)
        if row is None:
            raise ThreadNotFound.of(thread_id)

        await tx.execute(sql.copy_checkpoints, source=str(thread_id), target=str(target))
        if encryptor is not None:
            await rebind_checkpoints(encryptor, tx, source=str(thread_id), target=str(target))

        [copy] = await with_long_values(tx, [row])

    return _to_thread(copy)


async def prune_threads(db: Database, request: ThreadPrune) -> list[UUID]:
    """Delete threads, or all but their latest checkpoints; return which. Threads with an active run are skipped."""
    if request.strategy != "keep_latest":
        rows = await db.fetch(sql.prune_threads, thread_ids=request.thread_ids)
        return [row["thread_id"] for row in rows]

    async with db.transaction() as tx:
        rows = await tx.fetch(sql.lock_idle_threads, thread_ids=request.thread_ids)
        await tx.execute(sql.keep_latest_checkpoints, thread_ids=[row["thread_id"] for row in rows])

    return [UUID(row["thread_id"]) for row in rows]


async def measure_storage(db: Database, thread_id: UUID) -> ThreadStorage:
    """Measure the storage of a thread's checkpoints in the database. Raises ThreadNotFound."""
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


def _to_lifetime_columns(ttl: Ttl | float | None) -> dict[str, Any]:
    """Return the columns of a lifetime; a number of minutes alone means that the thread is deleted after them."""
    if ttl is None:
        return {"ttl_minutes": None, "ttl_strategy": None}

    lifetime = ttl if isinstance(ttl, Ttl) else Ttl(ttl)
    return {"ttl_minutes": lifetime.ttl, "ttl_strategy": lifetime.strategy or "delete"}


def _to_thread(row: Any, fields: frozenset[str] = _ALL) -> Thread:
    """Return the thread of a row, or the selected fields of it; JSON is passed on unparsed."""
    values: dict[str, Any] = {name: row[name] for name in ("thread_id", "status") if name in fields}
    values.update({name: iso(row[name]) for name in _TIMES if name in fields})
    for name in _JSON:
        if name in fields:
            values[name] = None if row[name] is None else msgspec.Raw(row[name].encode())

    if row["interrupts"] is None:
        # Neither exists before the first run or change of the state has ended.
        values.update({name: UNSET for name in ("interrupts", "error") if values.get(name) is None})

    if "context" in fields:
        values["context"] = {}

    if row.get("extracted") is not None:
        values["extracted"] = msgspec.Raw(row["extracted"].encode())

    return Thread(**values)


def parse_paths(extract: Mapping[str, str] | None) -> list[dict[str, Any]] | None:
    """Split paths such as `values.messages[-1].content` for `search_threads`. Raises Invalid for a bad path."""
    if not extract:
        return None

    return [_parse_path(alias, path) for alias, path in extract.items()]


def _parse_path(alias: str, path: str) -> dict[str, Any]:
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    if root not in PATH_ROOTS:
        raise _invalid_path(alias, f"a path starts with one of {', '.join(PATH_ROOTS)}, not with {root[:40]!r}")

    steps = []
    position = len(root)
    while position < len(path) <= MAX_PATH_CHARACTERS:
        step = _PATH_STEP.match(path, position)
        if step is None:
            break

        steps.append(step[1] or step[2])
        position = step.end()

    if position != len(path):
        why = f"a path looks like values.messages[-1].content, in {MAX_PATH_CHARACTERS} characters or less"
        raise _invalid_path(alias, why)

    return {"alias": alias, "root": root, "path": steps}


def _invalid_path(alias: str, why: str) -> Invalid:
    return Invalid.field(["body", "extract", alias], why)


async def set_default_lifetime(db: Database, ttl: ThreadTtl) -> None:
    """Set the lifetime of threads that are created without one; existing threads keep theirs."""
    minutes = None if ttl.default_ttl is None else min(ttl.default_ttl, MAX_TTL_MINUTES)
    await db.execute(sql.set_default_lifetime, ttl_minutes=minutes, strategy=ttl.strategy)


class ExpiredThreads(Task):
    """Deletes threads at the end of their lifetime, or all but their latest checkpoint."""

    deletes = True

    def __init__(self, db: Database, ttl: ThreadTtl) -> None:
        super().__init__(every_s=ttl.sweep_interval_minutes * 60)
        self._db = db
        self._limit = ttl.sweep_limit

    async def activate(self) -> Status:
        """Delete one batch and prune one."""
        deleted_count = await self._db.execute(sql.delete_expired_threads, limit=self._limit)
        batch = min(self._limit, PRUNE_BATCH)
        pruned_count = await self._prune(batch)

        return Status(
            did={"deleted": deleted_count, "pruned": pruned_count},
            again=deleted_count == self._limit or pruned_count == batch,
        )

    async def _prune(self, batch: int) -> int:
        async with self._db.transaction() as tx:
            rows = await tx.fetch(sql.lock_threads_to_prune, limit=batch)
            thread_ids = [row["thread_id"] for row in rows]
            if thread_ids:
                await tx.execute(sql.keep_latest_checkpoints, thread_ids=thread_ids)
                await tx.execute(sql.note_pruned_threads, thread_ids=thread_ids)

        return len(thread_ids)
