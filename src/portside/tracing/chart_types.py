"""The values of charts: sections of charts, charts of series, and what is to be seen of them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import msgspec

from portside.tracing.run_stats import Grouping

Metric = Literal[
    "run_count", "latency_p50", "latency_p99", "latency_avg", "first_token_p50", "first_token_p99", "total_tokens",
    "prompt_tokens", "completion_tokens", "median_tokens", "prompt_tokens_p50", "completion_tokens_p50", "tokens_p99",
    "prompt_tokens_p99", "completion_tokens_p99", "total_cost", "prompt_cost", "completion_cost", "cost_p50",
    "cost_p99", "error_rate", "streaming_rate", "feedback", "feedback_score_avg", "feedback_values",
]  # fmt: skip
Title = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Kind = Literal["line", "bar"]


class ChartFilters(msgspec.Struct, kw_only=True):
    """Which runs a series is about."""

    session: Annotated[list[UUID], msgspec.Meta(max_length=100)] | None = None
    filter: Text | None = None
    trace_filter: Text | None = None
    tree_filter: Text | None = None


class Series(msgspec.Struct, kw_only=True):
    """One figure over time, for each group where there is a grouping; feedback metrics want a key."""

    metric: Metric
    name: Title | None = None
    id: UUID = msgspec.field(default_factory=uuid4)
    filters: ChartFilters | None = None
    feedback_key: Annotated[str, msgspec.Meta(min_length=1, max_length=180)] | None = None
    group_by: Grouping | None = None


AllSeries = Annotated[list[Series], msgspec.Meta(min_length=1, max_length=20)]


class ChartRequest(msgspec.Struct, kw_only=True):
    """What to make a chart of; without a section it goes to the first one."""

    title: Title
    series: AllSeries
    description: Text | None = None
    index: Index | None = None
    chart_type: Kind = "line"
    section_id: UUID | None = None
    common_filters: ChartFilters | None = None
    metadata: dict[str, Any] | None = None


class ChartPatch(msgspec.Struct, kw_only=True):
    """What to change of a chart; null means unchanged."""

    title: Title | None = None
    series: AllSeries | None = None
    description: Text | None = None
    index: Index | None = None
    chart_type: Kind | None = None
    section_id: UUID | None = None
    common_filters: ChartFilters | None = None
    metadata: dict[str, Any] | None = None


class SectionRequest(msgspec.Struct, kw_only=True):
    """What to make a section of."""

    title: Title
    description: Text | None = None
    index: Index | None = None


class SectionPatch(msgspec.Struct, kw_only=True):
    """What to change of a section; null means unchanged."""

    title: Title | None = None
    description: Text | None = None
    index: Index | None = None


class Stride(msgspec.Struct):
    """How wide a bucket is."""

    days: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    hours: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    minutes: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class View(msgspec.Struct, kw_only=True):
    """Which time to look at, until now unless an end is given. Buckets begin at the midnight of the time zone."""

    start_time: datetime
    end_time: datetime | None = None
    stride: Stride = msgspec.field(default_factory=lambda: Stride(minutes=15))
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    omit_data: bool = False


class SectionsView(View):
    """The same of all sections, or of those behind one."""

    after_index: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None


class ChartDraft(msgspec.Struct, kw_only=True):
    """A chart that is not stored."""

    series: AllSeries
    common_filters: ChartFilters | None = None


class PreviewRequest(msgspec.Struct):
    """A chart that is not stored, and which time to look at."""

    bucket_info: View
    chart: ChartDraft


Value = int | float | dict[str, Any] | None


class Point(msgspec.Struct):
    """The value of a series in the bucket that begins at `timestamp`."""

    series_id: UUID
    timestamp: datetime
    value: Value
    group: str | None = None


class Preview(msgspec.Struct):
    """What a chart would show."""

    data: list[Point]


class Chart(msgspec.Struct, kw_only=True):
    """A chart, with its data unless that is left out."""

    id: UUID
    section_id: UUID
    title: str
    description: str | None
    index: int
    chart_type: str
    series: list[Series]
    common_filters: ChartFilters | None
    metadata: dict[str, Any] | None
    data: list[Point] = []


class Section(msgspec.Struct, kw_only=True):
    """A section, with its charts where they are shown."""

    id: UUID
    title: str
    description: str | None
    index: int
    created_at: datetime
    chart_count: int
    charts: list[Chart] = []


class Sections(msgspec.Struct):
    """The sections of a workspace."""

    sections: list[Section]
