"""For any bytes, the parsers of ingest return writes or refuse the request, within bounds of memory."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from uuid import UUID

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from portside.kernel.errors import Invalid, PortsideError
from portside.kernel.http.json_validation import TooManyValues
from portside.tracing import bodies, ingest_parser, otlp_wire
from portside.tracing.otlp_runs import parse_otlp
from portside.tracing.otlp_wire import JSON, PROTOBUF, has_more_messages
from portside.tracing.types import IngestBatch

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, database=None)
FORM = "multipart/form-data; boundary=b"
RUN = str(UUID(int=7))
Reader = Callable[[bytes], IngestBatch]


def multipart(body: bytes) -> IngestBatch:
    return ingest_parser.parse_multipart(body, FORM)


def batch(body: bytes) -> IngestBatch:
    return ingest_parser.parse_batch(body, "application/json")


def otlp(body: bytes) -> IngestBatch:
    return parse_otlp(body, PROTOBUF, None)


def otlp_json(body: bytes) -> IngestBatch:
    return parse_otlp(body, JSON, None)


def part(name: str, data: bytes) -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + data + b"\r\n"


def spans() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id = bytes(range(16))
    span.span_id = bytes(range(8))
    span.name = "s"
    span.attributes.add(key="gen_ai.prompt").value.string_value = "hello"

    inner = span.attributes.add(key="deep").value
    for _ in range(20):
        inner = inner.array_value.values.add()

    span.events.add(name="exception").attributes.add(key="exception.message").value.int_value = 5
    return request


BODIES: dict[Reader, bytes] = {
    multipart: part(f"post.{RUN}", b'{"name": "r", "start_time": "2026-11-21T02:04:40Z"}')
    + part(f"post.{RUN}.inputs", b'{"a": [1, {"b": "\\ud800"}]}')
    + part(f"feedback.{RUN}", b'{"key": "k", "score": 1}')
    + part(f"attachment.{RUN}.a", b"\x00\r\n--c\xff")
    + b"--b--\r\n",
    batch: json.dumps(
        {"post": [{"id": RUN, "name": "r", "tags": ["t"]}], "patch": [{"id": RUN, "end_time": 5}]}
    ).encode(),
    otlp: spans().SerializeToString(),
    otlp_json: json.dumps(
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {
                                    "traceId": "00" * 16,
                                    "spanId": "01" * 8,
                                    "startTimeUnixNano": "1700000000000000000",
                                    "attributes": [
                                        {"key": "input.value", "value": {"arrayValue": {"values": [{"intValue": "7"}]}}}
                                    ],
                                }
                            ]
                        }
                    ]
                }
            ]
        }
    ).encode(),
}
READERS = list(BODIES)


def check(reader: Reader, body: bytes) -> None:
    try:
        assert isinstance(reader(body), IngestBatch)
    except PortsideError as exc:
        assert exc.status in {400, 413, 415, 422}


@pytest.mark.parametrize("reader", READERS)
def test_the_unchanged_bodies_are_valid(reader: Reader) -> None:
    assert reader(BODIES[reader]).runs


@pytest.mark.parametrize("reader", READERS)
@EXAMPLES
@given(st.binary(max_size=300))
def test_random_bytes_are_parsed_or_refused(reader: Reader, noise: bytes) -> None:
    check(reader, noise)


@pytest.mark.parametrize("reader", READERS)
@EXAMPLES
@given(st.data())
def test_damaged_bodies_are_parsed_or_refused(reader: Reader, data: st.DataObject) -> None:
    body = bytearray(BODIES[reader])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        length = data.draw(st.integers(0, 12))
        body[at : at + length] = data.draw(st.binary(max_size=12))

    check(reader, bytes(body))


@EXAMPLES
@given(st.binary(max_size=300), st.sampled_from(["gzip", "zstd", "", "br"]))
def test_random_encoded_bytes_are_parsed_or_refused(noise: bytes, encoding: str) -> None:
    for body in (noise, gzip.compress(noise)[:-1], zstandard.compress(noise)[4:], zstandard.compress(noise) + noise):
        check(lambda given: multipart(bodies.decode(given, encoding)), body)


MANY = 5_000_000
# Made when their test runs: every worker imports this module.
BOMBS: dict[str, tuple[Reader, Callable[[], bytes]]] = {
    "zstd": (
        lambda body: multipart(bodies.decode(body, "zstd")),
        lambda: zstandard.compress(bytes(300 * 1024 * 1024)),
    ),
    "frames": (
        lambda body: multipart(bodies.decode(body, "zstd")),
        lambda: zstandard.compress(bytes(8 * 1024 * 1024)) * 100,
    ),
    "gzip": (
        lambda body: multipart(bodies.decode(body, "gzip")),
        lambda: gzip.compress(bytes(300 * 1024 * 1024), 1),
    ),
    "spans": (otlp, lambda: b"\x0a\x00" * 600_000),
    "objects": (otlp_json, lambda: b'{"resourceSpans":[' + b"{}," * MANY + b"{}]}"),
    "runs": (batch, lambda: b'{"post":[' + b"{}," * MANY + b"{}]}"),
    "runs within objects": (batch, lambda: b'{"post":[' + b"{}," * 60_000 + b"{}]}"),
    "depth": (otlp_json, lambda: b'{"resourceSpans":' + b"[" * 1_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused_early(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_wire, "MAX_MESSAGES", 20_000)
    monkeypatch.setattr(otlp_wire, "_SMALL_BYTES", 1024 * 1024)
    reader, make = BOMBS[name]
    body = make()

    tracemalloc.start()
    with pytest.raises(PortsideError):
        reader(body)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 450 * 1024 * 1024


def test_messages_are_counted_at_every_depth() -> None:
    request = spans()
    body = request.SerializeToString()
    kind = ExportTraceServiceRequest.DESCRIPTOR

    # resource, scope, span; two attributes and their values; 20 times an array and a value; event, attribute, value
    count = 3 + 2 * 2 + 20 * 2 + 3
    assert has_more_messages(body, kind, count - 1)
    assert not has_more_messages(body, kind, count)

    # Unknown fields: numbers of one byte.
    assert has_more_messages(b"\xf8\x01\x00" * 9, kind, 1)
    assert not has_more_messages(b"\xf8\x01\x00" * 8, kind, 1)


def test_a_batch_of_too_many_runs_is_refused_by_name() -> None:
    body = b'{"patch":[' + b"{}," * 50_000 + b"{}]}"
    with pytest.raises(Invalid, match=r"body\.patch: holds more than 50000 runs"):
        batch(body)


def test_a_large_batch_of_values_that_are_no_runs_is_refused_at_the_first() -> None:
    with pytest.raises(Invalid, match=r"body\.post\.0: Expected `object`, got `int`"):
        batch(b'{"post":[' + b"0," * 1_000_000 + b"0]}")


def test_many_values_with_a_nan_among_them_are_refused_and_without_it_taken() -> None:
    run = b'{"post":[{"id":"0190a0c0-0000-7000-8000-000000000001","name":"n","run_type":"llm","inputs":{"a":[%s]}}]}'
    values = b"0," * 500_000
    assert len(batch(run % (values + b"0")).runs) == 1

    with pytest.raises(TooManyValues):
        batch(run % (values + b"NaN"))
