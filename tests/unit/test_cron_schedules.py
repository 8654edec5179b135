"""When schedules fire: clocks that skip and repeat hours, leap days, names, seconds, and what is refused."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from portside.agent.crons.schedules import NAMES, Schedule, find_next_firing
from portside.kernel.errors import Invalid


def list_instants(schedule: str, zone: str | None, begin: str, count: int) -> list[str]:
    """The first instants after a moment, in UTC."""
    understood = Schedule(schedule, zone)
    moment = datetime.fromisoformat(begin)
    found = []
    for _ in range(count):
        after = understood.next_after(moment)
        assert after is not None
        assert after > moment
        moment = after

        found.append(moment.strftime("%Y-%m-%d %H:%M:%S"))

    return found


@pytest.mark.parametrize(
    ("schedule", "zone", "begin", "expected"),
    [
        # Berlin skips 02:00-03:00 on 2026-03-29 and shows it twice on 2026-10-25.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-27T12:00+00:00",
            ["2026-03-28 01:30:00", "2026-03-29 01:00:00", "2026-03-30 00:30:00"],
        ),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+00:00", ["2026-10-25 00:30:00", "2026-10-26 01:30:00"]),
        ("0 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00", ["2026-03-29 01:00:00", "2026-03-30 00:30:00"]),
        ("0 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+00:00", ["2026-10-25 00:30:00", "2026-10-26 01:30:00"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00", ["2026-03-29 01:00:00", "2026-03-30 00:00:00"]),
        ("0 */2 * * *", "Europe/Berlin", "2026-10-24T22:30+00:00", ["2026-10-25 00:00:00", "2026-10-25 03:00:00"]),
        ("0 9 * * *", "Europe/Berlin", "2026-03-28T00:00+00:00", ["2026-03-28 08:00:00", "2026-03-29 07:00:00"]),
        # New York skips 02:00-03:00 on 2026-03-08 and shows 01:00-02:00 twice on 2026-11-01.
        ("15 2 * * *", "America/New_York", "2026-03-07T12:00+00:00", ["2026-03-08 07:00:00", "2026-03-09 06:15:00"]),
        ("15 1 * * *", "America/New_York", "2026-10-31T12:00+00:00", ["2026-11-01 05:15:00", "2026-11-02 06:15:00"]),
        # Every hour is every real hour, also in the night that has 25 of them.
        (
            "30 * * * *",
            "America/New_York",
            "2026-11-01T05:00+00:00",
            ["2026-11-01 05:30:00", "2026-11-01 06:30:00", "2026-11-01 07:30:00"],
        ),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:30+00:00", ["2026-03-29 01:00:00", "2026-03-29 01:30:00"]),
    ],
)
def test_a_schedule_keeps_to_the_clock_of_its_time_zone(schedule: str, zone: str, begin: str, expected: list[str]):
    assert list_instants(schedule, zone, begin, len(expected)) == expected


def test_repeated_hour_does_not_fire_again():
    assert list_instants("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15+00:00", 1) == ["2026-10-26 01:30:00"]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", None])
@pytest.mark.parametrize("schedule", ["0 0 * * *", "30 1 * * *", "15,45 2 * * *", "10 30 2 * * *"])
def test_each_local_time_fires_once_a_day_for_a_year(schedule: str, zone: str | None):
    understood = Schedule(schedule, zone)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    days: dict[str, int] = {}
    while (moment := understood.next_after(moment)) and moment.year == 2026:
        day = moment.astimezone(ZoneInfo(zone or "UTC")).strftime("%m-%d")
        days[day] = days.get(day, 0) + 1

    # Two times inside one gap fire together after it.
    expected = {1, 2} if "," in schedule else {1}
    assert set(days.values()) <= expected
    assert len(days) >= 364


def test_leap_days_wait_for_leap_years():
    assert list_instants("0 12 29 2 *", None, "2096-02-29T12:00+00:00", 1) == ["2104-02-29 12:00:00"]
    assert list_instants("0 12 29 2 *", None, "2026-01-01T00:00+00:00", 2) == [
        "2028-02-29 12:00:00",
        "2032-02-29 12:00:00",
    ]


def test_seconds_stand_first_of_six_fields():
    assert list_instants("*/20 * * * * *", None, "2026-01-01T00:00:05+00:00", 3) == [
        "2026-01-01 00:00:20",
        "2026-01-01 00:00:40",
        "2026-01-01 00:01:00",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@hourly", "2026-05-06 08:00:00"),
        ("@daily", "2026-05-07 00:00:00"),
        ("@midnight", "2026-05-07 00:00:00"),
        ("@weekly", "2026-05-10 00:00:00"),
        ("@monthly", "2026-06-01 00:00:00"),
        ("@yearly", "2027-01-01 00:00:00"),
        ("@annually", "2027-01-01 00:00:00"),
    ],
)
def test_names_stand_for_schedules(name: str, expected: str):
    assert name in NAMES
    assert list_instants(name, None, "2026-05-06T07:08:09+00:00", 1) == [expected]
    assert list_instants(f" {name.upper()} ", None, "2026-05-06T07:08:09+00:00", 1) == [expected]


def test_named_schedule_uses_the_time_zone():
    assert list_instants("@daily", "America/New_York", "2026-05-06T07:00+00:00", 1) == ["2026-05-07 04:00:00"]


def test_the_end_of_a_cron_is_its_last_instant():
    noon = datetime(2026, 5, 6, 12, tzinfo=UTC)
    before = datetime(2026, 5, 6, 11, tzinfo=UTC)
    daily = Schedule("0 12 * * *")
    assert find_next_firing(daily, before, None) == noon
    assert find_next_firing(daily, before, noon) == noon
    assert find_next_firing(daily, before, noon - timedelta(microseconds=1)) is None
    assert find_next_firing(daily, noon, noon) is None


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "bad",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "0 0 32 * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "*/0 * * * *",
        "5-1 * * * *",
        "@reboot",
        "@every 5m",
        "0 0 * * MON#6",
        "-1 * * * *",
        "1.5 * * * *",
        "٣ * * * *",
        "0 0 */30 * MON#3",
        "\x00 * * * *",
    ],
)
def test_invalid_schedules_are_refused(bad: str):
    with pytest.raises(Invalid) as refused:
        Schedule(bad)

    assert refused.value.problems[0].loc == ["body", "schedule"]
    assert f"Invalid cron schedule: '{bad}'. Reason: " in refused.value.problems[0].msg


@pytest.mark.parametrize("zone", ["Nowhere/City", "", "Europe", "../etc/passwd", "/etc/localtime", "+02:00", "a\x00b"])
def test_an_unknown_time_zone_is_refused(zone: str):
    with pytest.raises(Invalid) as refused:
        Schedule("@daily", zone)
    assert refused.value.problems[0].loc == ["body", "timezone"]
