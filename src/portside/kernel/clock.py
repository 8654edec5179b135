"""Time: aware datetimes in UTC, written the one way clients expect."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """Write a moment as ISO 8601 with microseconds and `+00:00`, never `Z` (contract: Conventions)."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
