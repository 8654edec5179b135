"""Runs, read: one by id, and pages of `POST /runs/query`.

A page is found as ids first, by conditions alone; then the fields of the runs on the page are read. A cursor holds the
start time and id of the run next to which its page begins, so new runs do not move pages. A page ends early when the
next run would exceed the byte budget of one response.
"""

import base64
import binascii
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.identity.types import Actor
from portside.kernel.clock import Moment, in_utc
from portside.kernel.db import Record, Session
from portside.kernel.errors import BadRequest, Invalid, NotFound
from portside.kernel.http.json_validation import among
from portside.kernel.large_reads import reserve_page
from portside.kernel.timeouts import timeout
from portside.tracing.attachments import DownloadLinks, build_file_response, find_attachments
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, nest_condition, require_all
from portside.tracing.fields import to_utc
from portside.tracing.filters import RUN_FILTERS, FilterSchema, compile_filter, escape_for_json
from portside.tracing.otlp_usage import read_count
from portside.tracing.positions import read_ancestors
from portside.tracing.sql import sql
from portside.tracing.types import AnyObject, RunQuery, TracedRun

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
_DEFAULTS = {"inputs": b"{}"}  # SDKs refuse a run whose inputs are null
EVERYTHING = (*_JSON, ATTACHMENTS)
MAX_LIMIT = 100
# How many runs a search looks at in one statement: twice as many as before if that took less than this time.
FIRST_WINDOW = 5_000
LAST_WINDOW = 160_000
QUICK_WINDOW_S = 0.2
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
    left_out = {"serialized": query.exclude_serialized, ATTACHMENTS: query.exclude_s3_stored_attributes}
    shown = [name for name in EVERYTHING if not left_out.get(name)]

    found = await get_runs(db, by.workspace_id, [run_id], shown, links)
    if not found:
        raise TracedRunNotFound

    return found[0]


async def get_runs(
    db: Session, workspace_id: UUID, ids: list[UUID], shown: list[str], links: DownloadLinks
) -> list[TracedRun]:
    """Return the existing runs of these ids, in this order. Large fields are read only if they are `shown`."""
    rows = await db.fetch(sql.runs_by_id, workspace_id=workspace_id, ids=ids, shown=shown)
    found = {row["id"]: _to_run(row, workspace_id) for row in rows}
    del rows

    if ATTACHMENTS in shown:
        for run_id, attachments in (await find_attachments(db, workspace_id, found, links)).items():
            found[run_id].s3_urls = {f"attachment.{name}": one for name, one in attachments.items()}

    return [found[run_id] for run_id in ids if run_id in found]


def _to_run(row: Record, workspace_id: UUID) -> TracedRun:
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
        listed = events if isinstance(events, list) else [events]
        return msgspec.json.encode([event if isinstance(event, dict) else {"value": event} for event in listed])

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

    found = [RunValue(**dict(row), is_whole=len(row["text"].encode()) == row["bytes"]) for row in rows]
    return RunValues(run_id, found)


async def download_value(db: Session, workspace_id: UUID, run_id: UUID, name: str) -> Response:
    """Return a whole value as a file. Raises TracedRunNotFound and RunValueNotFound."""
    row = await db.fetchrow(sql.value_of_run, workspace_id=workspace_id, run_id=run_id, name=name)
    if row is None:
        raise TracedRunNotFound
    if row["value"] is None:
        raise RunValueNotFound

    kind, ending = ("text/plain", "txt") if name == "error" else ("application/json", "json")
    return build_file_response(row["value"], kind, f"{row['name'][:100]}-{name}.{ending}")


class CursorInvalid(BadRequest):
    """The cursor was not issued by this server; start again with the first page."""

    code = "cursor_invalid"


class Cursors(msgspec.Struct):
    """The cursors of the next and the previous page."""

    next: str | None = None
    prev: str | None = None


class RunIdPage(msgspec.Struct):
    """The ids of the runs on a page, in order, and the cursors of its neighbours.

    `searched_to` is set where a search was stopped before the page was full: newer runs were looked at, older ones not.
    """

    ids: list[UUID]
    cursors: Cursors
    searched_to: datetime | None = None


class _CursorPosition(msgspec.Struct, array_like=True):
    """A decoded cursor: the run next to which the page begins, and whether the page lies before that run."""

    moment: datetime
    id: UUID
    is_backwards: bool
    is_searching: bool = False
    """Whether the previous pages were searched in windows, because few runs meet the condition."""


class SearchLimit(NamedTuple):
    """How long to search for rare runs, and the condition on the runs to look at."""

    seconds: float
    scope: Condition


async def find_page(  # noqa: PLR0913 - one statement with many parameters
    db: Session,
    condition: Condition,
    cursor: str | None,
    *,
    limit: int,
    shown: Iterable[str],
    descending: bool = True,
    search: SearchLimit | None = None,
) -> RunIdPage:
    """Return a page of the runs that meet a condition, as many as fit into one response with the large fields `shown`.

    With `search` the newest runs come first, and a page may be short or empty although more follow.

    Raises CursorInvalid and TooManyLargeReads.
    """
    position = None if cursor is None else _read_cursor(cursor)
    is_backwards = position is not None and position.is_backwards
    goes_down = descending != is_backwards
    reached: _CursorPosition | None = None

    if search is not None and goes_down:
        rows, reached = await _search(db, condition, position, search, limit=limit + 1, shown=sorted(shown))
    else:
        statement, values = apply_condition(
            sql.newest_runs if goes_down else sql.oldest_runs,
            require_all([condition, *_build_condition_after(position, goes_down=goes_down)]),
            limit=limit + 1,
            shown=sorted(shown),
        )

        rows = await db.fetch(statement, **values)

    count = await reserve_page([row["bytes"] for row in rows[:limit]])
    found = [(row["start_time"], row["id"]) for row in rows[:count]]
    if is_backwards:
        found.reverse()

    ids = [run_id for _, run_id in found]
    if reached is not None and len(rows) <= count:
        return RunIdPage(ids, Cursors(_write_cursor(reached)), reached.moment)

    return RunIdPage(ids, _build_cursors(found, position, has_more=len(rows) > count))


def _build_condition_after(position: _CursorPosition | None, *, goes_down: bool) -> list[Condition]:
    """Return the condition on runs that follow a position in the order of the list; none for the first page."""
    if position is None:
        return []

    neighbours = sql.when_before if goes_down else sql.when_after
    return [ConditionBuilder("page").build(neighbours, moment=position.moment, id=position.id)]


async def _search(  # noqa: PLR0913 - one search with many parameters
    db: Session,
    condition: Condition,
    position: _CursorPosition | None,
    search: SearchLimit,
    *,
    limit: int,
    shown: list[str],
) -> tuple[list[Record], _CursorPosition | None]:
    """Return the next runs that meet a condition, and where the search stopped if its time was over.

    One statement has half of the time: an index answers most conditions quickly. If that was not enough, the search
    looks at one window of runs after the other, until the page is full or the time is over.
    """
    deadline = time.monotonic() + search.seconds

    if position is None or not position.is_searching:
        statement, values = apply_condition(
            sql.newest_runs,
            require_all([condition, *_build_condition_after(position, goes_down=True)]),
            limit=limit,
            shown=shown,
        )

        with suppress(TimeoutError):
            async with timeout(search.seconds / 2):
                return await db.fetch(statement, **values), None

    rows: list[Record] = []
    size = FIRST_WINDOW
    while True:
        began = time.monotonic()
        before = _build_condition_after(position, goes_down=True)
        statement, values = apply_condition(sql.end_of_window, require_all([search.scope, *before]), rows=size)

        end = await db.fetchrow(statement, **values)
        window = [condition, *before]
        if end is not None:
            position = _CursorPosition(end["start_time"], end["id"], is_backwards=False, is_searching=True)
            window.append(ConditionBuilder("window").build(sql.when_not_before, moment=position.moment, id=position.id))

        statement, values = apply_condition(sql.newest_runs, require_all(window), limit=limit - len(rows), shown=shown)
        rows += await db.fetch(statement, **values)
        if end is None or len(rows) == limit:
            return rows, None
        if time.monotonic() >= deadline:
            return rows, position

        if time.monotonic() - began < QUICK_WINDOW_S:
            size = min(2 * size, LAST_WINDOW)


def _build_cursors(found: list[tuple[datetime, UUID]], position: _CursorPosition | None, *, has_more: bool) -> Cursors:
    """Return cursors forwards if more runs follow, and backwards if the client came from there."""
    if not found:
        return Cursors()

    is_backwards = position is not None and position.is_backwards
    follows, precedes = (True, has_more) if is_backwards else (has_more, position is not None)
    after = _CursorPosition(*found[-1], is_backwards=False)
    before = _CursorPosition(*found[0], is_backwards=True)

    return Cursors(_write_cursor(after) if follows else None, _write_cursor(before) if precedes else None)


def _write_cursor(position: _CursorPosition) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()


def _read_cursor(text: str) -> _CursorPosition:
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=_CursorPosition)
        position.moment = in_utc(position.moment)
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError) as exc:
        raise CursorInvalid from exc

    return position


Ids = Annotated[list[UUID], msgspec.Meta(max_length=1000)]


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
    return await get_run_page(
        db, workspace_id, body, build_run_condition(body, workspace_id, ConditionBuilder()), links
    )


async def get_run_page(
    db: Session, workspace_id: UUID, body: RunPage, condition: Condition, links: DownloadLinks
) -> FoundRuns:
    """Return a page of the runs that meet a condition; raises what `query_runs` does."""
    if body.limit > MAX_LIMIT:
        raise LimitTooLarge

    fields = _select_fields(body.select)
    descending = body.order != "asc"
    page = await find_page(db, condition, body.cursor, limit=body.limit, shown=fields, descending=descending)
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
    only = RunFilters(session=body.session, start_time=body.start_time, end_time=body.end_time)
    return build_run_condition(only, workspace_id, ConditionBuilder("scope"))


def _build_column_conditions(body: RunFilters, builder: ConditionBuilder) -> list[Condition]:
    conditions: list[Condition] = []
    sessions = body.session or None
    in_one = sessions is not None and len(sessions) == 1
    for query, value in (
        (sql.when_ids, body.id or None),
        (sql.when_trace, body.trace),
        (sql.when_parent, body.parent_run),
        (sql.when_in_project, sessions[0] if sessions and in_one else None),
        (sql.when_in_projects, None if in_one else sessions),
        (sql.when_reference_examples, body.reference_example or None),
        (sql.when_from, body.start_time and to_utc(body.start_time, "start_time")),
        (sql.when_until, body.end_time and to_utc(body.end_time, "end_time")),
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
