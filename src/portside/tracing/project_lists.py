"""Projects found: listed, filtered, sorted, and with the figures of their runs (contract: hosted API, section f.4).

How many, how long, how often in error is told of traces, that is of root runs; tokens, costs and feedback are those of
all runs. A list that is sorted by a figure is one of all projects that match, each of which is counted first.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.vetting import read_json
from portside.tracing import projects
from portside.tracing.conditions import Conditions, all_of, narrow
from portside.tracing.figure_days import PlainQuestion
from portside.tracing.figures import FeedbackStats, RunStats, Slice, Slicing, measure, measure_runs
from portside.tracing.filters import read_filter
from portside.tracing.sql import sql
from portside.tracing.types import TracerSession
from portside.tracing.vocabularies import PROJECTS

Sort = Literal[
    "name", "start_time", "last_run_start_time", "latency_p50", "latency_p99", "error_rate", "feedback", "runs_count"
]
_PLAIN_SORTS = frozenset({"name", "start_time"})
_EVERY = 2_000_000_000
_PROJECTS = Slicing(attribute="project", limit=_EVERY)
_OF_ROOTS = (
    "run_count", "latency_p50", "latency_p99", "error_rate", "streaming_rate", "last_run_start_time",
)  # fmt: skip
_OF_ALL = (
    "first_token_p50", "first_token_p99", "prompt_tokens", "completion_tokens", "total_tokens", "prompt_cost",
    "completion_cost", "total_cost", "feedback_stats",
)  # fmt: skip


class ProjectQuery(msgspec.Struct):
    """Which projects to list, in which order; what is not acted on is refused."""

    name: str | None = None
    name_contains: str | None = None
    id: list[UUID] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    metadata: str | None = None
    reference_dataset: list[UUID] | None = None
    reference_free: bool | None = None
    sort_by: Sort = "start_time"
    sort_by_desc: bool = True
    sort_by_feedback_key: str | None = None
    include_stats: bool = False
    facets: bool = False
    filter: str | None = None
    tag_value_id: list[str] | None = None


class ShownQuery(msgspec.Struct):
    """What to tell of a project."""

    include_stats: bool = False


async def list_projects(db: Session, workspace_id: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List projects, newest first unless the query says otherwise.

    Raises FilterInvalid, and Invalid for a question that is not acted on.
    """
    for name in ("tag_value_id", "facets"):
        if getattr(query, name):
            raise Invalid.field(["query", name], "this is not supported", "not_supported")
    if query.sort_by == "feedback" and query.sort_by_feedback_key is None:
        raise Invalid.field(["query", "sort_by_feedback_key"], "names the feedback to sort by", "missing")
    if query.sort_by not in _PLAIN_SORTS:
        return await _sorted_by_figure(db, workspace_id, query)
    found = [TracerSession(**dict(row)) for row in await _find(db, workspace_id, query, query.limit, query.offset)]
    return await _with_figures(db, workspace_id, found) if query.include_stats else found


async def show_project(db: Session, workspace_id: UUID, project_id: UUID, query: ShownQuery) -> TracerSession:
    """Return a project. Raises ProjectNotFound."""
    found = await projects.show_project(db, workspace_id, project_id)
    return (await _with_figures(db, workspace_id, [found]))[0] if query.include_stats else found


async def _find(db: Session, workspace_id: UUID, query: ProjectQuery, limit: int, offset: int) -> list[Record]:
    asked = [read_filter(query.filter, Conditions(), PROJECTS)] if query.filter else []
    statement, values = narrow(
        sql.list_projects,
        all_of(asked),
        workspace_id=workspace_id,
        ids=query.id,
        name=query.name,
        name_contains=query.name_contains,
        metadata=None if query.metadata is None else _read_metadata(query.metadata),
        reference_datasets=query.reference_dataset,
        reference_free=query.reference_free,
        sort_by=query.sort_by,
        descending=query.sort_by_desc,
        limit=limit,
        offset=offset,
    )
    return await db.fetch(statement, **values)


async def _sorted_by_figure(db: Session, workspace_id: UUID, query: ProjectQuery) -> list[TracerSession]:
    rows = await _find(db, workspace_id, query, _EVERY, 0)
    found = await _with_figures(db, workspace_id, [TracerSession(**dict(row)) for row in rows])
    sign = -1 if query.sort_by_desc else 1

    def place(project: TracerSession) -> tuple[bool, float]:
        figure = _figure(project, query)
        return figure is None, sign * (figure or 0.0)

    found.sort(key=place)
    page = found[query.offset : query.offset + query.limit]
    return page if query.include_stats else [_bare(project) for project in page]


def _figure(project: TracerSession, query: ProjectQuery) -> float | None:
    """Return what a project is sorted by; those of which nothing is known come last."""
    match query.sort_by:
        case "last_run_start_time":
            return project.last_run_start_time.timestamp() if project.last_run_start_time else None
        case "runs_count":
            return project.run_count
        case "feedback":
            stats = (project.feedback_stats or {}).get(query.sort_by_feedback_key or "")
            return stats.avg if stats else None
        case _:
            figure: float | None = getattr(project, query.sort_by)
            return figure


def _bare(project: TracerSession) -> TracerSession:
    nothing = dict.fromkeys((*_OF_ROOTS, *_OF_ALL, "session_feedback_stats"))
    return msgspec.structs.replace(project, **nothing)


async def _with_figures(db: Session, workspace_id: UUID, found: list[TracerSession]) -> list[TracerSession]:
    ids = [project.id for project in found]
    conditions = Conditions()
    of_projects = all_of(
        [
            conditions.of(sql.when_workspace, value=workspace_id),
            conditions.of(sql.when_in_projects, value=ids),
        ]
    )
    plain = PlainQuestion(workspace_id=workspace_id, projects=ids)
    every = _by_project(await measure(db, of_projects, _PROJECTS, plain))
    of_roots = all_of([of_projects, conditions.of(sql.when_root, value=True)])
    plain_of_roots = msgspec.structs.replace(plain, is_root=True)
    roots = _by_project(await measure_runs(db, of_roots, _PROJECTS, plain_of_roots))
    rows = await db.fetch(sql.feedback_of_projects, workspace_id=workspace_id, ids=[str(one) for one in ids])
    own: dict[str, dict[str, FeedbackStats]] = {}
    for row in rows:
        own.setdefault(row["session_id"], {})[row["key"]] = FeedbackStats(row["n"], row["avg"])
    return [
        msgspec.structs.replace(
            project,
            **_some(roots.get(str(project.id), RunStats()), _OF_ROOTS),
            **_some(every.get(str(project.id), RunStats()), _OF_ALL),
            session_feedback_stats=own.get(str(project.id), {}),
        )
        for project in found
    ]


def _by_project(found: dict[Slice, RunStats]) -> dict[str, RunStats]:
    return {project: stats for (_, project), stats in found.items()}


def _some(stats: RunStats, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in names}


def _read_metadata(text: str) -> dict[str, Any]:
    try:
        value = read_json(text.encode())
    except Invalid as exc:
        raise Invalid.field(["query", "metadata"], "must be a JSON object", "json_invalid") from exc
    if not isinstance(value, dict):
        raise Invalid.field(["query", "metadata"], "must be a JSON object", "type_error")
    return value
