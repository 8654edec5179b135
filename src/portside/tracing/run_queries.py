"""`POST /runs/query`: which runs, in pages by time (contract: hosted API, section f.4).

A page is found by ids first, by conditions alone (`pages`); what the runs hold is read for those of the page.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import BadRequest, Invalid
from portside.tracing.attachments import Links
from portside.tracing.conditions import Condition, Conditions, all_of, narrowed
from portside.tracing.fields import aware
from portside.tracing.figure_days import PlainQuestion
from portside.tracing.filters import read_filter
from portside.tracing.pages import Cursors, find_page
from portside.tracing.runs import show_runs
from portside.tracing.sql import sql
from portside.tracing.types import Run

MAX_LIMIT = 100
_ALWAYS = frozenset(
    {"id", "name", "run_type", "trace_id", "dotted_order", "status", "session_id", "app_path", "start_time"}
)
# What clients may ask for and is not there: inputs and outputs are always in the answer itself.
_NEVER = frozenset({"inputs_s3_urls", "outputs_s3_urls"})
_PLAIN = frozenset({"session", "start_time", "end_time", "is_root", "data_source_type"})
_ROOTS = re.compile(r"\s*eq\(\s*is_root\s*,\s*true\s*\)\s*")
_NOTHING: tuple[Any, ...] = (None, "", [])
Ids = Annotated[list[UUID], msgspec.Meta(max_length=1000)]


class LimitTooLarge(BadRequest):
    """Limit exceeds maximum allowed value of 100"""  # noqa: D415 - the exact text that clients know

    code = "limit_too_large"


class RunFilters(msgspec.Struct, kw_only=True):
    """Which runs; null leaves a question out. `query` is text that name, error, inputs or outputs hold."""

    id: Ids | None = None
    trace: UUID | None = None
    parent_run: UUID | None = None
    run_type: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    session: Ids | None = None
    reference_example: Ids | None = None
    execution_order: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    error: bool | None = None
    query: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    search_filter: str | None = None
    is_root: bool | None = None
    data_source_type: Literal["current", "historical", "lite"] | None = None


class RunPage(RunFilters):
    """Which runs, which page of them, and what of each."""

    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] = MAX_LIMIT
    select: Annotated[list[str], msgspec.Meta(max_length=200)] | None = None
    order: Literal["asc", "desc"] | None = "desc"
    skip_pagination: bool | None = False
    skip_prev_cursor: bool | None = False


class FoundRuns(msgspec.Struct):
    """One page of runs, each with the fields that were selected."""

    runs: list[dict[str, Any]]
    cursors: Cursors
    parsed_query: str | None = None


async def query_runs(db: Session, workspace_id: UUID, body: RunPage, links: Links) -> FoundRuns:
    """Return a page of runs. Raises LimitTooLarge, CursorInvalid, FilterInvalid, and Invalid for an unknown field."""
    return await page_of_runs(db, workspace_id, body, conditions_of(body, workspace_id, Conditions()), links)


async def page_of_runs(db: Session, workspace_id: UUID, body: RunPage, asked: Condition, links: Links) -> FoundRuns:
    """Return a page of the runs that meet a condition; raises what `query_runs` does."""
    if body.limit > MAX_LIMIT:
        raise LimitTooLarge
    fields = _selected(body.select)
    descending = body.order != "asc"
    page = await find_page(db, asked, body.cursor, limit=body.limit, descending=descending)
    runs = await show_runs(db, workspace_id, page.ids, sorted(fields), links)
    cursors = Cursors() if body.skip_pagination else page.cursors
    if body.skip_prev_cursor:
        cursors.prev = None
    return FoundRuns([_shown(run, fields) for run in runs], cursors)


def plain_question(body: RunFilters, workspace_id: UUID) -> PlainQuestion | None:
    """Return what is asked of runs, if that is no more than where and when they began and whether they are roots."""
    asks_roots = body.filter is not None and _ROOTS.fullmatch(body.filter) is not None
    known = _PLAIN | {"filter"} if asks_roots and body.is_root is not False else _PLAIN
    if any(getattr(body, name) not in _NOTHING for name in RunFilters.__struct_fields__ if name not in known):
        return None
    return PlainQuestion(
        workspace_id=workspace_id,
        projects=body.session or None,
        start=body.start_time and aware(body.start_time),
        end=body.end_time and aware(body.end_time),
        is_root=True if asks_roots else body.is_root,
    )


def conditions_of(body: RunFilters, workspace_id: UUID, conditions: Conditions) -> Condition:
    """Return what a run has to meet. Raises FilterInvalid."""
    asked = [conditions.of(sql.when_workspace, value=workspace_id)]
    asked += _plain_conditions(body, conditions)
    for text in (body.filter, body.search_filter):
        if text:
            asked.append(read_filter(text, conditions))
    for text, query in ((body.trace_filter, sql.when_root_of_trace), (body.tree_filter, sql.when_any_of_trace)):
        if text:
            about_trace = conditions.of(query, workspace_id=workspace_id)
            asked.append(narrowed(about_trace, read_filter(text, conditions)))
    return all_of(asked)


def _plain_conditions(body: RunFilters, conditions: Conditions) -> list[Condition]:
    asked: list[Condition] = []
    sessions = body.session or None
    in_one = sessions is not None and len(sessions) == 1
    for query, value in (
        (sql.when_ids, body.id or None),
        (sql.when_trace, body.trace),
        (sql.when_parent, body.parent_run),
        (sql.when_in_project, sessions[0] if sessions and in_one else None),
        (sql.when_in_projects, None if in_one else sessions),
        (sql.when_reference_examples, body.reference_example or None),
        (sql.when_from, body.start_time and aware(body.start_time)),
        (sql.when_until, body.end_time and aware(body.end_time)),
        (sql.when_failed, body.error),
        (sql.when_root, body.is_root),
        (sql.when_searched, body.query or None),
    ):
        if value is not None:
            asked.append(conditions.of(query, value=value))
    if body.run_type is not None:
        asked.append(conditions.of(sql.when_run_type, op="eq", value=[body.run_type]))
    if body.execution_order is not None:
        asked.append(conditions.of(sql.when_execution_order, op="eq", value=[float(body.execution_order)]))
    return asked


def _selected(select: list[str] | None) -> frozenset[str]:
    """Return the fields to show, all of them where none is selected. Raises Invalid for one that runs do not have."""
    known = frozenset(Run.__struct_fields__) | _NEVER
    if not select:
        return known - _NEVER
    if unknown := [name for name in select if name not in known]:
        raise Invalid.field(["body", "select"], f"runs have no field {unknown[0][:100]}")
    return frozenset(select) | _ALWAYS


def _shown(run: Run, fields: frozenset[str]) -> dict[str, Any]:
    return {name: None if name in _NEVER else getattr(run, name) for name in sorted(fields)}
