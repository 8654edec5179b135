"""The logs of revisions as clients read and listeners write them (contract: section 2, log routes)."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from portside.control.types.deployments import Line

LogType = Literal["build", "deploy"]
Offset = Annotated[str, Meta(max_length=19, pattern=r"^\d{0,18}$(?!\n)")]


class LogFilter(msgspec.Struct, kw_only=True):
    """Which entries to read; `offset` is the `next_offset` of the page before."""

    order: Literal["asc", "desc"] = "asc"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    offset: Offset | None = None
    level: Line | None = None
    query: Line | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    run_id: Line | None = None


class LogQuery(LogFilter, kw_only=True):
    """Which log to read, and which of its entries."""

    type: LogType


class LogEntry(msgspec.Struct):
    """One line of a log; `timestamp` in milliseconds since 1970."""

    id: str
    timestamp: int
    level: str
    message: str


class LogPage(msgspec.Struct):
    """Some entries, and where to go on reading; ascending, that is also where entries to come will be."""

    logs: list[LogEntry]
    next_offset: str | None


class NewLogEntry(msgspec.Struct):
    """An entry as a listener sends it; `timestamp` in milliseconds since 1970."""

    timestamp: Annotated[float, Meta(ge=0, le=253_402_300_799_000)]
    level: str
    message: str


class LogBatch(msgspec.Struct):
    """Entries for one log of a revision, oldest first."""

    type: LogType
    entries: Annotated[list[NewLogEntry], Meta(max_length=1000)]
