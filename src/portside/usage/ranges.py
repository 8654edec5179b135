"""Time ranges of usage: how bounds are parsed, and the width and start of buckets.

Decisions where LangSmith's documentation is silent: whole days decide the width, so 31.5 days are counted by day and
93.2 days by week. Hours and days are aligned to UTC; wider buckets start at the UTC midnight at or before the range's
start.
"""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from portside.kernel.errors import BadRequest, Invalid
from portside.usage.types import Stride

_LOST_PLUS = re.compile(r"(\d\d:\d\d\S*) (\d\d:?\d\d)$")
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_STRIDES = ((31, Stride(days=1)), (93, Stride(days=7)), (366, Stride(days=30)))


class RangeEmpty(BadRequest):
    """end_time must be after start_time"""  # noqa: D415 - the exact text of LangSmith's API

    code = "range_empty"


class Range(msgspec.Struct, frozen=True):
    """A half-open range of time, divided into buckets of one width that begin at `origin`."""

    start: datetime
    end: datetime
    stride: Stride

    @property
    def origin(self) -> datetime:
        """The UTC midnight at or before the start, which is a boundary of hours and days too."""
        return self.start.replace(hour=0, minute=0, second=0, microsecond=0)

    @property
    def width(self) -> timedelta:
        """The length of a bucket."""
        return timedelta(days=self.stride.days, hours=self.stride.hours)

    def bucket(self, number: int) -> datetime:
        """Return the start of a bucket; the first one has number 0."""
        return self.origin + number * self.width

    def split(self, hours_until: datetime | None, days_until: datetime | None) -> "RangeParts":
        """Split the range into whole days and hours with totals, and the rest, which is counted trace by trace."""
        hours = self._whole(_HOUR, hours_until)
        days = self._whole(_DAY, days_until)
        if days[0] == days[1]:
            days = hours[0], hours[0]
        elif not hours[0] <= days[0] <= days[1] <= hours[1]:
            # The hours are not counted as far as the days yet: an older version counted days alone.
            hours = days

        return RangeParts(first_hour=hours[0], first_day=days[0], last_day=days[1], last_hour=hours[1])

    def _whole(self, unit: timedelta, until: datetime | None) -> tuple[datetime, datetime]:
        """Return the whole units of the range that end by `until`; (start, start) if there are none."""
        last = self.start if until is None else min(self.end - (self.end - self.origin) % unit, until)
        # Only computed if needed: the midnight after a start in year 9999 would overflow.
        first = self.start if last <= self.start else self.start + (self.origin - self.start) % unit
        return first, max(first, last)


class RangeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a range: counted by hours (`first_hour` to `last_hour`), by days within that, the rest by traces."""

    first_hour: datetime
    first_day: datetime
    last_day: datetime
    last_hour: datetime


def read_range(start_time: str, end_time: str) -> Range:
    """Parse both bounds. Raises Invalid for an invalid time, and RangeEmpty."""
    start = _moment(start_time, "start_time")
    end = _moment(end_time, "end_time")
    if end <= start:
        raise RangeEmpty

    return Range(start, end, stride_of(end - start))


def stride_of(length: timedelta) -> Stride:
    """Return the bucket width for a range of this length."""
    if length < timedelta(days=1):
        return Stride(hours=1)
    return next((stride for days, stride in _STRIDES if length.days <= days), Stride(days=365))


def _moment(text: str, name: str) -> datetime:
    """Parse ISO 8601, in UTC without an offset. A plus sign that was decoded to a space is restored."""
    try:
        read = datetime.fromisoformat(_LOST_PLUS.sub(r"\1+\2", text.strip()))
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(["query", name], "must be an ISO 8601 time", "datetime_parsing") from exc
