"""Single values as tracing clients write them, made fit for storage.

Clients are lenient writers: times are ISO text or epoch milliseconds, text may hold NUL, JSON may hold lone surrogates
or NaN. What has an obvious meaning is taken, the rest is refused with its place.
"""

import json
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from portside.kernel.codec import dump_user
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import problem_of

T = TypeVar("T")
MAX_NAME_CHARS = 2_000
NULL = msgspec.Raw(b"null")


def read_json(raw: bytes, kind: type[T], where: str) -> T:
    """Decode JSON into a type, mending what strict JSON forbids and clients send. Raises Invalid."""
    try:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(dump_user(json.loads(raw.decode("utf-8", "replace"))), type=kind)
    except msgspec.ValidationError as exc:
        raise Invalid([problem_of(str(exc), where)]) from exc
    except (ValueError, RecursionError) as exc:
        raise Invalid.field([where], f"Invalid JSON: {exc}", "json_invalid") from exc


def check_objects(raw: bytes, limit: int) -> None:
    """Raise Invalid for JSON of more objects than are made of a body; braces within texts count as well.

    An empty object takes three bytes in a body and a hundred times as much in memory.
    """
    if raw.count(b"{") > limit:
        raise Invalid.field(["body"], f"holds more than {limit} objects")


def json_text(value: msgspec.Raw) -> str | None:
    """Return checked JSON as text; None for null."""
    if value is NULL:
        return None
    raw = bytes(value)
    if raw == b"null":
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return dump_user(json.loads(raw.decode("utf-8", "replace"))).decode()


def plain_text(value: Any) -> str | None:
    """Return text without NUL, which Postgres cannot hold; None for nothing. Values of other types become JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else dump_user(value).decode()
    return text.replace("\x00", "") or None


def name_text(value: str | None) -> str | None:
    """Return a name, cut to what is kept of one."""
    return (plain_text(value) or "")[:MAX_NAME_CHARS] or None


def moment(value: str | float | None, where: str) -> datetime | None:
    """Read a time: ISO 8601, without offset in UTC, or epoch milliseconds. Raises Invalid."""
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            return datetime.fromtimestamp(value / 1000, UTC)
        return aware(datetime.fromisoformat(value))
    except (ValueError, OverflowError, OSError) as exc:
        raise Invalid.field(["body", where], "must be an ISO 8601 time or epoch milliseconds") from exc


def aware(value: datetime) -> datetime:
    """Return a time in UTC; one without an offset is in UTC already."""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


def own_order(start: datetime, run_id: UUID) -> str:
    """Return a run's own part of its dotted order; the start is in UTC. SQL has the same under the same name."""
    # Several times faster than strftime, and once for every root.
    digits = start.isoformat(timespec="microseconds")[:26].replace("-", "").replace(":", "").replace(".", "")
    return f"{digits}Z{run_id}"


def uuid_of(text: str, where: str) -> UUID:
    """Read an id. Raises Invalid."""
    try:
        return UUID(text)
    except ValueError as exc:
        raise Invalid.field(["body", where], "must hold a UUID", "uuid_parsing") from exc


class Fields(msgspec.Struct):
    """A run in JSON, as much of it as a request brings."""

    id: UUID | None = None
    trace_id: UUID | None = None
    parent_run_id: UUID | None = None
    dotted_order: str | None = None
    session_id: UUID | None = None
    session_name: str | None = None
    reference_example_id: UUID | None = None
    name: str | None = None
    run_type: str | None = None
    start_time: str | float | None = None
    end_time: str | float | None = None
    tags: list[str] | None = None
    error: msgspec.Raw = NULL
    inputs: msgspec.Raw = NULL
    outputs: msgspec.Raw = NULL
    extra: msgspec.Raw = NULL
    events: msgspec.Raw = NULL
    serialized: msgspec.Raw = NULL


class FeedbackFields(msgspec.Struct):
    """What feedback is found by."""

    key: str
    run_id: UUID | None = None
    trace_id: UUID | None = None
    modified_at: str | float | None = None
    extend_trace_retention: bool | None = None
