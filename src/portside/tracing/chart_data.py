"""What charts show: figures of runs, counted over buckets of time when somebody looks.

Buckets have one width. They begin at the midnight of the time zone at or before the start, so that days are days of
the people who look; across a change of the clocks they stay as wide as they are. A bucket without runs has the value 0
where runs are counted or added up, else null.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from portside.kernel.clock import now
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.tracing.chart_types import ChartFilters, Point, Series, Value, View
from portside.tracing.conditions import Condition, Conditions, all_of
from portside.tracing.fields import aware
from portside.tracing.figure_days import PlainQuestion
from portside.tracing.figures import FeedbackStats, RunStats, Slicing, measure, measure_runs
from portside.tracing.run_queries import RunFilters, conditions_of, plain_question
from portside.tracing.run_stats import read_grouping

MAX_BUCKETS = 2000
_COSTS = frozenset({"total_cost", "prompt_cost", "completion_cost"})


class Span(msgspec.Struct, frozen=True):
    """A time that is looked at, in buckets."""

    start: datetime
    end: datetime
    width: timedelta
    origin: datetime

    def buckets(self) -> list[datetime]:
        """Return where the buckets begin."""
        first = self.origin + (self.start - self.origin) // self.width * self.width
        return [first + index * self.width for index in range(-(-(self.end - first) // self.width))]


def read_span(view: View, now_is: datetime | None = None) -> Span:
    """Return the time to look at. Raises Invalid for one that is empty or has too many buckets."""
    start, end = aware(view.start_time), aware(view.end_time) if view.end_time else now_is or now()
    width = timedelta(days=view.stride.days, hours=view.stride.hours, minutes=view.stride.minutes)
    if end <= start:
        raise Invalid.field(["body", "end_time"], "must be after start_time")
    if not width:
        raise Invalid.field(["body", "stride"], "must not be empty")
    if (end - start) / width > MAX_BUCKETS:
        raise Invalid.field(["body", "stride"], f"cuts the time into more than {MAX_BUCKETS} buckets")
    try:
        local = start.astimezone(ZoneInfo(view.timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise Invalid.field(["body", "timezone"], "is no time zone, such as Europe/Berlin") from exc
    return Span(start, end, width, aware(local.replace(hour=0, minute=0, second=0, microsecond=0)))


def check_series(series: list[Series], common: ChartFilters | None) -> None:
    """Raise Invalid or FilterInvalid for series that cannot be counted."""
    for one in series:
        _conditions(UUID(int=0), one, common, None)
        _slicing(one, None)
        if one.metric.startswith("feedback") and one.feedback_key is None:
            raise Invalid.field(["body", "series", "feedback_key"], f"{one.metric} is about one key", "missing")


async def read_data(
    db: Session, workspace_id: UUID, series: list[Series], common: ChartFilters | None, span: Span
) -> list[Point]:
    """Return the points of all series, each in order of time."""
    return [point for one in series for point in await _points(db, workspace_id, one, common, span)]


async def _points(
    db: Session, workspace_id: UUID, series: Series, common: ChartFilters | None, span: Span
) -> list[Point]:
    condition = _conditions(workspace_id, series, common, span)
    slicing = _slicing(series, span)
    groups = [""]
    if series.group_by is not None:
        largest = msgspec.structs.replace(slicing, stride=None, limit=series.group_by.max_groups)
        groups = [group for _, group in await measure_runs(db, condition, largest)]
        slicing = msgspec.structs.replace(slicing, groups=groups)
    plain = _plain_question(workspace_id, series, common, span)
    found = await measure(db, condition, slicing, plain) if groups else {}
    nothing = RunStats()
    return [
        Point(series.id, bucket, _value(series, found.get((bucket, group), nothing)), group or None)
        for group in groups
        for bucket in span.buckets()
    ]


def _slicing(series: Series, span: Span | None) -> Slicing:
    grouping = Slicing() if series.group_by is None else read_grouping(series.group_by, None, "series")
    limit = MAX_BUCKETS * 200
    if span is None:
        return grouping
    return msgspec.structs.replace(grouping, stride=span.width, origin=span.origin, limit=limit)


def _conditions(workspace_id: UUID, series: Series, common: ChartFilters | None, span: Span | None) -> Condition:
    conditions = Conditions()
    asked = [_wanted(filters, span) for filters in (series.filters, common)]
    return all_of([conditions_of(wanted, workspace_id, conditions) for wanted in asked])


def _plain_question(
    workspace_id: UUID, series: Series, common: ChartFilters | None, span: Span
) -> PlainQuestion | None:
    """Return what a series asks, if it is plain and only one of its two filters says something."""
    said = [filters for filters in (series.filters, common) if filters is not None and filters != ChartFilters()]
    return None if len(said) > 1 else plain_question(_wanted(said[0] if said else None, span), workspace_id)


def _wanted(filters: ChartFilters | None, span: Span | None) -> RunFilters:
    times: dict[str, Any] = {}
    if span is not None:
        times = {"start_time": span.start, "end_time": span.end - timedelta(microseconds=1)}
    return RunFilters(**msgspec.structs.asdict(filters or ChartFilters()), **times)


def _value(series: Series, stats: RunStats) -> Value:
    metric = series.metric
    if metric.startswith("feedback"):
        told = stats.feedback_stats.get(series.feedback_key or "", FeedbackStats(0, None))
        if metric == "feedback_score_avg":
            return told.avg
        return told.values if metric == "feedback_values" else msgspec.structs.asdict(told)
    value: float | None = float(getattr(stats, metric) or 0) if metric in _COSTS else getattr(stats, metric)
    return value
