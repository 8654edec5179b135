"""OTLP requests, decoded from protobuf or JSON into spans (opentelemetry-proto 1).

Protobuf messages are walked by hand: their own conversion to JSON costs five times as much (docs/why/libraries.md).
An empty protobuf message takes two bytes in a body and thirty times as much in memory, so the messages of a large body
are counted before it is parsed.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from portside.kernel.errors import Invalid
from portside.tracing.fields import limit_objects, read_json

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_MAX_SHIFT = 63
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MAX_SPANS = 50_000
# 7 MB with 480,000 attributes take 190 MB of memory; other bodies take three times their size.
OTLP_COST = 10
MAX_MESSAGES = 1_000_000
# A span has 16 fields, its attributes and their values have two each.
_FIELDS_OF_A_MESSAGE = 8
# A smaller body takes at most some hundred megabytes, so its messages are not counted first.
_SMALL_BYTES = 4 * 1024 * 1024
# Of attributes in JSON. protobuf itself refuses more than 100 messages within each other.
_MAX_ATTRIBUTE_DEPTH = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_NS = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds()) * 10**9
_ERROR = 2
# Attributes of a process that its spans repeat. Without a bound, a small request could become gigabytes.
_EXPORTER = "telemetry."
_MAX_RESOURCE_CHARS = 1_000
_MAX_REPEATED_CHARS = 10_000_000


def has_more_messages(body: bytes, descriptor: Any, limit: int) -> bool:
    """Whether a protobuf body contains more than `limit` messages, or far more fields than those have.

    Malformed input is left to the parser.
    """
    pending = [(0, len(body), descriptor)]
    count = 0
    fields = 0
    while pending:
        at, end, kind = pending.pop()
        while at < end:
            # Without a bound, 100 MB of fields of two bytes would keep this loop busy for a minute.
            fields += 1
            if fields > limit * _FIELDS_OF_A_MESSAGE:
                return True

            tag, at = _read_varint(body, at, end)
            payload, at = _read_payload(body, at, end, tag & 7)
            if at > end:
                break

            field = kind.fields_by_number.get(tag >> 3) if payload is not None else None
            if payload is not None and field is not None and field.message_type is not None:
                count += 1
                if count > limit:
                    return True

                if payload < at:
                    pending.append((payload, at, field.message_type))

    return False


def _read_payload(body: bytes, at: int, end: int, wire_type: int) -> tuple[int | None, int]:
    """Return the start of a field's bytes (None if it cannot hold a message) and the start of the next field."""
    if wire_type == _BYTES:
        length, at = _read_varint(body, at, end)
        return at, at + length

    if wire_type == _VARINT:
        return None, _read_varint(body, at, end)[1]

    return None, at + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)


def _read_varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and the offset after it; an offset after `end` if the number is cut."""
    value = 0
    shift = 0
    while at < end and shift <= _MAX_SHIFT:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at

        shift += 7

    return 0, end + 1


class SpanEvent(msgspec.Struct):
    """An event of a span."""

    name: str
    at: datetime | None
    attributes: dict[str, Any]


class Span(msgspec.Struct):
    """The fields of a span that a run is made of; ids are the bytes of OpenTelemetry."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start: datetime | None
    end: datetime | None
    attributes: dict[str, Any]
    events: list[SpanEvent]
    is_error: bool
    message: str
    scope: str = ""
    """The name of the instrumentation."""
    resource: dict[str, Any] = {}
    """Attributes of the process, such as service.name."""


def is_json(content_type: str) -> bool:
    """Whether a request is in JSON and gets a response in JSON; anything else is protobuf."""
    return content_type.split(";", 1)[0].strip().lower() == JSON


def encode_response(rejected: int, message: str, *, as_json: bool) -> bytes:
    """Return the body of a response: empty, or the number of rejected spans and a message for people."""
    if as_json:
        partial = {"rejectedSpans": str(rejected), "errorMessage": message}
        return msgspec.json.encode({"partialSuccess": partial} if message else {})

    response = ExportTraceServiceResponse()
    if message:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = message

    return bytes(response.SerializeToString())


def read_spans(body: bytes, content_type: str) -> list[Span]:
    """Decode a request. Raises Invalid for malformed bodies and for more than MAX_SPANS spans."""
    decode = _decode_json if is_json(content_type) else _decode_protobuf
    spans: list[Span] = []
    for span in decode(body):
        if len(spans) == MAX_SPANS:
            raise Invalid.field(["body"], f"holds more than {MAX_SPANS} spans; send smaller batches")
        if len(span.trace_id) != 16 or len(span.span_id) != 8 or len(span.parent_id) not in {0, 8}:
            raise Invalid.field(["body", "spans", len(spans)], "a trace id has 16 bytes and a span id 8")

        spans.append(span)

    return spans


def _select_process_attributes(attributes: dict[str, Any], span_count: int) -> dict[str, Any]:
    """Return the attributes of a process that its spans repeat: short ones, and not what names the exporter."""
    selection: dict[str, Any] = {}
    chars = 0
    for name, value in attributes.items():
        size = len(name) + len(str(value))
        if name.startswith(_EXPORTER) or size > _MAX_RESOURCE_CHARS:
            continue

        chars += size
        if chars * max(span_count, 1) > _MAX_REPEATED_CHARS:
            break

        selection[name] = value

    return selection


def _to_moment(nanoseconds: int) -> datetime | None:
    if not 0 < nanoseconds < _LAST_NS:
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


# Protobuf


def _decode_protobuf(body: bytes) -> Iterator[Span]:
    if len(body) > _SMALL_BYTES and has_more_messages(body, ExportTraceServiceRequest.DESCRIPTOR, MAX_MESSAGES):
        raise Invalid.field(["body"], f"holds more than {MAX_MESSAGES} messages; send smaller batches")

    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as exc:
        raise Invalid.field(["body"], "is not an ExportTraceServiceRequest in protobuf", "protobuf_invalid") from exc

    for resource in request.resource_spans:
        span_count = sum(len(scope.spans) for scope in resource.scope_spans)
        process = _select_process_attributes(_decode_pairs(resource.resource.attributes), span_count)

        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace_id=span.trace_id,
                    span_id=span.span_id,
                    parent_id=span.parent_span_id,
                    name=span.name,
                    start=_to_moment(span.start_time_unix_nano),
                    end=_to_moment(span.end_time_unix_nano),
                    attributes=_decode_pairs(span.attributes),
                    events=[
                        SpanEvent(event.name, _to_moment(event.time_unix_nano), _decode_pairs(event.attributes))
                        for event in span.events
                    ],
                    is_error=span.status.code == _ERROR,
                    message=span.status.message,
                    scope=scope.scope.name,
                    resource=process,
                )


def _decode_pairs(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _decode_value(pair.value) for pair in pairs}


def _decode_value(value: Any) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_decode_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _decode_pairs(value.kvlist_value.values)
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


class _JsonScopeName(msgspec.Struct):
    name: str = ""


class _JsonScope(msgspec.Struct):
    spans: list[_JsonSpan] = []
    scope: _JsonScopeName | None = None


class _JsonProcess(msgspec.Struct):
    attributes: list[_JsonPair] = []


class _JsonResource(msgspec.Struct, rename="camel"):
    scope_spans: list[_JsonScope] = []
    resource: _JsonProcess | None = None


class _JsonRequest(msgspec.Struct, rename="camel"):
    resource_spans: list[_JsonResource] = []


def _decode_json(body: bytes) -> Iterator[Span]:
    limit_objects(body, MAX_MESSAGES)
    request = read_json(body, _JsonRequest, "body")
    for resource in request.resource_spans:
        span_count = sum(len(scope.spans) for scope in resource.scope_spans)
        attributes = _decode_json_pairs(resource.resource.attributes) if resource.resource else {}
        process = _select_process_attributes(attributes, span_count)

        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace_id=_parse_hex(span.trace_id, "traceId"),
                    span_id=_parse_hex(span.span_id, "spanId"),
                    parent_id=_parse_hex(span.parent_span_id, "parentSpanId"),
                    name=span.name,
                    start=_parse_json_moment(span.start_time_unix_nano, "startTimeUnixNano"),
                    end=_parse_json_moment(span.end_time_unix_nano, "endTimeUnixNano"),
                    attributes=_decode_json_pairs(span.attributes),
                    events=[
                        SpanEvent(
                            name=event.name,
                            at=_parse_json_moment(event.time_unix_nano, "timeUnixNano"),
                            attributes=_decode_json_pairs(event.attributes),
                        )
                        for event in span.events
                    ],
                    is_error=span.status.code in {_ERROR, "STATUS_CODE_ERROR"},
                    message=span.status.message,
                    scope=scope.scope.name if scope.scope else "",
                    resource=process,
                )


def _parse_json_moment(nanoseconds: int | str, name: str) -> datetime | None:
    return _to_moment(_parse_integer(nanoseconds, name))


def _decode_json_pairs(pairs: Iterable[_JsonPair], depth: int = 0) -> dict[str, Any]:
    return {pair.key: _decode_json_value(pair.value, depth) for pair in pairs}


def _decode_json_value(value: _JsonValue, depth: int) -> Any:
    if depth > _MAX_ATTRIBUTE_DEPTH:
        problem = f"an attribute is nested more than {_MAX_ATTRIBUTE_DEPTH} levels deep; send it as text"
        raise Invalid.field(["body", "attributes"], problem)

    if value.array_value is not None:
        return [_decode_json_value(item, depth + 1) for item in value.array_value.values]
    if value.kvlist_value is not None:
        return _decode_json_pairs(value.kvlist_value.values, depth + 1)
    if value.int_value is not None:
        return _parse_integer(value.int_value, "intValue")

    if value.double_value is not None:
        return _parse_float(value.double_value, "doubleValue")

    scalars = (value.string_value, value.bool_value, value.bytes_value)
    return next((scalar for scalar in scalars if scalar is not None), None)


def _parse_integer(value: int | str, name: str) -> int:
    """Parse an integer; OTLP/JSON writes 64-bit integers as strings."""
    try:
        return int(value)
    except ValueError:
        raise Invalid.field(["body", name], f"{str(value)[:40]!r} is not an integer") from None


def _parse_float(value: float | str, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Invalid.field(["body", name], f"{str(value)[:40]!r} is not a number") from None


def _parse_hex(text: str, name: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        raise Invalid.field(["body", name], "must be hexadecimal") from None
