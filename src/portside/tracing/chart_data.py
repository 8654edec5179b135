"""The data of charts: statistics of runs in time buckets of one width, computed when a client requests them.

Buckets begin at the midnight of the client's time zone at or before the start, so that daily buckets are the client's
days; across a change of the clocks they keep their width. A bucket without runs has the value 0 for counts and sums,
else null.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from portside.kernel.clock import in_utc, now
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.tracing.chart_types import (
    ChartFilters,
    ChartSeries,
    ChartWindow,
    Point,
    Value,
)
from portside.tracing.conditions import Condition, ConditionBuilder, require_all
from portside.tracing.fields import to_utc
from portside.tracing.rollups import RollupQuery, to_rollup_query
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.stats import (
    FeedbackStats,
    RunStats,
    StatsGrouping,
    compute_run_stats,
    compute_stats,
    read_grouping,
)

MAX_BUCKETS = 2000
# Of all charts in one response. A point takes some 300 bytes, with its JSON.
MAX_POINTS = 500_000
# Buckets with the groups in each.
_MAX_SLICES = MAX_BUCKETS * 200
_COSTS = frozenset({"total_cost", "prompt_cost", "completion_cost"})


class TimeBuckets(msgspec.Struct, frozen=True):
    """A period, divided into buckets."""

    start: datetime
    end: datetime
    width: timedelta
    origin: datetime

    def starts(self) -> list[datetime]:
        """Return the starts of the buckets."""
        first = self.origin + (self.start - self.origin) // self.width * self.width
        return [first + index * self.width for index in range(-(-(self.end - first) // self.width))]


def to_buckets(window: ChartWindow) -> TimeBuckets:
    """Return the buckets of a period. Raises Invalid if it is empty or has too many buckets."""
    start = to_utc(window.start_time, "start_time")
    end = to_utc(window.end_time, "end_time") if window.end_time else now()
    width = timedelta(days=window.stride.days, hours=window.stride.hours, minutes=window.stride.minutes)

    if end <= start:
        raise Invalid.field(["body", "end_time"], "must be after start_time")
    if not width:
        raise Invalid.field(["body", "stride"], "must not be empty")
    if (end - start) / width > MAX_BUCKETS:
        raise Invalid.field(["body", "stride"], f"divides the period into more than {MAX_BUCKETS} buckets")

    try:
        local = start.astimezone(ZoneInfo(window.timezone))
        origin = in_utc(local.replace(hour=0, minute=0, second=0, microsecond=0))
    except OverflowError as exc:
        raise Invalid.field(["body", "start_time"], "must be between the years 1 and 9999 in its time zone") from exc
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise Invalid.field(["body", "timezone"], "is not a time zone such as Europe/Berlin") from exc

    return TimeBuckets(start, end, width, origin)


def check_points(charts: Iterable[Sequence[ChartSeries]], buckets: TimeBuckets) -> None:
    """Refuse a request whose points would take too much memory, before any of them is computed. Raises Invalid."""
    group_count = 0
    for all_series in charts:
        group_count += sum(series.group_by.max_groups if series.group_by else 1 for series in all_series)

    if group_count * len(buckets.starts()) > MAX_POINTS:
        problem = f"makes more than {MAX_POINTS} points; send a wider one, a shorter period or fewer groups"
        raise Invalid.field(["body", "stride"], problem)


def check_series(all_series: list[ChartSeries], common: ChartFilters | None) -> None:
    """Check the filters, groupings and keys of series. Raises Invalid and FilterInvalid."""
    for series in all_series:
        # Both raise for what they cannot read; the workspace and the period do not matter here.
        _build_condition(UUID(int=0), series, common, buckets=None)
        _build_grouping(series, buckets=None)

        if series.metric.startswith("feedback") and series.feedback_key is None:
            raise Invalid.field(["body", "series", "feedback_key"], f"{series.metric} needs a feedback key", "missing")


async def compute_points(
    db: Session, workspace_id: UUID, all_series: list[ChartSeries], common: ChartFilters | None, buckets: TimeBuckets
) -> list[Point]:
    """Return the points of all series; those of one series in order of time."""
    points: list[Point] = []
    for series in all_series:
        points += await _compute_series_points(db, workspace_id, series, common, buckets)

    return points


async def _compute_series_points(
    db: Session, workspace_id: UUID, series: ChartSeries, common: ChartFilters | None, buckets: TimeBuckets
) -> list[Point]:
    condition = _build_condition(workspace_id, series, common, buckets)
    grouping = _build_grouping(series, buckets)
    groups = [""]
    if series.group_by is not None:
        largest = msgspec.structs.replace(grouping, stride=None, limit=series.group_by.max_groups)
        groups = [group for _, group in await compute_run_stats(db, condition, largest)]
        grouping = msgspec.structs.replace(grouping, groups=groups)

    rollup = _to_rollup_query(workspace_id, series, common, buckets)
    stats = await compute_stats(db, condition, grouping, rollup) if groups else {}
    empty = RunStats()
    starts = buckets.starts()

    points: list[Point] = []
    for group in groups:
        for start in starts:
            value = _get_value(series, stats.get((start, group), empty))
            points.append(Point(series_id=series.id, timestamp=start, value=value, group=group or None))

    return points


def _build_grouping(series: ChartSeries, buckets: TimeBuckets | None) -> StatsGrouping:
    grouping = StatsGrouping()
    if series.group_by is not None:
        grouping = read_grouping(series.group_by, None, "series")
    if buckets is None:
        return grouping

    return msgspec.structs.replace(grouping, stride=buckets.width, origin=buckets.origin, limit=_MAX_SLICES)


def _build_condition(
    workspace_id: UUID, series: ChartSeries, common: ChartFilters | None, buckets: TimeBuckets | None
) -> Condition:
    builder = ConditionBuilder()
    conditions = [
        build_run_condition(_to_run_filters(filters, buckets), workspace_id, builder)
        for filters in (series.filters, common)
    ]

    return require_all(conditions)


def _to_rollup_query(
    workspace_id: UUID, series: ChartSeries, common: ChartFilters | None, buckets: TimeBuckets
) -> RollupQuery | None:
    """Return a series as a rollup query if only one of its two filters is set and rollups can answer it."""
    active_filters = [
        filters for filters in (series.filters, common) if filters is not None and filters != ChartFilters()
    ]
    if len(active_filters) > 1:
        return None

    return to_rollup_query(_to_run_filters(active_filters[0] if active_filters else None, buckets), workspace_id)


def _to_run_filters(filters: ChartFilters | None, buckets: TimeBuckets | None) -> RunFilters:
    times: dict[str, Any] = {}
    if buckets is not None:
        times = {"start_time": buckets.start, "end_time": buckets.end - timedelta(microseconds=1)}

    return RunFilters(**msgspec.structs.asdict(filters or ChartFilters()), **times)


def _get_value(series: ChartSeries, stats: RunStats) -> Value:
    metric = series.metric
    if metric.startswith("feedback"):
        feedback = stats.feedback_stats.get(series.feedback_key or "", FeedbackStats(0, None))
        if metric == "feedback_score_avg":
            return feedback.avg

        return feedback.values if metric == "feedback_values" else msgspec.structs.asdict(feedback)

    value: float | None = float(getattr(stats, metric) or 0) if metric in _COSTS else getattr(stats, metric)
    return value
