"""Charts and sections as the API receives and returns them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import msgspec

from portside.kernel.clock import Moment
from portside.tracing.stats import (
    Grouping,
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
_NOT_ZERO = msgspec.Meta(
    extra_json_schema={
        "anyOf": [{"required": [name], "properties": {name: {"minimum": 1}}} for name in ("days", "hours", "minutes")]
    }
)


class ChartWindow(msgspec.Struct, kw_only=True):
    """The period to show, by default until now. Buckets begin at midnight in the time zone."""

    start_time: Moment
    end_time: Moment | None = None
    stride: Annotated[ChartStride, _NOT_ZERO] = msgspec.field(default_factory=lambda: ChartStride(minutes=15))
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
