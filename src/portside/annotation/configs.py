"""What feedback of a key means: kept and told; feedback is not judged by it."""

from typing import Any
from uuid import UUID

import msgspec

from portside.annotation.sql import sql
from portside.annotation.types import ConfigPatch, ConfigQuery, ConfigRequest, FeedbackConfig, FeedbackScale
from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.errors import BadRequest, Invalid, NotFound
from portside.kernel.http.routes import refuse_field


class ConfigNotFound(NotFound):
    """Feedback of this key has no configuration."""

    code = "feedback_config_not_found"


class ConfigDiffers(BadRequest):
    """Feedback of this key has another configuration already; change that one."""

    code = "feedback_config_differs"


async def create_config(db: Session, body: ConfigRequest, *, by: Actor) -> FeedbackConfig:
    """Say what feedback of a key means; the same once more changes nothing. Raises ConfigDiffers and Invalid."""
    if body.is_enforced:
        raise refuse_field("is_enforced", "feedback is not judged by configurations")
    _check(body.feedback_config)
    await db.execute(
        sql.create_config,
        workspace_id=by.workspace_id,
        feedback_key=body.feedback_key,
        feedback_config=msgspec.to_builtins(body.feedback_config),
        is_lower_score_better=bool(body.is_lower_score_better),
    )
    kept = await _show(db, body.feedback_key, by=by)
    same_direction = body.is_lower_score_better in {None, kept.is_lower_score_better}
    if kept.feedback_config != body.feedback_config or not same_direction:
        raise ConfigDiffers
    return kept


async def list_configs(db: Session, query: ConfigQuery, *, by: Actor) -> list[FeedbackConfig]:
    """List the configurations of the workspace by their keys."""
    fields: dict[str, Any] = msgspec.structs.asdict(query)
    keys = fields.pop("key")
    rows = await db.fetch(sql.list_configs, workspace_id=by.workspace_id, keys=keys, **fields)
    return [msgspec.convert(dict(row), FeedbackConfig) for row in rows]


async def update_config(db: Session, patch: ConfigPatch, *, by: Actor) -> FeedbackConfig:
    """Change a configuration. Raises ConfigNotFound and Invalid."""
    if patch.feedback_config is not None:
        _check(patch.feedback_config)
    if await db.fetchval(sql.update_config, workspace_id=by.workspace_id, **msgspec.to_builtins(patch)) is None:
        raise ConfigNotFound
    return await _show(db, patch.feedback_key, by=by)


async def delete_config(db: Session, feedback_key: str, *, by: Actor) -> None:
    """Delete a configuration; feedback stays. Raises ConfigNotFound."""
    if await db.fetchval(sql.delete_config, workspace_id=by.workspace_id, feedback_key=feedback_key) is None:
        raise ConfigNotFound


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete all queues and configurations of a workspace."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)


async def _show(db: Session, feedback_key: str, *, by: Actor) -> FeedbackConfig:
    found = await list_configs(db, ConfigQuery(key=[feedback_key]), by=by)
    if not found:
        raise ConfigNotFound
    return found[0]


def _check(scale: FeedbackScale) -> None:
    where = ["body", "feedback_config"]
    if (scale.type == "categorical") != bool(scale.categories):
        raise Invalid.field([*where, "categories"], "are for categorical feedback, which needs them")
    if scale.type != "continuous" and (scale.min is not None or scale.max is not None):
        raise Invalid.field([*where, "min"], "and max are for continuous feedback")
    if scale.min is not None and scale.max is not None and scale.min > scale.max:
        raise Invalid.field([*where, "min"], "must not be above max")
