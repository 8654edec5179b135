"""Crons and the requests that create, change and find them."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from portside.agent.types.runs import Durability, RunConfig, StrategyName, StreamMode

OnRunCompleted = Literal["delete", "keep"]
CronSortBy = Literal["cron_id", "assistant_id", "thread_id", "next_run_date", "end_time", "created_at", "updated_at"]
CronField = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "user_id",
    "end_time",
    "schedule",
    "timezone",
    "payload",
    "next_run_date",
    "metadata",
    "on_run_completed",
    "is_enabled",
    "enabled",
    "created_at",
    "updated_at",
    "skipped_count",
]
ScheduleText = Annotated[str, msgspec.Meta(max_length=256)]
ZoneName = Annotated[str, msgspec.Meta(max_length=64)]
EndTime = Annotated[str, msgspec.Meta(max_length=64)]


class CronRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The request of each run of a cron."""

    input: Any = None
    metadata: dict[str, Any] | None = None
    config: RunConfig | None = None
    context: dict[str, Any] | None = None
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    durability: Durability | None = None
    checkpoint_during: bool | None = None
    webhook: str | None = None
    is_enabled: bool | None = None
    timezone: ZoneName | None = None


class ThreadCronCreate(CronRun, kw_only=True, omit_defaults=True):
    """A request to create a cron on one thread; `assistant_id` is the id of an assistant or a graph."""

    assistant_id: str
    schedule: ScheduleText
    cron_id: UUID | None = None
    end_time: EndTime | None = None
    multitask_strategy: StrategyName | None = None


class CronCreate(CronRun, kw_only=True, omit_defaults=True):
    """A request to create a cron whose runs get a thread each; `assistant_id` is the id of an assistant or a graph."""

    assistant_id: str
    schedule: ScheduleText
    cron_id: UUID | None = None
    end_time: EndTime | None = None
    on_run_completed: OnRunCompleted | None = None


class CronPatch(CronRun, kw_only=True, omit_defaults=True):
    """Changes of a cron; metadata is merged, everything else is replaced, and `end_time: null` removes it."""

    assistant_id: str | None = None
    schedule: ScheduleText | None = None
    end_time: EndTime | UnsetType | None = UNSET
    on_run_completed: OnRunCompleted | None = None
    multitask_strategy: StrategyName | None = None


class Cron(msgspec.Struct):
    """A cron in the API; older clients read `is_enabled` as `enabled`.

    `skipped_count` is an extension: the number of scheduled times without a run, because the last run was still pending
    or a run could not be created.
    """

    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None
    user_id: str
    end_time: str | None
    schedule: str
    timezone: str | None
    payload: dict[str, Any]
    next_run_date: str | None
    metadata: dict[str, Any]
    on_run_completed: OnRunCompleted | None
    is_enabled: bool
    enabled: bool
    created_at: str
    updated_at: str
    skipped_count: int


class SelectedCron(msgspec.Struct):
    """A cron with its selected fields."""

    cron_id: UUID | UnsetType = UNSET
    assistant_id: UUID | UnsetType = UNSET
    thread_id: UUID | UnsetType | None = UNSET
    user_id: str | UnsetType = UNSET
    end_time: str | UnsetType | None = UNSET
    schedule: str | UnsetType = UNSET
    timezone: str | UnsetType | None = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    next_run_date: str | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    on_run_completed: OnRunCompleted | UnsetType | None = UNSET
    is_enabled: bool | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    skipped_count: int | UnsetType = UNSET


class CronPreview(msgspec.Struct):
    """A schedule to preview, and how many of its next times to return: 5 by default."""

    schedule: ScheduleText
    timezone: ZoneName | None = None
    end_time: EndTime | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None


class CronTimes(msgspec.Struct):
    """The next times of a schedule, with the offset of its time zone."""

    timezone: str
    next_run_dates: list[str]


class CronFilter(msgspec.Struct):
    """A filter for crons: metadata by containment."""

    assistant_id: UUID | None = None
    thread_id: UUID | None = None
    is_enabled: bool | None = None
    metadata: dict[str, Any] | None = None


class CronSearch(CronFilter):
    """The crons to list, their order, and the fields to return."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] | None = None
    sort_by: CronSortBy | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: list[CronField] | None = None
