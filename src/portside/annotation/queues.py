"""Annotation queues and the runs in them, and configurations that describe the feedback of a key.

Adding a run to a queue makes its trace long-lived. A deleted run leaves all queues. Configurations are stored and
returned; feedback is not validated against them.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.annotation.sql import sql
from portside.annotation.types import (
    ConfigPatch,
    ConfigQuery,
    ConfigRequest,
    FeedbackConfig,
    FeedbackScale,
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
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotFound
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.tracing.attachments import DownloadLinks
from portside.tracing.fields import to_utc
from portside.tracing.retention import extend_traces
from portside.tracing.runs import EVERYTHING, get_runs

LAST_INDEX = 1_000_000_000
_IS_REVIEWED = {None: None, "needs_my_review": False, "completed": True}


class QueueNotFound(NotFound):
    """No annotation queue with this id exists in the workspace."""

    code = "annotation_queue_not_found"


class QueueExists(Conflict):
    """An annotation queue with this id exists already; send another id, or none."""

    code = "annotation_queue_exists"


class NotQueued(NotFound):
    """The run is not in the queue."""

    code = "run_not_queued"


async def create_queue(db: Session, body: QueueRequest, *, by: Actor) -> Queue:
    """Create a queue. Raises QueueExists."""
    queue_id = body.id or uuid7()
    fields = {**msgspec.to_builtins(body), "id": queue_id}
    if await db.fetchval(sql.create_queue, workspace_id=by.workspace_id, **fields) is None:
        raise QueueExists

    return await get_queue(db, queue_id, by=by)


async def list_queues(db: Session, query: QueueQuery, *, by: Actor) -> list[Queue]:
    """List the queues of the workspace, newest first."""
    rows = await db.fetch(sql.list_queues, workspace_id=by.workspace_id, **msgspec.structs.asdict(query))
    return [msgspec.convert(dict(row), Queue) for row in rows]


async def get_queue(db: Session, queue_id: UUID, *, by: Actor) -> Queue:
    """Return a queue. Raises QueueNotFound."""
    queues = await list_queues(db, QueueQuery(ids=[queue_id]), by=by)
    if not queues:
        raise QueueNotFound

    return queues[0]


async def update_queue(db: Session, queue_id: UUID, patch: QueuePatch, *, by: Actor) -> Queue:
    """Change a queue. Raises QueueNotFound."""
    fields = msgspec.to_builtins(patch)
    if await db.fetchval(sql.update_queue, workspace_id=by.workspace_id, id=queue_id, **fields) is None:
        raise QueueNotFound

    return await get_queue(db, queue_id, by=by)


async def delete_queue(db: Session, queue_id: UUID, *, by: Actor) -> None:
    """Delete a queue; its runs stay. Raises QueueNotFound."""
    if await db.fetchval(sql.delete_queue, workspace_id=by.workspace_id, id=queue_id) is None:
        raise QueueNotFound


async def add_runs(db: Database, queue_id: UUID, run_ids: Sequence[UUID], *, by: Actor) -> list[QueuedRun]:
    """Append runs to a queue; a run that is in it keeps its position. Raises QueueNotFound and Invalid."""
    await get_queue(db, queue_id, by=by)
    ids = list(dict.fromkeys(run_ids))
    rows = await db.fetch(sql.known_runs, workspace_id=by.workspace_id, run_ids=ids)
    existing_ids = {row["id"] for row in rows}
    if unknown_ids := [run_id for run_id in ids if run_id not in existing_ids]:
        raise Invalid.field(["body"], f"no run {unknown_ids[0]} exists in this workspace")

    where = {"workspace_id": by.workspace_id, "queue_id": queue_id}
    async with db.transaction() as tx:
        if await tx.fetchval(sql.keep_queue, **where) is None:
            raise QueueNotFound

        await tx.execute(sql.queue_runs, **where, run_ids=ids)
        await extend_traces(tx, by.workspace_id, ids)
        page = {"run_ids": ids, "is_reviewed": None, "limit": len(ids), "offset": 0}
        rows = await tx.fetch(sql.queued_runs, **where, **page)

    return [QueuedRun(id=row["run_id"], queue_id=queue_id, **dict(row)) for row in rows]


async def list_runs(
    db: Session, queue_id: UUID, query: QueuedRunsQuery, links: DownloadLinks, *, by: Actor
) -> list[dict[str, Any]]:
    """Return runs of a queue in the order of their addition, with its time. Raises QueueNotFound and Invalid."""
    if query.status == "needs_others_review":
        raise Invalid.field(
            ["query", "status"],
            "this server does not assign reviewers, so it does not know whose review a run waits for",
            "not_supported",
        )

    await get_queue(db, queue_id, by=by)
    rows = await db.fetch(
        sql.queued_runs,
        workspace_id=by.workspace_id,
        queue_id=queue_id,
        run_ids=None,
        is_reviewed=_IS_REVIEWED[query.status],
        limit=query.limit,
        offset=query.offset,
    )

    fields = ["feedback_stats"] if query.exclude_values else list(EVERYTHING)
    return await _to_items(db, by.workspace_id, rows, fields, links)


async def get_run(db: Session, queue_id: UUID, index: int, links: DownloadLinks, *, by: Actor) -> dict[str, Any]:
    """Return the run at an index of the queue, counted from 0. Raises QueueNotFound and NotQueued."""
    if not 0 <= index <= LAST_INDEX:
        raise NotQueued

    runs = await list_runs(db, queue_id, QueuedRunsQuery(limit=1, offset=index), links, by=by)
    if not runs:
        raise NotQueued

    return runs[0]


async def count_runs(db: Session, queue_id: UUID, *, by: Actor) -> QueueSize:
    """Return the number of runs in a queue. Raises QueueNotFound."""
    await get_queue(db, queue_id, by=by)
    row = await db.fetchrow(sql.count_queued_runs, workspace_id=by.workspace_id, queue_id=queue_id)
    return QueueSize(**dict(row or {"size": 0, "completed": 0}))


async def review_run(db: Session, queue_id: UUID, run_id: UUID, review: Review, *, by: Actor) -> None:
    """Store when a run was reviewed. Raises NotQueued and Invalid."""
    where = {"workspace_id": by.workspace_id, "queue_id": queue_id, "run_id": run_id}
    reviewed_at = review.last_reviewed_time
    if reviewed_at is not None:
        reviewed_at = to_utc(reviewed_at, "last_reviewed_time")

    if await db.fetchval(sql.review_run, **where, last_reviewed_time=reviewed_at) is None:
        raise NotQueued


async def remove_run(db: Session, queue_id: UUID, run_id: UUID, *, by: Actor) -> None:
    """Remove a run from a queue. Raises NotQueued."""
    where = {"workspace_id": by.workspace_id, "queue_id": queue_id, "run_id": run_id}
    if await db.fetchval(sql.unqueue_run, **where) is None:
        raise NotQueued


async def _to_items(
    db: Session, workspace_id: UUID, rows: Sequence[Record], fields: list[str], links: DownloadLinks
) -> list[dict[str, Any]]:
    rows_by_run = {row["run_id"]: row for row in rows}
    items = []
    for run in await get_runs(db, workspace_id, list(rows_by_run), fields, links):
        row = rows_by_run[run.id]
        review = {"added_at": row["added_at"], "last_reviewed_time": row["last_reviewed_time"]}
        items.append({**msgspec.structs.asdict(run), **review})

    return items


class ConfigNotFound(NotFound):
    """Feedback of this key has no configuration."""

    code = "feedback_config_not_found"


class ConfigDiffers(BadRequest):
    """Feedback of this key has a different configuration already; change that one."""

    code = "feedback_config_differs"


async def create_config(db: Session, body: ConfigRequest, *, by: Actor) -> FeedbackConfig:
    """Create the configuration of a key; the same one again changes nothing. Raises ConfigDiffers and Invalid."""
    if body.is_enforced:
        raise refuse_field("is_enforced", "feedback is not validated against configurations")

    _check_scale(body.feedback_config)
    await db.execute(
        sql.create_config,
        workspace_id=by.workspace_id,
        feedback_key=body.feedback_key,
        feedback_config=msgspec.to_builtins(body.feedback_config),
        is_lower_score_better=bool(body.is_lower_score_better),
    )

    config = await _get_config(db, body.feedback_key, by=by)
    same_direction = body.is_lower_score_better in {None, config.is_lower_score_better}
    if config.feedback_config != body.feedback_config or not same_direction:
        raise ConfigDiffers

    return config


async def list_configs(db: Session, query: ConfigQuery, *, by: Actor) -> list[FeedbackConfig]:
    """List the configurations of the workspace, sorted by key."""
    fields: dict[str, Any] = msgspec.structs.asdict(query)
    keys = fields.pop("key")
    rows = await db.fetch(sql.list_configs, workspace_id=by.workspace_id, keys=keys, **fields)
    return [msgspec.convert(dict(row), FeedbackConfig) for row in rows]


async def update_config(db: Session, patch: ConfigPatch, *, by: Actor) -> FeedbackConfig:
    """Change a configuration. Raises ConfigNotFound and Invalid."""
    if patch.feedback_config is not None:
        _check_scale(patch.feedback_config)

    if await db.fetchval(sql.update_config, workspace_id=by.workspace_id, **msgspec.to_builtins(patch)) is None:
        raise ConfigNotFound

    return await _get_config(db, patch.feedback_key, by=by)


async def delete_config(db: Session, feedback_key: str, *, by: Actor) -> None:
    """Delete a configuration; feedback stays. Raises ConfigNotFound."""
    if await db.fetchval(sql.delete_config, workspace_id=by.workspace_id, feedback_key=feedback_key) is None:
        raise ConfigNotFound


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete all queues and configurations of a workspace."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)


async def _get_config(db: Session, feedback_key: str, *, by: Actor) -> FeedbackConfig:
    configs = await list_configs(db, ConfigQuery(key=[feedback_key]), by=by)
    if not configs:
        raise ConfigNotFound

    return configs[0]


def _check_scale(scale: FeedbackScale) -> None:
    where = ["body", "feedback_config"]
    if (scale.type == "categorical") != bool(scale.categories):
        raise Invalid.field([*where, "categories"], "must be given for categorical feedback, and only for it")
    if scale.type != "continuous" and (scale.min is not None or scale.max is not None):
        raise Invalid.field([*where, "min"], "can only be set for continuous feedback, as can max")
    if scale.min is not None and scale.max is not None and scale.min > scale.max:
        raise Invalid.field([*where, "min"], "must not be above max")
