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
# The bucket width of ranges of up to so many days; longer ones are counted by year.
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

    def bucket_start(self, number: int) -> datetime:
        """Return the start of a bucket; the first one has number 0."""
        return self.origin + number * self.width

    def split(self, *, hours_until: datetime | None, days_until: datetime | None) -> "RangeParts":
        """Split the range into whole days and hours with totals, and the rest, which is counted trace by trace.

        There are totals of the hours that end by `hours_until` and of the days that end by `days_until`; none if null.
        """
        first_hour, last_hour = self._find_whole_units(_HOUR, hours_until)
        first_day, last_day = self._find_whole_units(_DAY, days_until)

        if first_day == last_day:
            # No days: hours alone.
            first_day = last_day = first_hour
        elif not first_hour <= first_day <= last_day <= last_hour:
            # The hours are not counted as far as the days yet (an older version counted days alone): days alone.
            first_hour, last_hour = first_day, last_day

        return RangeParts(first_hour=first_hour, first_day=first_day, last_day=last_day, last_hour=last_hour)

    def _find_whole_units(self, unit: timedelta, until: datetime | None) -> tuple[datetime, datetime]:
        """Return the bounds of the whole units in the range that end by `until`; (start, start) if there are none."""
        if until is None:
            return self.start, self.start

        last = min(self.end - (self.end - self.origin) % unit, until)
        if last <= self.start:
            # Returned before `first` is computed: the midnight after a start in year 9999 would overflow.
            return self.start, self.start

        first = self.start + (self.origin - self.start) % unit
        return first, max(first, last)


class RangeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a range: counted by hours (`first_hour` to `last_hour`), by days within that, the rest by traces."""

    first_hour: datetime
    first_day: datetime
    last_day: datetime
    last_hour: datetime


def read_range(start_time: str, end_time: str) -> Range:
    """Parse both bounds. Raises Invalid for an invalid time, and RangeEmpty."""
    start = _parse_time(start_time, "start_time")
    end = _parse_time(end_time, "end_time")
    if end <= start:
        raise RangeEmpty

    return Range(start, end, choose_stride(end - start))


def choose_stride(length: timedelta) -> Stride:
    """Return the bucket width for a range of this length."""
    if length < _DAY:
        return Stride(hours=1)

    for max_days, stride in _STRIDES:
        if length.days <= max_days:
            return stride

    return Stride(days=365)


def _parse_time(text: str, name: str) -> datetime:
    """Parse ISO 8601, in UTC without an offset. A plus sign that was decoded to a space is restored."""
    try:
        time = datetime.fromisoformat(_LOST_PLUS.sub(r"\1+\2", text.strip()))
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)

        return time.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(["query", name], "must be an ISO 8601 time", "datetime_parsing") from exc
