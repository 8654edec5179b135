"""The structs of usage."""

from datetime import datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import msgspec

# A time as text: its form is more liberal than that of a datetime (`ranges.py`).
DateTimeText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"}, max_length=100)]
# What a count is about: ids and names, each by its field; null for traces without it.
Dimensions = dict[str, str | None]


class GroupBy(Enum):
    """The dimension that traces are counted by."""

    WORKSPACE = "workspace"
    PROJECT = "project"
    USER = "user"
    API_KEY = "api_key"


class UsageQuery(msgspec.Struct, kw_only=True):
    """The traces to count: those received in `[start_time, end_time)` in the given workspaces."""

    start_time: DateTimeText
    end_time: DateTimeText
    workspace_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]
    group_by: GroupBy = GroupBy.WORKSPACE


class Stride(msgspec.Struct, frozen=True):
    """The width of a time bucket; one of the two is zero."""

    days: int = 0
    hours: int = 0


class UsageRecord(msgspec.Struct, gc=False):
    """The number of traces of one bucket and combination of dimensions; `group_by` decides the dimensions' keys."""

    time_bucket: datetime
    dimensions: dict[str, Any]
    traces: int


class Usage(msgspec.Struct):
    """The records of a range, oldest first."""

    stride: Stride
    usage: list[UsageRecord]
