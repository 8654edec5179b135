"""Threads of traced runs: `POST /api/v2/threads/query`.

A thread is the root runs of a project that name the same thread in their metadata.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment, now
from portside.kernel.db import Record, Session
from portside.kernel.http.json_validation import NO_TEXT
from portside.kernel.http.routes import refuse_field
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all
from portside.tracing.cursors import read_cursor, write_cursor
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


class _Cursor(msgspec.Struct, array_like=True):
    """A decoded cursor: the last thread of the page before."""

    moment: datetime
    thread_id: str


async def query_threads(db: Session, workspace_id: UUID, body: ThreadsQuery) -> TracedThreads:
    """Return a page of threads. Raises FilterInvalid, CursorInvalid and Invalid."""
    for name in ("ai_search", "thread_filter"):
        if getattr(body, name):
            raise refuse_field(name, "is not supported; leave it out")

    position = None if body.cursor is None else read_cursor(body.cursor, _Cursor)
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
    cursor = None
    if len(rows) > len(page):
        last = page[-1]
        cursor = write_cursor(_Cursor(moment=last["max_start_time"], thread_id=last["thread_id"]))

    return TracedThreads(await _to_threads(db, workspace_id, page), cursor)


async def _find_newest_threads(
    db: Session, condition: Condition, position: _Cursor | None, *, limit: int
) -> list[Record]:
    """Return threads by their last turn, the latest first.

    They are looked for among the newest turns, of which a page rarely needs many; then all turns of those are read.
    """
    moment = None if position is None else position.moment
    page = {
        "moment": moment,
        "thread_id": None if position is None else position.thread_id,
        "newest": MAX_TURNS,
        "limit": limit,
    }

    nearest, values = apply_condition(sql.threads_of_newest_turns, condition, moment=moment, newest=NEAR_TURNS)
    candidates = await db.fetchrow(nearest, **values)
    assert candidates is not None  # noqa: S101 - a query without groups returns one row

    is_candidate = ConditionBuilder("near").build(sql.when_in_threads, value=candidates["threads"] or [])
    listing, values = apply_condition(sql.recent_threads, require_all([condition, is_candidate]), **page)
    rows = await db.fetch(listing, **values)
    if len(rows) == limit or candidates["turns"] < NEAR_TURNS:
        return rows

    listing, values = apply_condition(sql.recent_threads, condition, **page)
    return await db.fetch(listing, **values)


async def _to_threads(db: Session, workspace_id: UUID, rows: list[Record]) -> list[TracedThread]:
    """Return threads with the usage of their traces, and previews of the first and the last one."""
    trace_ids = [trace_id for row in rows for trace_id in row["trace_ids"]]
    usage_rows = await db.fetch(sql.usage_of_traces, workspace_id=workspace_id, trace_ids=trace_ids)
    usage_by_trace = {row["trace_id"]: row for row in usage_rows}

    ends = {row["trace_ids"][0] for row in rows} | {row["trace_ids"][-1] for row in rows}
    preview_rows = await db.fetch(
        sql.previews_of_runs, workspace_id=workspace_id, ids=sorted(ends), chars=_PREVIEW_CHARS
    )
    preview_by_trace = {row["id"]: row for row in preview_rows}

    return [_to_thread(row, usage_by_trace, preview_by_trace) for row in rows]


def _to_thread(row: Record, usage_by_trace: dict[UUID, Record], preview_by_trace: dict[UUID, Record]) -> TracedThread:
    fields: dict[str, Any] = dict(row)
    trace_ids = fields.pop("trace_ids")
    first_id = trace_ids[0]
    last_id = trace_ids[-1]

    latency_p50, latency_p99 = fields.pop("latency") or (None, None)
    usage = [usage_by_trace[trace_id] for trace_id in trace_ids if trace_id in usage_by_trace]
    costs = [trace["total_cost"] for trace in usage if trace["total_cost"] is not None]

    return TracedThread(
        **fields,
        start_time=row["max_start_time"],
        first_trace_id=first_id,
        last_trace_id=last_id,
        trace_id=last_id,
        latency_p50=latency_p50,
        latency_p99=latency_p99,
        total_tokens=sum(trace["total_tokens"] for trace in usage),
        total_cost=float(sum(costs)) if costs else None,
        first_inputs=preview_by_trace[first_id]["inputs"] if first_id in preview_by_trace else None,
        last_outputs=preview_by_trace[last_id]["outputs"] if last_id in preview_by_trace else None,
    )
