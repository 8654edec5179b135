"""Tracing projects: created on demand by name or by request, changed, deleted, and listed with statistics.

`control` creates a project for every deployment in its own transaction; ingest creates the projects that runs name.

Counts, latencies and error rates of a project are those of its traces (root runs); tokens, costs and feedback are those
of all runs. A list sorted by a statistic computes it for every matching project first.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from asyncpg import UniqueViolationError

from portside.kernel.clock import Moment
from portside.kernel.db import Session
from portside.kernel.errors import Conflict, Invalid, NotFound, Unavailable
from portside.kernel.http.json_validation import JSON_TEXT, NO_ITEMS, NOT_TRUE
from portside.kernel.ids import uuid7
from portside.tracing.conditions import ConditionBuilder, apply_condition, require_all
from portside.tracing.fields import read_query_object, to_utc
from portside.tracing.filters import PROJECT_FILTERS, compile_filter
from portside.tracing.rollups import RollupQuery
from portside.tracing.sql import sql
from portside.tracing.stats import (
    FeedbackStats,
    GroupKey,
    RunStats,
    StatsGrouping,
    compute_run_stats,
    compute_stats,
)
from portside.tracing.types import ProjectRef, TracerSession

DEFAULT_PROJECT = "default"
MAX_NAME_CHARS = 500
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
Sort = Literal[
    "name", "start_time", "last_run_start_time", "latency_p50", "latency_p99", "error_rate", "feedback", "runs_count"
]
_TRIES = 3
_WRITABLE = (
    "name",
    "description",
    "extra",
    "start_time",
    "default_dataset_id",
    "reference_dataset_id",
    "trace_tier",
)
_COLUMN_SORTS = frozenset({"name", "start_time"})
_NO_LIMIT = 2_000_000_000
_BY_PROJECT = StatsGrouping(attribute="project", limit=_NO_LIMIT)
_ROOT_STATS = (
    "run_count",
    "latency_p50",
    "latency_p99",
    "error_rate",
    "streaming_rate",
    "last_run_start_time",
)
_ALL_STATS = (
    "first_token_p50",
    "first_token_p99",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_cost",
    "completion_cost",
    "total_cost",
    "feedback_stats",
)


class ProjectContested(Unavailable):
    """Another request deletes the project at the same time; send the request again."""

    # Not a conflict (409): the tracing SDKs drop a batch that gets one, and send a batch again that gets a 503.

    code = "project_contested"


class ProjectExists(Conflict):
    """A project with this name or id exists already; choose another, or send upsert=true."""

    code = "project_exists"


class ProjectNotFound(NotFound):
    """Project not found"""  # noqa: D415 - the exact text that clients know

    code = "project_not_found"


class ProjectRequest(msgspec.Struct):
    """A project to create."""

    name: Name
    id: UUID | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: Moment | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class ProjectPatch(msgspec.Struct):
    """Changes of a project; null leaves a field unchanged."""

    name: Name | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class CreateQuery(msgspec.Struct):
    """Whether to change an existing project of the same name."""

    upsert: bool = False


class ProjectsToDelete(msgspec.Struct):
    """The projects to delete."""

    session_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


async def ensure_project(db: Session, workspace_id: UUID, name: str) -> ProjectRef:
    """Return the project with this name; create it if it does not exist.

    Raises Invalid for an invalid name, and ProjectContested.
    """
    ids = await ensure_projects(db, workspace_id, [name])
    return ProjectRef(id=ids[name], name=name)


async def ensure_projects(db: Session, workspace_id: UUID, names: Iterable[str]) -> dict[str, UUID]:
    """Return the ids of the projects with these names; create missing ones. Raises Invalid and ProjectContested."""
    distinct_names = sorted(set(names))
    for name in distinct_names:
        _check_name(name)

    for _ in range(_TRIES):
        rows = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=distinct_names)
        ids_by_name: dict[str, UUID] = {row["name"]: row["id"] for row in rows}
        missing_names = [name for name in distinct_names if name not in ids_by_name]
        if not missing_names:
            return ids_by_name

        ids = [uuid7() for _ in missing_names]
        await db.execute(sql.insert_projects, workspace_id=workspace_id, ids=ids, names=missing_names)

    raise ProjectContested


async def check_projects(db: Session, workspace_id: UUID, ids: set[UUID]) -> None:
    """Check that the projects exist in the workspace. Raises Invalid."""
    unknown_ids = await find_unknown_projects(db, workspace_id, ids)
    if unknown_ids:
        raise Invalid.field(["body", "session_id"], f"no project {min(unknown_ids)} exists in this workspace")


async def find_unknown_projects(db: Session, workspace_id: UUID, ids: set[UUID]) -> set[UUID]:
    """Return the ids of which the workspace has no project."""
    rows = await db.fetch(sql.projects_by_id, workspace_id=workspace_id, ids=sorted(ids))
    return ids - {row["id"] for row in rows}


async def get_project(db: Session, workspace_id: UUID, project_id: UUID) -> TracerSession:
    """Return a project. Raises ProjectNotFound."""
    row = await db.fetchrow(sql.project_by_id, workspace_id=workspace_id, project_id=project_id)
    if row is None:
        raise ProjectNotFound

    return TracerSession(**dict(row))


async def create_project(db: Session, workspace_id: UUID, body: ProjectRequest, *, upsert: bool) -> TracerSession:
    """Create a project; with `upsert`, change an existing one of the same name. Raises ProjectExists and Invalid."""
    _check_name(body.name)
    columns = _to_columns(body, _WRITABLE)
    project_id = await db.fetchval(sql.create_project, id=body.id or uuid7(), workspace_id=workspace_id, **columns)
    if project_id is None and upsert:
        rows = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=[body.name])
        if rows:
            project_id = rows[0]["id"]
            owner = {"workspace_id": workspace_id, "project_id": project_id}
            await db.fetchval(sql.update_project, **owner, **columns, end_time=None)

    if project_id is None:
        raise ProjectExists

    return await get_project(db, workspace_id, project_id)


async def update_project(db: Session, workspace_id: UUID, project_id: UUID, patch: ProjectPatch) -> TracerSession:
    """Change a project. Raises ProjectNotFound, ProjectExists when another has the name, and Invalid."""
    if patch.name is not None:
        _check_name(patch.name)

    columns = _to_columns(patch, (*_WRITABLE, "end_time"))
    owner = {"workspace_id": workspace_id, "project_id": project_id}
    try:
        updated_id = await db.fetchval(sql.update_project, **owner, **columns)
    except UniqueViolationError as exc:
        raise ProjectExists from exc

    project = await get_project(db, workspace_id, project_id)
    if updated_id is None:
        raise ProjectExists

    return project


async def delete_projects(db: Session, workspace_id: UUID, ids: list[UUID]) -> None:
    """Delete projects and their runs; billing records stay. Unknown ids are ignored."""
    await db.execute(sql.delete_projects, workspace_id=workspace_id, ids=ids)


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
        raise Invalid.field(["body", "session_name"], f"a project name has 1 to {MAX_NAME_CHARS} characters")


def _to_columns(body: ProjectRequest | ProjectPatch, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a request; times without an offset are in UTC."""
    values = {name: getattr(body, name) for name in names}
    return {name: to_utc(value, name) if isinstance(value, datetime) else value for name, value in values.items()}


class ProjectQuery(msgspec.Struct):
    """Filters and order of a list of projects. Unsupported parameters are refused."""

    name: str | None = None
    name_contains: str | None = None
    id: list[UUID] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    metadata: Annotated[str, JSON_TEXT] | None = None
    reference_dataset: list[UUID] | None = None
    reference_free: bool | None = None
    sort_by: Sort = "start_time"
    sort_by_desc: bool = True
    sort_by_feedback_key: str | None = None
    include_stats: bool = False
    facets: Annotated[bool, NOT_TRUE] = False
    filter: str | None = None
    tag_value_id: Annotated[list[str], NO_ITEMS] | None = None


class ProjectShowQuery(msgspec.Struct):
    """Whether to return statistics with a project."""

    include_stats: bool = False


async def list_projects(db: Session, workspace_id: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List projects, newest first unless the query sorts them.

    Raises FilterInvalid, and Invalid for an unsupported parameter.
    """
    for name in ("tag_value_id", "facets"):
        if getattr(query, name):
            raise Invalid.field(["query", name], "is not supported; leave it out", "not_supported")

    if query.sort_by == "feedback" and query.sort_by_feedback_key is None:
        raise Invalid.field(["query", "sort_by_feedback_key"], "is required to sort by feedback", "missing")
    if query.sort_by not in _COLUMN_SORTS:
        return await _list_by_stats(db, workspace_id, query)

    projects = await _fetch_projects(db, workspace_id, query, limit=query.limit, offset=query.offset)
    return await _add_stats(db, workspace_id, projects) if query.include_stats else projects


async def get_project_with_stats(
    db: Session, workspace_id: UUID, project_id: UUID, query: ProjectShowQuery
) -> TracerSession:
    """Return a project. Raises ProjectNotFound."""
    project = await get_project(db, workspace_id, project_id)
    if query.include_stats:
        (project,) = await _add_stats(db, workspace_id, [project])

    return project


async def _fetch_projects(
    db: Session, workspace_id: UUID, query: ProjectQuery, *, limit: int, offset: int
) -> list[TracerSession]:
    conditions = [compile_filter(query.filter, ConditionBuilder(), PROJECT_FILTERS)] if query.filter else []
    statement, values = apply_condition(
        sql.list_projects,
        require_all(conditions),
        workspace_id=workspace_id,
        ids=query.id,
        name=query.name,
        name_contains=query.name_contains,
        metadata=read_query_object(query.metadata, "metadata"),
        reference_datasets=query.reference_dataset,
        reference_free=query.reference_free,
        sort_by=query.sort_by,
        descending=query.sort_by_desc,
        limit=limit,
        offset=offset,
    )

    rows = await db.fetch(statement, **values)
    return [TracerSession(**dict(row)) for row in rows]


async def _list_by_stats(db: Session, workspace_id: UUID, query: ProjectQuery) -> list[TracerSession]:
    projects = await _fetch_projects(db, workspace_id, query, limit=_NO_LIMIT, offset=0)
    projects = await _add_stats(db, workspace_id, projects)
    sign = -1 if query.sort_by_desc else 1

    def sort_key(project: TracerSession) -> tuple[bool, float]:
        value = _get_sort_value(project, query)
        return value is None, sign * (value or 0.0)

    projects.sort(key=sort_key)
    page = projects[query.offset : query.offset + query.limit]
    return page if query.include_stats else [_remove_stats(project) for project in page]


def _get_sort_value(project: TracerSession, query: ProjectQuery) -> float | None:
    """Return the statistic to sort by; None sorts last."""
    match query.sort_by:
        case "last_run_start_time":
            return project.last_run_start_time.timestamp() if project.last_run_start_time else None
        case "runs_count":
            return project.run_count
        case "feedback":
            stats = (project.feedback_stats or {}).get(query.sort_by_feedback_key or "")
            return stats.avg if stats else None
        case _:
            value: float | None = getattr(project, query.sort_by)
            return value


def _remove_stats(project: TracerSession) -> TracerSession:
    empty = dict.fromkeys((*_ROOT_STATS, *_ALL_STATS, "session_feedback_stats"))
    return msgspec.structs.replace(project, **empty)


async def _add_stats(db: Session, workspace_id: UUID, projects: list[TracerSession]) -> list[TracerSession]:
    """Return the projects with statistics: some of root runs, others of all runs."""
    ids = [project.id for project in projects]
    builder = ConditionBuilder()
    any_run = require_all(
        [
            builder.build(sql.when_workspace, value=workspace_id),
            builder.build(sql.when_in_projects, value=ids),
        ]
    )
    root_run = require_all([any_run, builder.build(sql.when_root, value=True)])

    rollup = RollupQuery(workspace_id=workspace_id, projects=ids)
    rollup_of_roots = msgspec.structs.replace(rollup, is_root=True)
    run_stats = _index_by_project(await compute_stats(db, any_run, _BY_PROJECT, rollup))
    root_stats = _index_by_project(await compute_run_stats(db, root_run, _BY_PROJECT, rollup_of_roots))

    rows = await db.fetch(
        sql.feedback_of_projects, workspace_id=workspace_id, ids=[str(project_id) for project_id in ids]
    )
    feedback_stats: dict[str, dict[str, FeedbackStats]] = {}
    for row in rows:
        feedback_stats.setdefault(row["session_id"], {})[row["key"]] = FeedbackStats(row["n"], row["avg"])

    return [
        msgspec.structs.replace(
            project,
            **_pick(root_stats.get(str(project.id), RunStats()), _ROOT_STATS),
            **_pick(run_stats.get(str(project.id), RunStats()), _ALL_STATS),
            session_feedback_stats=feedback_stats.get(str(project.id), {}),
        )
        for project in projects
    ]


def _index_by_project(stats_by_group: dict[GroupKey, RunStats]) -> dict[str, RunStats]:
    return {project: stats for (_, project), stats in stats_by_group.items()}


def _pick(stats: RunStats, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in names}
