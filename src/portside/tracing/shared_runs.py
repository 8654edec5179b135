"""Runs that are read by a link, without an API key: the shared run, all runs below it, and their feedback.

Filters that refer to the rest of the trace are refused on shared runs: their results would reveal what is not shared.
The `app_path` of a shared run is the page of the link, because its address in the workspace names the workspace.
"""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.kernel.db import Session
from portside.kernel.errors import Invalid, NotFound
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all
from portside.tracing.feedback import Feedback, FeedbackQuery, find_feedback
from portside.tracing.filters import SHARED_RUN_FILTERS
from portside.tracing.run_fields import PUBLIC_SELECTS, Selects, find_large_fields, read_selects
from portside.tracing.run_pages import find_page
from portside.tracing.runs import (
    EVERYTHING,
    FoundRuns,
    RunPage,
    RunValues,
    TracedRunNotFound,
    ValuesQuery,
    build_run_condition,
    download_value,
    get_run_page,
    get_runs,
    get_values,
)
from portside.tracing.runs_v2 import RunItems, read_selected
from portside.tracing.sql import sql
from portside.tracing.trace_runs import MAX_SPANS, are_span_fields, find_spans, read_spans
from portside.tracing.types import TracedRun

_WHOLE_TRACE_FILTERS = ("trace_filter", "tree_filter", "execution_order")
_MAX_ITEMS = 1000


class ShareNotFound(NotFound):
    """The link shares nothing, or no longer does."""

    code = "share_not_found"


class SharedFeedbackQuery(msgspec.Struct):
    """Filters of feedback on shared runs."""

    run: list[UUID] | None = None
    key: list[str] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0


class SharedSelection(msgspec.Struct):
    """The fields to return of each run."""

    selects: Selects | None = None


class _SharedRun(msgspec.Struct):
    """A shared run and its position in its trace."""

    workspace_id: UUID
    id: UUID
    trace_id: UUID
    dotted_order: str

    def condition(self, builder: ConditionBuilder) -> Condition:
        """Return the condition for the run and all runs below it."""
        of_workspace = builder.build(sql.when_workspace, value=self.workspace_id)
        in_subtree = builder.build(sql.when_below, trace_id=self.trace_id, dotted_order=self.dotted_order)
        return require_all([of_workspace, in_subtree])


async def get_shared_run(db: Session, token: UUID, links: DownloadLinks, run_id: UUID | None = None) -> TracedRun:
    """Return the shared run or a run below it. Raises ShareNotFound and TracedRunNotFound."""
    shared = await _get_shared_run(db, token)
    runs = await get_runs(db, shared.workspace_id, [run_id or shared.id], list(EVERYTHING), links)
    if not runs or not f"{runs[0].dotted_order}.".startswith(f"{shared.dotted_order}."):
        raise TracedRunNotFound

    runs[0].app_path = _build_shared_path(token)
    return runs[0]


async def get_shared_values(db: Session, token: UUID, run_id: UUID, query: ValuesQuery) -> RunValues:
    """Return the beginning of each value of the shared run or one below. Raises ShareNotFound and TracedRunNotFound."""
    return await get_values(db, await _get_shared_workspace(db, token, run_id), run_id, query)


async def download_shared_value(db: Session, token: UUID, run_id: UUID, name: str) -> Response:
    """Return a whole value of the shared run or one below it as a file.

    Raises ShareNotFound, TracedRunNotFound and RunValueNotFound.
    """
    return await download_value(db, await _get_shared_workspace(db, token, run_id), run_id, name)


async def query_shared_runs(db: Session, token: UUID, body: RunPage, links: DownloadLinks) -> FoundRuns:
    """Return a page of the shared runs. Raises ShareNotFound, and what `query_runs` raises."""
    shared = await _get_shared_run(db, token)

    for name in _WHOLE_TRACE_FILTERS:
        if getattr(body, name):
            raise Invalid.field(["body", name], "refers to runs that are not shared", "not_supported")

    builder = ConditionBuilder()
    filters = build_run_condition(body, shared.workspace_id, builder, SHARED_RUN_FILTERS)
    condition = require_all([shared.condition(builder), filters])
    page = await get_run_page(db, shared.workspace_id, body, condition, links)
    for run in page.runs:
        run["app_path"] = _build_shared_path(token)

    return page


async def list_shared_runs_v2(db: Session, token: UUID, body: SharedSelection, links: DownloadLinks) -> RunItems:
    """Return the shared runs in the form of version 2, in order of time. Raises ShareNotFound and Invalid.

    They are the first 1,000, or 25,000 if none of the selected fields has data of users.
    """
    shared = await _get_shared_run(db, token)
    selects = read_selects(body.selects, "body")
    if hidden := sorted(selects - PUBLIC_SELECTS):
        raise Invalid.field(["body", "selects"], f"{hidden[0]} is not available on shared runs", "not_supported")

    if are_span_fields(selects):
        spans = await find_spans(db, shared.condition(ConditionBuilder()))
        return RunItems(read_spans(spans, selects), has_more=len(spans) == MAX_SPANS)

    large_fields = find_large_fields(selects)
    page = await find_page(
        db, shared.condition(ConditionBuilder()), None, limit=_MAX_ITEMS, fields=large_fields, descending=False
    )
    items: list[dict[str, Any]] = await read_selected(db, shared.workspace_id, page.ids, selects, links)

    return RunItems(items, has_more=page.cursors.next is not None)


async def list_shared_feedback(db: Session, token: UUID, query: SharedFeedbackQuery) -> list[Feedback]:
    """List the feedback on the shared runs, without its authors. Raises ShareNotFound."""
    shared = await _get_shared_run(db, token)
    statement, values = apply_condition(sql.ids_of_runs, shared.condition(ConditionBuilder()))
    ids = {row["id"] for row in await db.fetch(statement, **values)}

    full_query = FeedbackQuery(
        run=sorted(ids.intersection(query.run) if query.run else ids),
        key=query.key,
        limit=query.limit,
        offset=query.offset,
    )

    items = await find_feedback(db, shared.workspace_id, full_query)
    for item in items:
        source = item.feedback_source
        item.feedback_source = {"type": source.get("type")} if isinstance(source, dict) else None

    return items


def _build_shared_path(token: UUID) -> str:
    """Return the path of the page that shows what the link shares."""
    return f"/public/{token}/r"


async def _get_shared_workspace(db: Session, token: UUID, run_id: UUID) -> UUID:
    """Return the workspace of a run that is the shared one or below it. Raises ShareNotFound and TracedRunNotFound."""
    shared = await _get_shared_run(db, token)
    builder = ConditionBuilder()
    condition = require_all([shared.condition(builder), builder.build(sql.when_ids, value=[run_id])])

    statement, values = apply_condition(sql.ids_of_runs, condition)
    if not await db.fetch(statement, **values):
        raise TracedRunNotFound

    return shared.workspace_id


async def _get_shared_run(db: Session, token: UUID) -> _SharedRun:
    row = await db.fetchrow(sql.shared_run, share_token=token)
    if row is None:
        raise ShareNotFound

    return _SharedRun(**dict(row))
