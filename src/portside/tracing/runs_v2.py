"""Version 2 of reading runs: `POST /api/v2/runs/query` and `GET /api/v2/runs/{id}` (contract: section f.4).

Clients select fields by upper-case names; statuses and run types are upper case too, and costs are numbers. Fields that
this server does not have (price models, annotation queues) are null.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment, now
from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import NO_TEXT, NOT_TRUE, read_json
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import ConditionBuilder
from portside.tracing.runs import Ids, RunFilters, TracedRunNotFound, conditions_of, find_page, show_runs
from portside.tracing.sql import sql
from portside.tracing.types import TracedRun

_PREVIEW_CHARS = 250
_DEFAULT_PERIOD = timedelta(days=1)
_THREADS = ("session_id", "thread_id", "conversation_id")
Selects = Annotated[list[str], msgspec.Meta(max_length=200)]


class RunsQuery(msgspec.Struct, kw_only=True):
    """Filters of runs; without a time, runs of the last day. Unsupported filters are refused."""

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
    ai_search: Annotated[str, NO_TEXT] | None = None
    include_subtree_usage: Annotated[bool, NOT_TRUE] | None = None
    min_feedback_modified_at: Moment | None = None
    max_feedback_modified_at: Moment | None = None


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


class _RunDetails(msgspec.Struct):
    """A run and its columns from other tables."""

    run: TracedRun
    details: Record
    base_url: str


async def query_runs(db: Session, workspace_id: UUID, body: RunsQuery, links: DownloadLinks) -> RunItems:
    """Return a page of runs, newest first. Raises CursorInvalid, FilterInvalid and Invalid."""
    for name in ("ai_search", "include_subtree_usage", "min_feedback_modified_at", "max_feedback_modified_at"):
        if getattr(body, name):
            raise Invalid.field(["body", name], "is not supported; leave it out", "not_supported")
    selects = read_selects(body.selects, "body")
    projects = await _projects(db, workspace_id, body)
    since = body.min_start_time
    if since is None and body.reference_dataset_id is None:
        since = now() - _DEFAULT_PERIOD
    filters = RunFilters(
        id=body.ids,
        trace=body.trace_id,
        session=projects,
        run_type=body.run_type.lower() if body.run_type else None,
        is_root=body.is_root,
        error=body.has_error,
        filter=body.filter,
        trace_filter=body.trace_filter,
        tree_filter=body.tree_filter,
        reference_example=body.reference_examples,
        start_time=since,
        end_time=body.max_start_time,
    )
    condition = conditions_of(filters, workspace_id, ConditionBuilder())
    page = await find_page(db, condition, body.cursor, limit=body.page_size, shown=large_fields(selects))
    items = await read_selected(db, workspace_id, page.ids, selects, links)
    return RunItems(items, page.cursors.next, page.cursors.next is not None)


async def show_run(
    db: Session, workspace_id: UUID, run_id: UUID, query: RunSelection, links: DownloadLinks
) -> dict[str, Any]:
    """Return the selected fields of a run. Raises TracedRunNotFound, also for another project, and Invalid."""
    selection = {"PROJECT_ID", *read_selects(query.selects, "query")}
    found = await read_selected(db, workspace_id, [run_id], selection, links)
    if not found or query.project_id not in {None, found[0]["project_id"]}:
        raise TracedRunNotFound
    if "PROJECT_ID" not in (query.selects or ()):
        del found[0]["project_id"]
    return found[0]


def read_selects(selects: list[str] | None, where: str) -> set[str]:
    """Return the selected fields. Raises Invalid for an unknown field."""
    selection = {name.upper() for name in selects or ["ID"]}
    if unknown := sorted(selection - set(_FIELDS)):
        raise Invalid.field([where, "selects"], f"runs have no field {unknown[0][:100]}")
    return selection


def large_fields(selects: Iterable[str]) -> set[str]:
    """Return the large columns that a selection needs; other large columns are not read."""
    return {name for select in selects for name in _LARGE.get(select, ())}


async def bytes_of_runs(db: Session, workspace_id: UUID, ids: list[UUID], selects: Iterable[str]) -> dict[UUID, int]:
    """Return the number of bytes that `read_selected` reads for each run."""
    shown = sorted(large_fields(selects))
    rows = await db.fetch(sql.bytes_of_runs, workspace_id=workspace_id, ids=ids, shown=shown)
    return {row["id"]: row["bytes"] for row in rows}


async def read_selected(
    db: Session, workspace_id: UUID, ids: list[UUID], selects: Iterable[str], links: DownloadLinks
) -> list[dict[str, Any]]:
    """Return the selected fields of runs, in the order of the ids."""
    selection = sorted(selects)
    runs = await show_runs(db, workspace_id, ids, sorted(large_fields(selection)), links)
    rows = await db.fetch(sql.details_of_runs, workspace_id=workspace_id, ids=ids)
    details = {row["id"]: row for row in rows}
    detailed = [_RunDetails(run, details[run.id], links.base_url) for run in runs if run.id in details]
    return [{name.lower(): _FIELDS[name](one) for name in selection} for one in detailed]


async def _projects(db: Session, workspace_id: UUID, body: RunsQuery) -> list[UUID]:
    if (body.project_ids is None) == (body.reference_dataset_id is None):
        raise Invalid.field(["body", "project_ids"], "name projects, or a dataset by reference_dataset_id", "missing")
    if body.project_ids is not None:
        if not body.project_ids:
            raise Invalid.field(["body", "project_ids"], "names at least one project")
        return body.project_ids
    owner = {"workspace_id": workspace_id, "dataset_id": body.reference_dataset_id}
    # The nil id matches no project. An empty list would not filter at all.
    return [row["id"] for row in await db.fetch(sql.projects_of_dataset, **owner)] or [UUID(int=0)]


def _cost(name: str) -> Callable[[_RunDetails], float | None]:
    def read(row: _RunDetails) -> float | None:
        text = getattr(row.run, name)
        return None if text is None else float(text)

    return read


def _run(name: str) -> Callable[[_RunDetails], Any]:
    return lambda row: getattr(row.run, name)


def _usage(key: str) -> Callable[[_RunDetails], Any]:
    def read(row: _RunDetails) -> Any:
        usage = row.details["usage"]
        details = usage.get(key) if isinstance(usage, dict) else None
        return {"raw": details} if isinstance(details, dict) else None

    return read


def _preview(name: str) -> Callable[[_RunDetails], str | None]:
    def read(row: _RunDetails) -> str | None:
        value = getattr(row.run, name)
        text = bytes(value).decode() if isinstance(value, msgspec.Raw) else value
        return None if text in {None, "null"} else text[:_PREVIEW_CHARS]

    return read


def _metadata(row: _RunDetails) -> dict[str, Any] | None:
    try:
        extra = read_json(bytes(row.run.extra))
    except Invalid:
        return None
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _thread(row: _RunDetails) -> str | None:
    metadata = _metadata(row) or {}
    return next((str(metadata[name]) for name in _THREADS if metadata.get(name)), None)


def _latency(row: _RunDetails) -> float | None:
    run = row.run
    return (run.end_time - run.start_time).total_seconds() if run.end_time else None


def _attachments(row: _RunDetails) -> dict[str, str]:
    links = row.run.s3_urls or {}
    return {name.removeprefix("attachment."): one.presigned_url for name, one in links.items()}


def _share(row: _RunDetails) -> str | None:
    token = row.details["share_token"]
    return f"{row.base_url}/public/{token}/run" if token else None


def _always_null(_seen: _RunDetails) -> None:
    return None


_FIELDS: dict[str, Callable[[_RunDetails], Any]] = {
    "ID": _run("id"), "NAME": _run("name"), "RUN_TYPE": lambda row: row.run.run_type.upper(),
    "STATUS": lambda row: row.run.status.upper(), "START_TIME": _run("start_time"), "END_TIME": _run("end_time"),
    "LATENCY_SECONDS": _latency, "FIRST_TOKEN_TIME": _run("first_token_time"), "ERROR": _run("error"),
    "ERROR_PREVIEW": _preview("error"), "EXTRA": _run("extra"), "METADATA": _metadata, "EVENTS": _run("events"),
    "INPUTS": _run("inputs"), "INPUTS_PREVIEW": _preview("inputs"), "OUTPUTS": _run("outputs"),
    "OUTPUTS_PREVIEW": _preview("outputs"), "MANIFEST": _run("serialized"), "PARENT_RUN_ID": _run("parent_run_id"),
    "PARENT_RUN_IDS": _run("parent_run_ids"), "PROJECT_ID": _run("session_id"), "TRACE_ID": _run("trace_id"),
    "THREAD_ID": _thread, "DOTTED_ORDER": _run("dotted_order"),
    "IS_ROOT": lambda row: row.run.parent_run_id is None, "REFERENCE_EXAMPLE_ID": _run("reference_example_id"),
    "REFERENCE_DATASET_ID": lambda row: row.details["reference_dataset_id"], "TOTAL_TOKENS": _run("total_tokens"),
    "PROMPT_TOKENS": _run("prompt_tokens"), "COMPLETION_TOKENS": _run("completion_tokens"),
    "TOTAL_COST": _cost("total_cost"), "PROMPT_COST": _cost("prompt_cost"),
    "COMPLETION_COST": _cost("completion_cost"), "PROMPT_TOKEN_DETAILS": _usage("input_token_details"),
    "COMPLETION_TOKEN_DETAILS": _usage("output_token_details"), "PROMPT_COST_DETAILS": _usage("input_cost_details"),
    "COMPLETION_COST_DETAILS": _usage("output_cost_details"), "PRICE_MODEL_ID": _always_null, "TAGS": _run("tags"),
    "APP_PATH": _run("app_path"), "ATTACHMENTS": _attachments, "THREAD_EVALUATION_TIME": _always_null,
    "IS_IN_DATASET": _always_null, "LAST_QUEUED_AT": _always_null, "SHARE_URL": _share,
    "FEEDBACK_STATS": _run("feedback_stats"), "LS_USER_ID": lambda row: row.details["user_id"],
}  # fmt: skip
_LARGE = {
    "EXTRA": ("extra",), "METADATA": ("extra",), "THREAD_ID": ("extra",), "EVENTS": ("events",),
    "INPUTS": ("inputs",), "INPUTS_PREVIEW": ("inputs",), "OUTPUTS": ("outputs",), "OUTPUTS_PREVIEW": ("outputs",),
    "MANIFEST": ("serialized",), "FEEDBACK_STATS": ("feedback_stats",), "ATTACHMENTS": ("s3_urls",),
}  # fmt: skip
# Fields that a share link returns: not the user, and no addresses inside the workspace.
PUBLIC_SELECTS = frozenset(_FIELDS) - {"LS_USER_ID", "APP_PATH", "SHARE_URL"}
