"""Replays of kept events: lazy, encoded once for all readers, in order, and bounded for each caller and for all."""

import asyncio
from itertools import pairwise
from uuid import uuid4

import pytest

from portside.agent.protocol.channel_filters import ChannelFilter
from portside.agent.protocol.sequence import EventSequence
from portside.agent.streams import buffers, event_log, events, replay_budget
from portside.agent.streams.events import parse_thread_modes
from portside.agent.streams.history import BLOCK_BYTES, ITEM_BYTES
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.replay_budget import ReplayLimits, counted_caller
from portside.agent.streams.run_stream import RunStream
from portside.kernel.http.sse import sse_event
from tests.conftest import eventually

COUNT = 3_000
FOLLOWERS = 20


def begun(hub: Hub) -> RunStream:
    return hub.begin(AttemptStart(uuid4(), uuid4(), graph_id="g", attempt=1, is_resumable=True, is_temporary=False))


def publish(run: RunStream, begin: int, end: int) -> None:
    run.publish([("custom", b"%d" % number + b" " * 300) for number in range(begin, end)])


def numbers(raw: bytes) -> list[int]:
    lines = raw.split(b"\r\n")
    return [int(data.removeprefix(b"data: ")) for name, data in pairwise(lines) if name == b"event: custom"]


@pytest.fixture
def encoded_names(monkeypatch) -> list[str]:
    """The names of the events that were encoded for followers of runs, one entry each time."""
    seen: list[str] = []

    def counted(name: str, data: bytes, event_id: str | None) -> bytes:
        seen.append(name)
        return sse_event(name, data, event_id)

    monkeypatch.setattr(event_log, "sse_event", counted)
    return seen


async def test_follow_encodes_nothing_and_slices_are_bounded(encoded_names):
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    follower = run.follow(after="-1")
    assert encoded_names == []
    first = await anext(follower)
    assert 0 < len(first) <= 2 * BLOCK_BYTES
    assert 0 < len(encoded_names) < COUNT / 5


async def test_concurrent_replays_share_one_encoding(encoded_names):
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    thread = run.log
    followers = [run.follow(after="-1") for _ in range(FOLLOWERS)]

    run.end()
    received = await asyncio.gather(*(_all(follower) for follower in followers))
    assert all(numbers(raw) == list(range(COUNT)) for raw in received)

    # The newest block may still grow, so that each follower encodes it.
    newest = len(thread.history.blocks()[-1].items)
    assert len(encoded_names) <= COUNT + 1 + FOLLOWERS * newest


async def test_live_events_are_encoded_once_for_all_followers(encoded_names):
    run = begun(Hub(keep_s=60))
    followers = [run.follow() for _ in range(FOLLOWERS)]
    publish(run, 0, 10)
    assert len(encoded_names) == 10
    assert [numbers(await anext(follower)) for follower in followers] == [list(range(10))] * FOLLOWERS


async def test_departed_follower_encodes_nothing(encoded_names):
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    follower = run.follow(after="-1")
    await anext(follower)

    count = len(encoded_names)
    del follower
    publish(run, COUNT, 2 * COUNT)
    assert len(encoded_names) == count


async def test_live_events_follow_a_replay_without_gap_or_duplicate():
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    by_run = run.follow(after="-1")
    by_thread = run.log.follow(parse_thread_modes([]), after=(0, 0))
    received = {by_run: await anext(by_run), by_thread: await anext(by_thread)}

    publish(run, COUNT, COUNT + 500)

    for _ in range(3):
        for follower in received:
            received[follower] += await anext(follower)

    publish(run, COUNT + 500, COUNT + 600)
    run.end()
    run.log.end()

    for follower, so_far in received.items():
        assert numbers(so_far + await _all(follower)) == list(range(COUNT + 600))


async def test_resumed_follower_gets_events_after_last_event_id():
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    named = [event for event in run.log.history if event.name == "custom"][COUNT // 2]
    follower = run.follow(after=named.event_id)

    run.end()
    assert numbers(await _all(follower)) == list(range(COUNT // 2 + 1, COUNT))


async def test_slow_follower_of_resumable_run_switches_to_history(monkeypatch):
    monkeypatch.setattr(buffers, "LATE_BYTES", 10_000)
    monkeypatch.setattr(buffers, "BUFFER_LIMIT_BYTES", 20_000)
    run = begun(Hub(keep_s=60))
    follower = run.follow()

    publish(run, 0, COUNT)
    assert follower.cursor is not None
    run.end()
    assert numbers(await _all(follower)) == list(range(COUNT))


async def test_replay_that_misses_evicted_events_ends_with_slow_reader(monkeypatch):
    monkeypatch.setattr(event_log, "RESUMABLE_RUN_LIMIT_BYTES", COUNT * (304 + ITEM_BYTES))
    run = begun(Hub(keep_s=60))
    publish(run, 0, COUNT)
    begun_replay = run.follow(after="-1")
    fresh = run.follow(after="-1")

    await anext(begun_replay)
    publish(run, COUNT, 3 * COUNT)
    run.end()
    assert b"SlowReader" in await _all(begun_replay)

    # One that was given nothing yet begins with what is left.
    left = numbers(await _all(fresh))
    assert left == list(range(left[0], 3 * COUNT))
    assert left[0] > COUNT


async def test_state_update_keeps_its_position_in_a_replay():
    hub = Hub(keep_s=60)
    run = begun(hub)
    publish(run, 0, 3)
    hub.publish_state_update(run.log.thread_id, b'{"values":1}')
    publish(run, 3, 6)

    names = [event.name for event in run.log.history]
    assert names == ["metadata", "@lifecycle", *["custom"] * 3, "state_update", *["custom"] * 3]
    follower = run.log.follow(parse_thread_modes([]), after=(0, 0))
    run.log.end()
    assert numbers(await _all(follower)) == list(range(6))


async def test_closed_block_takes_no_more_events():
    hub = Hub(keep_s=60)
    run = begun(hub)
    publish(run, 0, 2)
    hub.publish_state_update(run.log.thread_id, b'{"values":1}')

    follower = run.log.follow(parse_thread_modes(["run_modes", "state_update"]), after=(0, 0))
    received = await anext(follower) + await anext(follower)
    update = next(block.group for block in run.log.history.blocks() if block.items[0].name == "state_update")
    run.log.drop(update)
    publish(run, 2, 4)
    run.log.end()
    assert numbers(received + await _all(follower)) == [0, 1, 2, 3]


async def test_replay_limit_of_a_caller_blocks_no_other_caller(monkeypatch):
    # Otherwise the follower that holds the other slice would make room in the end.
    monkeypatch.setattr(replay_budget, "STALLED_AFTER_S", 3600.0)
    hub = Hub(keep_s=60, replays=ReplayLimits(per_caller=2 * BLOCK_BYTES, total=0))
    run = begun(hub)
    publish(run, 0, COUNT)
    mine = [_follow_as(run, "me") for _ in range(4)]
    reading = [asyncio.create_task(anext(follower)) for follower in mine]

    await anext(_follow_as(run, "somebody else"))

    async def are_done(count: int) -> bool:
        return sum(task is not None and task.done() for task in reading) == count

    assert await eventually(lambda: are_done(2))

    for _ in range(10):
        await asyncio.sleep(0)

    assert sum(task.done() for task in reading) == 2
    # A follower that leaves gives back what it held.
    gone = next(index for index, task in enumerate(reading) if task.done())
    mine[gone] = reading[gone] = None
    assert await eventually(lambda: are_done(2))

    for task in reading:
        if task is not None:
            task.cancel()


async def test_replays_of_the_process_itself_have_no_limit_of_a_caller():
    hub = Hub(keep_s=60, replays=ReplayLimits(per_caller=BLOCK_BYTES, total=0))
    run = begun(hub)
    publish(run, 0, COUNT)
    own = [_follow_as(run, None) for _ in range(4)]
    assert all(await asyncio.wait_for(asyncio.gather(*(anext(follower) for follower in own)), 60))


async def test_replay_limit_of_all_callers_lets_all_finish(monkeypatch):
    monkeypatch.setattr(replay_budget, "STALLED_AFTER_S", 3600.0)
    hub = Hub(keep_s=60, replays=ReplayLimits(per_caller=0, total=3 * BLOCK_BYTES))
    run = begun(hub)
    publish(run, 0, COUNT)
    followers = [_follow_as(run, str(index)) for index in range(FOLLOWERS)]

    run.end()
    received = await asyncio.gather(*(_all(follower) for follower in followers))
    assert all(numbers(raw) == list(range(COUNT)) for raw in received)


async def test_stalled_reader_is_ended_while_others_wait(monkeypatch):
    monkeypatch.setattr(replay_budget, "STALLED_AFTER_S", 0.05)
    hub = Hub(keep_s=60, replays=ReplayLimits(per_caller=BLOCK_BYTES, total=0))
    run = begun(hub)
    publish(run, 0, COUNT)

    stalled = _follow_as(run, "me")
    waiting = _follow_as(run, "me")
    await anext(stalled)
    assert await asyncio.wait_for(anext(waiting), 60)
    assert b"SlowReader" in await _all(stalled)


async def test_event_sequence_numbers_kept_events_in_slices():
    hub = Hub(keep_s=60)
    run = begun(hub)
    publish(run, 0, COUNT)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    joined, again = await asyncio.gather(
        EventSequence.join(hub, run.log.thread_id), EventSequence.join(hub, run.log.thread_id)
    )

    other.cancel()
    assert joined.sequence is again.sequence
    assert turns >= len(run.log.history.blocks())
    placed, replayed = joined.sequence.place(ChannelFilter(frozenset({"custom"})))
    reader = joined.read_frames([placed])
    assert replayed == COUNT
    frames = await reader.take()
    assert 0 < len(frames) < COUNT / 5

    publish(run, COUNT, COUNT + 10)
    run.log.end()

    while more := await reader.take():
        frames += more

    found = [events.StreamEvent("", "", frame) for frame in frames]
    assert [int(event.data.split(b'"data":')[1].split(b" ")[0].rstrip(b"}")) for event in found] == list(
        range(COUNT + 10)
    )


def _follow_as(run: RunStream, caller: str | None) -> event_log.LogSubscription:
    token = counted_caller.set(caller)
    try:
        return run.follow(after="-1")
    finally:
        counted_caller.reset(token)


async def _all(follower: buffers.ReplayBuffer) -> bytes:
    return b"".join([chunk async for chunk in follower])
