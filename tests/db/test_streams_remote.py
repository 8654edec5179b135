"""Subscriptions to threads of other processes: which chunks they take, what they read, and what notifications cause.

A subscription passes over no chunk, however the bus and the log deliver them. The loops of the transport do not run
here: each test looks and reads when it wants to.
"""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from portside.agent.app import SCHEMA
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams import postgres_log, postgres_transport, remote_subscriptions
from portside.agent.streams.bus import NullBus, RedisBus, open_bus
from portside.agent.streams.chunks import Chunk
from portside.agent.streams.events import RunEnd, parse_event_id
from portside.agent.streams.hub import AttemptStart
from portside.agent.streams.notifications import NOBODY, Notification
from portside.agent.streams.postgres_transport import WorkCallbacks
from portside.agent.streams.remote_subscriptions import RemoteSubscription
from portside.executor.requests import LifecycleEvent
from portside.kernel.db import Database
from tests.conftest import eventually
from tests.streaming_processes import Process, Statement, start, waits_for_lock

MODES = frozenset({"run_modes"})


class NotingBus(NullBus):
    """A bus that notes what was sent."""

    def __init__(self) -> None:
        self.sent: list[Notification] = []

    async def send(self, notification: Notification, chunks: list[Chunk]) -> None:
        self.sent.append(notification)


@pytest.fixture
async def database(agent_databases) -> AsyncIterator[Database]:
    db = await Database.connect(await agent_databases(), schema=SCHEMA)
    yield db
    await db.close()


@pytest.fixture
async def processes(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Process]]:
    # What a test has written is in the log, however slow Postgres is.
    monkeypatch.setattr(postgres_log, "WRITE_TIMEOUT_S", 600.0)
    monkeypatch.setattr(postgres_log.LogWriter.flush, "__defaults__", (600.0,))

    made = [Process(database, NotingBus()), Process(database, NotingBus())]
    for process in (*made, made[0]):
        await process.transport._renew()

    yield made
    for process in made:
        await process.transport.close()


async def write_chunks(process: Process, begun: AttemptStart, count: int) -> None:
    """Execute a run up to an event in each of so many chunks after its first one."""
    process.hub.begin(begun)
    await process.transport.flush()
    await write_events(process, begun, count)


async def write_events(process: Process, begun: AttemptStart, count: int) -> None:
    stream = process.hub.find(begun.run_id)
    assert stream is not None
    for number in range(count):
        stream.publish([("values", b'"event %d"' % number)])
        await process.transport.flush()


async def read_chunks(database: Database) -> list[Chunk]:
    rows = await database.pool.fetch("select * from stream_chunks order by number")
    return [Chunk(*(row[name] for name in Chunk.__struct_fields__)) for row in rows]


def get_subscription(process: Process, thread_id: UUID) -> RemoteSubscription:
    return process.transport.subscribed[thread_id]


@pytest.mark.parametrize(("made", "events"), [("before", 1), ("after", 0)])
async def test_a_thread_gets_no_events_of_a_deleted_one_of_its_id(processes, database, made, events):
    here = processes[0]
    begun = start()
    stream = here.hub.begin(begun)
    stream.publish([("values", b'"of the first thread"')])

    created_at = {"before": "now() - interval '1 hour'", "after": "now() + interval '1 hour'"}[made]
    insert = f"insert into threads (thread_id, created_at) values ('{begun.thread_id}', {created_at})"
    await database.execute(Statement(insert))
    follower = await here.hub.follow_thread(begun.thread_id, MODES, (0, 0))
    here.hub.drop_thread(begun.thread_id)
    assert b"".join([chunk async for chunk in follower]).count(b"of the first thread") == events


async def test_chunk_after_a_missing_one_is_not_taken(processes, database):
    here, there = processes
    begun = start()
    _followed = await there.hub.follow_thread(begun.thread_id, MODES, None)
    await write_chunks(here, begun, 0)

    subscriptions = there.transport._subscriptions
    await subscriptions.read()
    (first,) = await read_chunks(database)
    await write_events(here, begun, 2)

    chunks = await read_chunks(database)
    assert not subscriptions.take(chunks[2:])
    assert get_subscription(there, begun.thread_id).cursor == first.number
    assert subscriptions.take(chunks)
    assert get_subscription(there, begun.thread_id).cursor == chunks[-1].number


async def test_carried_chunk_is_not_taken_during_a_read(processes, database):
    """The read may have older chunks of the thread, which it would apply after this one."""
    here, there = processes
    begun = start()
    _followed = await there.hub.follow_thread(begun.thread_id, MODES, None)
    await write_chunks(here, begun, 0)

    subscriptions = there.transport._subscriptions
    await subscriptions.read()
    await write_events(here, begun, 1)

    _, second = await read_chunks(database)
    async with database.transaction() as tx:
        await tx.connection.execute("lock table stream_chunks in access exclusive mode")
        reading = asyncio.create_task(subscriptions.read())
        await eventually(lambda: waits_for_lock(database))
        assert not subscriptions.take([second])

    await reading
    assert get_subscription(there, begun.thread_id).cursor == second.number


async def test_subscription_is_recorded_before_it_reads(processes, database):
    """Otherwise what is written between the two would be written for nobody."""
    _, there = processes
    thread_id = uuid4()
    async with database.transaction() as tx:
        await tx.connection.execute("lock table stream_chunks in access exclusive mode")
        following = asyncio.create_task(there.hub.follow_thread(thread_id, MODES, None))
        await eventually(lambda: waits_for_lock(database))
        assert await database.pool.fetchval("select thread_id from stream_subscriptions") == thread_id

    await following


async def test_new_follower_gets_all_pages_of_the_log(processes, database, monkeypatch):
    monkeypatch.setattr(remote_subscriptions, "CHUNKS_AT_ONCE", 2)
    here, there = processes
    begun = start()
    await write_chunks(here, begun, 5)
    assert await replay(there, begun) == [0, 1, 2, 3, 4]


async def test_events_that_a_process_has_read_and_dropped_are_read_again(processes, monkeypatch):
    monkeypatch.setattr(remote_subscriptions, "CHUNKS_AT_ONCE", 2)
    here, there = processes
    begun = start()
    _remote = await there.transport.subscribe(there.hub.get_log(begun.thread_id))

    await write_chunks(here, begun, 5)
    here.hub.finish(begun.run_id, RunEnd(LifecycleEvent.COMPLETED, "g"))
    await here.transport.flush()
    await there.transport._subscriptions.read()

    # As when the events of other runs took the memory.
    log = there.hub.get_log(begun.thread_id)
    log._segments.clear()
    log._known.clear()
    assert await replay(there, begun) == [0, 1, 2, 3, 4]


async def replay(process: Process, begun: AttemptStart) -> list[int]:
    """Follow a run from its beginning; return the events that come at once."""
    stream = process.hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    followed = await process.hub.follow(stream, after="-1", modes=None)
    received = b"".join(await followed.take())
    return [number for number in range(10) if b"event %d" % number in received]


async def test_process_that_was_taken_for_dead_records_its_subscriptions_again(processes, database):
    _, there = processes
    _followed = await there.hub.follow_thread(uuid4(), MODES, None)
    await database.pool.execute("delete from stream_processes where process_id = $1", there.transport._process_id)
    count = "select count(*) from stream_subscriptions"
    assert await database.pool.fetchval(count) == 0
    await there.transport._renew()
    await there.transport._subscriptions.sync()

    assert await database.pool.fetchval(count) == 1


async def test_thread_that_is_followed_again_while_its_subscription_is_removed_stays_recorded(
    processes, database, monkeypatch
):
    """A client that loads its page again leaves and comes back within milliseconds."""
    _, there = processes
    thread_id = uuid4()
    followed = await there.hub.follow_thread(thread_id, MODES, None)
    del followed
    execute = database.execute
    again = []

    async def come_back_first(query, **values):
        if query is sql.remove_stream_subscriptions:
            again.append(await there.hub.follow_thread(thread_id, MODES, None))
        return await execute(query, **values)

    monkeypatch.setattr(database, "execute", come_back_first)
    await there.transport._subscriptions.sync()
    assert len(again) == 1
    assert await database.pool.fetchval("select thread_id from stream_subscriptions") == thread_id


async def test_only_a_thread_that_existed_ends_when_it_is_missing(processes, database):
    _, there = processes
    thread_id = uuid4()
    followed = await there.hub.follow_thread(thread_id, MODES, None)
    check = there.transport._subscriptions.check

    await check()
    ended = asyncio.create_task(_read_to_end(followed))
    await database.pool.execute("insert into threads (thread_id) values ($1)", thread_id)
    await check()
    assert not ended.done()
    await database.pool.execute("delete from threads")
    await check()

    await asyncio.wait_for(ended, 60)


async def _read_to_end(followed) -> None:
    async for _ in followed:
        pass


async def test_notification_of_too_much_to_name_causes_every_look(processes):
    process = processes[0]
    calls = []
    process.transport._work = WorkCallbacks(lambda: calls.append("claims"), lambda: calls.append("cancels"))
    process.transport._on_notification(Notification(sender=uuid4(), many=True), [])
    assert calls == ["claims", "cancels"]
    assert process.transport._to_read.is_set()
    assert process.transport._to_look.is_set()


@pytest.mark.parametrize("count", [postgres_transport.NAMED_AT_ONCE, postgres_transport.NAMED_AT_ONCE + 1])
async def test_notification_names_no_more_than_postgres_allows(processes, count):
    transport = processes[0].transport
    for _ in range(count):
        transport.notify_run_ended(uuid4())

    await transport._notify()
    (sent,) = processes[0].bus.sent
    assert (len(sent.ended), sent.many) == ((count, False) if count == postgres_transport.NAMED_AT_ONCE else (0, True))


async def test_process_says_hello_when_its_bus_connects_again(processes):
    transport = processes[0].transport
    transport._on_notification(Notification(sender=NOBODY), [])
    await transport._notify()
    assert [sent.hello for sent in processes[0].bus.sent] == [True]


async def test_stopping_process_follows_no_run_elsewhere(processes):
    process = processes[0]
    begun = start()
    stream = process.hub.open(begun.run_id, begun.thread_id, is_resumable=True)
    process.transport._draining.set()
    assert not process.transport.follow_elsewhere(stream)
    assert begun.thread_id not in process.transport.subscribed


async def test_what_is_read_of_another_process_moves_the_event_clock(processes, database):
    """A run that this process begins next continues with greater ids, though its clock is behind."""
    here, there = processes
    begun = start()
    here.hub.clock.ahead_s += 3600
    _followed = await there.hub.follow_thread(begun.thread_id, MODES, None)

    await write_chunks(here, begun, 0)
    await there.transport._subscriptions.read()
    (chunk,) = await read_chunks(database)
    assert parse_event_id(there.hub.clock.next()) > parse_event_id(chunk.events()[-1].event_id)


async def test_stored_number_of_events_never_becomes_smaller(processes):
    """A process that stores its position late has numbered fewer events than the one that took over."""
    thread_id = uuid4()
    for position in (("5-0", 7), ("4-0", 6)):
        transport = processes[position[1] - 6].transport
        transport._hub.positions = lambda position=position: {thread_id: position}
        await transport._store_positions()
        assert await transport.last_numbered(thread_id) == ("5-0", 7)


async def test_databases_and_prefixes_have_channels_of_their_own_in_redis(database):
    async def open_channel(prefix: str = "") -> str:
        settings = AgentSettings(redis_uri="redis://127.0.0.1:1", redis_key_prefix=prefix)
        bus = await open_bus(database, settings, "postgres://unused")
        assert isinstance(bus, RedisBus)
        assert bus.carries_chunks
        return bus._channel

    channel = await open_channel()
    assert await open_channel() == channel
    assert await open_channel("a:") == "a:" + channel

    # Migrated by itself, as another database is.
    await database.pool.execute("update stream_bus set name = gen_random_uuid()")
    assert await open_channel() != channel
