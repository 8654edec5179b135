"""Parsing of single values that tracing clients send.

Clients are lenient writers: times are ISO text or epoch milliseconds, text may hold NUL, JSON may hold lone surrogates
or NaN. Values with an obvious meaning are accepted; others are refused with their location.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from portside.kernel.clock import in_utc, read_utc
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import to_problem
from portside.kernel.http.json_validation import limit_values
from portside.kernel.http.json_validation import read_json as read_strict_json
from portside.kernel.user_json import dump_user

T = TypeVar("T")
MAX_NAME_CHARS = 2_000
NULL = msgspec.Raw(b"null")


def read_json(raw: bytes, kind: type[T], where: str) -> T:
    """Decode JSON into a type; repair NaN and lone surrogates, which clients send. Raises Invalid and TooManyValues."""
    try:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError:
            # It is a DecodeError too, but the JSON is valid, so there is nothing to repair.
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The parser that repairs makes an object of each value, and holds the interpreter's lock meanwhile.
            limit_values(raw)
            return msgspec.json.decode(dump_user(json.loads(raw.decode("utf-8", "replace"))), type=kind)
    except msgspec.ValidationError as exc:
        raise Invalid([to_problem(str(exc), where)]) from exc
    except (ValueError, RecursionError) as exc:
        raise Invalid.field([where], f"Invalid JSON: {exc}", "json_invalid") from exc


def limit_objects(raw: bytes, limit: int) -> None:
    """Refuse JSON with too many objects. Braces inside strings count as well. Raises Invalid.

    An empty object takes three bytes in a body and a hundred times as much in memory.
    """
    if raw.count(b"{") > limit:
        raise Invalid.field(["body"], f"holds more than {limit} objects; send smaller batches")


def to_json_text(value: msgspec.Raw) -> str | None:
    """Return JSON that was already validated as text; None for null."""
    if value is NULL:
        return None

    raw = bytes(value)
    if raw == b"null":
        return None

    try:
        return raw.decode()
    except UnicodeDecodeError:
        limit_values(raw)
        return dump_user(json.loads(raw.decode("utf-8", "replace"))).decode()


def to_plain_text(value: Any) -> str | None:
    """Return text without NUL, which Postgres cannot store; None for empty text. Other types become JSON text."""
    if value is None:
        return None

    text = value if isinstance(value, str) else dump_user(value).decode()
    return text.replace("\x00", "") or None


def to_name(value: str | None) -> str | None:
    """Return a name, cut to the stored length; None for an empty one."""
    return (to_plain_text(value) or "")[:MAX_NAME_CHARS] or None


def encode_tags(tags: Iterable[str]) -> str:
    """Return tags as the JSON text that a `RunWrite` holds."""
    return msgspec.json.encode([to_name(tag) or "" for tag in tags]).decode()


def parse_time(value: str | float | None, where: str) -> datetime | None:
    """Parse a time: ISO 8601 (UTC without an offset) or epoch milliseconds. Raises Invalid."""
    if value is None:
        return None

    try:
        if not isinstance(value, str):
            return datetime.fromtimestamp(value / 1000, UTC)
        return in_utc(datetime.fromisoformat(value))
    except (ValueError, OverflowError, OSError) as exc:
        raise Invalid.field(["body", where], "must be an ISO 8601 time or epoch milliseconds") from exc


def to_utc(value: datetime, where: str) -> datetime:
    """Convert a time of a body to UTC. Raises Invalid if its offset moves it out of the years 1 to 9999."""
    return read_utc(value, ["body", where])


def build_dotted_order_part(start: datetime, run_id: UUID) -> str:
    """Return the last part of a run's dotted order; the start is in UTC. `dotted_order_part` is the same in SQL."""
    # Called for every root: several times faster than strftime.
    digits = start.isoformat(timespec="microseconds")[:26].replace("-", "").replace(":", "").replace(".", "")
    return f"{digits}Z{run_id}"


def parse_uuid(text: str, where: str) -> UUID:
    """Parse an id. Raises Invalid."""
    try:
        return UUID(text)
    except ValueError as exc:
        raise Invalid.field(["body", where], "must be a UUID", "uuid_parsing") from exc


def read_query_object(text: str | None, name: str) -> dict[str, Any] | None:
    """Parse a query parameter that holds a JSON object. Raises Invalid."""
    if text is None:
        return None

    try:
        value = read_strict_json(text.encode())
    except Invalid as exc:
        raise Invalid.field(["query", name], "must be a JSON object", "json_invalid") from exc

    if not isinstance(value, dict):
        raise Invalid.field(["query", name], "must be a JSON object", "type_error")

    return value


class RunFields(msgspec.Struct):
    """A run in a request. Every field may be missing: a patch sends only what changed."""

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
    """The fields of feedback that are stored in columns."""

    key: str
    run_id: UUID | None = None
    trace_id: UUID | None = None
    modified_at: str | float | None = None
    extend_trace_retention: bool | None = None
