"""From the bytes of an OTLP request to spans: protobuf or JSON, one plain form for both.

Protobuf is walked by hand: going through its own JSON form costs five times as much (docs/why/libraries.md).
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from portside.kernel.errors import Invalid
from portside.tracing.fields import check_objects, read_json
from portside.tracing.otlp.bounds import has_more_messages

PROTOBUF, JSON = "application/x-protobuf", "application/json"
MAX_SPANS = 50_000
MAX_MESSAGES = 1_000_000
# What is smaller cannot unfold into more than some hundred megabytes, and is not walked twice.
_SMALL_BYTES = 4 * 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_NS = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds()) * 10**9
_ERROR = 2


class Event(msgspec.Struct):
    """Something that happened during a span."""

    name: str
    at: datetime | None
    attributes: dict[str, Any]


class Span(msgspec.Struct):
    """A span as far as runs are concerned; ids are the bytes that OpenTelemetry gives them."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start: datetime | None
    end: datetime | None
    attributes: dict[str, Any]
    events: list[Event]
    is_error: bool
    message: str


def read_spans(body: bytes, content_type: str) -> list[Span]:
    """Decode a request. Raises Invalid for what is neither, and for more than MAX_SPANS spans."""
    kind = content_type.split(";", 1)[0].strip().lower()
    read = _from_json(body) if kind == JSON else _from_protobuf(body)
    spans: list[Span] = []
    for span in read:
        if len(spans) == MAX_SPANS:
            raise Invalid.field(["body"], f"holds more than {MAX_SPANS} spans")
        if len(span.trace_id) != 16 or len(span.span_id) != 8 or len(span.parent_id) not in {0, 8}:
            raise Invalid.field(["body", "spans", len(spans)], "a trace id has 16 bytes and a span id 8")
        spans.append(span)
    return spans


def _moment(nanoseconds: int) -> datetime | None:
    if not 0 < nanoseconds < _LAST_NS:
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


# Protobuf


def _from_protobuf(body: bytes) -> Iterator[Span]:
    if len(body) > _SMALL_BYTES and has_more_messages(body, ExportTraceServiceRequest.DESCRIPTOR, MAX_MESSAGES):
        raise Invalid.field(["body"], f"holds more than {MAX_MESSAGES} messages")
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as exc:
        raise Invalid.field(["body"], "is no ExportTraceServiceRequest in protobuf", "protobuf_invalid") from exc
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace_id=span.trace_id,
                    span_id=span.span_id,
                    parent_id=span.parent_span_id,
                    name=span.name,
                    start=_moment(span.start_time_unix_nano),
                    end=_moment(span.end_time_unix_nano),
                    attributes=_plain_pairs(span.attributes),
                    events=[Event(e.name, _moment(e.time_unix_nano), _plain_pairs(e.attributes)) for e in span.events],
                    is_error=span.status.code == _ERROR,
                    message=span.status.message,
                )


def _plain_pairs(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return _plain_pairs(value.kvlist_value.values)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case kind:
            return getattr(value, kind)


# JSON


class _JsonValue(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bytes_value: str | None = None
    array_value: "_JsonList | None" = None
    kvlist_value: "_JsonPairs | None" = None


class _JsonPair(msgspec.Struct):
    key: str
    value: _JsonValue = msgspec.field(default_factory=_JsonValue)


class _JsonList(msgspec.Struct):
    values: list[_JsonValue] = []


class _JsonPairs(msgspec.Struct):
    values: list[_JsonPair] = []


class _JsonEvent(msgspec.Struct, rename="camel"):
    name: str = ""
    time_unix_nano: int | str = 0
    attributes: list[_JsonPair] = []


class _JsonStatus(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class _JsonSpan(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_JsonPair] = []
    events: list[_JsonEvent] = []
    status: _JsonStatus = msgspec.field(default_factory=_JsonStatus)


class _JsonScope(msgspec.Struct):
    spans: list[_JsonSpan] = []


class _JsonResource(msgspec.Struct, rename="camel"):
    scope_spans: list[_JsonScope] = []


class _JsonRequest(msgspec.Struct, rename="camel"):
    resource_spans: list[_JsonResource] = []


def _from_json(body: bytes) -> Iterator[Span]:
    check_objects(body, MAX_MESSAGES)
    request = read_json(body, _JsonRequest, "body")
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace_id=_hex(span.trace_id, "traceId"),
                    span_id=_hex(span.span_id, "spanId"),
                    parent_id=_hex(span.parent_span_id, "parentSpanId"),
                    name=span.name,
                    start=_moment(_integer(span.start_time_unix_nano)),
                    end=_moment(_integer(span.end_time_unix_nano)),
                    attributes=_json_pairs(span.attributes),
                    events=[
                        Event(e.name, _moment(_integer(e.time_unix_nano)), _json_pairs(e.attributes))
                        for e in span.events
                    ],
                    is_error=span.status.code in {_ERROR, "STATUS_CODE_ERROR"},
                    message=span.status.message,
                )


def _json_pairs(pairs: Iterable[_JsonPair]) -> dict[str, Any]:
    return {pair.key: _json_plain(pair.value) for pair in pairs}


def _json_plain(value: _JsonValue) -> Any:
    if value.array_value is not None:
        return [_json_plain(item) for item in value.array_value.values]
    if value.kvlist_value is not None:
        return _json_pairs(value.kvlist_value.values)
    if value.int_value is not None:
        return _integer(value.int_value)
    if value.double_value is not None:
        return _float(value.double_value)
    simple = (value.string_value, value.bool_value, value.bytes_value)
    return next((found for found in simple if found is not None), None)


def _integer(value: int | str) -> int:
    """Read an integer, which OTLP/JSON writes as text where it may be large."""
    try:
        return int(value)
    except ValueError:
        raise Invalid.field(["body"], f"{str(value)[:40]!r} is no integer") from None


def _float(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Invalid.field(["body"], f"{str(value)[:40]!r} is no number") from None


def _hex(text: str, name: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        raise Invalid.field(["body", name], "must be hexadecimal") from None
