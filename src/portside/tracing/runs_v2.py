"""Version 2 of reading runs: `POST /api/v2/runs/query` and `GET /api/v2/runs/{id}`.

Clients select fields by upper-case names; statuses and run types are upper case too, and costs are numbers. Fields that
this server does not have (annotation queues) are null.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment, now
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import NO_TEXT, NO_VALUE
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import ConditionBuilder
from portside.tracing.run_fields import FIELDS, PREVIEW_CHARS, RunDetails, Selects, find_large_fields, read_selects
from portside.tracing.run_pages import SearchLimit, find_page
from portside.tracing.runs import (
    COSTS,
    Ids,
    RunFilters,
    TracedRunNotFound,
    build_run_condition,
    build_scope_condition,
    get_runs,
)
from portside.tracing.sql import sql
from portside.tracing.types import TracedRun

_DEFAULT_PERIOD = timedelta(days=1)


class RunsQuery(msgspec.Struct, kw_only=True):
    """Filters of runs; without a time, runs of the last day. Unsupported filters are refused.

    With `search_seconds` a search for rare runs ends after about that time: a page may be short or empty although
    `has_more`, and `searched_to` says how far back the search got. With `include_subtree_usage`, tokens, costs and the
    first token's time are those of a run and all runs below it.
    """

    project_ids: Ids | None = None
    reference_dataset_id: UUID | None = None
    ids: Ids | None = None
    trace_id: UUID | None = None
    run_type: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    is_root: bool | None = None
    has_error: bool | None = None
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    reference_examples: Ids | None = None
    min_start_time: Moment | None = None
    max_start_time: Moment | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    selects: Selects | None = None
    search_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] | None = None
    ai_search: Annotated[str, NO_TEXT] | None = None
    include_subtree_usage: bool | None = None
    min_feedback_modified_at: Annotated[Moment | None, NO_VALUE] = None
    max_feedback_modified_at: Annotated[Moment | None, NO_VALUE] = None


class RunSelection(msgspec.Struct, kw_only=True):
    """The fields to return of one run, and the project that it must belong to."""

    project_id: UUID | None = None
    selects: Selects | None = None
    start_time: Moment | None = None


class RunItems(msgspec.Struct):
    """One page of runs with their selected fields."""

    items: list[dict[str, Any]]
    next_cursor: str | None = None
    has_more: bool = False
    searched_to: datetime | msgspec.UnsetType = msgspec.UNSET


async def query_runs(db: Session, workspace_id: UUID, body: RunsQuery, links: DownloadLinks) -> RunItems:
    """Return a page of runs, newest first. Raises CursorInvalid, FilterInvalid and Invalid."""
    for name in ("ai_search", "min_feedback_modified_at", "max_feedback_modified_at"):
        if getattr(body, name):
            raise Invalid.field(["body", name], "is not supported; leave it out", "not_supported")

    selects = read_selects(body.selects, "body")
    project_ids = await _find_projects(db, workspace_id, body)
    start_time = body.min_start_time
    if start_time is None and body.reference_dataset_id is None:
        start_time = now() - _DEFAULT_PERIOD

    filters = RunFilters(
        id=body.ids,
        trace=body.trace_id,
        session=project_ids,
        run_type=body.run_type.lower() if body.run_type else None,
        is_root=body.is_root,
        error=body.has_error,
        filter=body.filter,
        trace_filter=body.trace_filter,
        tree_filter=body.tree_filter,
        reference_example=body.reference_examples,
        start_time=start_time,
        end_time=body.max_start_time,
    )

    condition = build_run_condition(filters, workspace_id, ConditionBuilder())
    search = None
    if body.search_seconds is not None:
        search = SearchLimit(body.search_seconds, build_scope_condition(filters, workspace_id))

    page = await find_page(
        db, condition, body.cursor, limit=body.page_size, fields=find_large_fields(selects), search=search
    )
    items = await read_selected(
        db, workspace_id, page.ids, selects, links, with_subtree_usage=bool(body.include_subtree_usage)
    )

    return RunItems(
        items=items,
        next_cursor=page.cursors.next,
        has_more=page.cursors.next is not None,
        searched_to=page.searched_to or msgspec.UNSET,
    )


async def get_run(
    db: Session, workspace_id: UUID, run_id: UUID, query: RunSelection, links: DownloadLinks
) -> dict[str, Any]:
    """Return the selected fields of a run. Raises TracedRunNotFound, also for another project, and Invalid."""
    selection = {"PROJECT_ID", *read_selects(query.selects, "query")}
    runs = await read_selected(db, workspace_id, [run_id], selection, links)
    if not runs or query.project_id not in {None, runs[0]["project_id"]}:
        raise TracedRunNotFound

    run = runs[0]
    if "PROJECT_ID" not in (query.selects or ()):
        del run["project_id"]

    return run


async def count_bytes(db: Session, workspace_id: UUID, ids: list[UUID], selects: Iterable[str]) -> dict[UUID, int]:
    """Return the number of bytes that `read_selected` reads for each run."""
    large_fields = sorted(find_large_fields(selects))
    rows = await db.fetch(sql.bytes_of_runs, workspace_id=workspace_id, ids=ids, fields=large_fields)
    return {row["id"]: row["bytes"] for row in rows}


async def read_selected(  # noqa: PLR0913 - one read with many parameters
    db: Session,
    workspace_id: UUID,
    ids: list[UUID],
    selects: Iterable[str],
    links: DownloadLinks,
    *,
    with_subtree_usage: bool = False,
) -> list[dict[str, Any]]:
    """Return the selected fields of runs, in the order of the ids."""
    selection = sorted(selects)
    runs = await get_runs(db, workspace_id, ids, sorted(find_large_fields(selection)), links)
    if with_subtree_usage:
        await _add_subtree_usage(db, workspace_id, runs)

    rows = await db.fetch(
        sql.details_of_runs, workspace_id=workspace_id, ids=ids, selects=selection, preview_chars=PREVIEW_CHARS
    )
    details = {row["id"]: row for row in rows}
    run_details = [RunDetails(run, details[run.id], links.base_url) for run in runs if run.id in details]

    return [{name.lower(): FIELDS[name](run) for name in selection} for run in run_details]


async def _add_subtree_usage(db: Session, workspace_id: UUID, runs: list[TracedRun]) -> None:
    """Replace the usage of runs by that of all runs below them."""
    traces = sorted({run.trace_id for run in runs})
    ids = [str(run.id) for run in runs]
    rows = await db.fetch(sql.subtree_usage, workspace_id=workspace_id, trace_ids=traces, ids=ids)

    usage_by_run = {row["id"]: row for row in rows}
    for run in runs:
        usage = usage_by_run.get(run.id)
        if usage is None:
            continue

        run.first_token_time = usage["first_token_time"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(run, name, usage[name])

        for name in COSTS:
            setattr(run, name, None if usage[name] is None else format(usage[name], "f"))


async def _find_projects(db: Session, workspace_id: UUID, body: RunsQuery) -> list[UUID]:
    """Return the projects that a query names, or those of its dataset. Raises Invalid unless it names one of both."""
    if (body.project_ids is None) == (body.reference_dataset_id is None):
        raise Invalid.field(["body", "project_ids"], "name projects, or a dataset by reference_dataset_id", "missing")

    if body.project_ids is not None:
        if not body.project_ids:
            raise Invalid.field(["body", "project_ids"], "names at least one project")
        return body.project_ids

    rows = await db.fetch(sql.projects_of_dataset, workspace_id=workspace_id, dataset_id=body.reference_dataset_id)

    # The nil id matches no project. An empty list would not filter at all.
    return [row["id"] for row in rows] or [UUID(int=0)]
