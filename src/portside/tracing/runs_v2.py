"""Version 2 of reading runs: `POST /api/v2/runs/query` and `GET /api/v2/runs/{id}`.

Clients select fields by upper-case names; statuses and run types are upper case too, and costs are numbers. Fields that
this server does not have (annotation queues) are null.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment, in_utc, now
from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import NO_TEXT, NO_VALUE, read_json
from portside.kernel.http.routes import refuse_field
from portside.kernel.large_reads import reserve_page
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all
from portside.tracing.runs import (
    COSTS,
    CursorInvalid,
    Ids,
    RunFilters,
    SearchLimit,
    TracedRunNotFound,
    build_run_condition,
    build_scope_condition,
    find_page,
    get_runs,
)
from portside.tracing.sql import sql
from portside.tracing.types import TracedRun

_PREVIEW_CHARS = 250
MAX_TURNS = 100_000
NEAR_TURNS = 2_000
_DEFAULT_PERIOD = timedelta(days=1)
Selects = Annotated[list[str], msgspec.Meta(max_length=200)]


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


class _RunDetails(msgspec.Struct):
    """A run and its columns from other tables."""

    run: TracedRun
    details: Record
    base_url: str


async def query_runs(db: Session, workspace_id: UUID, body: RunsQuery, links: DownloadLinks) -> RunItems:
    """Return a page of runs, newest first. Raises CursorInvalid, FilterInvalid and Invalid."""
    for name in ("ai_search", "min_feedback_modified_at", "max_feedback_modified_at"):
        if getattr(body, name):
            raise Invalid.field(["body", name], "is not supported; leave it out", "not_supported")

    selects = read_selects(body.selects, "body")
    projects = await _find_projects(db, workspace_id, body)

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

    condition = build_run_condition(filters, workspace_id, ConditionBuilder())
    seconds = body.search_seconds
    search = None if seconds is None else SearchLimit(seconds, build_scope_condition(filters, workspace_id))
    page = await find_page(
        db, condition, body.cursor, limit=body.page_size, shown=find_large_fields(selects), search=search
    )
    items = await read_selected(
        db, workspace_id, page.ids, selects, links, with_subtree_usage=bool(body.include_subtree_usage)
    )

    return RunItems(items, page.cursors.next, page.cursors.next is not None, page.searched_to or msgspec.UNSET)


async def get_run(
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


def find_large_fields(selects: Iterable[str]) -> set[str]:
    """Return the large columns that a selection needs; other large columns are not read."""
    return {name for select in selects for name in _LARGE.get(select, ())}


async def count_bytes(db: Session, workspace_id: UUID, ids: list[UUID], selects: Iterable[str]) -> dict[UUID, int]:
    """Return the number of bytes that `read_selected` reads for each run."""
    shown = sorted(find_large_fields(selects))
    rows = await db.fetch(sql.bytes_of_runs, workspace_id=workspace_id, ids=ids, shown=shown)
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
        sql.details_of_runs, workspace_id=workspace_id, ids=ids, selects=selection, preview_chars=_PREVIEW_CHARS
    )
    details = {row["id"]: row for row in rows}
    detailed = [_RunDetails(run, details[run.id], links.base_url) for run in runs if run.id in details]

    return [{name.lower(): _FIELDS[name](one) for name in selection} for one in detailed]


async def _add_subtree_usage(db: Session, workspace_id: UUID, runs: list[TracedRun]) -> None:
    """Replace the usage of runs by that of all runs below them."""
    traces = sorted({run.trace_id for run in runs})
    ids = [str(run.id) for run in runs]
    rows = await db.fetch(sql.subtree_usage, workspace_id=workspace_id, trace_ids=traces, ids=ids)

    found = {row["id"]: row for row in rows}
    for run in runs:
        if (usage := found.get(run.id)) is None:
            continue

        run.first_token_time = usage["first_token_time"]

        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(run, name, usage[name])

        for name in COSTS:
            setattr(run, name, None if usage[name] is None else format(usage[name], "f"))


_SPAN_FIELDS = frozenset(
    {
        "ID",
        "NAME",
        "RUN_TYPE",
        "STATUS",
        "START_TIME",
        "END_TIME",
        "LATENCY_SECONDS",
        "FIRST_TOKEN_TIME",
        "PARENT_RUN_ID",
        "IS_ROOT",
        "TRACE_ID",
        "PROJECT_ID",
        "PROMPT_TOKENS",
        "COMPLETION_TOKENS",
        "TOTAL_TOKENS",
        "PROMPT_COST",
        "COMPLETION_COST",
        "TOTAL_COST",
    }
)
MAX_SPANS = 25_000
_SPAN_BYTES = 400


def are_span_fields(selects: set[str]) -> bool:
    """Whether no selected field holds data of users, so that `read_spans` can read them all."""
    return not selects - _SPAN_FIELDS


async def find_spans(db: Session, condition: Condition) -> list[Record]:
    """Return the first 25,000 matching runs without anything large, in the order of their start."""
    counting, values = apply_condition(sql.count_runs, condition)
    # Reserved before it is read: otherwise the statement of a large trace would be stopped, and run again.
    await reserve_page([min(await db.fetchval(counting, **values), MAX_SPANS) * _SPAN_BYTES])
    listing, values = apply_condition(sql.spans_of_trace, condition, limit=MAX_SPANS)
    return await db.fetch(listing, **values)


def read_spans(rows: list[Record], selects: set[str]) -> list[dict[str, Any]]:
    """Return selected fields of what `find_spans` found."""
    readers = [(name.lower(), _SPAN_READERS.get(name) or itemgetter(_COLUMNS[name])) for name in sorted(selects)]
    return [{name: read(row) for name, read in readers} for row in rows]


class TraceQuery(msgspec.Struct, kw_only=True):
    """The project of a trace, filters of its runs, and the fields to return."""

    project_id: UUID
    filter: str | None = None
    min_start_time: Moment | None = None
    max_start_time: Moment | None = None
    selects: Selects | None = None


class TraceRuns(msgspec.Struct):
    """The runs of a trace in the order of their start."""

    items: list[dict[str, Any]]


async def list_runs_of_trace(
    db: Session, workspace_id: UUID, trace_id: UUID, query: TraceQuery, links: DownloadLinks
) -> TraceRuns:
    """Return the runs of a trace, at most 25,000, the first ones first.

    Fields without data of users are read in one statement, so that a trace of many thousand runs opens at once.
    Raises TracedRunNotFound if the project has no such trace, FilterInvalid and Invalid.
    """
    selects = read_selects(query.selects, "query")
    filters = RunFilters(
        trace=trace_id,
        session=[query.project_id],
        filter=query.filter,
        start_time=query.min_start_time,
        end_time=query.max_start_time,
    )

    condition = build_run_condition(filters, workspace_id, ConditionBuilder())
    rows = await find_spans(db, condition)
    if not rows and query.filter is None:
        raise TracedRunNotFound
    if are_span_fields(selects):
        return TraceRuns(read_spans(rows, selects))

    return TraceRuns(await read_selected(db, workspace_id, [row["id"] for row in rows], selects, links))


def _get_span_latency(row: Record) -> float | None:
    return (row["end_time"] - row["start_time"]).total_seconds() if row["end_time"] else None


def _read_float(name: str) -> Callable[[Record], float | None]:
    def read(row: Record) -> float | None:
        return None if row[name] is None else float(row[name])

    return read


_COLUMNS = {name: {"PROJECT_ID": "session_id"}.get(name, name.lower()) for name in _SPAN_FIELDS}
_SPAN_READERS: dict[str, Callable[[Record], Any]] = {
    "RUN_TYPE": lambda row: row["run_type"].upper(),
    "STATUS": lambda row: row["status"].upper(),
    "IS_ROOT": lambda row: row["parent_run_id"] is None,
    "LATENCY_SECONDS": _get_span_latency,
    "PROMPT_COST": _read_float("prompt_cost"),
    "COMPLETION_COST": _read_float("completion_cost"),
    "TOTAL_COST": _read_float("total_cost"),
}


async def _find_projects(db: Session, workspace_id: UUID, body: RunsQuery) -> list[UUID]:
    if (body.project_ids is None) == (body.reference_dataset_id is None):
        raise Invalid.field(["body", "project_ids"], "name projects, or a dataset by reference_dataset_id", "missing")

    if body.project_ids is not None:
        if not body.project_ids:
            raise Invalid.field(["body", "project_ids"], "names at least one project")
        return body.project_ids

    owner = {"workspace_id": workspace_id, "dataset_id": body.reference_dataset_id}
    # The nil id matches no project. An empty list would not filter at all.
    return [row["id"] for row in await db.fetch(sql.projects_of_dataset, **owner)] or [UUID(int=0)]


def _read_cost(name: str) -> Callable[[_RunDetails], float | None]:
    def read(row: _RunDetails) -> float | None:
        text = getattr(row.run, name)
        return None if text is None else float(text)

    return read


def _read_run(name: str) -> Callable[[_RunDetails], Any]:
    return lambda row: getattr(row.run, name)


def _read_usage(key: str) -> Callable[[_RunDetails], Any]:
    def read(row: _RunDetails) -> Any:
        usage = row.details["usage"]
        details = usage.get(key) if isinstance(usage, dict) else None
        return {"raw": details} if isinstance(details, dict) else None

    return read


def _read_cost_details(name: str) -> Callable[[_RunDetails], dict[str, Any] | None]:
    def read(row: _RunDetails) -> dict[str, Any] | None:
        details = msgspec.json.decode(getattr(row.run, name), type=dict[str, Any] | None)
        return details and {"raw": {key: _to_number(value) for key, value in details.items()}}

    return read


def _to_number(value: Any) -> Any:
    """Return a cost as a number, and what else a client reported unchanged."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _read_preview(name: str) -> Callable[[_RunDetails], str | None]:
    def read(row: _RunDetails) -> str | None:
        text = row.details[f"{name}_preview"]
        return None if text == "null" else text

    return read


def _get_error_preview(row: _RunDetails) -> str | None:
    return row.run.error and row.run.error[:_PREVIEW_CHARS]


def _get_metadata(row: _RunDetails) -> dict[str, Any] | None:
    try:
        extra = read_json(bytes(row.run.extra))
    except Invalid:
        return None

    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _get_latency(row: _RunDetails) -> float | None:
    run = row.run
    return (run.end_time - run.start_time).total_seconds() if run.end_time else None


def _get_attachment_urls(row: _RunDetails) -> dict[str, str]:
    links = row.run.s3_urls or {}
    return {name.removeprefix("attachment."): one.presigned_url for name, one in links.items()}


def _get_share_url(row: _RunDetails) -> str | None:
    token = row.details["share_token"]
    return f"{row.base_url}/public/{token}/run" if token else None


def _get_null(_seen: _RunDetails) -> None:
    return None


_FIELDS: dict[str, Callable[[_RunDetails], Any]] = {
    "ID": _read_run("id"),
    "NAME": _read_run("name"),
    "RUN_TYPE": lambda row: row.run.run_type.upper(),
    "STATUS": lambda row: row.run.status.upper(),
    "START_TIME": _read_run("start_time"),
    "END_TIME": _read_run("end_time"),
    "LATENCY_SECONDS": _get_latency,
    "FIRST_TOKEN_TIME": _read_run("first_token_time"),
    "ERROR": _read_run("error"),
    "ERROR_PREVIEW": _get_error_preview,
    "EXTRA": _read_run("extra"),
    "METADATA": _get_metadata,
    "EVENTS": _read_run("events"),
    "INPUTS": _read_run("inputs"),
    "INPUTS_PREVIEW": _read_preview("inputs"),
    "OUTPUTS": _read_run("outputs"),
    "OUTPUTS_PREVIEW": _read_preview("outputs"),
    "MANIFEST": _read_run("serialized"),
    "PARENT_RUN_ID": _read_run("parent_run_id"),
    "PARENT_RUN_IDS": _read_run("parent_run_ids"),
    "PROJECT_ID": _read_run("session_id"),
    "TRACE_ID": _read_run("trace_id"),
    "THREAD_ID": lambda row: row.details["thread_id"],
    "DOTTED_ORDER": _read_run("dotted_order"),
    "IS_ROOT": lambda row: row.run.parent_run_id is None,
    "REFERENCE_EXAMPLE_ID": _read_run("reference_example_id"),
    "REFERENCE_DATASET_ID": lambda row: row.details["reference_dataset_id"],
    "TOTAL_TOKENS": _read_run("total_tokens"),
    "PROMPT_TOKENS": _read_run("prompt_tokens"),
    "COMPLETION_TOKENS": _read_run("completion_tokens"),
    "TOTAL_COST": _read_cost("total_cost"),
    "PROMPT_COST": _read_cost("prompt_cost"),
    "COMPLETION_COST": _read_cost("completion_cost"),
    "PROMPT_TOKEN_DETAILS": _read_usage("input_token_details"),
    "COMPLETION_TOKEN_DETAILS": _read_usage("output_token_details"),
    "PROMPT_COST_DETAILS": _read_cost_details("prompt_cost_details"),
    "COMPLETION_COST_DETAILS": _read_cost_details("completion_cost_details"),
    "PRICE_MODEL_ID": lambda row: row.details["price_id"],
    "TAGS": _read_run("tags"),
    "APP_PATH": _read_run("app_path"),
    "ATTACHMENTS": _get_attachment_urls,
    "THREAD_EVALUATION_TIME": _get_null,
    "IS_IN_DATASET": _get_null,
    "LAST_QUEUED_AT": _get_null,
    "SHARE_URL": _get_share_url,
    "FEEDBACK_STATS": _read_run("feedback_stats"),
    "LS_USER_ID": lambda row: row.details["user_id"],
}
_LARGE = {
    "EXTRA": ("extra",),
    "METADATA": ("extra",),
    "EVENTS": ("events",),
    "INPUTS": ("inputs",),
    "OUTPUTS": ("outputs",),
    "MANIFEST": ("serialized",),
    "FEEDBACK_STATS": ("feedback_stats",),
    "ATTACHMENTS": ("s3_urls",),
}
# Fields that a share link returns: not the user, and no addresses inside the workspace.
PUBLIC_SELECTS = frozenset(_FIELDS) - {"LS_USER_ID", "APP_PATH", "SHARE_URL"}


class ThreadsQuery(msgspec.Struct, kw_only=True):
    """A project, a window of time (by default the last day), and filters of root runs."""

    project_id: UUID
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    min_start_time: Moment | None = None
    max_start_time: Moment | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    cursor: Annotated[str, msgspec.Meta(max_length=2000)] | None = None
    thread_filter: Annotated[str, NO_TEXT] | None = None
    ai_search: Annotated[str, NO_TEXT] | None = None


class TracedThread(msgspec.Struct, kw_only=True):
    """A thread and its traces of the window; times in seconds, costs in US dollars, previews shortened."""

    thread_id: str
    count: int
    num_errored_turns: int
    min_start_time: datetime
    max_start_time: datetime
    start_time: datetime
    first_trace_id: UUID
    last_trace_id: UUID
    trace_id: UUID
    latency_p50: float | None
    latency_p99: float | None
    total_tokens: int
    total_cost: float | None
    first_inputs: str | None
    last_outputs: str | None
    last_error: str | None


class TracedThreads(msgspec.Struct):
    """One page of threads, the last active first."""

    items: list[TracedThread]
    next_cursor: str | None = None


class _Position(msgspec.Struct, array_like=True):
    """A decoded cursor: the last thread of the page before."""

    moment: datetime
    thread_id: str


async def query_threads(db: Session, workspace_id: UUID, body: ThreadsQuery) -> TracedThreads:
    """Return a page of threads. Raises FilterInvalid, CursorInvalid and Invalid."""
    for name in ("ai_search", "thread_filter"):
        if getattr(body, name):
            raise refuse_field(name, "is not supported; leave it out")

    position = None if body.cursor is None else _read_cursor(body.cursor)
    filters = RunFilters(
        session=[body.project_id],
        is_root=True,
        filter=body.filter,
        trace_filter=body.trace_filter,
        tree_filter=body.tree_filter,
        start_time=body.min_start_time or now() - _DEFAULT_PERIOD,
        end_time=body.max_start_time,
    )

    builder = ConditionBuilder()
    condition = require_all([build_run_condition(filters, workspace_id, builder), builder.build(sql.when_threaded)])
    rows = await _find_newest_threads(db, condition, position, limit=body.page_size + 1)
    shown = rows[: body.page_size]
    cursor = _write_cursor(shown[-1]) if len(rows) > len(shown) else None

    return TracedThreads(await _to_threads(db, workspace_id, shown), cursor)


async def _find_newest_threads(
    db: Session, condition: Condition, position: _Position | None, *, limit: int
) -> list[Record]:
    """Return threads by their last turn, the latest first.

    They are looked for among the newest turns, of which a page rarely needs many; then all turns of those are read.
    """
    start = {"moment": position and position.moment}
    page = {**start, "thread_id": position and position.thread_id, "newest": MAX_TURNS, "limit": limit}
    nearest, values = apply_condition(sql.threads_of_newest_turns, condition, **start, newest=NEAR_TURNS)
    near = await db.fetchrow(nearest, **values)
    assert near is not None  # noqa: S101 - a query without groups returns one row
    among = ConditionBuilder("near").build(sql.when_in_threads, value=near["threads"] or [])
    listing, values = apply_condition(sql.recent_threads, require_all([condition, among]), **page)

    rows = await db.fetch(listing, **values)
    if len(rows) == limit or near["turns"] < NEAR_TURNS:
        return rows

    listing, values = apply_condition(sql.recent_threads, condition, **page)
    return await db.fetch(listing, **values)


async def _to_threads(db: Session, workspace_id: UUID, rows: list[Record]) -> list[TracedThread]:
    traces = [trace for row in rows for trace in row["trace_ids"]]
    used = {
        row["trace_id"]: row for row in await db.fetch(sql.usage_of_traces, workspace_id=workspace_id, trace_ids=traces)
    }
    ends = sorted({row["trace_ids"][end] for row in rows for end in (0, -1)})
    previews = await db.fetch(sql.previews_of_runs, workspace_id=workspace_id, ids=ends, chars=_PREVIEW_CHARS)
    preview = {row["id"]: row for row in previews}

    return [_to_thread(row, used, preview) for row in rows]


def _to_thread(row: Record, used: dict[UUID, Record], preview: dict[UUID, Record]) -> TracedThread:
    fields: dict[str, Any] = dict(row)
    traces = fields.pop("trace_ids")
    p50, p99 = fields.pop("latency") or (None, None)
    usage = [used[trace] for trace in traces if trace in used]
    costs = [one["total_cost"] for one in usage if one["total_cost"] is not None]
    first = traces[0]
    last = traces[-1]

    return TracedThread(
        **fields,
        start_time=row["max_start_time"],
        first_trace_id=first,
        last_trace_id=last,
        trace_id=last,
        latency_p50=p50,
        latency_p99=p99,
        total_tokens=sum(one["total_tokens"] for one in usage),
        total_cost=float(sum(costs)) if costs else None,
        first_inputs=preview[first]["inputs"] if first in preview else None,
        last_outputs=preview[last]["outputs"] if last in preview else None,
    )


def _write_cursor(row: Record) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Position(row["max_start_time"], row["thread_id"]))).decode()


def _read_cursor(text: str) -> _Position:
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=_Position)
        position.moment = in_utc(position.moment)
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError) as exc:
        raise CursorInvalid from exc

    return position
