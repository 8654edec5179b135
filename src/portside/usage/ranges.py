"""Time ranges of usage: how bounds are read, how wide buckets are and where they begin.

Decisions where the contract is silent: whole days decide the stride, so 31.5 days still count by day and 93.2 by
week; hours and days lie on the UTC clock, wider buckets run from the UTC midnight at or before the start.
"""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from portside.kernel.errors import BadRequest, Invalid
from portside.usage.types import Stride

_LOST_PLUS = re.compile(r"(\d\d:\d\d\S*) (\d\d:?\d\d)$")
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_STRIDES = ((31, Stride(days=1)), (93, Stride(days=7)), (366, Stride(days=30)))


class RangeEmpty(BadRequest):
    """end_time must be after start_time"""  # noqa: D415 - the exact text of the contract

    code = "range_empty"


class Range(msgspec.Struct, frozen=True):
    """A half-open range of time, cut into buckets of one width that begin at `origin`."""

    start: datetime
    end: datetime
    stride: Stride

    @property
    def origin(self) -> datetime:
        """The UTC midnight at or before the start, which is a boundary of hours and days too."""
        return self.start.replace(hour=0, minute=0, second=0, microsecond=0)

    @property
    def width(self) -> timedelta:
        """How long a bucket is."""
        return timedelta(days=self.stride.days, hours=self.stride.hours)

    def bucket(self, number: int) -> datetime:
        """Return when a bucket begins, the first one being number 0."""
        return self.origin + number * self.width

    def cut(self, hours_until: datetime | None, days_until: datetime | None) -> "Pieces":
        """Cut the range into what is counted by hours and days that far, and what has to be counted by traces."""
        hours, days = self._whole(_HOUR, hours_until), self._whole(_DAY, days_until)
        if days[0] == days[1]:
            days = hours[0], hours[0]
        elif not hours[0] <= days[0] <= days[1] <= hours[1]:
            # Days were counted before there were hours, and those have not come that far yet.
            hours = days
        return Pieces(first_hour=hours[0], first_day=days[0], last_day=days[1], last_hour=hours[1])

    def _whole(self, unit: timedelta, until: datetime | None) -> tuple[datetime, datetime]:
        """Return from where to where the range is whole units that end by `until`; nothing is start and start."""
        last = self.start if until is None else min(self.end - (self.end - self.origin) % unit, until)
        # Not asked of any other: the next midnight after a start may be beyond the last day that there is.
        first = self.start if last <= self.start else self.start + (self.origin - self.start) % unit
        return first, max(first, last)


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a range is counted by hours (`first_hour` to `last_hour`), and within that by days; the rest is traces."""

    first_hour: datetime
    first_day: datetime
    last_day: datetime
    last_hour: datetime


def read_range(start_time: str, end_time: str) -> Range:
    """Read both bounds. Raises Invalid for what is no time, and RangeEmpty."""
    start, end = _moment(start_time, "start_time"), _moment(end_time, "end_time")
    if end <= start:
        raise RangeEmpty
    return Range(start, end, stride_of(end - start))


def stride_of(length: timedelta) -> Stride:
    """Return the bucket width for a range of this length."""
    if length < timedelta(days=1):
        return Stride(hours=1)
    return next((stride for days, stride in _STRIDES if length.days <= days), Stride(days=365))


def _moment(text: str, name: str) -> datetime:
    """Read ISO 8601, without offset in UTC; a plus sign that arrived as a space is put back."""
    try:
        read = datetime.fromisoformat(_LOST_PLUS.sub(r"\1+\2", text.strip()))
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(["query", name], "must be an ISO 8601 time", "datetime_parsing") from exc
