"""Figures of runs: how many, how long, how dear, what was thought of them; together, by group, or over time.

One statement counts for `POST /runs/stats`, for projects and for charts. Where nothing is asked of many runs but where
and when they began, days that were counted before tell it (`figure_days`). Feedback that gives one of several values is
counted by value.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from portside.kernel.db import Record, Session
from portside.tracing.conditions import Condition, narrow
from portside.tracing.figure_days import Division, PlainQuestion, figures_of_days, midnight
from portside.tracing.sql import sql

MAX_SLICES = 20_000
_DAY = timedelta(days=1)
_SPREADS = {
    "latency": ("latency_p50", "latency_p99"),
    "first_token": ("first_token_p50", "first_token_p99"),
    "prompt_tokens_spread": ("prompt_tokens_p50", "prompt_tokens_p99"),
    "completion_tokens_spread": ("completion_tokens_p50", "completion_tokens_p99"),
    "total_tokens_spread": ("median_tokens", "tokens_p99"),
    "cost": ("cost_p50", "cost_p99"),
}


class FeedbackStats(msgspec.Struct):
    """How often feedback of one key was given, its average score, and how often each value was given."""

    n: int
    avg: float | None
    values: dict[str, int] = {}


class RunStats(msgspec.Struct, kw_only=True):
    """Figures of runs; times in seconds, costs as decimal text, null where nothing tells."""

    run_count: int = 0
    latency_p50: float | None = None
    latency_p99: float | None = None
    latency_avg: float | None = None
    first_token_p50: float | None = None
    first_token_p99: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_p50: float | None = None
    prompt_tokens_p99: float | None = None
    completion_tokens_p50: float | None = None
    completion_tokens_p99: float | None = None
    median_tokens: float | None = None
    tokens_p99: float | None = None
    prompt_cost: str | None = None
    completion_cost: str | None = None
    total_cost: str | None = None
    cost_p50: float | None = None
    cost_p99: float | None = None
    error_rate: float | None = None
    streaming_rate: float | None = None
    last_run_start_time: datetime | None = None
    feedback_stats: dict[str, FeedbackStats] = msgspec.field(default_factory=dict)


class Slicing(msgspec.Struct, kw_only=True, frozen=True):
    """How runs are put into groups and buckets of time; `limit` slices at most are counted, the largest ones."""

    attribute: str | None = None
    path: str | None = None
    groups: list[str] | None = None
    stride: timedelta | None = None
    origin: datetime | None = None
    limit: int = MAX_SLICES


Slice = tuple[datetime | None, str]
ALL = Slicing()


async def measure(
    db: Session, condition: Condition, slicing: Slicing = ALL, plain: PlainQuestion | None = None
) -> dict[Slice, RunStats]:
    """Return the figures of the runs that meet a condition by bucket and group; the largest first.

    `plain` asks the same as the condition, where that can be asked of days.
    """
    found = await measure_runs(db, condition, slicing, plain)
    if found:
        statement, values = narrow(sql.feedback_of_runs, condition, **_within(slicing))
        _add_feedback(found, await db.fetch(statement, **values))
    return found


async def measure_runs(
    db: Session, condition: Condition, slicing: Slicing = ALL, plain: PlainQuestion | None = None
) -> dict[Slice, RunStats]:
    """Return the same without feedback."""
    rows: list[Any] | None = None
    if plain is not None and (division := _division(slicing)):
        rows = await figures_of_days(db, plain, division)
    if rows is None:
        statement, values = narrow(sql.figures_of_runs, condition, **_within(slicing), limit=slicing.limit)
        rows = await db.fetch(statement, **values)
    return {(row["bucket"], row["group_name"]): _figures(row) for row in rows}


async def measure_all(db: Session, condition: Condition, plain: PlainQuestion | None = None) -> RunStats:
    """Return the figures of the runs that meet a condition, taken together."""
    return (await measure(db, condition, plain=plain)).get((None, ""), RunStats())


def _within(slicing: Slicing) -> dict[str, Any]:
    return {name: getattr(slicing, name) for name in ("attribute", "path", "groups", "stride", "origin")}


def _division(slicing: Slicing) -> Division | None:
    """Return how days are put together; None for groups and buckets that they are not counted by."""
    if slicing.attribute not in {None, "project"} or slicing.groups is not None:
        return None
    if slicing.stride is not None and (
        slicing.stride % _DAY or slicing.origin is None or slicing.origin != midnight(slicing.origin)
    ):
        return None
    return Division(
        by_project=slicing.attribute == "project", stride=slicing.stride, origin=slicing.origin, limit=slicing.limit
    )


def _figures(row: Record | Mapping[str, Any]) -> RunStats:
    fields: dict[str, Any] = dict(row)
    del fields["bucket"], fields["group_name"]
    for spread, names in _SPREADS.items():
        fields.update(zip(names, fields.pop(spread) or (None, None), strict=True))
    return RunStats(**fields)


def _add_feedback(found: dict[Slice, RunStats], rows: list[Record]) -> None:
    totals: dict[tuple[Slice, str], tuple[int, float]] = {}
    for row in rows:
        place = (row["bucket"], row["group_name"])
        if place not in found:
            continue
        stats = found[place].feedback_stats.setdefault(row["key"], FeedbackStats(0, None, {}))
        stats.n += row["n"]
        if row["value"] is not None:
            stats.values[row["value"]] = row["n"]
        scored, total = totals.get((place, row["key"]), (0, 0.0))
        scored, total = scored + row["scored"], total + (row["total"] or 0.0)
        totals[place, row["key"]] = scored, total
        stats.avg = total / scored if scored else None
