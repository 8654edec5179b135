"""Runs, read: one by id, and pages of `POST /runs/query`.

A page is found as ids first, by conditions alone (`run_pages.py`); then the fields of the runs on the page are read.
"""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.identity.types import Actor
from portside.kernel.clock import Moment
from portside.kernel.db import Record, Session
from portside.kernel.errors import BadRequest, Invalid, NotFound
from portside.kernel.http.json_validation import among
from portside.tracing.attachments import DownloadLinks, build_file_response, find_attachments
from portside.tracing.conditions import Condition, ConditionBuilder, nest_condition, require_all
from portside.tracing.fields import to_utc
from portside.tracing.filter_parser import escape_for_json
from portside.tracing.filters import RUN_FILTERS, FilterSchema, compile_filter
from portside.tracing.otlp_usage import read_count
from portside.tracing.positions import read_ancestors
from portside.tracing.run_pages import Cursors, find_page
from portside.tracing.sql import sql
from portside.tracing.types import AnyObject, RunQuery, TracedRun

Ids = Annotated[list[UUID], msgspec.Meta(max_length=1000)]
ATTACHMENTS = "s3_urls"
_JSON = (
    "inputs",
    "outputs",
    "extra",
    "events",
    "serialized",
    "feedback_stats",
    "prompt_cost_details",
    "completion_cost_details",
)
COSTS = ("prompt_cost", "completion_cost", "total_cost")
# Values that clients expect to be objects. Servers of before stored what clients sent.
_OBJECTS = {"inputs": "input", "outputs": "output", "extra": "value", "serialized": "value"}
_COST_DETAILS = ("prompt_cost_details", "completion_cost_details")
# White space before a JSON text that is looked at.
_SPACE = 1_000
_decode_events = msgspec.json.Decoder(list[AnyObject]).decode
# SDKs refuse a run whose inputs are null.
_DEFAULTS = {"inputs": b"{}"}
EVERYTHING = (*_JSON, ATTACHMENTS)
MAX_LIMIT = 100
_ALWAYS = frozenset(
    {"id", "name", "run_type", "trace_id", "dotted_order", "status", "session_id", "app_path", "start_time"}
)
# Clients may select these, but they are always null: inputs and outputs are part of the response itself.
_NEVER = frozenset({"inputs_s3_urls", "outputs_s3_urls"})
_SELECTABLE = frozenset(TracedRun.__struct_fields__) | _NEVER


class TracedRunNotFound(NotFound):
    """Run not found"""  # noqa: D415 - the exact text that clients know

    code = "run_not_found"


async def get_run(db: Session, run_id: UUID, query: RunQuery, links: DownloadLinks, *, by: Actor) -> TracedRun:
    """Return a run of the actor's workspace. Raises TracedRunNotFound."""
    exclusions = {"serialized": query.exclude_serialized, ATTACHMENTS: query.exclude_s3_stored_attributes}
    large_fields = [name for name in EVERYTHING if not exclusions.get(name)]

    runs = await get_runs(db, by.workspace_id, [run_id], large_fields, links)
    if not runs:
        raise TracedRunNotFound

    return runs[0]


async def get_runs(
    db: Session, workspace_id: UUID, ids: list[UUID], large_fields: list[str], links: DownloadLinks
) -> list[TracedRun]:
    """Return the existing runs of these ids, in this order. Only these large fields are read."""
    rows = await db.fetch(sql.runs_by_id, workspace_id=workspace_id, ids=ids, fields=large_fields)
    runs = {row["id"]: _to_run(row, workspace_id) for row in rows}
    del rows

    if ATTACHMENTS in large_fields:
        attachments_by_run = await find_attachments(db, workspace_id, runs, links)
        for run_id, attachments in attachments_by_run.items():
            runs[run_id].s3_urls = {f"attachment.{name}": attachment for name, attachment in attachments.items()}

    return [runs[run_id] for run_id in ids if run_id in runs]


def _to_run(row: Record, workspace_id: UUID) -> TracedRun:
    """Return a run in the form that the SDKs can read, whatever its client sent."""
    fields: dict[str, Any] = dict(row)
    usage = fields.pop("usage")
    fields["prompt_token_details"] = read_token_details(usage, "input_token_details")
    fields["completion_token_details"] = read_token_details(usage, "output_token_details")

    for name, key in _OBJECTS.items():
        fields[name] = _to_object(fields[name], key)

    fields["events"] = _to_events(fields["events"])

    for name in _COST_DETAILS:
        fields[name] = _keep_numbers(fields[name])

    for name in _JSON:
        raw = fields[name]
        fields[name] = msgspec.Raw(_DEFAULTS.get(name, b"null") if raw is None else raw)

    for name in COSTS:
        fields[name] = None if fields[name] is None else format(fields[name], "f")

    ancestors = read_ancestors(row["dotted_order"])
    app_path = f"/o/{workspace_id}/projects/p/{row['session_id']}/r/{row['id']}"
    return TracedRun(**fields, parent_run_ids=ancestors, app_path=app_path)


def read_token_details(usage: Any, key: str) -> dict[str, int] | None:
    """Return the parts of a token count that a client reported, without what is no number."""
    details = usage.get(key) if isinstance(usage, dict) else None
    if not isinstance(details, dict):
        return None

    counts = {name: read_count(value) for name, value in details.items()}
    return {name: count for name, count in counts.items() if count is not None} or None


def _to_object(raw: bytes | None, key: str) -> bytes | None:
    """Return a value as an object; one bad value would make a whole list unreadable for the SDKs."""
    if raw is None or raw[:_SPACE].lstrip()[:1] == b"{":
        return raw
    return b'{"' + key.encode() + b'":' + raw + b"}"


def _to_events(raw: bytes | None) -> bytes | None:
    """Return events without what is no object."""
    if raw is None:
        return None

    try:
        _decode_events(raw)
    except msgspec.DecodeError:
        events = msgspec.json.decode(raw)
        items = events if isinstance(events, list) else [events]
        return msgspec.json.encode([event if isinstance(event, dict) else {"value": event} for event in items])

    return raw


def _keep_numbers(text: str | None) -> str | None:
    """Return reported costs without what is no number."""
    if text is None:
        return None

    costs = msgspec.json.decode(text)
    if not isinstance(costs, dict):
        return None

    return msgspec.json.encode({name: cost for name, cost in costs.items() if _is_number(cost)}).decode()


def _is_number(cost: Any) -> bool:
    try:
        return Decimal(str(cost)).is_finite()
    except InvalidOperation:
        return False


class RunValue(msgspec.Struct):
    """One piece of a run's data: the size of the whole text in bytes, and its first characters.

    Errors are plain text, everything else is JSON text.
    """

    name: str
    bytes: int
    text: str
    is_whole: bool


class RunValues(msgspec.Struct):
    """The data of a run."""

    run_id: UUID
    values: list[RunValue]


class ValuesQuery(msgspec.Struct):
    """How many characters of each value to return."""

    chars: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 4096


class RunValueNotFound(NotFound):
    """The run has no such value; `GET /runs/{run_id}/values` lists those that it has."""

    code = "run_value_not_found"


async def get_values(db: Session, workspace_id: UUID, run_id: UUID, query: ValuesQuery) -> RunValues:
    """Return the beginning of each value of a run, without reading the rest. Raises TracedRunNotFound."""
    owner = {"workspace_id": workspace_id, "run_id": run_id}
    rows = await db.fetch(sql.values_of_run, **owner, chars=query.chars)
    if not rows and not await db.fetch(sql.run_exists, **owner):
        raise TracedRunNotFound

    values = [RunValue(**dict(row), is_whole=len(row["text"].encode()) == row["bytes"]) for row in rows]
    return RunValues(run_id, values)


async def download_value(db: Session, workspace_id: UUID, run_id: UUID, name: str) -> Response:
    """Return a whole value as a file. Raises TracedRunNotFound and RunValueNotFound."""
    row = await db.fetchrow(sql.value_of_run, workspace_id=workspace_id, run_id=run_id, name=name)
    if row is None:
        raise TracedRunNotFound
    if row["value"] is None:
        raise RunValueNotFound

    mime_type, suffix = ("text/plain", "txt") if name == "error" else ("application/json", "json")
    return build_file_response(row["value"], mime_type, f"{row['name'][:100]}-{name}.{suffix}")


class LimitTooLarge(BadRequest):
    """Limit exceeds maximum allowed value of 100"""  # noqa: D415 - the exact text that clients know

    code = "limit_too_large"


class RunFilters(msgspec.Struct, kw_only=True):
    """Filters of runs; null does not filter. `query` is text to find in name, error, inputs or outputs."""

    id: Ids | None = None
    trace: UUID | None = None
    parent_run: UUID | None = None
    run_type: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    session: Ids | None = None
    reference_example: Ids | None = None
    execution_order: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    error: bool | None = None
    query: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    search_filter: str | None = None
    is_root: bool | None = None
    data_source_type: Literal["current", "historical", "lite"] | None = None


class RunPage(RunFilters):
    """Filters of runs, the page, and the fields to return."""

    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] = MAX_LIMIT
    select: Annotated[list[Annotated[str, among(_SELECTABLE)]], msgspec.Meta(max_length=200)] | None = None
    order: Literal["asc", "desc"] | None = "desc"
    skip_pagination: bool | None = False
    skip_prev_cursor: bool | None = False


class FoundRuns(msgspec.Struct):
    """One page of runs with their selected fields."""

    runs: list[dict[str, Any]]
    cursors: Cursors
    parsed_query: str | None = None


async def query_runs(db: Session, workspace_id: UUID, body: RunPage, links: DownloadLinks) -> FoundRuns:
    """Return a page of runs. Raises LimitTooLarge, CursorInvalid, FilterInvalid, and Invalid for an unknown field."""
    condition = build_run_condition(body, workspace_id, ConditionBuilder())
    return await get_run_page(db, workspace_id, body, condition, links)


async def get_run_page(
    db: Session, workspace_id: UUID, body: RunPage, condition: Condition, links: DownloadLinks
) -> FoundRuns:
    """Return a page of the runs that meet a condition; raises what `query_runs` does."""
    if body.limit > MAX_LIMIT:
        raise LimitTooLarge

    fields = _select_fields(body.select)
    descending = body.order != "asc"
    page = await find_page(db, condition, body.cursor, limit=body.limit, fields=fields, descending=descending)
    runs = await get_runs(db, workspace_id, page.ids, sorted(fields), links)

    cursors = Cursors() if body.skip_pagination else page.cursors
    if body.skip_prev_cursor:
        cursors.prev = None

    return FoundRuns([_to_fields(run, fields) for run in runs], cursors)


def build_run_condition(
    body: RunFilters, workspace_id: UUID, builder: ConditionBuilder, schema: FilterSchema = RUN_FILTERS
) -> Condition:
    """Return the condition of filters, which may compare the fields of `schema`. Raises FilterInvalid."""
    conditions = [builder.build(sql.when_workspace, value=workspace_id)]
    conditions += _build_column_conditions(body, builder)
    for text in (body.filter, body.search_filter):
        if text:
            conditions.append(compile_filter(text, builder, schema))

    for text, query in ((body.trace_filter, sql.when_root_of_trace), (body.tree_filter, sql.when_any_of_trace)):
        if text:
            about_trace = builder.build(query, workspace_id=workspace_id)
            conditions.append(nest_condition(about_trace, compile_filter(text, builder)))

    return require_all(conditions)


def build_scope_condition(body: RunFilters, workspace_id: UUID) -> Condition:
    """Return the condition on the project and time of runs alone."""
    scope = RunFilters(session=body.session, start_time=body.start_time, end_time=body.end_time)
    return build_run_condition(scope, workspace_id, ConditionBuilder("scope"))


def _build_column_conditions(body: RunFilters, builder: ConditionBuilder) -> list[Condition]:
    """Return the conditions of the filters that compare a column; an empty list does not filter."""
    sessions = body.session or []
    start_time = to_utc(body.start_time, "start_time") if body.start_time else None
    end_time = to_utc(body.end_time, "end_time") if body.end_time else None

    conditions: list[Condition] = []
    for query, value in (
        (sql.when_ids, body.id or None),
        (sql.when_trace, body.trace),
        (sql.when_parent, body.parent_run),
        # An index answers the one project that most queries name.
        (sql.when_in_project, sessions[0] if len(sessions) == 1 else None),
        (sql.when_in_projects, sessions if len(sessions) > 1 else None),
        (sql.when_reference_examples, body.reference_example or None),
        (sql.when_from, start_time),
        (sql.when_until, end_time),
        (sql.when_failed, body.error),
        (sql.when_root, body.is_root),
    ):
        if value is not None:
            conditions.append(builder.build(query, value=value))

    if body.query:
        conditions.append(builder.build(sql.when_searched, value=body.query, escaped=escape_for_json(body.query)))

    if body.run_type is not None:
        conditions.append(builder.build(sql.when_run_type, op="eq", value=[body.run_type]))

    if body.execution_order is not None:
        conditions.append(builder.build(sql.when_execution_order, op="eq", value=[float(body.execution_order)]))

    return conditions


def _select_fields(select: list[str] | None) -> frozenset[str]:
    """Return the selected fields, or all if none is selected. Raises Invalid for an unknown field."""
    if not select:
        return _SELECTABLE - _NEVER
    if unknown := [name for name in select if name not in _SELECTABLE]:
        raise Invalid.field(["body", "select"], f"runs have no field {unknown[0][:100]}")

    return frozenset(select) | _ALWAYS


def _to_fields(run: TracedRun, fields: frozenset[str]) -> dict[str, Any]:
    return {name: None if name in _NEVER else getattr(run, name) for name in sorted(fields)}
