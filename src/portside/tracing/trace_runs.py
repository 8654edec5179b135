"""The runs of a trace, the first ones first: `GET /api/v2/traces/{trace_id}/runs`.

Fields without data of users are read in one statement, so that a trace of many thousand runs opens at once.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment
from portside.kernel.db import Record, Session
from portside.kernel.large_reads import reserve_page
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition
from portside.tracing.run_fields import Selects, read_selects
from portside.tracing.runs import RunFilters, TracedRunNotFound, build_run_condition
from portside.tracing.runs_v2 import read_selected
from portside.tracing.sql import sql

MAX_SPANS = 25_000
_SPAN_BYTES = 400
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
_COLUMNS = {name: {"PROJECT_ID": "session_id"}.get(name, name.lower()) for name in _SPAN_FIELDS}


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
    return [{name: reader(row) for name, reader in readers} for row in rows]


def _get_span_latency(row: Record) -> float | None:
    return (row["end_time"] - row["start_time"]).total_seconds() if row["end_time"] else None


def _read_float(name: str) -> Callable[[Record], float | None]:
    def read(row: Record) -> float | None:
        return None if row[name] is None else float(row[name])

    return read


_SPAN_READERS: dict[str, Callable[[Record], Any]] = {
    "RUN_TYPE": lambda row: row["run_type"].upper(),
    "STATUS": lambda row: row["status"].upper(),
    "IS_ROOT": lambda row: row["parent_run_id"] is None,
    "LATENCY_SECONDS": _get_span_latency,
    "PROMPT_COST": _read_float("prompt_cost"),
    "COMPLETION_COST": _read_float("completion_cost"),
    "TOTAL_COST": _read_float("total_cost"),
}
