"""Threads of traced runs: `POST /api/v2/threads/query`.

A thread is the root runs of a project that name the same thread in their metadata.
"""

import base64
import binascii
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment, in_utc, now
from portside.kernel.db import Record, Session
from portside.kernel.http.json_validation import NO_TEXT
from portside.kernel.http.routes import refuse_field
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all
from portside.tracing.run_pages import CursorInvalid
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.sql import sql

MAX_TURNS = 100_000
NEAR_TURNS = 2_000
_DEFAULT_PERIOD = timedelta(days=1)
_PREVIEW_CHARS = 250


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
    page = rows[: body.page_size]
    cursor = _write_cursor(page[-1]) if len(rows) > len(page) else None

    return TracedThreads(await _to_threads(db, workspace_id, page), cursor)


async def _find_newest_threads(
    db: Session, condition: Condition, position: _Position | None, *, limit: int
) -> list[Record]:
    """Return threads by their last turn, the latest first.

    They are looked for among the newest turns, of which a page rarely needs many; then all turns of those are read.
    """
    start = {"moment": position and position.moment}
    page = {**start, "thread_id": position and position.thread_id, "newest": MAX_TURNS, "limit": limit}
    nearest, values = apply_condition(sql.threads_of_newest_turns, condition, **start, newest=NEAR_TURNS)
    candidates = await db.fetchrow(nearest, **values)
    assert candidates is not None  # noqa: S101 - a query without groups returns one row
    among = ConditionBuilder("near").build(sql.when_in_threads, value=candidates["threads"] or [])
    listing, values = apply_condition(sql.recent_threads, require_all([condition, among]), **page)

    rows = await db.fetch(listing, **values)
    if len(rows) == limit or candidates["turns"] < NEAR_TURNS:
        return rows

    listing, values = apply_condition(sql.recent_threads, condition, **page)
    return await db.fetch(listing, **values)


async def _to_threads(db: Session, workspace_id: UUID, rows: list[Record]) -> list[TracedThread]:
    traces = [trace for row in rows for trace in row["trace_ids"]]
    usage_by_trace = {
        row["trace_id"]: row for row in await db.fetch(sql.usage_of_traces, workspace_id=workspace_id, trace_ids=traces)
    }
    ends = sorted({row["trace_ids"][end] for row in rows for end in (0, -1)})
    previews = await db.fetch(sql.previews_of_runs, workspace_id=workspace_id, ids=ends, chars=_PREVIEW_CHARS)
    preview = {row["id"]: row for row in previews}

    return [_to_thread(row, usage_by_trace, preview) for row in rows]


def _to_thread(row: Record, usage_by_trace: dict[UUID, Record], preview: dict[UUID, Record]) -> TracedThread:
    fields: dict[str, Any] = dict(row)
    traces = fields.pop("trace_ids")
    p50, p99 = fields.pop("latency") or (None, None)
    usage = [usage_by_trace[trace] for trace in traces if trace in usage_by_trace]
    costs = [row["total_cost"] for row in usage if row["total_cost"] is not None]
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
        total_tokens=sum(row["total_tokens"] for row in usage),
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
