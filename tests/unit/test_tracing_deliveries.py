"""What clients write, read leniently where the meaning is plain and refused where it is not."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from portside.kernel.errors import Invalid
from portside.tracing.deliveries import from_batch, from_multipart, from_run, from_update
from tests.unit.test_tracing_multipart import TYPE, body

RUN, CHILD = UUID(int=1), UUID(int=2)
START = "2026-11-21T02:04:40.002605+00:00"


def run(**fields: Any) -> bytes:
    return json.dumps({"id": str(RUN), "name": "r", "run_type": "llm", "start_time": START, **fields}).encode()


def test_a_root_is_its_own_trace():
    (write,) = from_run(run(), "").runs
    assert (write.trace_id, write.dotted_order) == (RUN, f"20261121T020440002605Z{RUN}")


def test_a_child_without_its_place_waits_for_its_parent():
    (write,) = from_run(run(parent_run_id=str(CHILD)), "").runs
    assert (write.trace_id, write.dotted_order, write.parent_run_id) == (None, None, CHILD)


def test_the_trace_follows_from_the_dotted_order():
    (write,) = from_run(run(parent_run_id=str(CHILD), dotted_order=f"20261121T020440002605Z{CHILD}.2Z{RUN}"), "").runs
    assert write.trace_id == CHILD


def test_times_come_in_several_shapes():
    for value in [
        "2026-11-21T02:08:45.093Z",
        1795226925093,
        "2026-11-21T02:08:45.093",
        "2026-11-21T04:08:45.093+02:00",
    ]:
        (write,) = from_run(run(end_time=value), "").runs
        assert write.end_time == datetime(2026, 11, 21, 2, 8, 45, 93000, UTC)


@pytest.mark.parametrize("value", ["yesterday", 1e30, "", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_is_none_is_refused(value: Any):
    with pytest.raises(Invalid, match="start_time"):
        from_run(run(start_time=value), "")


def test_nulls_say_nothing_and_patches_know_what_they_say():
    (write,) = from_update(RUN)(b'{"id": null, "outputs": {"b": 2}, "extra": null, "name": null}', "").runs
    assert (write.id, write.outputs, write.extra, write.patched) == (RUN, '{"b": 2}', None, 128)


def test_user_data_is_kept_as_it_came():
    (write,) = from_run(run(inputs={"x": "\x00"})[:-1] + b',"outputs": {"n" : 1.50, "u":"\\u0000"}}', "").runs
    assert write.outputs == '{"n" : 1.50, "u":"\\u0000"}'


def test_text_that_postgres_cannot_hold_is_mended():
    (write,) = from_run(run(name="a\x00b", error="boom\x00", tags=["\x00t"], inputs={"s": "\ud83d"}), "").runs
    assert (write.name, write.error, write.tags) == ("ab", "boom", '["t"]')
    assert "\ud83d" not in (write.inputs or "")
    (write,) = from_run(run()[:-1] + b',"inputs": {"a": "\xff"}}', "").runs
    assert write.inputs == '{"a":"\ufffd"}'


@pytest.mark.parametrize(
    "raw", [b"", b"[", b"[]", b'{"id": 1}', b'{"id": "x"}', b"[" * 100_000, b'{"a":' + b"9" * 5000]
)
def test_what_is_no_run_is_refused(raw: bytes):
    with pytest.raises(Invalid):
        from_run(raw, "")


def test_a_batch_keeps_its_order_and_wants_ids():
    delivery = from_batch(b'{"post": [' + run() + b'], "patch": [' + run(name="later") + b"]}", "")
    assert [(write.is_post, write.name) for write in delivery.runs] == [(True, "r"), (False, "later")]
    assert from_batch(b"{}", "").runs == []
    with pytest.raises(Invalid, match="id"):
        from_batch(b'{"post": [{"name": "x"}]}', "")


def test_parts_complete_the_run_they_follow():
    raw = body(
        (f"post.{RUN}", run()),
        (f"post.{RUN}.inputs", b'{"x":3}'),
        (f"post.{RUN}.error", b'"Boom()"'),
        (f"patch.{RUN}", run(end_time=START)),
        (f"patch.{RUN}.outputs", b'{"y":4}'),
        (f"feedback.{CHILD}", b'{"key": "k", "run_id": null, "score": 1}'),
        (f"attachment.{RUN}.cat.png", b"\x89PNG\r\n"),
    )
    delivery = from_multipart(raw, TYPE)
    post, patch = delivery.runs
    assert (post.inputs, post.error, post.outputs, post.is_post) == ('{"x":3}', "Boom()", None, True)
    assert (patch.outputs, patch.is_post, patch.patch_order > 0) == ('{"y":4}', False, True)
    assert (delivery.feedback[0].key, delivery.feedback[0].id) == ("k", CHILD)
    assert (delivery.attachments[0].name, delivery.attachments[0].data) == ("cat.png", b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("post.nonsense", b"{}"),
        (f"put.{RUN}", b"{}"),
        (f"post.{RUN}.colour", b"{}"),
        (f"post.{RUN}.inputs", b"{"),
        (f"post.{RUN}.inputs", b"{}"),
        (f"feedback.{RUN}", b"{}"),
        (f"attachment.{RUN}", b""),
        ("", b""),
    ],
)
def test_parts_outside_the_contract_are_refused(name: str, data: bytes):
    with pytest.raises(Invalid):
        from_multipart(body((name, data)), TYPE)
