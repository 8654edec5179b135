"""The event log of one thread: the events for other processes, and the order of runs of several processes."""

import asyncio
import time
from types import SimpleNamespace
from uuid import uuid4

import pytest

from portside.agent.protocol.channel_filters import ChannelFilter
from portside.agent.protocol.sequence import EventSequence
from portside.agent.streams import event_log
from portside.agent.streams.chunks import EventBatch
from portside.agent.streams.event_log import Segment
from portside.agent.streams.events import END, RunEnd, StreamEvent, parse_thread_modes
from portside.agent.streams.hub import AttemptStart, Hub, NullTransport
from portside.executor.requests import LifecycleEvent
from tests.conftest import eventually

DONE = RunEnd(LifecycleEvent.COMPLETED, "g")
RUN_MODES = parse_thread_modes([])


@pytest.fixture(autouse=True)
def long_share(monkeypatch):
    """Keep events for other processes for longer than the pause of a busy machine."""
    for module in ("event_log", "hub"):
        monkeypatch.setattr(f"portside.agent.streams.{module}.SHARE_WITHIN_S", 3600.0)


class AllThreads(frozenset):
    def __contains__(self, _thread_id: object) -> bool:
        return True


class RecordingTransport(NullTransport):
    """The transport of a process that is not alone. It keeps the batches that would be written to Postgres."""

    has_others = True

    def __init__(self, *, is_followed: bool = False) -> None:
        self.batches: list[EventBatch] = []
        self.followed_elsewhere = AllThreads() if is_followed else ()

    def write(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def names(self) -> list[str]:
        return [event.name for batch in self.batches for event in batch.events]


def start(**given) -> AttemptStart:
    given = {"run_id": uuid4(), "thread_id": uuid4(), "is_resumable": False, "is_temporary": False, **given}
    return AttemptStart(graph_id="g", attempt=1, **given)


def connect_hub(**given) -> tuple[Hub, RecordingTransport]:
    hub = Hub(keep_s=60)
    transport = RecordingTransport(**given)
    hub.transport = transport
    return hub, transport


def event(place: int, name: str = "values") -> StreamEvent:
    return StreamEvent(name, f"{place}-0", b"%d" % place)


def data(events) -> list[bytes]:
    return [each.data for each in events]


def values(chunk: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in chunk.split(b"\r\n") if line.startswith(b"data: ")]


async def test_events_of_a_followed_run_are_written_with_its_end():
    hub, transport = connect_hub(is_followed=True)
    begun = start()
    run = hub.begin(begun)
    run.publish([("values", b"1")])
    assert run.log.is_logged(run.run_id)
    hub.finish(run.run_id, DONE)
    assert "values" in transport.names()

    assert transport.names()[-1] == END
    assert {(batch.thread_id, batch.run_id) for batch in transport.batches} == {(begun.thread_id, begun.run_id)}
    assert not run.log.is_logged(run.run_id)


async def test_state_update_is_written_for_other_processes():
    hub, transport = connect_hub()
    thread_id = uuid4()
    log = hub.get_log(thread_id)
    hub.publish_state_update(thread_id, b"{}")
    assert [(batch.run_id, data(batch.events)) for batch in transport.batches] == [(None, [b"{}"])]
    assert data(log.history) == [b"{}"]


async def test_state_update_is_shared_with_processes_that_are_counted_later():
    hub, transport = connect_hub()
    transport.has_others = False
    thread_id = uuid4()
    hub.publish_state_update(thread_id, b"{}")
    assert transport.batches == []

    [log] = hub.unshared_logs(10)
    log.share()
    assert [(batch.run_id, data(batch.events)) for batch in transport.batches] == [(None, [b"{}"])]
    assert hub.unshared_logs(10) == []


async def test_unstarted_run_is_shared_with_processes_that_are_counted_later():
    hub, transport = connect_hub()
    transport.has_others = False
    begun = start()
    run = hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    await hub.announce(run, "g")
    hub.finish_unstarted(run, "the run was cancelled before it began")
    assert transport.batches == []

    [log] = hub.unshared_logs(10)
    log.share()
    assert transport.names()[-1] == END


async def test_shared_log_is_written_once_and_later_events_follow():
    hub, transport = connect_hub()
    run = hub.begin(start())
    run.publish([("values", b"1")])
    assert transport.batches == []
    assert hub.unshared_logs(10) == [run.log]
    run.log.share()
    assert run.log.unshared() == []

    run.publish([("values", b"2")])
    assert transport.names().count("values") == 2


async def test_run_that_just_ended_is_shared_with_its_end():
    hub, transport = connect_hub()
    run = hub.begin(start())
    hub.finish(run.run_id, DONE)
    run.log.share()
    assert transport.names()[-1] == END
    assert transport.names().count("metadata") == 2


async def test_end_of_a_stateless_run_is_shared_with_processes_that_subscribe_late():
    hub, transport = connect_hub()
    begun = start(is_temporary=True)
    hub.begin(begun).publish([("values", b"1")])
    hub.finish(begun.run_id, DONE)
    [log] = hub.unshared_logs(10)
    log.share()
    assert "values" in transport.names()
    assert transport.names()[-1] == END


async def test_run_that_ended_long_ago_is_not_shared(monkeypatch):
    hub, _ = connect_hub()
    run = hub.begin(start())
    hub.finish(run.run_id, DONE)
    monkeypatch.setattr(event_log, "SHARE_WITHIN_S", 0.0)
    assert run.log.unshared() == []


async def test_pause_of_the_process_does_not_make_an_ended_run_too_old_to_share(monkeypatch):
    """Nobody looked meanwhile who follows its thread."""
    for module in ("event_log", "hub"):
        monkeypatch.setattr(f"portside.agent.streams.{module}.SHARE_WITHIN_S", 5.0)

    hub, _ = connect_hub()
    hub.note_look(time.monotonic())
    begun = start(is_temporary=True)
    runs = [hub.begin(start()), hub.begin(begun)]
    for run in runs:
        hub.finish(run.run_id, DONE)

    later = time.monotonic() + 10
    monkeypatch.setattr("portside.agent.streams.hub.time", SimpleNamespace(monotonic=lambda: later))
    hub._kept_briefly._expire()
    assert {log.thread_id for log in hub.unshared_logs(10)} == {run.log.thread_id for run in runs}

    hub.note_look(later)
    assert hub.unshared_logs(10) == []


async def test_lost_run_is_neither_written_nor_shared():
    hub, transport = connect_hub(is_followed=True)
    run = hub.begin(start())
    run.log.note_lost(run.run_id)
    transport.batches.clear()
    run.publish([("values", b"1")])
    assert transport.batches == []
    assert run.log.unshared() == []


async def test_lost_events_end_the_readers_of_the_thread_and_of_its_numbered_sequence():
    hub = Hub(keep_s=60)
    run = hub.begin(start())
    follower = await hub.follow_thread(run.log.thread_id, RUN_MODES, None)
    sequence = await EventSequence.join(hub, run.log.thread_id)
    reader = sequence.read_sse(ChannelFilter(frozenset({"custom"})))
    run.log.fail_followers()
    assert b"StreamLost" in b"".join(await asyncio.wait_for(follower.take(), 60))
    assert await asyncio.wait_for(reader.take(), 60) == []


async def test_unstarted_run_gets_closing_events():
    hub = Hub(keep_s=60)
    begun = start()
    run = hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    hub.finish(begun.run_id, DONE)
    assert run.ended.is_set()
    assert [each.name for each in run.log.history] == ["@lifecycle", "metadata"]


async def test_local_run_waits_for_the_end_of_the_remote_run_before_it():
    hub = Hub(keep_s=60)
    log = hub.get_log(uuid4())
    remote_id = uuid4()
    follower = log.follow(RUN_MODES, after=(0, 0))

    log.receive(remote_id, [event(1)])
    local_id = uuid4()
    log.append(local_id, [event(3)])
    assert data(log.history) == [b"1"]
    log.receive(remote_id, [event(1), event(2)], end=True)
    assert data(log.history) == [b"1", b"2", b"3"]
    log.append(local_id, [event(4)])

    log.end()
    assert values(b"".join([chunk async for chunk in follower])) == [b"1", b"2", b"3", b"4"]


class RecordingObserver:
    """Keeps the data of the events that it takes."""

    position = ("", 0)

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def take(self, _segment: Segment, taken: StreamEvent) -> None:
        self.taken.append(taken.data)

    def drop(self, _segment: Segment) -> None:
        self.taken.clear()

    def end(self) -> None:
        self.taken.append(b"end")


async def test_observer_takes_the_events_of_a_waiting_run_in_order():
    log = Hub(keep_s=60).get_log(uuid4())
    remote_id = uuid4()
    log.observer = observer = RecordingObserver()
    log.receive(remote_id, [event(1)])
    log.append(uuid4(), [event(3)])
    log.receive(remote_id, [event(2)], end=True)
    log.end()

    assert observer.taken == [b"1", b"2", b"3", b"end"]


async def test_run_that_ends_later_expires_later(monkeypatch):
    offset_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + offset_s)
    monkeypatch.setattr(event_log, "time", clock)

    hub = Hub(keep_s=0.05)
    runs = []
    for offset_s in (0.0, 0.1):  # noqa: B007 - read by the clock
        runs.append(hub.begin(start()))
        hub.finish(runs[-1].run_id, DONE)

    offset_s = 0.0

    async def is_expired() -> bool:
        return not any(data(run.log.history) for run in runs)

    await eventually(is_expired)
    assert not any(data(run.log.history) for run in runs)


async def test_follower_gets_late_events_of_another_process_from_its_place_on_alone():
    for after, wanted in ((None, [b"3"]), ((1, 0), [b"2", b"3"])):
        hub = Hub(keep_s=60)
        thread_id = uuid4()
        log = hub.get_log(thread_id)
        follower = await hub.follow_thread(thread_id, RUN_MODES, after)
        run_id = uuid4()
        log.receive(run_id, [event(1), event(2)])
        log.receive(run_id, [StreamEvent("values", hub.clock.next(), b"3")])
        log.end()
        assert values(b"".join([chunk async for chunk in follower])) == wanted


async def test_run_that_comes_back_continues_in_its_segment():
    hub = Hub(keep_s=0.01)
    begun = start()
    run = hub.begin(begun)
    run.publish([("values", b"1")])
    log = run.log
    hub.finish(begun.run_id, None)
    again = hub.begin(begun._replace(attempt=2))

    async def is_expired() -> bool:
        return not hub._kept._kept

    await eventually(is_expired)
    again.publish([("values", b"2")])
    assert [each.data for each in log.history if each.name == "values"] == [b"1", b"2"]


async def test_followers_of_a_run_get_neither_its_closing_events_nor_those_of_the_protocol():
    hub = Hub(keep_s=60)
    run = hub.begin(start(is_resumable=True))
    run.publish([("values", b"1"), ("@updates", b"2")])
    live = run.follow()
    hub.finish(run.run_id, DONE)
    late = run.follow(after="-1")

    received = [b"".join([chunk async for chunk in follower]) for follower in (live, late)]
    assert received[0] == b""
    assert [line for line in received[1].split(b"\r\n") if line.startswith(b"event: ")] == [
        b"event: metadata",
        b"event: values",
    ]


async def test_only_a_resumable_run_gives_events_again():
    for is_resumable in (True, False):
        hub = Hub(keep_s=60)
        run = hub.begin(start(is_resumable=is_resumable))
        run.publish([("values", b"1")])
        follower = run.follow(after="-1")
        run.end()
        received = b"".join([chunk async for chunk in follower])
        assert (b"event: values" in received) is is_resumable


async def test_local_run_waits_no_longer_than_the_reorder_timeout(monkeypatch):
    monkeypatch.setattr(event_log, "REORDER_TIMEOUT_S", 0.0)
    log = Hub(keep_s=60).get_log(uuid4())
    follower = log.follow(RUN_MODES)
    log.receive(uuid4(), [event(1)])
    log.append(uuid4(), [event(2)])
    assert values(b"".join(await asyncio.wait_for(follower.take(), 60))) == [b"2"]


async def test_events_after_the_end_of_a_remote_run_are_dropped():
    log = Hub(keep_s=60).get_log(uuid4())
    run_id = uuid4()
    log.receive(run_id, [event(1)], end=True)
    log.receive(run_id, [event(2)])
    assert data(log.history) == [b"1"]


async def test_remote_run_that_is_not_kept_leaves_the_history():
    log = Hub(keep_s=60).get_log(uuid4())
    run_id = uuid4()
    log.receive(run_id, [event(1)])
    log.receive(run_id, [], end=False)
    assert data(log.history) == []


async def test_filled_events_are_for_followers_of_the_run_alone():
    hub = Hub(keep_s=60)
    begun = start(is_resumable=True)
    run = hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    run.log.fill(begun.run_id, [event(1), event(2)])
    run.log.fill(begun.run_id, [event(2), event(3)])
    assert data(run.log.history) == []
    replay = run.follow(after="-1")

    run.end()
    assert values(b"".join([chunk async for chunk in replay])) == [b"1", b"2", b"3"]


async def test_live_follower_gets_its_modes_and_the_error_alone():
    run = Hub(keep_s=60).begin(start())
    follower = run.follow(modes=frozenset({"values"}))
    run.publish([("values", b"1"), ("updates", b"2"), ("@private", b"3"), ("error", b"4")])
    run.end()
    assert values(b"".join([chunk async for chunk in follower])) == [b"1", b"4"]


@pytest.mark.parametrize(
    ("is_temporary", "is_resumable", "has_listeners"), [(True, False, False), (True, True, True), (False, False, True)]
)
async def test_only_a_stateless_run_that_cannot_be_resumed_has_no_listeners(is_temporary, is_resumable, has_listeners):
    run = Hub(keep_s=60).begin(start(is_temporary=is_temporary, is_resumable=is_resumable))
    assert run.has_listeners is has_listeners
    follower = run.follow()
    assert run.has_listeners
    del follower


async def test_end_of_a_stateless_run_reaches_those_who_follow_its_thread():
    hub = Hub(keep_s=60)
    begun = start(is_temporary=True)
    hub.begin(begun)
    follower = await hub.follow_thread(begun.thread_id, RUN_MODES, None)

    hub.finish(begun.run_id, DONE)
    assert b"run_done" in b"".join(await follower.take())


async def test_end_of_a_stateless_run_that_nobody_follows_leaves_nothing():
    hub = Hub(keep_s=60)
    begun = start(is_temporary=True)
    run = hub.begin(begun)
    hub.finish(begun.run_id, DONE)
    assert run.ended.is_set()
    assert not run.log.keeps(run.segment)
    assert not run.log.is_logged(begun.run_id)


async def test_first_event_wakes_those_who_wait_for_the_start():
    hub = Hub(keep_s=60)
    begun = start()
    run = hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    waiting = asyncio.create_task(run.change.wait())

    await asyncio.sleep(0)
    assert not waiting.done()
    hub.begin(begun)
    assert run.is_started
    await asyncio.wait_for(waiting, 60)


async def test_filled_events_reach_a_live_follower_of_the_run():
    hub = Hub(keep_s=60)
    begun = start()
    run = hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    follower = run.follow()

    run.log.fill(begun.run_id, [event(1)])
    run.end()
    assert values(b"".join([chunk async for chunk in follower])) == [b"1"]


async def test_state_update_of_another_process_is_taken_once_and_not_written_again():
    hub, transport = connect_hub(is_followed=True)
    log = hub.get_log(uuid4())
    log.receive(None, [event(1)])
    log.receive(None, [event(1), event(2)])
    assert data(log.history) == [b"1", b"2"]
    assert transport.batches == []
    assert log.unshared() == []


async def test_remote_run_is_not_open_after_its_end():
    log = Hub(keep_s=60).get_log(uuid4())
    run_id = uuid4()
    log.start(run_id, is_logged=True)
    log.receive(run_id, [event(1)], end=True)
    assert not log.is_logged(run_id)
