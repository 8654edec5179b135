"""Streams when the server that executes a run dies, is paused, or cannot write.

Followers get the right events. A server that lost its lease sends its own clients nothing late.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from portside.agent.app import SCHEMA
from portside.agent.streams import postgres_log, postgres_transport, remote_subscriptions
from portside.agent.streams.bus import NullBus, Receive
from portside.agent.streams.chunks import Chunk
from portside.agent.streams.event_log import LogSubscription
from portside.agent.streams.events import EventClock, RunEnd, parse_event_id
from portside.agent.streams.hub import AttemptStart
from portside.agent.streams.notifications import Notification
from portside.agent.streams.run_stream import RunStream
from portside.executor.requests import LifecycleEvent
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from tests.api.streaming import Sent, open_stream
from tests.conftest import eventually
from tests.failure.cluster import Client, Cluster, start_cluster, work
from tests.failure.steps import violations_in_steps
from tests.streaming_processes import Process, Statement, add_run, start, waits_for_lock


@pytest.fixture(scope="module")
def cluster(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with start_cluster(3, module_database, tmp_path_factory.mktemp("streams")) as running:
        yield running


@pytest.fixture
async def all_up(cluster: Cluster) -> AsyncIterator[Cluster]:
    await cluster.start()
    yield cluster
    await cluster.start()


def places(events: list[Sent]) -> list[tuple[int, ...]]:
    return [tuple(map(int, (event.event_id or "").split("-"))) for event in events]


async def test_a_resumable_stream_survives_its_server(all_up: Cluster, tmp_path: Path):
    cluster = all_up
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as front:
        thread = await front.thread()

    body = work(steps=4, gates={2: gate}, stream_resumable=True, stream_mode=["values"])
    async with Client(cluster.servers[1]) as client:
        run = await client.run(thread, **body)

    entry = await cluster.ledger.begun(run, 2)
    executing = cluster.by_pid(entry.pid)
    other = cluster.other(executing)
    async with httpx2.AsyncClient(base_url=other.url, timeout=300) as http:
        path = f"/threads/{thread}/runs/{run}/stream"
        async with open_stream(http, "GET", path, headers={"Last-Event-ID": "-1"}) as stream:
            before = [await stream.next() for _ in range(3)]
            executing.kill()
            gate.touch()
            after = await stream.all()

        events = [*before, *after]
        assert [event.data["attempt"] for event in events if event.name == "metadata"] == [1, 2]
        assert places(events) == sorted(set(places(events)))
        assert len(events[-1].data["done"]) >= 4

        async with open_stream(http, "GET", path, headers={"Last-Event-ID": before[1].event_id}) as stream:
            assert [event.raw for event in await stream.all()] == [event.raw for event in events[2:]]

    # A server that was down meanwhile sends the same events.
    await cluster.start()
    async with (
        httpx2.AsyncClient(base_url=executing.url, timeout=300) as http,
        open_stream(http, "GET", path, headers={"Last-Event-ID": "-1"}) as stream,
    ):
        assert [event.raw for event in await stream.all()] == [event.raw for event in events]


async def test_followers_of_a_paused_server_get_the_next_owners_events(all_up: Cluster, tmp_path: Path):
    cluster = all_up
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        run = await client.run(thread, **work(steps=4, gates={2: gate}, stream_mode=["values"]))

    entry = await cluster.ledger.begun(run, 2)
    executing = cluster.by_pid(entry.pid)
    async with (
        httpx2.AsyncClient(base_url=cluster.other(executing).url, timeout=300) as http,
        open_stream(http, "GET", f"/threads/{thread}/stream", headers={"Last-Event-ID": "-"}) as stream,
    ):
        cluster.pause(executing)
        try:
            second = await cluster.ledger.begun(run, 2, attempt=2)
            assert second.pid != executing.process.pid
            gate.touch()
            events = await stream.until(lambda event: event.data.get("status") == "run_done")
        finally:
            cluster.resume(executing)

    assert places(events) == sorted(set(places(events)))
    assert [event.data["attempt"] for event in events if "attempt" in event.data][-1] == 2


def has_begun_held_step(event: Sent) -> bool:
    return event.name == "custom" and event.data.get("begin") == 2


async def test_paused_owner_sends_no_late_events(all_up: Cluster, tmp_path: Path):
    """Its clients get the events of the next owner, in order and once, like clients of other servers."""
    cluster = all_up
    gate = tmp_path / "gate"
    first = tmp_path / "gate.1"
    second = tmp_path / "gate.2"

    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        body = work(steps=4, gates={2: gate}, stream_resumable=True, stream_mode=["values", "custom"])
        run = await client.run(thread, **body)

    executing = cluster.by_pid((await cluster.ledger.begun(run, 2)).pid)
    path = f"/threads/{thread}/runs/{run}/stream"
    everything = {"Last-Event-ID": "-1"}
    async with (
        httpx2.AsyncClient(base_url=executing.url, timeout=300) as here,
        httpx2.AsyncClient(base_url=cluster.other(executing).url, timeout=300) as there,
        open_stream(here, "GET", path, headers=everything) as near,
        open_stream(there, "GET", path, headers=everything) as far,
    ):
        # All that the run has sent before it waits is in the log.
        near_events = await near.until(has_begun_held_step)
        far_events = await far.until(has_begun_held_step)
        cluster.pause(executing)
        try:
            await cluster.ledger.begun(run, 2, attempt=2)
            second.touch()
            assert await cluster.over(run) == ["success"]
            first.touch()
        finally:
            cluster.resume(executing)

        near_events += await near.all()
        far_events += await far.all()
        async with open_stream(here, "GET", path, headers=everything) as stream:
            replayed = await stream.all()

    assert places(far_events) == sorted(set(places(far_events)))
    assert [event.raw for event in near_events] == [event.raw for event in far_events]
    assert [event.raw for event in replayed] == [event.raw for event in far_events]
    assert violations_in_steps([(event.name, event.data) for event in far_events], 4) == []


@pytest.fixture
async def database(agent_databases) -> AsyncIterator[Database]:
    db = await Database.connect(await agent_databases(), schema=SCHEMA)
    await migrate(db, ["portside.agent"], schema=SCHEMA)
    yield db
    await db.close()


@pytest.fixture
async def processes(database: Database) -> AsyncIterator[list[Process]]:
    made = [Process(database), Process(database)]
    for process in made:
        await process.transport.start()

    await made[0].transport._renew()
    yield made

    for process in made:
        await process.transport.close()


class PairedBus(NullBus):
    """Carries notifications to the other bus of a pair."""

    other: "PairedBus"
    receive: Receive = staticmethod(lambda _notification, _chunks: None)

    async def open(self, receive: Receive) -> None:
        self.receive = receive

    async def send(self, notification: Notification, chunks: list[Chunk]) -> None:
        self.other.receive(notification, chunks)


async def test_notification_of_an_ended_run_wakes_clients_of_another_process(database, monkeypatch):
    # Only a notification may wake the client: the periodic reads take longer than the test.
    monkeypatch.setattr(postgres_transport, "LOOK_S", 3600)
    monkeypatch.setattr(postgres_transport, "READ_S", 3600)
    buses = [PairedBus(), PairedBus()]
    buses[0].other = buses[1]
    buses[1].other = buses[0]
    here, there = (Process(database, bus) for bus in buses)

    await here.transport.start()
    await there.transport.start()
    await here.transport._renew()
    begun = start(is_resumable=False)
    stream = there.hub.open(begun.run_id, begun.thread_id, is_resumable=False)

    # Taken before the run begins: the notification may arrive before anybody waits.
    change = stream.change
    here.hub.begin(begun)
    here.hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
    await asyncio.wait_for(change.wait(), 60)
    assert not stream.ended.is_set()
    await here.transport.close()
    await there.transport.close()


async def test_lost_events_end_remote_followers_with_an_error(processes, database, monkeypatch):
    here, there = processes
    begun = start()
    await add_run(database, begun)
    feed = here.hub.begin(begun)

    await here.transport.flush()
    follower = there.hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    followed = await there.hub.follow(follower, after="-1", modes=None)
    assert b"metadata" in b"".join(await followed.take())
    own = feed.follow()

    monkeypatch.setattr(postgres_log, "WAITING_LIMIT_BYTES", 10_000)
    async with database.transaction() as tx:
        # Postgres takes no chunk for now.
        await tx.connection.execute("lock table stream_heads in exclusive mode")
        feed.publish([("custom", b'"first"')])
        await eventually(lambda: waits_for_lock(database))

        for _ in range(20):
            feed.publish([("custom", b'"%s"' % (b"x" * 1000))])

    received = b"".join([chunk async for chunk in followed])
    assert received.endswith(b"\r\n\r\n")
    assert b"StreamLost" in received
    feed.publish([("custom", b'"later"')])
    await database.execute(Statement("update runs set status = 'success'"))
    here.hub.finish(begun.run_id, None)
    assert b"".join([chunk async for chunk in own]).count(b"event: custom") == 22


async def test_a_run_that_writes_more_than_postgres_takes_loses_its_own_events_alone(processes, database, monkeypatch):
    here, there = processes
    feeds: list[RunStream] = []
    followed: list[RunStream] = []
    followers: list[LogSubscription] = []
    for begun in (start(), start()):
        await add_run(database, begun)
        feeds.append(here.hub.begin(begun))
        await here.transport.flush()
        followed.append(there.hub.open(begun.run_id, begun.thread_id, is_resumable=True))
        followers.append(await there.hub.follow(followed[-1], after="-1", modes=None))
        assert b"metadata" in b"".join(await followers[-1].take())

    (loud, quiet) = feeds
    (of_loud, of_quiet) = followers
    monkeypatch.setattr(postgres_log, "WAITING_LIMIT_BYTES", 10_000)

    async with database.transaction() as tx:
        # Postgres takes no chunk for now.
        await tx.connection.execute("lock table stream_heads in exclusive mode")
        quiet.publish([("custom", b'"first"')])
        await eventually(lambda: waits_for_lock(database))
        quiet.publish([("custom", b'"second"')])

        for _ in range(20):
            loud.publish([("custom", b'"%s"' % (b"x" * 1000))])

    assert b"StreamLost" in b"".join([chunk async for chunk in of_loud])
    received = b""
    while b"second" not in received:
        received += b"".join(await of_quiet.take())

    assert b"first" in received
    assert b"StreamLost" not in received


async def test_events_of_a_run_that_is_streamed_elsewhere_are_written_before_its_end(processes, database):
    here, there = processes
    begun = start(is_resumable=False, is_streamed_elsewhere=True)
    await add_run(database, begun)
    here.hub.begin(begun).publish([("values", b'"all"')])
    await here.hub.flush_run(begun.run_id)

    # Nothing else is written: the process dies here, before it has learned who follows the thread.
    stream = there.hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    followed = stream.follow()
    followed.remote = await there.transport.subscribe(stream.log, stream)
    assert b'"all"' in b"".join(await followed.take())


async def end_elsewhere(process: Process, database: Database, begun: AttemptStart) -> tuple[RunStream, LogSubscription]:
    """Return the stream of a run that a client created here and another process executed, and its subscription."""
    await add_run(database, begun, "success")
    stream = process.hub.open(begun.run_id, begun.thread_id, is_resumable=False)
    stream.mark_admitted(starts_here=False)
    followed = stream.follow()
    followed.remote = await process.transport.subscribe(stream.log, stream)

    return stream, followed


async def test_stream_of_an_ended_run_ends_after_all_written_events(processes, database, monkeypatch):
    # The test looks for the end itself: a look before the events are written would end the stream with an error.
    for name in ("LOOK_S", "READ_S"):
        monkeypatch.setattr(postgres_transport, name, 3600)

    monkeypatch.setattr(remote_subscriptions, "LAST_EVENTS_WITHIN_S", 0)
    here, there = processes
    begun = start(is_resumable=False, is_streamed_elsewhere=True)
    _stream, followed = await end_elsewhere(there, database, begun)

    here.hub.begin(begun).publish([("values", b'"all"')])
    await here.hub.flush_run(begun.run_id)

    # The first look notes that the run is over, and the second one ends its stream.
    for _ in range(2):
        await there.transport._subscriptions.check()

    received = b"".join([chunk async for chunk in followed])
    assert b'"all"' in received
    assert b"event: error" not in received


async def test_stream_without_written_events_ends_with_an_error(processes, database, monkeypatch):
    monkeypatch.setattr(remote_subscriptions, "LAST_EVENTS_WITHIN_S", 0)
    _, there = processes
    _stream, followed = await end_elsewhere(there, database, start(is_resumable=False))
    assert b"StreamLost" in b"".join([chunk async for chunk in followed])


async def end_loops(process: Process) -> None:
    """Let a process do nothing more, as if it had been killed."""
    for task in process.transport._tasks:
        task.cancel()
    await asyncio.gather(*process.transport._tasks, return_exceptions=True)


async def test_dead_process_loses_its_subscriptions(processes, database):
    here, there = processes
    begun = start(is_resumable=False)
    await add_run(database, begun)
    followed = await there.hub.follow_thread(begun.thread_id, frozenset({"run_modes"}), None)
    feed = here.hub.begin(begun)

    here.transport.check_subscriptions()
    assert b"metadata" in b"".join(await followed.take())
    del followed

    async def is_forgotten() -> bool:
        # A read that is under way still holds the subscription.
        await there.transport._subscriptions.sync()
        return await database.fetch(Statement("select * from stream_subscriptions")) == []

    await eventually(is_forgotten)
    await end_loops(there)
    await database.execute(Statement("update stream_processes set alive_until = now() - interval '2 minutes'"))
    feed.publish([("values", b"1")])
    await here.transport._renew()
    assert not here.transport.has_others


async def test_run_that_moves_waits_for_its_earlier_events(processes, database):
    """A read that fails meanwhile leaves no gap in the stream: it is tried again before the run goes on."""
    here, there = processes
    begun = start()
    await add_run(database, begun)
    here.hub.begin(begun).publish([("values", b'"early"')])
    await here.transport.flush()

    again = begun._replace(attempt=2)
    async with database.transaction() as tx:
        await tx.connection.execute("lock table stream_chunks in access exclusive mode")
        moved = asyncio.create_task(there.hub.prepare(again))
        waiting = (
            "select pg_terminate_backend(l.pid) from pg_locks l join pg_database d on d.oid = l.database"
            " where datname = current_database() and not granted and relation = 'stream_chunks'::regclass"
        )

        async def is_broken() -> bool:
            return bool(await database.fetch(Statement(waiting)))

        await eventually(is_broken)
        # The connection is gone, and the reader waits for the table again.
        await eventually(lambda: waits_for_lock(database))

    stream = await moved
    there.hub.begin(again)
    stream.publish([("values", b'"late"')])
    replay = stream.follow(after="-1")

    stream.end()
    received = b"".join([chunk async for chunk in replay])
    assert b'"early"' in received
    assert b'"late"' in received


async def test_earlier_events_that_cannot_be_read_end_the_followers_with_an_error(processes, database):
    here, there = processes
    begun = start()
    await add_run(database, begun)
    here.hub.begin(begun).publish([("values", b'"early"')])
    await here.transport.flush()
    await end_loops(there)

    follower = there.hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    followed = await there.hub.follow(follower, after="-1", modes=None)
    await database.execute(Statement("alter table stream_chunks rename to stream_chunks_lost"))
    await there.hub.prepare(begun._replace(attempt=2))
    assert b"StreamLost" in b"".join([chunk async for chunk in followed])


async def test_event_ids_continue_after_a_process_with_a_clock_ahead(processes):
    here, there = processes
    begun = start()
    here.hub.clock.ahead_s += 3600
    here.hub.begin(begun).publish([("values", b"1")])
    await here.transport.flush()

    again = begun._replace(attempt=2)
    feed = await there.hub.prepare(again)
    there.hub.begin(again)
    replay = feed.follow(after="-1")

    feed.end()
    lines = b"".join([chunk async for chunk in replay]).split(b"\r\n")
    ids = [tuple(map(int, line[4:].split(b"-"))) for line in lines if line.startswith(b"id: ")]
    assert len(ids) == 3
    assert ids == sorted(set(ids))


async def test_late_events_of_a_former_owner_are_dropped(processes, database):
    here, there = processes
    begun = start()
    await add_run(database, begun, attempt=2)
    here.hub.begin(begun).publish([("values", b'"late"')])
    await here.transport.flush()
    there.hub.begin(begun._replace(attempt=2)).publish([("values", b'"new"')])
    await there.transport.flush()

    bodies = await database.fetch(Statement("select body from stream_chunks"))
    assert b"late" not in b"".join(row["body"] for row in bodies)
    assert b"new" in b"".join(row["body"] for row in bodies)


async def test_events_of_two_attempts_that_are_written_together_count_for_the_newest(processes, database):
    here, _ = processes
    begun = start()
    await add_run(database, begun, attempt=2)
    here.hub.begin(begun)
    here.hub.begin(begun._replace(attempt=2)).publish([("values", b'"new"')])
    await here.transport.flush()

    bodies = await database.fetch(Statement("select body from stream_chunks"))
    assert b"new" in b"".join(row["body"] for row in bodies)


async def test_old_streams_keeps_chunks_for_their_time(processes, database):
    from portside.agent.streams.postgres_log import OldStreams

    here, _ = processes
    begun = start()
    here.hub.begin(begun)
    await here.transport.flush()

    chore = OldStreams(database, 60)
    assert (await chore.activate()).did["chunks"] == 0
    await database.execute(Statement("update stream_chunks set written_at = now() - interval '61 seconds'"))
    assert (await chore.activate()).did["chunks"] == 1


async def test_old_streams_keeps_chunks_of_a_run_until_a_while_after_its_end(processes, database):
    from portside.agent.streams.postgres_log import OldStreams

    here, _ = processes
    begun = start()
    await add_run(database, begun)
    here.hub.begin(begun)
    await here.transport.flush()
    await database.execute(Statement("update stream_chunks set written_at = now() - interval '61 seconds'"))

    chore = OldStreams(database, 60)
    for change in (
        "status = 'pending', updated_at = now() - interval '61 seconds'",
        "status = 'running'",
        "status = 'success', updated_at = now()",
    ):
        await database.execute(Statement(f"update runs set {change}"))
        assert (await chore.activate()).did["chunks"] == 0, change

    await database.execute(Statement("update runs set updated_at = now() - interval '61 seconds'"))
    assert (await chore.activate()).did["chunks"] == 1


async def test_old_streams_keeps_chunks_for_slow_readers_however_short_the_time(processes, database, monkeypatch):
    from portside.agent.streams import postgres_log

    # So long that a busy machine does not reach it between two statements.
    monkeypatch.setattr(postgres_log, "KEEP_AT_LEAST_S", 3600.0)
    here, _ = processes
    here.hub.begin(start())
    await here.transport.flush()
    chore = postgres_log.OldStreams(database, 0)
    assert (await chore.activate()).did["chunks"] == 0
    await database.execute(Statement("update stream_chunks set written_at = now() - interval '3601 seconds'"))
    assert (await chore.activate()).did["chunks"] == 1


async def test_old_streams_keeps_the_numbers_of_a_thread_that_is_followed_or_has_chunks(processes, database):
    """Otherwise its events would get numbers again that a client has already seen."""
    from portside.agent.streams.postgres_log import OldStreams

    here, there = processes
    begun = start()
    here.hub.begin(begun)
    await here.transport.flush()
    idle_id = uuid4()
    followed = [await there.hub.follow_thread(idle_id, frozenset({"run_modes"}), None)]
    old = "now() - interval '2 days'"

    for thread_id in (begun.thread_id, idle_id):
        await database.execute(
            Statement(
                f"insert into stream_heads (thread_id, last, added, updated_at) values ('{thread_id}', 1, 1, {old})"
                f" on conflict (thread_id) do update set updated_at = {old}"
            )
        )

    await database.execute(
        Statement(
            f"insert into stream_sequences (thread_id, event_id, seq, updated_at) values ('{idle_id}', '1', 1, {old})"
        )
    )

    chore = OldStreams(database, 60)
    did = (await chore.activate()).did
    assert (did["heads"], did["sequences"]) == (0, 0)

    followed.clear()
    await database.execute(Statement("delete from stream_subscriptions"))
    await database.execute(Statement("delete from stream_chunks"))
    did = (await chore.activate()).did
    assert (did["heads"], did["sequences"]) == (2, 1)


async def test_old_streams_deletes_the_rows_of_dead_processes_alone(processes, database):
    """A row that is far in the future is from before the clock was set back."""
    from portside.agent.streams.postgres_log import OldStreams

    for after in ("-30 seconds", "9 minutes", "-70 seconds", "11 minutes"):
        await database.execute(
            Statement(
                "insert into stream_processes (process_id, alive_until)"
                f" values (gen_random_uuid(), now() + interval '{after}')"
            )
        )

    assert (await OldStreams(database, 60).activate()).did["dead_processes"] == 2


async def test_old_streams_deletes_numbers_of_threads_in_batches(database, monkeypatch):
    """After a long stop there may be millions, and a row that is being deleted delays the thread's next events."""
    from portside.agent.streams.postgres_log import OldStreams

    monkeypatch.setattr(OldStreams, "batch", 2)

    for table, columns, values in (("heads", "last, added", "1, 1"), ("sequences", "event_id, seq", "'1', 1")):
        await database.execute(
            Statement(
                f"insert into stream_{table} (thread_id, {columns}, updated_at)"
                f" select gen_random_uuid(), {values}, now() - interval '2 days' from generate_series(1, 3)"
            )
        )

    chore = OldStreams(database, 60)
    deleted = [await chore.activate() for _ in range(2)]
    assert [(each.did["heads"], each.did["sequences"], each.again) for each in deleted] == [(2, 2, True), (1, 1, False)]


def test_event_clock_follows_the_time_of_the_database():
    clock = EventClock()
    before_ms = time.time() * 1000
    clock.ahead_s = 100
    event_ms = int(clock.next().split("-")[0])
    assert int(before_ms) + 100_000 <= event_ms <= time.time() * 1000 + 100_000


def test_follower_that_joins_misses_no_later_event_of_a_clock_that_was_compared_slowly():
    joins = EventClock()
    publishes = EventClock()
    now_s = time.time()

    # Both asks took 0.4 seconds; the database answered one at its end, and the other at its beginning.
    joins.compare(now_s, now_s - 0.4, now_s)
    publishes.compare(now_s - 0.4, now_s - 0.4, now_s)
    joined = joins.now()
    assert parse_event_id(publishes.next()) > joined

    # A quicker answer is better.
    joins.compare(now_s, now_s - 0.001, now_s)
    assert joins.error_s < 0.002


async def test_remote_follower_gets_a_burst_in_order(processes, database):
    here, there = processes
    begun = start(is_resumable=False)
    await add_run(database, begun)
    followed = await there.hub.follow_thread(begun.thread_id, frozenset({"run_modes"}), None)

    feed = here.hub.begin(begun)
    for number in range(2000):
        feed.publish([("custom", b"%d" % number)])
        if number % 200 == 0:
            await asyncio.sleep(0)

    received: list[bytes] = []

    async def is_all() -> bool:
        received.extend(await followed.take())
        return len(received) > 2000

    await eventually(is_all)
    data = [frame.split(b"\r\n")[1] for frame in received if frame.startswith(b"event: custom")]
    assert data == [b"data: %d" % number for number in range(2000)]
