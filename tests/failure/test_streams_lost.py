"""What followers of a run get when the server that executes it dies, is paused, or cannot write its events down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from portside.agent.app import SCHEMA
from portside.agent.streams import log as streams_log
from portside.agent.streams.bus import Silence
from portside.agent.streams.events import EventClock
from portside.agent.streams.hub import Hub
from portside.agent.streams.reach import Start
from portside.agent.streams.relay import PostgresRelay, Work
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from tests.api.streaming import Sent, opened
from tests.conftest import eventually
from tests.failure.cluster import Client, Cluster, cluster_of, work
from tests.failure.stories import wrong_story


@pytest.fixture(scope="module")
def cluster(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with cluster_of(3, module_database, tmp_path_factory.mktemp("streams")) as running:
        yield running


@pytest.fixture
async def all_up(cluster: Cluster) -> AsyncIterator[Cluster]:
    await cluster.start()
    yield cluster
    await cluster.start()


def places(events: list[Sent]) -> list[tuple[int, ...]]:
    return [tuple(map(int, (event.event_id or "").split("-"))) for event in events]


async def test_a_resumable_stream_survives_its_server(all_up: Cluster, tmp_path: Path):
    cluster, gate = all_up, tmp_path / "gate"
    async with Client(cluster.servers[0]) as front:
        thread = await front.thread()
    body = work(steps=4, gates={2: gate}, stream_resumable=True, stream_mode=["values"])
    async with Client(cluster.servers[1]) as client:
        run = await client.run(thread, **body)
    entry = await cluster.ledger.begun(run, 2)
    executing = cluster.by_pid(entry.pid)
    other = cluster.other(executing)
    async with httpx2.AsyncClient(base_url=other.url, timeout=60) as http:
        path = f"/threads/{thread}/runs/{run}/stream"
        async with opened(http, "GET", path, headers={"Last-Event-ID": "-1"}) as stream:
            before = [await stream.next() for _ in range(3)]
            executing.kill()
            gate.touch()
            after = await stream.all()
        events = [*before, *after]
        assert [event.data["attempt"] for event in events if event.name == "metadata"] == [1, 2]
        assert places(events) == sorted(set(places(events)))
        assert len(events[-1].data["done"]) >= 4
        async with opened(http, "GET", path, headers={"Last-Event-ID": before[1].event_id}) as stream:
            assert [event.raw for event in await stream.all()] == [event.raw for event in events[2:]]
    # A server that was not there at all tells the same.
    await cluster.start()
    async with (
        httpx2.AsyncClient(base_url=executing.url, timeout=60) as http,
        opened(http, "GET", path, headers={"Last-Event-ID": "-1"}) as stream,
    ):
        assert [event.raw for event in await stream.all()] == [event.raw for event in events]


async def test_who_follows_a_paused_server_hears_the_next(all_up: Cluster, tmp_path: Path):
    cluster, gate = all_up, tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        run = await client.run(thread, **work(steps=4, gates={2: gate}, stream_mode=["values"]))
    entry = await cluster.ledger.begun(run, 2)
    executing = cluster.by_pid(entry.pid)
    async with (
        httpx2.AsyncClient(base_url=cluster.other(executing).url, timeout=60) as http,
        opened(http, "GET", f"/threads/{thread}/stream", headers={"Last-Event-ID": "-"}) as stream,
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


async def test_a_paused_owner_tells_its_own_clients_nothing_late(all_up: Cluster, tmp_path: Path):
    """Who follows it there hears what is heard elsewhere: the next owner goes on where the run was, in order, once."""
    cluster, gate = all_up, tmp_path / "gate"
    first, second = tmp_path / "gate.1", tmp_path / "gate.2"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        body = work(steps=4, gates={2: gate}, stream_resumable=True, stream_mode=["values", "custom"])
        run = await client.run(thread, **body)
    executing = cluster.by_pid((await cluster.ledger.begun(run, 2)).pid)
    path, everything = f"/threads/{thread}/runs/{run}/stream", {"Last-Event-ID": "-1"}
    async with (
        httpx2.AsyncClient(base_url=executing.url, timeout=60) as here,
        httpx2.AsyncClient(base_url=cluster.other(executing).url, timeout=60) as there,
        opened(here, "GET", path, headers=everything) as near,
        opened(there, "GET", path, headers=everything) as far,
    ):
        heard_near = [await near.next() for _ in range(6)]
        cluster.pause(executing)
        try:
            await cluster.ledger.begun(run, 2, attempt=2)
            second.touch()
            assert await cluster.over(run) == ["success"]
            first.touch()
        finally:
            cluster.resume(executing)
        heard_near += await near.all()
        heard_far = await far.all()
        async with opened(here, "GET", path, headers=everything) as stream:
            replayed = await stream.all()
    assert places(heard_far) == sorted(set(places(heard_far)))
    assert [event.raw for event in heard_near] == [event.raw for event in heard_far]
    assert [event.raw for event in replayed] == [event.raw for event in heard_far]
    assert wrong_story([(event.name, event.data) for event in heard_far], 4) == []


class Process:
    """One process's part of a database: its feeds and its way to the others, without hints."""

    def __init__(self, db: Database) -> None:
        self.hub = Hub(keep_s=60)
        self.relay = PostgresRelay(db, Silence(), self.hub, Work(lambda: None, lambda: None), asyncio.Event())
        self.hub.relay = self.relay


@pytest.fixture
async def database(fresh_database) -> AsyncIterator[Database]:
    db = await Database.connect(await fresh_database(), schema=SCHEMA)
    await migrate(db, ["portside.agent"], schema=SCHEMA)
    yield db
    await db.close()


@pytest.fixture
async def processes(database: Database) -> AsyncIterator[list[Process]]:
    made = [Process(database), Process(database)]
    for process in made:
        await process.relay.start()
    await made[0].relay._meet()
    yield made
    for process in made:
        await process.relay.close()


def start(**given) -> Start:
    given = {"run_id": uuid4(), "thread_id": uuid4(), "is_resumable": True, "is_stateless": False, **given}
    return Start(graph_id="g", attempt=1, **given)


async def test_events_that_wait_for_too_long_end_the_streams_elsewhere_with_an_error(processes, database, monkeypatch):
    here, there = processes
    begun = start()
    feed = here.hub.begin(begun)
    await here.relay.written()
    follower = there.hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    followed = await there.hub.follow(follower, after="-1", modes=None)
    assert b"metadata" in b"".join(await followed.take())
    own = feed.follow()
    monkeypatch.setattr(streams_log, "WAITING_LIMIT_BYTES", 10_000)
    async with database.transaction() as tx:
        # Postgres takes no chunk for now.
        await tx.connection.execute("lock table stream_heads in exclusive mode")
        feed.publish([("custom", b'"first"')])
        await asyncio.sleep(0.05)
        for _ in range(20):
            feed.publish([("custom", b'"%s"' % (b"x" * 1000))])
    told = b"".join([chunk async for chunk in followed])
    assert told.endswith(b"\r\n\r\n")
    assert b"StreamLost" in told
    feed.publish([("custom", b'"later"')])
    here.hub.close(begun.run_id, None)
    assert b"".join([chunk async for chunk in own]).count(b"event: custom") == 22


async def test_a_process_that_dies_takes_its_interests_with_it(processes, database):
    here, there = processes
    begun = start(is_resumable=False)
    followed = await there.hub.follow_thread(begun.thread_id, frozenset({"run_modes"}), None)
    feed = here.hub.begin(begun)
    here.relay.look()
    assert b"metadata" in b"".join(await followed.take())
    del followed
    await there.relay._mirrors.settle()
    assert await database.fetch(_Rows("select * from stream_interests")) == []
    await database.execute(_Rows("update stream_processes set alive_until = now() - interval '2 minutes'"))
    feed.publish([("values", b"1")])
    await here.relay._meet()
    assert not here.relay.has_others


class _Rows:
    """A statement that only a test asks."""

    def __init__(self, text: str) -> None:
        self.sql = text

    def arguments(self, _values: dict) -> list:
        return []


async def test_ids_go_on_after_those_of_a_process_whose_clock_is_ahead(processes):
    here, there = processes
    begun = start()
    here.hub.clock.ahead_s += 3600
    here.hub.begin(begun).publish([("values", b"1")])
    await here.relay.written()
    again = begun._replace(attempt=2)
    feed = await there.hub.prepare(again)
    there.hub.begin(again)
    replay = feed.follow(after="-1")
    feed.end()
    lines = b"".join([chunk async for chunk in replay]).split(b"\r\n")
    ids = [tuple(map(int, line[4:].split(b"-"))) for line in lines if line.startswith(b"id: ")]
    assert len(ids) == 3
    assert ids == sorted(set(ids))


async def test_what_a_former_owner_says_late_is_dropped(processes, database):
    here, there = processes
    begun = start()
    thread, run = begun.thread_id, begun.run_id
    await database.execute(_Rows(f"insert into threads (thread_id) values ('{thread}')"))
    await database.execute(
        _Rows(
            "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt)"
            f" values ('{run}', '{thread}', '{uuid4()}', 'running', 'enqueue', 2)"
        )
    )
    here.hub.begin(begun).publish([("values", b'"late"')])
    await here.relay.written()
    there.hub.begin(begun._replace(attempt=2)).publish([("values", b'"new"')])
    await there.relay.written()
    bodies = await database.fetch(_Rows("select body from stream_chunks"))
    assert b"late" not in b"".join(row["body"] for row in bodies)
    assert b"new" in b"".join(row["body"] for row in bodies)


async def test_the_end_of_streams_is_kept_for_its_time(processes, database):
    from portside.agent.streams.chores import OldStreams

    here, _ = processes
    begun = start()
    here.hub.begin(begun)
    await here.relay.written()
    chore = OldStreams(database, 60)
    assert (await chore.activate()).did["chunks"] == 0
    await database.execute(_Rows("update stream_chunks set written_at = now() - interval '61 seconds'"))
    assert (await chore.activate()).did["chunks"] == 1


def test_the_clock_goes_by_the_time_of_the_database():
    clock = EventClock()
    now = int(clock.next().split("-")[0])
    clock.ahead_s = 100
    assert 99_000 < int(clock.next().split("-")[0]) - now < 101_000


async def test_a_follower_elsewhere_hears_a_burst_in_order(processes):
    here, there = processes
    begun = start(is_resumable=False)
    followed = await there.hub.follow_thread(begun.thread_id, frozenset({"run_modes"}), None)
    feed = here.hub.begin(begun)
    for number in range(2000):
        feed.publish([("custom", b"%d" % number)])
        if number % 200 == 0:
            await asyncio.sleep(0.001)
    heard: list[bytes] = []

    async def is_all() -> bool:
        heard.extend(await followed.take())
        return len(heard) > 2000

    await eventually(is_all)
    data = [frame.split(b"\r\n")[1] for frame in heard if frame.startswith(b"event: custom")]
    assert data == [b"data: %d" % number for number in range(2000)]
