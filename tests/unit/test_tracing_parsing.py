"""Values of clients: accepted leniently where their meaning is clear, and refused otherwise."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from portside.kernel.errors import Invalid
from portside.tracing.ingest_parser import build_update_parser, parse_batch, parse_multipart, parse_run
from tests.unit.test_tracing_multipart import TYPE, body

RUN = UUID(int=1)
CHILD = UUID(int=2)
START = "2026-11-21T02:04:40.002605+00:00"
PART = "20261121T020440002605Z"


def run(**fields: Any) -> bytes:
    return json.dumps({"id": str(RUN), "name": "r", "run_type": "llm", "start_time": START, **fields}).encode()


def test_a_root_is_its_own_trace():
    (write,) = parse_run(run(), "").runs
    assert (write.trace_id, write.dotted_order) == (RUN, f"20261121T020440002605Z{RUN}")


def test_a_child_without_dotted_order_waits_for_its_parent():
    (write,) = parse_run(run(parent_run_id=str(CHILD)), "").runs
    assert (write.trace_id, write.dotted_order, write.parent_run_id) == (None, None, CHILD)


def test_the_trace_follows_from_the_dotted_order():
    (write,) = parse_run(run(dotted_order=f"{PART}{CHILD}.{PART}{RUN}"), "").runs
    assert (write.trace_id, write.parent_run_id) == (CHILD, CHILD)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dotted_order": "garbage.x"}, "the start and the id of each run"),
        ({"dotted_order": "...."}, "the start and the id of each run"),
        ({"dotted_order": f"<img>{CHILD}.{PART}{RUN}"}, "the start and the id of each run"),
        ({"dotted_order": f"{PART}{RUN}."}, "the start and the id of each run"),
        ({"dotted_order": "x" * 20_001}, "longer than"),
        ({"dotted_order": f"{PART}{CHILD}"}, "end with the id of this run"),
        ({"dotted_order": f"{PART}{RUN}", "trace_id": str(CHILD)}, "begin with the id of the trace"),
        ({"dotted_order": f"{PART}{RUN}", "parent_run_id": str(CHILD)}, "name the parent"),
        ({"dotted_order": f"{PART}{RUN}.{PART}{RUN}"}, "as its own parent"),
        ({"inputs": "text"}, "must be an object"),
        ({"outputs": [1]}, "must be an object"),
        ({"extra": 1}, "must be an object"),
        ({"events": ["text"]}, "must be a list of objects"),
    ],
)
def test_a_run_that_readers_could_not_show_is_refused_alone(fields: dict[str, Any], says: str):
    with pytest.raises(Invalid, match=says):
        parse_run(run(**fields), "")

    honest = UUID(int=3)
    batch = parse_batch(b'{"post": [' + run(**fields) + b"," + run(id=str(honest)) + b"]}", "")
    assert [write.id for write in batch.runs] == [honest]
    assert [refused.run_id for refused in batch.refused] == [RUN]
    parts = body((f"post.{RUN}", run(**fields)), (f"post.{honest}", run()), (f"attachment.{RUN}.a", b"a"))
    multipart = parse_multipart(parts, TYPE)
    assert [write.id for write in multipart.runs] == [honest]

    assert ([refused.run_id for refused in multipart.refused], multipart.attachments) == ([RUN], [])


def test_a_dotted_order_gets_ids_in_small_letters():
    run_id = UUID("0190a0c0-0000-7000-8000-0000000000ab")
    order = f"20261121T020440Z{str(run_id).upper()}"
    (write,) = parse_run(run(id=str(run_id), dotted_order=order), "").runs
    assert write.dotted_order == f"20261121T020440Z{run_id}"


def test_times_are_parsed_in_several_formats():
    for value in [
        "2026-11-21T02:08:45.093Z",
        1795226925093,
        "2026-11-21T02:08:45.093",
        "2026-11-21T04:08:45.093+02:00",
    ]:
        (write,) = parse_run(run(end_time=value), "").runs
        assert write.end_time == datetime(2026, 11, 21, 2, 8, 45, 93000, UTC)


@pytest.mark.parametrize("value", ["yesterday", 1e30, "", "9999-12-31T23:59:59-12:00"])
def test_invalid_times_are_refused(value: Any):
    with pytest.raises(Invalid, match="start_time"):
        parse_run(run(start_time=value), "")


def test_patches_record_the_fields_that_are_not_null():
    (write,) = build_update_parser(RUN)(b'{"id": null, "outputs": {"b": 2}, "extra": null, "name": null}', "").runs
    assert (write.id, write.outputs, write.extra, write.patched) == (RUN, '{"b": 2}', None, 128)


def test_user_data_is_stored_unchanged():
    (write,) = parse_run(run(inputs={"x": "\x00"})[:-1] + b',"outputs": {"n" : 1.50, "u":"\\u0000"}}', "").runs
    assert write.outputs == '{"n" : 1.50, "u":"\\u0000"}'


def test_text_that_postgres_cannot_store_is_repaired():
    (write,) = parse_run(run(name="a\x00b", error="boom\x00", tags=["\x00t"], inputs={"s": "\ud83d"}), "").runs
    assert (write.name, write.error, write.tags) == ("ab", "boom", '["t"]')
    assert "\ud83d" not in (write.inputs or "")
    (write,) = parse_run(run()[:-1] + b',"inputs": {"a": "\xff"}}', "").runs
    assert write.inputs == '{"a":"\ufffd"}'


@pytest.mark.parametrize(
    "raw", [b"", b"[", b"[]", b'{"id": 1}', b'{"id": "x"}', b"[" * 100_000, b'{"a":' + b"9" * 5000]
)
def test_malformed_runs_are_refused(raw: bytes):
    with pytest.raises(Invalid):
        parse_run(raw, "")


def test_a_batch_keeps_its_order_and_requires_ids():
    delivery = parse_batch(b'{"post": [' + run() + b'], "patch": [' + run(name="later") + b"]}", "")
    assert [(write.is_post, write.name) for write in delivery.runs] == [(True, "r"), (False, "later")]
    assert parse_batch(b"{}", "").runs == []
    (refused,) = parse_batch(b'{"post": [{"name": "x"}]}', "").refused
    assert (refused.run_id, refused.problems[0].loc) == (None, ["body", "post", "id"])


def test_parts_set_fields_of_the_run_they_follow():
    raw = body(
        (f"post.{RUN}", run()),
        (f"post.{RUN}.inputs", b'{"x":3}'),
        (f"post.{RUN}.error", b'"Boom()"'),
        (f"patch.{RUN}", run(end_time=START)),
        (f"patch.{RUN}.outputs", b'{"y":4}'),
        (f"feedback.{CHILD}", b'{"key": "k", "run_id": null, "score": 1}'),
        (f"attachment.{RUN}.cat.png", b"\x89PNG\r\n"),
    )

    delivery = parse_multipart(raw, TYPE)
    post, patch = delivery.runs
    assert (post.inputs, post.error, post.outputs, post.is_post) == ('{"x":3}', "Boom()", None, True)
    assert (patch.outputs, patch.is_post, patch.patch_order > 0) == ('{"y":4}', False, True)
    assert (delivery.feedback[0].key, delivery.feedback[0].id) == ("k", CHILD)
    assert (delivery.attachments[0].name, delivery.attachments[0].data) == ("cat.png", b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("choice", "extends"),
    [({}, True), ({"extend_trace_retention": None}, True), ({"extend_trace_retention": False}, False)],
)
def test_feedback_makes_its_trace_long_lived_unless_it_opts_out(choice: dict[str, Any], *, extends: bool):
    feedback = json.dumps({"key": "k", "run_id": str(RUN), **choice}).encode()
    (write,) = parse_multipart(body((f"feedback.{CHILD}", feedback)), TYPE).feedback
    assert write.extends_trace is extends


@pytest.mark.parametrize("name", [f"put.{RUN}", f"feedback.{RUN}.x", f"attachment.{RUN}", ""])
def test_parts_outside_the_contract_are_refused(name: str):
    with pytest.raises(Invalid):
        parse_multipart(body((name, b"{}")), TYPE)


@pytest.mark.parametrize(
    ("name", "data", "run_id"),
    [
        ("post.nonsense", b"{}", None),
        (f"post.{RUN}.colour", b"{}", RUN),
        (f"post.{RUN}.inputs", b"{", RUN),
        (f"post.{RUN}.inputs", b"{}", RUN),
        (f"feedback.{RUN}", b"{}", None),
    ],
)
def test_a_malformed_part_refuses_its_run(name: str, data: bytes, run_id: UUID | None):
    batch = parse_multipart(body((f"post.{CHILD}", run()), (name, data)), TYPE)
    assert [write.id for write in batch.runs] == [CHILD]
    assert {refused.run_id for refused in batch.refused} == {run_id}


def test_the_files_of_a_refused_run_are_dropped_with_it():
    files = [(f"attachment.{one}.f", b"x") for one in (RUN, CHILD)]
    batch = parse_multipart(body((f"post.{RUN}", b"{}"), (f"post.{CHILD}", run()), *files), TYPE)
    assert [refused.run_id for refused in batch.refused] == [RUN]
    assert [file.run_id for file in batch.attachments] == [CHILD]


@pytest.mark.parametrize(
    ("header", "stored"),
    [("", "application/octet-stream"), ("text/plain; charset=utf-8", "text/plain"), ("x" * 300, "x" * 200)],
)
def test_the_type_of_a_file_is_stored_without_parameters_and_cut(header: str, stored: str):
    head = f'Content-Disposition: form-data; name="attachment.{RUN}.f"\r\nContent-Type: {header}'
    (file,) = parse_multipart(f"--b1\r\n{head}\r\n\r\nx\r\n--b1--".encode(), TYPE).attachments
    assert file.content_type == stored
