"""Event logs, buffers and kept events: limits, order, and who gets which events."""

import asyncio
import gc
import json
import threading
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.http.waiting import respond_when_over
from portside.agent.streams import buffers, event_log, replay_budget
from portside.agent.streams.buffers import ReplayBuffer
from portside.agent.streams.bus import RedisBus
from portside.agent.streams.chunks import EventBatch, pack_events, unpack_events
from portside.agent.streams.events import (
    CHUNK_LIMIT_BYTES,
    EventClock,
    OpenInterrupt,
    RunEnd,
    StreamEvent,
    ThreadView,
    parse_event_id,
    parse_run_modes,
    parse_thread_modes,
    resume_position,
)
from portside.agent.streams.history import BLOCK_BYTES, ITEM_BYTES
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.postgres_log import EVENT_BYTES, _split
from portside.agent.streams.replay_budget import ReplayBudget, ReplayLimits
from portside.executor.requests import LifecycleEvent
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.http.sse import StreamCut
from tests.conftest import eventually

RUN_MODES = parse_thread_modes([])


def start(**given) -> AttemptStart:
    given = {"run_id": uuid4(), "thread_id": uuid4(), "is_resumable": False, "is_temporary": False, **given}
    return AttemptStart(graph_id="g", attempt=1, **given)


def names(raw: bytes) -> list[str]:
    return [line.removeprefix(b"event: ").decode() for line in raw.split(b"\r\n") if line.startswith(b"event: ")]


def test_ids_grow_within_a_millisecond_and_when_the_clock_goes_back(monkeypatch):
    clock = EventClock()
    moments = iter([5_000_000, 5_000_000, 3_000_000, 6_000_000])
    monkeypatch.setattr("portside.agent.streams.events.time.time_ns", lambda: next(moments))
    assert [clock.next() for _ in range(4)] == ["5-0", "5-1", "5-2", "6-0"]


def test_ids_after_one_of_another_process_are_greater(monkeypatch):
    clock = EventClock()
    monkeypatch.setattr("portside.agent.streams.events.time.time_ns", lambda: 5_000_000)
    made = [clock.next()]
    for event_id in ("5-7", "4-9", "9-1", "x"):
        clock.advance_past(event_id)
        made.append(clock.next())

    assert made == ["5-0", "5-8", "5-9", "9-2", "9-3"]


@pytest.mark.parametrize(
    ("modes", "wanted"),
    [
        ([], ["metadata", "values|child:1"]),
        (["lifecycle"], ["metadata"]),
        (["state_update"], ["state_update"]),
        (["lifecycle", "state_update"], ["metadata", "state_update"]),
        (["run_modes", "state_update"], ["metadata", "values|child:1", "state_update"]),
    ],
)
def test_followers_of_a_thread_get_the_events_of_their_modes(modes, wanted):
    view = ThreadView(parse_thread_modes(modes))
    names = ["metadata", "values|child:1", "@lifecycle", "state_update"]
    assert [name for name in names if view.wants(StreamEvent(name, "1-0", b"{}"))] == wanted


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("17-3", (17, 3)),
        ("17", (17, 0)),
        ("17-", (17, 0)),
        ("", None),
        ("x", None),
        ("-1", None),
        ("1-2-3", None),
        ("²-1", None),
        ("9" * 50, None),
    ],
)
def test_parse_event_id(text, place):
    assert parse_event_id(text) == place


def test_modes_may_be_repeated_or_a_json_list():
    assert parse_run_modes(None) is None
    assert parse_run_modes(["values", "updates"]) == {"values", "updates"}
    assert parse_run_modes(['["values"', ' "messages-tuple"]']) == {"values", "messages"}

    with pytest.raises(Invalid, match="bogus"):
        parse_run_modes(["bogus"])

    assert parse_thread_modes([]) == {"run_modes"}
    with pytest.raises(Invalid, match="Invalid stream mode: values"):
        parse_thread_modes(["values"])


def test_resume_position_of_thread_followers():
    assert (resume_position(None), resume_position("-"), resume_position("0"), resume_position("7-1")) == (
        None,
        (0, 0),
        (0, 0),
        (7, 1),
    )

    with pytest.raises(Invalid):
        resume_position("-1")


def make_buffer() -> ReplayBuffer:
    return ReplayBuffer(ThreadView(RUN_MODES), ReplayBudget(), b"overflow")


async def test_buffer_overflow_ends_the_reader_with_the_overflow_event(monkeypatch):
    monkeypatch.setattr(buffers, "BUFFER_LIMIT_BYTES", 10)
    monkeypatch.setattr(buffers, "FRAMES_AT_LEAST", 1)
    reader = make_buffer()
    reader.offer(b"12345", None)
    reader.offer(b"678901", None)
    reader.offer(b"never", None)
    assert [chunk async for chunk in reader] == [b"overflow"]


async def test_buffer_of_few_large_events_does_not_overflow(monkeypatch):
    monkeypatch.setattr(buffers, "BUFFER_LIMIT_BYTES", 10)
    reader = make_buffer()
    for _ in range(4):
        reader.offer(b"one step in every mode", None)

    reader.end()
    assert [chunk async for chunk in reader] == [b"one step in every mode" * 4]


async def test_buffer_joins_waiting_frames():
    reader = make_buffer()
    reader.offer(b"a", None)
    reader.offer(b"b", None)
    reader.end()
    assert [chunk async for chunk in reader] == [b"ab"]


async def test_large_waiting_frames_are_taken_in_slices():
    reader = make_buffer()
    for name in (b"a", b"b", b"c"):
        reader.offer(name * BLOCK_BYTES, None)

    assert [[frame[:1] for frame in await reader.take()] for _ in range(3)] == [[b"a"], [b"b"], [b"c"]]


async def test_frames_that_were_taken_no_longer_count(monkeypatch):
    monkeypatch.setattr(buffers, "BUFFER_LIMIT_BYTES", 3 * BLOCK_BYTES)
    monkeypatch.setattr(buffers, "FRAMES_AT_LEAST", 1)

    reader = make_buffer()
    for _ in range(6):
        reader.offer(b"x" * BLOCK_BYTES, None)
        reader.offer(b"x" * BLOCK_BYTES, None)
        assert len(b"".join([*await reader.take(), *await reader.take()])) == 2 * BLOCK_BYTES


async def test_slice_is_not_stalled_because_its_reader_waited_for_it(monkeypatch):
    """The time of a slice begins when it is granted, not when the reader asked for it."""
    now_s = 0.0
    monkeypatch.setattr(replay_budget, "time", SimpleNamespace(monotonic=lambda: now_s))
    budget = ReplayBudget(ReplayLimits(per_caller=0, total=BLOCK_BYTES))
    first, second, third = (ReplayBuffer(ThreadView(RUN_MODES), budget, b"overflow") for _ in range(3))
    claim = await budget.claim(first)
    waiting = [asyncio.create_task(budget.claim(reader)) for reader in (second, third)]

    await asyncio.sleep(0)
    now_s = 2 * replay_budget.STALLED_AFTER_S
    claim.release()
    granted = await waiting[0]

    budget._end_stalled()
    assert not second._is_ended
    now_s = 4 * replay_budget.STALLED_AFTER_S
    budget._end_stalled()
    assert second._is_ended
    await waiting[1]
    granted.release()


async def test_bytes_of_a_reader_that_a_thread_collects_are_counted_on_the_loop():
    """A thread may collect a reader in the middle of any statement about the bytes."""
    budget = ReplayBudget(ReplayLimits(per_caller=0, total=BLOCK_BYTES))
    first, second = (ReplayBuffer(ThreadView(RUN_MODES), budget, b"overflow") for _ in range(2))

    def drop_in_thread(claims: list[replay_budget.ReplayClaim]) -> None:
        thread = threading.Thread(target=claims.clear)
        thread.start()
        thread.join()

    drop_in_thread([await budget.claim(first)])
    assert budget._total == BLOCK_BYTES
    held = [await budget.claim(first)]
    assert budget._total == BLOCK_BYTES
    waiting = asyncio.create_task(budget.claim(second))

    await asyncio.sleep(0)
    assert not waiting.done()
    drop_in_thread(held)
    (await asyncio.wait_for(waiting, 60)).release()
    assert (budget._total, budget._claims) == (0, {})


async def test_resumable_run_evicts_oldest_events_above_its_limit(monkeypatch):
    monkeypatch.setattr(event_log, "RESUMABLE_RUN_LIMIT_BYTES", 2 * (900 + ITEM_BYTES))
    hub = Hub(keep_s=60)
    run = hub.begin(start(is_resumable=True))
    run.publish([(name, b"x" * 900) for name in ("values", "updates", "custom")])
    run.end()

    replay = b"".join([chunk async for chunk in run.follow(after="0")])
    assert names(replay) == ["updates", "custom"]


async def test_followers_of_a_run_that_goes_on_elsewhere_are_cut_after_its_last_event():
    hub = Hub(keep_s=60)
    run = hub.begin(start(is_resumable=True))
    follower = run.follow()
    ended = run.follow()

    run.publish([("values", b"1")])
    ended.end()
    hub.finish(run.run_id, None)

    late = run.follow(after="-1")
    for reader in (follower, late):
        assert names(await anext(reader))[-1:] == ["values"]
        with pytest.raises(StreamCut):
            await anext(reader)

    assert names(b"".join([chunk async for chunk in ended])) == ["values"], "it had ended before"
    assert hub.find(run.run_id) is None, "the next follower gets the events of the process that goes on"


async def test_process_that_stops_cuts_the_followers_of_threads_and_of_runs_elsewhere():
    hub = Hub(keep_s=60)
    run = hub.open(uuid4(), uuid4(), is_resumable=False)
    readers = [run.follow(), await hub.follow_thread(uuid4(), RUN_MODES, None)]
    hub.stop()
    readers.append(await hub.follow_thread(uuid4(), RUN_MODES, None))

    for reader in readers:
        with pytest.raises(StreamCut):
            await anext(reader)


async def test_wait_that_is_cut_at_once_still_names_the_run_to_join():
    """A request without any response may be sent again by its client, and would execute the run twice."""

    async def cut() -> bytes:
        raise StreamCut

    runs: Any = SimpleNamespace()
    ctx: Any = SimpleNamespace(
        services=SimpleNamespace(runs=runs), request=SimpleNamespace(receive=asyncio.Event().wait)
    )
    response = await respond_when_over(ctx, cut())
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await response({}, asyncio.Event().wait, send)
    assert [(message["type"], message.get("body")) for message in sent] == [
        ("http.response.start", None),
        ("http.response.body", b"\n"),
    ]


async def test_run_evicts_oldest_events_of_its_thread(monkeypatch):
    monkeypatch.setattr(event_log, "RUN_LIMIT_BYTES", 2 * (5 + ITEM_BYTES))
    hub = Hub(keep_s=60)
    run = hub.begin(start())
    run.publish([(name, b"12345") for name in "abc"])
    assert [event.name for event in run.log.history] == ["b", "c"]


async def test_kept_segments_drop_the_oldest_end_above_the_limit(monkeypatch):
    monkeypatch.setattr(event_log.KeptSegments.__init__, "__defaults__", (5_000,))
    hub = Hub(keep_s=60)
    kept = []
    for _ in range(3):
        begun = start()
        run = hub.begin(begun)
        run.publish([("values", b'"%s"' % (b"x" * 998))])
        hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
        kept.append(hub.get_log(begun.thread_id))

    assert [bool(list(thread.history)) for thread in kept] == [False, True, True]


async def test_large_runs_take_nothing_from_what_small_ones_kept(monkeypatch):
    monkeypatch.setattr(event_log.KeptSegments.__init__, "__defaults__", (25_000,))
    hub = Hub(keep_s=60)
    kept = []
    for size in (10, 10, 9_000, 9_000, 9_000):
        begun = start()
        run = hub.begin(begun)
        run.publish([("values", b'"%s"' % (b"x" * size))])
        hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
        kept.append(hub.get_log(begun.thread_id))

    assert [bool(list(thread.history)) for thread in kept] == [True, True, False, True, True]


async def test_kept_segments_expire():
    hub = Hub(keep_s=0.01)
    begun = start()
    hub.begin(begun)
    hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))

    thread = hub.get_log(begun.thread_id)
    assert list(thread.history)

    async def is_forgotten() -> bool:
        return not list(thread.history)

    assert await eventually(is_forgotten)


async def test_resumable_run_is_forgotten_after_its_time():
    hub = Hub(keep_s=0.01)
    begun = start(is_resumable=True)
    hub.begin(begun)
    hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
    gc.collect()
    assert hub.find(begun.run_id) is not None

    async def is_forgotten() -> bool:
        gc.collect()
        return hub.find(begun.run_id) is None

    assert await eventually(is_forgotten)


async def test_run_that_seemed_to_be_over_gets_a_new_stream():
    """A client follows it before it is admitted, and what looks for its row may find none."""
    hub = Hub(keep_s=60)
    begun = start()
    ended = hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    ended.end()
    stream = hub.begin(begun)
    assert stream is not ended
    assert not stream.ended.is_set()
    assert hub.open(begun.run_id, begun.thread_id, is_resumable=False) is stream


async def test_stateless_run_keeps_no_events():
    hub = Hub(keep_s=60)
    begun = start(is_temporary=True)
    hub.begin(begun)
    hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
    assert list(hub.get_log(begun.thread_id).history) == []


async def test_run_without_followers_is_kept_for_late_followers():
    hub = Hub(keep_s=60)
    begun = start()
    hub.begin(begun).publish([("values", b"1"), ("@updates", b"2")])
    gc.collect()
    hub.finish(begun.run_id, RunEnd(LifecycleEvent.INTERRUPTED, "g", interrupts=(OpenInterrupt("i", {"q": 1}),)))
    gc.collect()

    thread = hub.get_log(begun.thread_id)
    kept = [(event.name, json.loads(event.data)) for event in thread.history]
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
    hub.threads_deleted([begun.thread_id])
    assert names(b"".join([chunk async for chunk in follower])) == ["metadata", "values", "metadata"]


async def test_handed_over_run_has_no_closing_events():
    hub = Hub(keep_s=60)
    begun = start()
    hub.begin(begun)
    hub.finish(begun.run_id, None)
    assert [event.name for event in hub.get_log(begun.thread_id).history] == ["metadata", "@lifecycle"]


@pytest.mark.parametrize("size", [1, 200, CHUNK_LIMIT_BYTES + 1])
def test_chunks_of_the_log_are_small_enough_to_be_taken_at_once(size):
    """A reader takes all events of a chunk in one step of its loop; small events take as long as larger ones."""
    events = [StreamEvent("custom", f"{number}-0", b"x" * size) for number in range(2000 if size < 1000 else 3)]
    parts = [part.events for part in _split(EventBatch(uuid4(), uuid4(), 1, events))]
    assert [event for part in parts for event in part] == events
    assert all(len(part) == 1 or len(part) * (size + EVENT_BYTES) <= CHUNK_LIMIT_BYTES for part in parts)


def test_garbage_collector_does_not_visit_kept_events():
    """A collection of 100,000 of them paused the loop for 40 ms."""
    events = [StreamEvent("values", "1-0", b"{}")]
    assert not gc.is_tracked(events[0])
    assert unpack_events(pack_events(events)) == events
    assert not gc.is_tracked(unpack_events(pack_events(events))[0])


def test_refusal_of_a_redis_address_does_not_repeat_the_password():
    """The reason of the library would: it takes the part before a slash in the password for the port."""
    with pytest.raises(UserMistake, match="REDIS_URI is not a Redis URL") as refused:
        RedisBus("redis://:s3cr3t/word@host:6379", "channel", 2)

    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__cause__ is None
