"""Which ranges are counted in which buckets."""

from datetime import UTC, datetime, timedelta

import pytest

from portside.kernel.errors import Invalid
from portside.usage.ranges import RangeEmpty, read_range, stride_of
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
    assert stride_of(length) == stride


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
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(Invalid, match="start_time"):
        read_range(text, "2026-01-15T12:00:00Z")


@pytest.mark.parametrize("end", ["2026-01-15T10:30:00Z", "2026-01-14T10:30:00Z"])
def test_an_empty_range_is_refused(end: str):
    with pytest.raises(RangeEmpty, match="end_time must be after start_time"):
        read_range("2026-01-15T10:30:00Z", end)
