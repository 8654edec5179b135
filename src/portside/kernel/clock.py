"""Time: aware datetimes in UTC, and the ISO 8601 format that clients expect."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from portside.kernel.errors import Invalid

Moment = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A time in a request, with or without an offset; OpenAPI documents name its format."""

# The database driver writes the first and the last moment as infinities, and reads infinities without a time zone.
_FIRST = datetime.min.replace(tzinfo=UTC) + timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC) - timedelta(microseconds=1)


def in_utc(moment: datetime) -> datetime:
    """Return a moment in UTC, as the database would return it. A moment without an offset counts as UTC.

    Raises OverflowError if the result is not in the years 1 to 9999.
    """
    shifted = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return min(max(shifted, _FIRST), _LAST)


def read_utc(moment: datetime, where: Sequence[str]) -> datetime:
    """Return a moment of a request in UTC, as `in_utc` does.

    Raises Invalid, which names the field at `where`, if its offset moves it out of the years 1 to 9999.
    """
    try:
        return in_utc(moment)
    except OverflowError as exc:
        raise Invalid.field(where, "must be between the years 1 and 9999 in UTC") from exc


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """Write a moment as ISO 8601 with microseconds and `+00:00`, never `Z`, as the APIs' clients expect."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
