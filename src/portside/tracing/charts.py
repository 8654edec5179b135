"""Charts of a workspace, in sections, and the data that they show.

The data of a chart is computed when a client requests it: statistics of runs in time buckets of one width. Buckets
begin at the midnight of the client's time zone at or before the start, so that daily buckets are the client's days;
across a change of the clocks they keep their width. A bucket without runs has the value 0 for counts and sums, else
null.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from portside.kernel.clock import Moment, in_utc, now
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.tracing.conditions import Condition, ConditionBuilder, require_all
from portside.tracing.fields import to_utc
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.sql import sql
from portside.tracing.stats import (
    FeedbackStats,
    Grouping,
    RollupQuery,
    RunStats,
    StatsGrouping,
    compute_run_stats,
    compute_stats,
    read_grouping,
    to_rollup_query,
)

Metric = Literal[
    "run_count",
    "latency_p50",
    "latency_p95",
    "latency_p99",
    "latency_avg",
    "first_token_p50",
    "first_token_p99",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "median_tokens",
    "prompt_tokens_p50",
    "completion_tokens_p50",
    "tokens_p99",
    "prompt_tokens_p99",
    "completion_tokens_p99",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "cost_p50",
    "cost_p99",
    "error_rate",
    "streaming_rate",
    "feedback",
    "feedback_score_avg",
    "feedback_values",
]
Title = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Kind = Literal["line", "bar"]
Value = int | float | dict[str, Any] | None
MAX_BUCKETS = 2000
# Of all charts in one response. A point takes some 300 bytes, with its JSON.
MAX_POINTS = 500_000
_COSTS = frozenset({"total_cost", "prompt_cost", "completion_cost"})
_FIRST_SECTION = "Charts"
# Buckets with the groups in each.
_MAX_SLICES = MAX_BUCKETS * 200
_MAX_SECTIONS = 1000
_JSON = ("series", "common_filters", "metadata")


class ChartFilters(msgspec.Struct, kw_only=True):
    """Filters of the runs of a series."""

    session: Annotated[list[UUID], msgspec.Meta(max_length=100)] | None = None
    filter: Text | None = None
    trace_filter: Text | None = None
    tree_filter: Text | None = None


class ChartSeries(msgspec.Struct, kw_only=True):
    """One metric over time, for each group if there is a grouping. Feedback metrics need a key."""

    metric: Metric
    name: Title | None = None
    id: UUID = msgspec.field(default_factory=uuid4)
    filters: ChartFilters | None = None
    feedback_key: Annotated[str, msgspec.Meta(min_length=1, max_length=180)] | None = None
    group_by: Grouping | None = None


AllSeries = Annotated[list[ChartSeries], msgspec.Meta(min_length=1, max_length=20)]


class ChartRequest(msgspec.Struct, kw_only=True):
    """A chart to create, by default in the first section."""

    title: Title
    series: AllSeries
    description: Text | None = None
    index: Index | None = None
    chart_type: Kind = "line"
    section_id: UUID | None = None
    common_filters: ChartFilters | None = None
    metadata: dict[str, Any] | None = None


class ChartPatch(msgspec.Struct, kw_only=True):
    """Changes of a chart; null leaves a field unchanged."""

    title: Title | None = None
    series: AllSeries | None = None
    description: Text | None = None
    index: Index | None = None
    chart_type: Kind | None = None
    section_id: UUID | None = None
    common_filters: ChartFilters | None = None
    metadata: dict[str, Any] | None = None


class SectionRequest(msgspec.Struct, kw_only=True):
    """A section to create."""

    title: Title
    description: Text | None = None
    index: Index | None = None


class SectionPatch(msgspec.Struct, kw_only=True):
    """Changes of a section; null leaves a field unchanged."""

    title: Title | None = None
    description: Text | None = None
    index: Index | None = None


class ChartStride(msgspec.Struct):
    """The width of a time bucket."""

    days: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    hours: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    minutes: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


# The default of the fields is zero, and one of them must be above it.
NOT_ZERO = msgspec.Meta(
    extra_json_schema={
        "anyOf": [{"required": [name], "properties": {name: {"minimum": 1}}} for name in ("days", "hours", "minutes")]
    }
)


class ChartWindow(msgspec.Struct, kw_only=True):
    """The period to show, by default until now. Buckets begin at midnight in the time zone."""

    start_time: Moment
    end_time: Moment | None = None
    stride: Annotated[ChartStride, NOT_ZERO] = msgspec.field(default_factory=lambda: ChartStride(minutes=15))
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    omit_data: bool = False


class SectionsWindow(ChartWindow):
    """The period to show in all sections, or in those after an index."""

    after_index: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None


class ChartDraft(msgspec.Struct, kw_only=True):
    """A chart that is not stored."""

    series: AllSeries
    common_filters: ChartFilters | None = None


class PreviewRequest(msgspec.Struct):
    """A chart that is not stored, and the period to show."""

    bucket_info: ChartWindow
    chart: ChartDraft


class Point(msgspec.Struct):
    """The value of a series in the bucket that begins at `timestamp`."""

    series_id: UUID
    timestamp: datetime
    value: Value
    group: str | None = None


class Preview(msgspec.Struct):
    """The data of a chart that is not stored."""

    data: list[Point]


class Chart(msgspec.Struct, kw_only=True):
    """A chart with its data, unless the request omits the data."""

    id: UUID
    section_id: UUID
    title: str
    description: str | None
    index: int
    chart_type: str
    series: list[ChartSeries]
    common_filters: ChartFilters | None
    metadata: dict[str, Any] | None
    data: list[Point] = []


class Section(msgspec.Struct, kw_only=True):
    """A section, with its charts if they are requested."""

    id: UUID
    title: str
    description: str | None
    index: int
    created_at: Moment
    chart_count: int
    charts: list[Chart] = []


class Sections(msgspec.Struct):
    """The sections of a workspace."""

    sections: list[Section]


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


def read_buckets(window: ChartWindow) -> TimeBuckets:
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


async def read_data(
    db: Session, workspace_id: UUID, all_series: list[ChartSeries], common: ChartFilters | None, buckets: TimeBuckets
) -> list[Point]:
    """Return the points of all series; those of one series in order of time."""
    points: list[Point] = []
    for series in all_series:
        points += await _compute_points(db, workspace_id, series, common, buckets)

    return points


async def _compute_points(
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


class ChartNotFound(NotFound):
    """Chart not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_not_found"


class SectionNotFound(NotFound):
    """Section of charts not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_section_not_found"


async def create_section(db: Session, workspace_id: UUID, body: SectionRequest) -> Section:
    """Create a section, by default as the last one."""
    section_id = uuid7()
    await db.execute(sql.create_section, id=section_id, workspace_id=workspace_id, **msgspec.structs.asdict(body))
    return await _get_section(db, workspace_id, section_id)


async def list_sections(db: Session, workspace_id: UUID) -> list[Section]:
    """List the sections in their order, without their charts."""
    return await _fetch_sections(db, workspace_id)


async def update_section(db: Session, workspace_id: UUID, section_id: UUID, body: SectionPatch) -> Section:
    """Change a section; null leaves a field unchanged. Raises SectionNotFound."""
    owner = {"workspace_id": workspace_id, "section_id": section_id}
    await db.execute(sql.update_section, **owner, **msgspec.structs.asdict(body))
    return await _get_section(db, workspace_id, section_id)


async def delete_section(db: Session, workspace_id: UUID, section_id: UUID) -> None:
    """Delete a section and its charts. Raises SectionNotFound."""
    if not await db.execute(sql.delete_section, workspace_id=workspace_id, section_id=section_id):
        raise SectionNotFound


async def create_chart(db: Database, workspace_id: UUID, body: ChartRequest) -> Chart:
    """Create a chart, by default as the last of its section. Raises SectionNotFound, FilterInvalid, Invalid."""
    check_series(body.series, body.common_filters)
    chart_id = uuid7()
    async with db.transaction() as tx:
        section_id = body.section_id or await _ensure_section(tx, workspace_id)
        await _get_section(tx, workspace_id, section_id)
        values = {**_to_columns(body), "section_id": section_id}
        await tx.execute(sql.create_chart, id=chart_id, workspace_id=workspace_id, **values)
        return await _get_chart(tx, workspace_id, chart_id)


async def update_chart(db: Session, workspace_id: UUID, chart_id: UUID, body: ChartPatch) -> Chart:
    """Change a chart. Raises ChartNotFound, SectionNotFound, FilterInvalid and Invalid."""
    check_series(body.series or [], body.common_filters)
    if body.section_id is not None:
        await _get_section(db, workspace_id, body.section_id)

    await db.execute(sql.update_chart, workspace_id=workspace_id, chart_id=chart_id, **_to_columns(body))
    return await _get_chart(db, workspace_id, chart_id)


async def delete_chart(db: Session, workspace_id: UUID, chart_id: UUID) -> None:
    """Delete a chart. Raises ChartNotFound."""
    if not await db.execute(sql.delete_chart, workspace_id=workspace_id, chart_id=chart_id):
        raise ChartNotFound


async def get_chart(db: Session, workspace_id: UUID, chart_id: UUID, window: ChartWindow) -> Chart:
    """Return a chart with its data. Raises ChartNotFound and Invalid."""
    chart = await _get_chart(db, workspace_id, chart_id)
    await _add_data(db, workspace_id, [chart], window)
    return chart


async def get_section(db: Session, workspace_id: UUID, section_id: UUID, window: ChartWindow) -> Section:
    """Return a section with its charts and their data. Raises SectionNotFound and Invalid."""
    section = await _get_section(db, workspace_id, section_id)
    await _add_charts(db, workspace_id, [section], window)
    return section


async def get_sections(db: Session, workspace_id: UUID, window: SectionsWindow) -> Sections:
    """Return the sections with their charts and their data. Raises Invalid."""
    sections = await _fetch_sections(db, workspace_id, after_index=window.after_index)
    await _add_charts(db, workspace_id, sections, window)
    return Sections(sections)


async def preview_chart(db: Session, workspace_id: UUID, body: PreviewRequest) -> Preview:
    """Return the data of a chart that is not stored. Raises FilterInvalid and Invalid."""
    chart = body.chart
    check_series(chart.series, chart.common_filters)
    buckets = read_buckets(body.bucket_info)
    check_points([chart.series], buckets)

    return Preview(await read_data(db, workspace_id, chart.series, chart.common_filters, buckets))


async def _add_charts(db: Session, workspace_id: UUID, sections: list[Section], window: ChartWindow) -> None:
    sections_by_id = {section.id: section for section in sections}
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=None, sections=sorted(sections_by_id))

    charts = [_to_chart(row) for row in rows]
    await _add_data(db, workspace_id, charts, window)
    for chart in charts:
        sections_by_id[chart.section_id].charts.append(chart)


async def _add_data(db: Session, workspace_id: UUID, charts: list[Chart], window: ChartWindow) -> None:
    buckets = read_buckets(window)
    if not window.omit_data:
        check_points([chart.series for chart in charts], buckets)
        for chart in charts:
            chart.data = await read_data(db, workspace_id, chart.series, chart.common_filters, buckets)


async def _ensure_section(db: Session, workspace_id: UUID) -> UUID:
    sections = await _fetch_sections(db, workspace_id)
    if sections:
        return sections[0].id

    section = await create_section(db, workspace_id, SectionRequest(title=_FIRST_SECTION))
    return section.id


async def _get_section(db: Session, workspace_id: UUID, section_id: UUID) -> Section:
    sections = await _fetch_sections(db, workspace_id, [section_id])
    if not sections:
        raise SectionNotFound

    return sections[0]


async def _fetch_sections(
    db: Session, workspace_id: UUID, ids: list[UUID] | None = None, after_index: int | None = None
) -> list[Section]:
    page = {"ids": ids, "after_index": after_index, "limit": _MAX_SECTIONS}
    rows = await db.fetch(sql.sections, workspace_id=workspace_id, **page)
    return [Section(**dict(row), charts=[]) for row in rows]


async def _get_chart(db: Session, workspace_id: UUID, chart_id: UUID) -> Chart:
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=[chart_id], sections=None)
    if not rows:
        raise ChartNotFound

    return _to_chart(rows[0])


def _to_chart(row: Record) -> Chart:
    return msgspec.convert(dict(row), Chart)


def _to_columns(body: ChartRequest | ChartPatch) -> dict[str, Any]:
    """Return the columns of a chart. Series with the same id get new ones."""
    ids: set[UUID] = set()
    for series in body.series or ():
        if series.id in ids:
            series.id = uuid4()
        ids.add(series.id)

    values: dict[str, Any] = msgspec.structs.asdict(body)
    return {**values, **{name: msgspec.to_builtins(values[name]) for name in _JSON}}
