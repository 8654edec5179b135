"""Lists of projects, and their statistics.

Counts, latencies and error rates of a project are those of its traces (root runs); tokens, costs and feedback are those
of all runs. A list sorted by a statistic computes it for every matching project first.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import JSON_TEXT, NO_ITEMS, NOT_TRUE
from portside.tracing.conditions import ConditionBuilder, apply_condition, require_all
from portside.tracing.fields import read_query_object
from portside.tracing.filters import PROJECT_FILTERS, compile_filter
from portside.tracing.projects import get_project
from portside.tracing.rollups import RollupQuery
from portside.tracing.sql import sql
from portside.tracing.stats import FeedbackStats, GroupKey, RunStats, StatsGrouping, compute_run_stats, compute_stats
from portside.tracing.types import TracerSession

Sort = Literal[
    "name", "start_time", "last_run_start_time", "latency_p50", "latency_p99", "error_rate", "feedback", "runs_count"
]
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
