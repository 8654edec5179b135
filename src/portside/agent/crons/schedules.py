"""When crons fire: their schedules, time zones and ends.

A schedule has five fields, six with seconds first, or a name like `@daily`, in a time zone. A schedule that names hours
follows local time: if the clock skips a time in spring, the cron fires right after the gap, and at a time that occurs
twice in autumn it fires the first time only. A schedule for every hour follows real time. cronsim parses the fields;
this module adds the names, the time zones and these two rules.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from portside.agent.types.crons import CronPreview, CronTimes
from portside.kernel.clock import in_utc, now
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
DEFAULT_PREVIEW_COUNT = 5


class Schedule:
    """A valid schedule. Raises Invalid if it is not valid, or never fires."""

    def __init__(self, text: str, timezone: str | None = None) -> None:
        self._zone = parse_zone(timezone)
        self._fields = NAMES.get(text.strip().lower(), text)
        try:
            counts_real_time = CronSim(self._fields, datetime.now(UTC)).hours == EVERY_HOUR
        except CronSimError as exc:
            raise _invalid_schedule(text, str(exc)) from exc

        self._counts_local_time = self._zone is not UTC and not counts_real_time
        if self.next_after(datetime.now(UTC)) is None:
            raise _invalid_schedule(text, "it never fires")

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first instant after an aware time, in UTC; None if there is none within fifty years."""
        candidates = self._local_instants(moment) if self._counts_local_time else self._real_instants(moment)
        return next((instant for instant in candidates if instant > moment), None)

    def _real_instants(self, moment: datetime) -> Iterator[datetime]:
        for instant in CronSim(self._fields, moment.astimezone(self._zone)):
            yield instant.astimezone(UTC)

    def _local_instants(self, moment: datetime) -> Iterator[datetime]:
        for local_time in CronSim(self._fields, moment.astimezone(self._zone).replace(tzinfo=None, fold=0)):
            yield _to_first_instant(local_time.replace(tzinfo=self._zone))


def find_next_firing(schedule: Schedule, after: datetime, ends_at: datetime | None) -> datetime | None:
    """Return when a cron fires next; None if it has ended."""
    instant = schedule.next_after(after)
    if instant is None or (ends_at is not None and instant > ends_at):
        return None

    return instant


def preview(query: CronPreview) -> CronTimes:
    """Return the next times of a schedule, fewer if it ends before. Raises Invalid."""
    schedule = Schedule(query.schedule, query.timezone)
    zone = parse_zone(query.timezone)
    ends_at = None if query.end_time is None else parse_end(query.end_time)
    count = query.count or DEFAULT_PREVIEW_COUNT

    times: list[str] = []
    moment = now()
    while len(times) < count and (instant := find_next_firing(schedule, moment, ends_at)):
        times.append(instant.astimezone(zone).isoformat())
        moment = instant

    return CronTimes(query.timezone or "UTC", times)


def parse_end(text: str) -> datetime:
    """Parse the end of a cron, in UTC unless it has an offset. Raises Invalid unless it is a future ISO 8601 time."""
    try:
        moment = in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as exc:
        message = f"Invalid end_time: '{text}' is not an ISO 8601 date and time"
        raise Invalid.field(["body", "end_time"], message) from exc

    if moment <= now():
        raise Invalid.field(["body", "end_time"], f"Invalid end_time: '{text}' is in the past")

    return moment


def parse_zone(name: str | None) -> tzinfo:
    """Return the time zone of an IANA name, UTC for None. Raises Invalid."""
    if name is None or name == "UTC":
        return UTC

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        message = f"Invalid timezone: '{name}'. Use an IANA name such as 'Europe/Berlin'"
        raise Invalid.field(["body", "timezone"], message) from exc


def _to_first_instant(local_time: datetime) -> datetime:
    """Return when a clock first shows this local time; if it never does, the end of the gap that contains it."""
    while True:
        instant = local_time.astimezone(UTC)
        is_shown = instant.astimezone(local_time.tzinfo).replace(tzinfo=None) == local_time.replace(tzinfo=None)
        if is_shown:
            return instant

        local_time += timedelta(minutes=1)


def _invalid_schedule(text: str, reason: str) -> Invalid:
    return Invalid.field(["body", "schedule"], f"Invalid cron schedule: '{text}'. Reason: {reason}")
