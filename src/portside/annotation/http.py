"""The routes of annotation queues and feedback configurations."""

from typing import Any
from uuid import UUID

from portside.annotation import queues
from portside.annotation.queues import ConfigDiffers, ConfigNotFound, NotQueued, QueueExists, QueueNotFound
from portside.annotation.types import (
    ConfigKey,
    ConfigPatch,
    ConfigQuery,
    ConfigRequest,
    FeedbackConfig,
    Queue,
    QueuedRun,
    QueuedRunsQuery,
    QueuePatch,
    QueueQuery,
    QueueRequest,
    QueueSize,
    Review,
    RunIds,
    RunKeys,
)
from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.kernel.http.routes import RouteOptions
from portside.tracing.http.links import build_links
from portside.tracing.quotas import LonglivedLimitReached
from portside.tracing.services import Context, Routes

routes = Routes("annotation")
_QUEUE = "/annotation-queues/{queue_id}"
_WORK = Unrecorded("the work on a queue, which is data")
_READS: RouteOptions = {"permission": "annotation-queues:read", "raises": (QueueNotFound,)}
_ADDS: RouteOptions = {
    "permission": "annotation-queues:update",
    "raises": (QueueNotFound, Invalid, LonglivedLimitReached),
}


@routes.post(
    "/annotation-queues",
    permission="annotation-queues:create",
    raises=(QueueExists,),
    audit=Action("annotation_queue.create", id_query="create_queue"),
)
async def create_annotation_queue(ctx: Context, body: QueueRequest) -> Queue:
    """Create an annotation queue."""
    return await queues.create_queue(ctx.db, body, by=ctx.actor)


@routes.get("/annotation-queues", permission="annotation-queues:read")
async def list_annotation_queues(ctx: Context, query: QueueQuery) -> list[Queue]:
    """List annotation queues, newest first."""
    return await queues.list_queues(ctx.db, query, by=ctx.actor)


@routes.get(_QUEUE, **_READS)
async def get_annotation_queue(ctx: Context, queue_id: UUID) -> Queue:
    """Return an annotation queue."""
    return await queues.get_queue(ctx.db, queue_id, by=ctx.actor)


@routes.patch(
    _QUEUE, permission="annotation-queues:update", raises=(QueueNotFound,), audit=Action("annotation_queue.update")
)
async def update_annotation_queue(ctx: Context, queue_id: UUID, body: QueuePatch) -> Queue:
    """Change an annotation queue; null leaves a field unchanged."""
    return await queues.update_queue(ctx.db, queue_id, body, by=ctx.actor)


@routes.delete(
    _QUEUE,
    permission="annotation-queues:delete",
    raises=(QueueNotFound,),
    status=204,
    audit=Action("annotation_queue.delete"),
)
async def delete_annotation_queue(ctx: Context, queue_id: UUID) -> None:
    """Delete an annotation queue; its runs stay."""
    await queues.delete_queue(ctx.db, queue_id, by=ctx.actor)


@routes.post(f"{_QUEUE}/runs", **_ADDS, audit=_WORK)
async def add_queued_runs(ctx: Context, queue_id: UUID, body: RunIds) -> list[QueuedRun]:
    """Append runs to a queue; their traces become long-lived."""
    await ctx.services.quotas.check_longlived(ctx.actor.workspace_id)
    return await queues.add_runs(ctx.db, queue_id, body, by=ctx.actor)


@routes.post(f"{_QUEUE}/runs/by-key", operation="queued_run_keys_add", **_ADDS, audit=_WORK)
async def add_runs_by_key(ctx: Context, queue_id: UUID, body: RunKeys) -> list[QueuedRun]:
    """Append runs to a queue, each sent with its project and start time; the id alone is used."""
    await ctx.services.quotas.check_longlived(ctx.actor.workspace_id)
    return await queues.add_runs(ctx.db, queue_id, [key.run_id for key in body], by=ctx.actor)


@routes.get(f"{_QUEUE}/runs", **_READS)
async def list_queued_runs(ctx: Context, queue_id: UUID, query: QueuedRunsQuery) -> list[dict[str, Any]]:
    """List the runs of a queue in the order of their addition."""
    return await queues.list_runs(ctx.db, queue_id, query, build_links(ctx), by=ctx.actor)


@routes.get(f"{_QUEUE}/run/{{index}}", permission="annotation-queues:read", raises=(QueueNotFound, NotQueued))
async def get_queued_run(ctx: Context, queue_id: UUID, index: int) -> dict[str, Any]:
    """Return the run at an index of a queue, counted from 0."""
    return await queues.get_run(ctx.db, queue_id, index, build_links(ctx), by=ctx.actor)


@routes.get(f"{_QUEUE}/size", **_READS)
async def count_queued_runs(ctx: Context, queue_id: UUID) -> QueueSize:
    """Return the number of runs in a queue, and of those that are completed."""
    return await queues.count_runs(ctx.db, queue_id, by=ctx.actor)


@routes.patch(
    f"{_QUEUE}/runs/{{run_id}}",
    permission="annotation-queues:update",
    raises=(NotQueued, Invalid),
    status=204,
    audit=_WORK,
)
async def review_queued_run(ctx: Context, queue_id: UUID, run_id: UUID, body: Review) -> None:
    """Store when a run of a queue was reviewed."""
    await queues.review_run(ctx.db, queue_id, run_id, body, by=ctx.actor)


@routes.delete(
    f"{_QUEUE}/runs/{{run_id}}",
    permission="annotation-queues:update",
    raises=(NotQueued,),
    status=204,
    audit=_WORK,
)
async def remove_queued_run(ctx: Context, queue_id: UUID, run_id: UUID) -> None:
    """Remove a run from a queue."""
    await queues.remove_run(ctx.db, queue_id, run_id, by=ctx.actor)


@routes.post(
    "/feedback-configs",
    permission="feedback:create",
    raises=(ConfigDiffers, Invalid),
    audit=Action("feedback_config.create", id_fields=("feedback_key",)),
)
async def create_feedback_config(ctx: Context, body: ConfigRequest) -> FeedbackConfig:
    """Create the configuration of a feedback key."""
    return await queues.create_config(ctx.db, body, by=ctx.actor)


@routes.get("/feedback-configs", permission="feedback:read")
async def list_feedback_configs(ctx: Context, query: ConfigQuery) -> list[FeedbackConfig]:
    """List the configurations of feedback keys."""
    return await queues.list_configs(ctx.db, query, by=ctx.actor)


@routes.patch(
    "/feedback-configs",
    permission="feedback:update",
    raises=(ConfigNotFound, Invalid),
    audit=Action("feedback_config.update", id_fields=("feedback_key",)),
)
async def update_feedback_config(ctx: Context, body: ConfigPatch) -> FeedbackConfig:
    """Change the configuration of a feedback key; null leaves a field unchanged."""
    return await queues.update_config(ctx.db, body, by=ctx.actor)


@routes.delete(
    "/feedback-configs",
    permission="feedback:delete",
    raises=(ConfigNotFound,),
    status=204,
    audit=Action("feedback_config.delete", id_fields=("feedback_key",)),
)
async def delete_feedback_config(ctx: Context, query: ConfigKey) -> None:
    """Delete the configuration of a feedback key; the feedback stays."""
    await queues.delete_config(ctx.db, query.feedback_key, by=ctx.actor)
