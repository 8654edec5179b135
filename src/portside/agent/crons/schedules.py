"""When a cron fires: five fields, six with seconds first, or a name like `@daily`, told in a time zone.

A schedule that names hours counts local time: what the clock skips in spring fires right after the gap, and what it
shows twice in autumn fires the first time only. One for every hour counts real time: every quarter of an hour is just
that. The fields are read by cronsim; this module owns the names, the time zones and those two rules.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from portside.kernel.errors import Invalid

NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_HOUR = set(range(24))


class Schedule:
    """A schedule that was understood. Raises Invalid for one that is not, or that never comes."""

    def __init__(self, text: str, timezone: str | None = None) -> None:
        self._zone = read_zone(timezone)
        self._fields = NAMES.get(text.strip().lower(), text)
        try:
            counts_real_time = CronSim(self._fields, datetime.now(UTC)).hours == EVERY_HOUR
        except CronSimError as exc:
            raise _refuse(text, str(exc)) from exc
        self._counts_local_time = self._zone is not UTC and not counts_real_time
        if self.next_after(datetime.now(UTC)) is None:
            raise _refuse(text, "it never comes")

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first instant after an aware moment, in UTC; None when there is none within fifty years."""
        candidates = self._local_instants(moment) if self._counts_local_time else self._real_instants(moment)
        return next((instant for instant in candidates if instant > moment), None)

    def _real_instants(self, moment: datetime) -> Iterator[datetime]:
        for instant in CronSim(self._fields, moment.astimezone(self._zone)):
            yield instant.astimezone(UTC)

    def _local_instants(self, moment: datetime) -> Iterator[datetime]:
        for shown in CronSim(self._fields, moment.astimezone(self._zone).replace(tzinfo=None, fold=0)):
            yield _first_instant(shown.replace(tzinfo=self._zone))


def read_zone(name: str | None) -> tzinfo:
    """Return the time zone with this IANA name, UTC for none. Raises Invalid."""
    if name is None or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        message = f"Invalid timezone: '{name}'. Use an IANA name such as 'Europe/Berlin'"
        raise Invalid.field(["body", "timezone"], message) from exc


def _first_instant(shown: datetime) -> datetime:
    """Return when a clock first shows this local time, or, where it skips it, the end of the gap."""
    while (instant := shown.astimezone(UTC)).astimezone(shown.tzinfo).replace(tzinfo=None) != shown.replace(
        tzinfo=None
    ):
        shown += timedelta(minutes=1)
    return instant


def _refuse(text: str, reason: str) -> Invalid:
    return Invalid.field(["body", "schedule"], f"Invalid cron schedule: '{text}'. Reason: {reason}")
