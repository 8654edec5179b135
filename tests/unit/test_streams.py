"""Feeds, buffers and what is kept: the bounds, the order, and who gets what."""

import gc
import json
from uuid import uuid4

import pytest

from portside.agent.streams import buffer, feed, threads
from portside.agent.streams.buffer import Buffer
from portside.agent.streams.events import EventClock, asked_modes, place_of, resume_place, thread_modes
from portside.agent.streams.hub import Hub, Start
from portside.agent.streams.threads import Asked, RunEnd, Segment
from portside.kernel.errors import Invalid
from tests.conftest import eventually

RUN_MODES = thread_modes([])


def start(**given) -> Start:
    given = {"run_id": uuid4(), "thread_id": uuid4(), "is_resumable": False, "is_stateless": False, **given}
    return Start(graph_id="g", attempt=1, **given)


def names(raw: bytes) -> list[str]:
    return [line.removeprefix(b"event: ").decode() for line in raw.split(b"\r\n") if line.startswith(b"event: ")]


def test_ids_grow_within_a_millisecond_and_when_the_clock_goes_back(monkeypatch):
    clock, moments = EventClock(), iter([5_000_000, 5_000_000, 3_000_000, 6_000_000])
    monkeypatch.setattr("portside.agent.streams.events.time.time_ns", lambda: next(moments))
    assert [clock.next() for _ in range(4)] == ["5-0", "5-1", "5-2", "6-0"]


@pytest.mark.parametrize(
    ("text", "place"),
    [("17-3", (17, 3)), ("17", (17, 0)), ("17-", (17, 0)), ("", None), ("x", None), ("-1", None), ("1-2-3", None),
     ("²-1", None), ("9" * 50, None)],
)  # fmt: skip
def test_ids_of_every_form(text, place):
    assert place_of(text) == place


def test_modes_may_be_repeated_or_a_json_list():
    assert asked_modes(None) is None
    assert asked_modes(["values", "updates"]) == {"values", "updates"}
    assert asked_modes(['["values"', ' "messages-tuple"]']) == {"values", "messages"}
    with pytest.raises(Invalid, match="bogus"):
        asked_modes(["bogus"])
    assert thread_modes([]) == {"run_modes"}
    with pytest.raises(Invalid, match="Invalid stream mode: values"):
        thread_modes(["values"])


def test_where_a_follower_of_a_thread_left_off():
    assert (resume_place(None), resume_place("-"), resume_place("0"), resume_place("7-1")) == (
        None,
        (0, 0),
        (0, 0),
        (7, 1),
    )
    with pytest.raises(Invalid):
        resume_place("-1")


async def test_a_reader_too_far_behind_hears_goodbye_and_no_more(monkeypatch):
    monkeypatch.setattr(buffer, "BUFFER_LIMIT_BYTES", 10)
    monkeypatch.setattr(buffer, "FRAMES_AT_LEAST", 1)
    reader = Buffer(b"goodbye")
    reader.push(b"12345")
    reader.push(b"678901")
    reader.push(b"never")
    assert [chunk async for chunk in reader] == [b"goodbye"]


async def test_a_reader_of_large_events_is_not_slow(monkeypatch):
    monkeypatch.setattr(buffer, "BUFFER_LIMIT_BYTES", 10)
    reader = Buffer(b"goodbye")
    for _ in range(4):
        reader.push(b"one step in every mode")
    reader.end()
    assert [chunk async for chunk in reader] == [b"one step in every mode" * 4]


async def test_what_waits_comes_in_one_piece():
    reader = Buffer()
    reader.push(b"a")
    reader.push(b"b")
    reader.end()
    assert [chunk async for chunk in reader] == [b"ab"]


async def test_a_resumable_run_forgets_its_oldest_events_above_its_bound(monkeypatch):
    monkeypatch.setattr(feed, "KEPT_LIMIT_BYTES", 2_000)
    hub = Hub(keep_s=60)
    run = hub.begin(start(is_resumable=True))
    run.publish([(name, b"x" * 900) for name in ("values", "updates", "custom")])
    hub.close(run.run_id, None)
    replay = b"".join([chunk async for chunk in run.follow(after="0")])
    assert names(replay) == ["updates", "custom"]


def test_a_run_keeps_its_newest_events_on_its_thread():
    segment = Segment(uuid4(), limit=10)
    clock = EventClock()
    for name in "abc":
        segment.append(feed.Event(name, clock.next(), b"12345"))
    assert [event.name for event in segment.events] == ["b", "c"]


async def test_all_threads_together_forget_what_ended_first(monkeypatch):
    monkeypatch.setattr(threads.Retention.__init__, "__defaults__", (2_500,))
    hub, kept = Hub(keep_s=60), []
    for _ in range(3):
        begun = start()
        run = hub.begin(begun)
        run.publish([("values", b'"%s"' % (b"x" * 998))])
        hub.close(begun.run_id, RunEnd("completed", "g"))
        kept.append(hub.thread(begun.thread_id))
    assert [bool(list(thread.kept())) for thread in kept] == [False, True, True]


async def test_what_ended_is_forgotten_in_time():
    hub, begun = Hub(keep_s=0.01), start()
    hub.begin(begun)
    hub.close(begun.run_id, RunEnd("completed", "g"))
    thread = hub.thread(begun.thread_id)
    assert list(thread.kept())

    async def is_forgotten() -> bool:
        return not list(thread.kept())

    assert await eventually(is_forgotten, within_s=5)


async def test_nothing_is_kept_of_a_stateless_run():
    hub, begun = Hub(keep_s=60), start(is_stateless=True)
    hub.begin(begun)
    hub.close(begun.run_id, RunEnd("completed", "g"))
    assert list(hub.thread(begun.thread_id).kept()) == []


async def test_a_run_without_followers_is_kept_for_those_who_come_late():
    hub, begun = Hub(keep_s=60), start()
    hub.begin(begun).publish([("values", b"1"), ("@updates", b"2")])
    gc.collect()
    hub.close(begun.run_id, RunEnd("interrupted", "g", asked=(Asked("i", {"q": 1}),)))
    gc.collect()
    thread = hub.thread(begun.thread_id)
    kept = [(event.name, json.loads(event.data)) for _, event in thread.kept()]
    assert kept == [
        ("metadata", {"run_id": str(begun.run_id), "attempt": 1}),
        ("@lifecycle", {"event": "running", "graph_name": "g"}),
        ("values", 1),
        ("@updates", 2),
        ("@input.requested", {"interrupt_id": "i", "payload": {"q": 1}, "value": {"q": 1}}),
        ("@lifecycle", {"event": "interrupted", "graph_name": "g"}),
        ("metadata", {"status": "run_done", "run_id": str(begun.run_id)}),
    ]
    follower = thread.follow(RUN_MODES, after=(0, 0))
    hub.forget(begun.thread_id)
    assert names(b"".join([chunk async for chunk in follower])) == ["metadata", "values", "metadata"]


async def test_a_run_that_goes_on_elsewhere_is_not_said_to_be_over():
    hub, begun = Hub(keep_s=60), start()
    hub.begin(begun)
    hub.close(begun.run_id, None)
    assert [event.name for _, event in hub.thread(begun.thread_id).kept()] == ["metadata", "@lifecycle"]
