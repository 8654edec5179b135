"""Annotation queues: made, found, changed and deleted, and the runs that wait in them.

A run that is put into a queue makes its trace long-lived (contract: hosted API, section h). A run that is deleted is in
no queue any more.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.annotation.sql import sql
from portside.annotation.types import (
    Queue,
    QueuedRun,
    QueuedRunsQuery,
    QueuePatch,
    QueueQuery,
    QueueRequest,
    QueueSize,
    Review,
)
from portside.identity.types import Actor
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Conflict, Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.tracing.attachments import Links
from portside.tracing.retention import extend_traces
from portside.tracing.runs import EVERYTHING, show_runs

LAST_INDEX = 1_000_000_000
_IS_REVIEWED = {None: None, "needs_my_review": False, "completed": True}


class QueueNotFound(NotFound):
    """No annotation queue with this id exists in the workspace."""

    code = "annotation_queue_not_found"


class QueueExists(Conflict):
    """An annotation queue with this id exists already."""

    code = "annotation_queue_exists"


class NotQueued(NotFound):
    """The queue has no such run."""

    code = "run_not_queued"


async def create_queue(db: Session, body: QueueRequest, *, by: Actor) -> Queue:
    """Make a queue. Raises QueueExists."""
    queue_id = body.id or uuid7()
    fields = {**msgspec.to_builtins(body), "id": queue_id}
    if await db.fetchval(sql.create_queue, workspace_id=by.workspace_id, **fields) is None:
        raise QueueExists
    return await show_queue(db, queue_id, by=by)


async def list_queues(db: Session, query: QueueQuery, *, by: Actor) -> list[Queue]:
    """List the queues of the workspace, newest first."""
    rows = await db.fetch(sql.list_queues, workspace_id=by.workspace_id, **msgspec.structs.asdict(query))
    return [msgspec.convert(dict(row), Queue) for row in rows]


async def show_queue(db: Session, queue_id: UUID, *, by: Actor) -> Queue:
    """Return a queue. Raises QueueNotFound."""
    found = await list_queues(db, QueueQuery(ids=[queue_id]), by=by)
    if not found:
        raise QueueNotFound
    return found[0]


async def update_queue(db: Session, queue_id: UUID, patch: QueuePatch, *, by: Actor) -> Queue:
    """Change what is said about a queue. Raises QueueNotFound."""
    fields = msgspec.to_builtins(patch)
    if await db.fetchval(sql.update_queue, workspace_id=by.workspace_id, id=queue_id, **fields) is None:
        raise QueueNotFound
    return await show_queue(db, queue_id, by=by)


async def delete_queue(db: Session, queue_id: UUID, *, by: Actor) -> None:
    """Delete a queue; its runs stay. Raises QueueNotFound."""
    if await db.fetchval(sql.delete_queue, workspace_id=by.workspace_id, id=queue_id) is None:
        raise QueueNotFound


async def add_runs(db: Database, queue_id: UUID, run_ids: Sequence[UUID], *, by: Actor) -> list[QueuedRun]:
    """Put runs at the end of a queue; one that is in it keeps its place. Raises QueueNotFound and Invalid."""
    await show_queue(db, queue_id, by=by)
    ids = list(dict.fromkeys(run_ids))
    known = {row["id"] for row in await db.fetch(sql.known_runs, workspace_id=by.workspace_id, run_ids=ids)}
    if unknown := [run_id for run_id in ids if run_id not in known]:
        raise Invalid.field(["body"], f"there is no run {unknown[0]}")
    where = {"workspace_id": by.workspace_id, "queue_id": queue_id}
    async with db.transaction() as tx:
        await tx.execute(sql.queue_runs, **where, run_ids=ids)
        await extend_traces(tx, by.workspace_id, ids)
        page = {"run_ids": ids, "is_reviewed": None, "limit": len(ids), "offset": 0}
        rows = await tx.fetch(sql.queued_runs, **where, **page)
    return [QueuedRun(id=row["run_id"], queue_id=queue_id, **dict(row)) for row in rows]


async def list_runs(
    db: Session, queue_id: UUID, query: QueuedRunsQuery, links: Links, *, by: Actor
) -> list[dict[str, Any]]:
    """Return runs of a queue in the order they came, with when that was. Raises QueueNotFound and Invalid."""
    if query.status == "needs_others_review":
        raise Invalid.field(["query", "status"], "it is not known whose review a run waits for", "not_supported")
    await show_queue(db, queue_id, by=by)
    rows = await db.fetch(
        sql.queued_runs,
        workspace_id=by.workspace_id,
        queue_id=queue_id,
        run_ids=None,
        is_reviewed=_IS_REVIEWED[query.status],
        limit=query.limit,
        offset=query.offset,
    )
    return await _shown(db, by.workspace_id, rows, links)


async def show_run(db: Session, queue_id: UUID, index: int, links: Links, *, by: Actor) -> dict[str, Any]:
    """Return the run at a place in the queue, counted from 0. Raises QueueNotFound and NotQueued."""
    if not 0 <= index <= LAST_INDEX:
        raise NotQueued
    found = await list_runs(db, queue_id, QueuedRunsQuery(limit=1, offset=index), links, by=by)
    if not found:
        raise NotQueued
    return found[0]


async def count_runs(db: Session, queue_id: UUID, *, by: Actor) -> QueueSize:
    """Return how many runs are in a queue. Raises QueueNotFound."""
    await show_queue(db, queue_id, by=by)
    return QueueSize(await db.fetchval(sql.count_queued_runs, workspace_id=by.workspace_id, queue_id=queue_id))


async def review_run(db: Session, queue_id: UUID, run_id: UUID, review: Review, *, by: Actor) -> None:
    """Write down when a run was reviewed. Raises NotQueued."""
    where = {"workspace_id": by.workspace_id, "queue_id": queue_id, "run_id": run_id}
    if await db.fetchval(sql.review_run, **where, last_reviewed_time=review.last_reviewed_time) is None:
        raise NotQueued


async def remove_run(db: Session, queue_id: UUID, run_id: UUID, *, by: Actor) -> None:
    """Take a run out of a queue. Raises NotQueued."""
    where = {"workspace_id": by.workspace_id, "queue_id": queue_id, "run_id": run_id}
    if await db.fetchval(sql.unqueue_run, **where) is None:
        raise NotQueued


async def _shown(db: Session, workspace_id: UUID, rows: Sequence[Record], links: Links) -> list[dict[str, Any]]:
    queued = {row["run_id"]: row for row in rows}
    runs = await show_runs(db, workspace_id, list(queued), list(EVERYTHING), links)
    return [
        {
            **msgspec.structs.asdict(run),
            "added_at": queued[run.id]["added_at"],
            "last_reviewed_time": queued[run.id]["last_reviewed_time"],
        }
        for run in runs
    ]
