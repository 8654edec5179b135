"""The ranges of usage queries and their buckets."""

from datetime import UTC, datetime, timedelta

import pytest

from portside.kernel.errors import Invalid
from portside.usage.ranges import RangeEmpty, choose_stride, read_range
from portside.usage.types import Stride

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("length", "stride"),
    [
        (timedelta(microseconds=1), Stride(hours=1)),
        (DAY - timedelta(microseconds=1), Stride(hours=1)),
        (DAY, Stride(days=1)),
        (31 * DAY, Stride(days=1)),
        (31.5 * DAY, Stride(days=1)),
        (32 * DAY, Stride(days=7)),
        (93.2 * DAY, Stride(days=7)),
        (94 * DAY, Stride(days=30)),
        (366.5 * DAY, Stride(days=30)),
        (367 * DAY, Stride(days=365)),
        (36500 * DAY, Stride(days=365)),
    ],
)
def test_the_length_decides_the_stride(length: timedelta, stride: Stride):
    assert choose_stride(length) == stride


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-15T10:30:00Z",
        "2026-01-15T10:30:00",
        "2026-01-15T12:30:00+02:00",
        "2026-01-15T12:30:00 02:00",
        "2026-01-15T12:30:00.000 0200",
        "2026-01-15 10:30",
        "2026-01-15T05:30:00-05:00",
    ],
)
def test_bounds_are_read_in_utc(text: str):
    within = read_range(text, "2026-01-15T12:00:00Z")
    assert within.start == datetime(2026, 1, 15, 10, 30, tzinfo=UTC)
    assert within.origin == datetime(2026, 1, 15, tzinfo=UTC)
    assert within.width == timedelta(hours=1)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "0001-01-01T00:00:00+14:00", "1768473000"])
def test_an_invalid_time_is_refused(text: str):
    with pytest.raises(Invalid, match="start_time"):
        read_range(text, "2026-01-15T12:00:00Z")


@pytest.mark.parametrize("end", ["2026-01-15T10:30:00Z", "2026-01-14T10:30:00Z"])
def test_an_empty_range_is_refused(end: str):
    with pytest.raises(RangeEmpty, match="end_time must be after start_time"):
        read_range("2026-01-15T10:30:00Z", end)


@pytest.mark.parametrize(
    ("start", "end", "hours", "days", "pieces"),
    [
        ("02T10:30", "05T09:30", "05T07", "05T00", ["02T11", "03T00", "05T00", "05T07"]),
        ("02T00:00", "05T00:00", "05T07", "05T00", ["02T00", "02T00", "05T00", "05T00"]),
        ("02T10:30", "03T09:30", "05T07", "05T00", ["02T11", "02T11", "02T11", "03T09"]),
        ("02T10:50", "02T11:10", "05T07", "05T00", ["02T11", "02T11", "02T11", "02T11"]),
        ("02T10:30", "02T10:50", "05T07", "05T00", None),
        ("02T10:30", "05T09:30", "02T07", "05T00", ["03T00", "03T00", "05T00", "05T00"]),
        ("02T10:30", "05T09:30", "04T07", None, ["02T11", "02T11", "02T11", "04T07"]),
        ("02T10:30", "05T09:30", None, None, None),
        ("06T10:30", "09T09:30", "05T07", "05T00", None),
    ],
)
def test_a_range_is_split_at_counted_hours_and_days(
    start: str, end: str, hours: str | None, days: str | None, pieces: list[str] | None
):
    def moment(text: str | None) -> datetime | None:
        return text and datetime.fromisoformat(f"2026-01-{text}").replace(tzinfo=UTC)

    cut = read_range(f"2026-01-{start}", f"2026-01-{end}").split(hours_until=moment(hours), days_until=moment(days))
    found = [cut.first_hour, cut.first_day, cut.last_day, cut.last_hour]
    assert found == [moment(piece) for piece in pieces or [start] * 4]


def test_a_range_in_year_9999_is_split():
    until = datetime(2026, 1, 2, tzinfo=UTC)
    within = read_range("9999-12-31T23:30:00Z", "9999-12-31T23:40:00Z")
    assert within.split(hours_until=until, days_until=until).last_hour == within.start
