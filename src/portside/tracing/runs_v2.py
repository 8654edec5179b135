"""Runs in the newer form of the API: `POST /api/v2/runs/query` and `GET /api/v2/runs/{id}` (contract: section f.4).

Fields are named in upper case, costs are numbers, statuses and types in upper case; only what is selected is told.
What this server does not know of a run (price models, queues of annotations) is null.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import now
from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.vetting import read_json
from portside.tracing.attachments import Links
from portside.tracing.conditions import Conditions
from portside.tracing.pages import find_page
from portside.tracing.run_queries import Ids, RunFilters, conditions_of
from portside.tracing.runs import RunNotFound, show_runs
from portside.tracing.sql import sql
from portside.tracing.types import Run

_PREVIEW_CHARS = 250
_LOOKS_BACK = timedelta(days=1)
_THREADS = ("session_id", "thread_id", "conversation_id")
Selects = Annotated[list[str], msgspec.Meta(max_length=200)]


class RunsQuery(msgspec.Struct, kw_only=True):
    """Which runs of which projects; those of the last day unless a time is given. What is not acted on is refused."""

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
    min_start_time: datetime | None = None
    max_start_time: datetime | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    selects: Selects | None = None
    ai_search: str | None = None
    include_subtree_usage: bool | None = None
    min_feedback_modified_at: datetime | None = None
    max_feedback_modified_at: datetime | None = None


class RunSelection(msgspec.Struct, kw_only=True):
    """What to tell of one run, and whose project it is to be in."""

    project_id: UUID | None = None
    selects: Selects | None = None
    start_time: datetime | None = None


class RunItems(msgspec.Struct):
    """One page of runs, each with what was selected."""

    items: list[dict[str, Any]]
    next_cursor: str | None = None
    has_more: bool = False


class _Seen(msgspec.Struct):
    """A run, and what other tables know of it."""

    run: Run
    details: Record
    base_url: str


async def query_runs(db: Session, workspace_id: UUID, body: RunsQuery, links: Links) -> RunItems:
    """Return a page of runs, newest first. Raises CursorInvalid, FilterInvalid and Invalid."""
    for name in ("ai_search", "include_subtree_usage", "min_feedback_modified_at", "max_feedback_modified_at"):
        if getattr(body, name):
            raise Invalid.field(["body", name], "this is not supported", "not_supported")
    selects = read_selects(body.selects, "body")
    sessions = await _projects(db, workspace_id, body)
    since = body.min_start_time
    if since is None and body.reference_dataset_id is None:
        since = now() - _LOOKS_BACK
    filters = RunFilters(
        id=body.ids,
        trace=body.trace_id,
        session=sessions,
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
    asked = conditions_of(filters, workspace_id, Conditions())
    page = await find_page(db, asked, body.cursor, limit=body.page_size)
    items = await tell_runs(db, workspace_id, page.ids, selects, links)
    return RunItems(items, page.cursors.next, page.cursors.next is not None)


async def show_run(db: Session, workspace_id: UUID, run_id: UUID, query: RunSelection, links: Links) -> dict[str, Any]:
    """Return what is selected of a run. Raises RunNotFound, also for one of another project, and Invalid."""
    wanted = {"PROJECT_ID", *read_selects(query.selects, "query")}
    found = await tell_runs(db, workspace_id, [run_id], wanted, links)
    if not found or query.project_id not in {None, found[0]["project_id"]}:
        raise RunNotFound
    if "PROJECT_ID" not in (query.selects or ()):
        del found[0]["project_id"]
    return found[0]


def read_selects(selects: list[str] | None, where: str) -> set[str]:
    """Return what to tell of each run. Raises Invalid for a field that runs do not have."""
    wanted = {name.upper() for name in selects or ["ID"]}
    if unknown := sorted(wanted - set(_FIELDS)):
        raise Invalid.field([where, "selects"], f"runs have no field {unknown[0][:100]}")
    return wanted


async def tell_runs(
    db: Session, workspace_id: UUID, ids: list[UUID], selects: Iterable[str], links: Links
) -> list[dict[str, Any]]:
    """Return what is selected of runs, in the order of their ids."""
    wanted = sorted(selects)
    large = {name for select in wanted for name in _LARGE.get(select, ())}
    runs = await show_runs(db, workspace_id, ids, sorted(large), links)
    rows = await db.fetch(sql.details_of_runs, workspace_id=workspace_id, ids=ids)
    details = {row["id"]: row for row in rows}
    seen = [_Seen(run, details[run.id], links.base_url) for run in runs if run.id in details]
    return [{name.lower(): _FIELDS[name](one) for name in wanted} for one in seen]


async def _projects(db: Session, workspace_id: UUID, body: RunsQuery) -> list[UUID]:
    if (body.project_ids is None) == (body.reference_dataset_id is None):
        raise Invalid.field(["body", "project_ids"], "name projects, or a dataset by reference_dataset_id", "missing")
    if body.project_ids is not None:
        if not body.project_ids:
            raise Invalid.field(["body", "project_ids"], "names at least one project")
        return body.project_ids
    owner = {"workspace_id": workspace_id, "dataset_id": body.reference_dataset_id}
    # No project stands for none at all, so that no filter is left out.
    return [row["id"] for row in await db.fetch(sql.projects_of_dataset, **owner)] or [UUID(int=0)]


def _cost(name: str) -> Callable[[_Seen], float | None]:
    def read(seen: _Seen) -> float | None:
        text = getattr(seen.run, name)
        return None if text is None else float(text)

    return read


def _run(name: str) -> Callable[[_Seen], Any]:
    return lambda seen: getattr(seen.run, name)


def _usage(key: str) -> Callable[[_Seen], Any]:
    def read(seen: _Seen) -> Any:
        usage = seen.details["usage"]
        told = usage.get(key) if isinstance(usage, dict) else None
        return {"raw": told} if isinstance(told, dict) else None

    return read


def _preview(name: str) -> Callable[[_Seen], str | None]:
    def read(seen: _Seen) -> str | None:
        value = getattr(seen.run, name)
        text = bytes(value).decode() if isinstance(value, msgspec.Raw) else value
        return None if text in {None, "null"} else text[:_PREVIEW_CHARS]

    return read


def _metadata(seen: _Seen) -> dict[str, Any] | None:
    try:
        extra = read_json(bytes(seen.run.extra))
    except Invalid:
        return None
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _thread(seen: _Seen) -> str | None:
    metadata = _metadata(seen) or {}
    return next((str(metadata[name]) for name in _THREADS if metadata.get(name)), None)


def _latency(seen: _Seen) -> float | None:
    run = seen.run
    return (run.end_time - run.start_time).total_seconds() if run.end_time else None


def _attachments(seen: _Seen) -> dict[str, str]:
    links = seen.run.s3_urls or {}
    return {name.removeprefix("attachment."): one.presigned_url for name, one in links.items()}


def _share(seen: _Seen) -> str | None:
    token = seen.details["share_token"]
    return f"{seen.base_url}/public/{token}/run" if token else None


def _nothing(_seen: _Seen) -> None:
    return None


_FIELDS: dict[str, Callable[[_Seen], Any]] = {
    "ID": _run("id"), "NAME": _run("name"), "RUN_TYPE": lambda seen: seen.run.run_type.upper(),
    "STATUS": lambda seen: seen.run.status.upper(), "START_TIME": _run("start_time"), "END_TIME": _run("end_time"),
    "LATENCY_SECONDS": _latency, "FIRST_TOKEN_TIME": _run("first_token_time"), "ERROR": _run("error"),
    "ERROR_PREVIEW": _preview("error"), "EXTRA": _run("extra"), "METADATA": _metadata, "EVENTS": _run("events"),
    "INPUTS": _run("inputs"), "INPUTS_PREVIEW": _preview("inputs"), "OUTPUTS": _run("outputs"),
    "OUTPUTS_PREVIEW": _preview("outputs"), "MANIFEST": _run("serialized"), "PARENT_RUN_ID": _run("parent_run_id"),
    "PARENT_RUN_IDS": _run("parent_run_ids"), "PROJECT_ID": _run("session_id"), "TRACE_ID": _run("trace_id"),
    "THREAD_ID": _thread, "DOTTED_ORDER": _run("dotted_order"),
    "IS_ROOT": lambda seen: seen.run.parent_run_id is None, "REFERENCE_EXAMPLE_ID": _run("reference_example_id"),
    "REFERENCE_DATASET_ID": lambda seen: seen.details["reference_dataset_id"], "TOTAL_TOKENS": _run("total_tokens"),
    "PROMPT_TOKENS": _run("prompt_tokens"), "COMPLETION_TOKENS": _run("completion_tokens"),
    "TOTAL_COST": _cost("total_cost"), "PROMPT_COST": _cost("prompt_cost"),
    "COMPLETION_COST": _cost("completion_cost"), "PROMPT_TOKEN_DETAILS": _usage("input_token_details"),
    "COMPLETION_TOKEN_DETAILS": _usage("output_token_details"), "PROMPT_COST_DETAILS": _usage("input_cost_details"),
    "COMPLETION_COST_DETAILS": _usage("output_cost_details"), "PRICE_MODEL_ID": _nothing, "TAGS": _run("tags"),
    "APP_PATH": _run("app_path"), "ATTACHMENTS": _attachments, "THREAD_EVALUATION_TIME": _nothing,
    "IS_IN_DATASET": _nothing, "LAST_QUEUED_AT": _nothing, "SHARE_URL": _share,
    "FEEDBACK_STATS": _run("feedback_stats"), "LS_USER_ID": lambda seen: seen.details["user_id"],
}  # fmt: skip
_LARGE = {
    "EXTRA": ("extra",), "METADATA": ("extra",), "THREAD_ID": ("extra",), "EVENTS": ("events",),
    "INPUTS": ("inputs",), "INPUTS_PREVIEW": ("inputs",), "OUTPUTS": ("outputs",), "OUTPUTS_PREVIEW": ("outputs",),
    "MANIFEST": ("serialized",), "FEEDBACK_STATS": ("feedback_stats",), "ATTACHMENTS": ("s3_urls",),
}  # fmt: skip
# What a link shows of a run; whose it is and where else it is kept is not for everybody.
PUBLIC_SELECTS = frozenset(_FIELDS) - {"LS_USER_ID", "APP_PATH", "SHARE_URL"}
