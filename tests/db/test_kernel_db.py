"""The pool, transactions and named queries on Postgres.

Background work of a pool shares one connection while it is quick. If Postgres refuses further connections, a pool
continues with those it has.
"""

import asyncio
import json
import secrets
import socket
from typing import Any

import asyncpg
import pytest

from portside.kernel.db import Database, Query
from portside.kernel.errors import UserMistake
from portside.kernel.pool import background
from portside.kernel.reconcile import Driver, Status, Task
from tests.conftest import eventually

MAKE = Query("make", "create table things (id int primary key, data jsonb)")
INSERT = Query("insert", "insert into things (id, data) values (:id, :data)")
READ = Query("read", "select data from things where id = :id")
COUNT = Query("count", "select count(*) from things")


@pytest.fixture
async def db(fresh_database):
    db = await Database.connect(await fresh_database())
    await db.execute(MAKE)
    yield db
    await db.close()


async def test_exception_rolls_back_the_transaction(db) -> None:
    with pytest.raises(RuntimeError):
        async with db.transaction() as tx:
            await tx.execute(INSERT, id=1, data=None)
            assert await tx.fetchval(COUNT) == 1
            assert await db.fetchval(COUNT) == 0, "other connections do not see it before the commit"
            raise RuntimeError

    assert await db.fetchval(COUNT) == 0
    async with db.transaction() as tx:
        await tx.execute(INSERT, id=1, data=None)

    assert await db.fetchval(COUNT) == 1


async def test_connections_limit_statements_and_transactions_that_wait(db) -> None:
    """A paused process would hold its locks for ever otherwise."""
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "jit", "application_name")
    settings = [await db.pool.fetchval("select current_setting($1)", name) for name in names]
    assert settings == ["15min", "1min", "off", "portside"]


async def test_execute_returns_the_number_of_rows(db) -> None:
    await db.executemany(INSERT, [{"id": number, "data": {}} for number in range(3)])
    assert await db.execute(Query("change", "update things set data = 'null' where id < :id"), id=2) == 2
    assert await db.execute(MAKE_AGAIN) == 0
    assert await db.fetchrow(READ, id=9) is None
    assert len(await db.fetch(Query("all", "select * from things"))) == 3


MAKE_AGAIN = Query("again", "create table if not exists things (id int)")


@pytest.mark.parametrize(
    "value", [True, 1.5, "text", "", [], {}, {"a": [1, {"b": None}]}, 2**70, "Zoë 😀", {"quote": "'\"\\"}]
)
async def test_jsonb_round_trip(db, value) -> None:
    await db.execute(INSERT, id=1, data=value)
    row = await db.fetchrow(READ, id=1)
    assert row is not None
    assert row["data"] == value
    assert json.loads(await db.fetchval(Query("text", "select data::text from things"))) == value


@pytest.mark.parametrize("text", ["'; drop table things; --", "$1", ":id", "%s", "{x}"])
async def test_values_are_not_interpreted_as_sql(db, text: str) -> None:
    await db.execute(INSERT, id=1, data=text)
    assert (
        await db.fetchval(Query("same", "select data #>> '{}' from things where data #>> '{}' = :text"), text=text)
        == text
    )


async def test_failed_statement_leaves_the_pool_usable(db) -> None:
    for _ in range(30):
        with pytest.raises(asyncpg.PostgresError):
            await db.fetch(Query("broken", "select * from nothing"))

    assert await db.fetchval(COUNT) == 0


@pytest.fixture
def patient_checks(monkeypatch) -> None:
    """Let health checks wait for a database that is only slow."""
    monkeypatch.setattr("portside.kernel.db.ALIVE_WITHIN_S", 300.0)


@pytest.mark.usefixtures("patient_checks")
async def test_is_alive_follows_the_database(fresh_database, postgres) -> None:
    url = await fresh_database()
    db = await Database.connect(url)
    assert await db.is_alive()
    admin = await asyncpg.connect(postgres)
    name = url.split("?")[0].rsplit("/", 1)[1]

    await admin.execute(f'drop database "{name}" with (force)')
    await admin.close()
    assert not await db.is_alive()
    await db.close()
    assert not await db.is_alive()


@pytest.mark.parametrize("kind", ["no server", "no host", "no database", "wrong password", "no url"])
async def test_unreachable_database_raises_dependency_unavailable(postgres, kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        base, _, query = postgres.partition("?")
        userinfo, _, host = base.removeprefix("postgresql://").rpartition("@")

        url = {
            "no server": f"postgresql://me:hunter2@127.0.0.1:{port}/x",
            "no host": "postgresql://me:hunter2@nowhere.invalid/x",
            "no database": f"{base.rsplit('/', 1)[0]}/hunter2less?{query}",
            "wrong password": f"postgresql://{userinfo.split(':')[0]}:hunter2@{host}?{query}",
            "no url": "mysql://me:hunter2@127.0.0.1/x",
        }[kind]

        with pytest.raises(UserMistake, match=r"the database does not answer: \S") as raised:
            await Database.connect(url)

    if kind != "no database":
        assert "hunter2" not in str(raised.value)


async def test_cancelled_transaction_leaves_its_connection_usable(fresh_database) -> None:
    """It is cancelled while it begins, works or ends. Later statements on its connection are committed."""
    url = await fresh_database()
    one = await Database.connect(url, max_size=1)
    other = await Database.connect(url)
    await one.execute(MAKE)

    async def work() -> None:
        async with one.transaction() as tx:
            await tx.fetchval(COUNT)

    for steps in range(40):
        working = asyncio.create_task(work())

        for _ in range(steps):
            await asyncio.sleep(0)

        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        async with one.transaction() as tx:
            await tx.execute(INSERT, id=steps, data=None)

    assert await other.fetchval(COUNT) == 40
    await one.close()
    await other.close()


async def test_large_rows_are_read_in_batches_that_fit_in_memory(db, monkeypatch) -> None:
    """Only a row that is larger by itself has a batch above the limit."""
    monkeypatch.setattr("portside.kernel.db.FREE_BYTES", 10)
    sizes = Query("sizes", "select gen_random_uuid() as id, bytes from unnest(:sizes ::int[]) as bytes")
    async with db.transaction() as tx:
        batches = [batch async for batch in tx.batches(sizes, {"sizes": [4, 6, 1, 9, 2, 30, 1]})]

    assert [batch.bytes for batch in batches] == [10, 10, 2, 30, 1]
    assert [len(batch.ids) for batch in batches] == [2, 2, 1, 1, 1]


async def test_jsonb_is_stored_without_nul(db):
    assert await db.pool.fetchval("select $1::jsonb", {"a": "x\0y"}) == {"a": "x\ufffdy"}


async def test_statement_cancelled_between_its_messages_leaves_no_transaction_open(db) -> None:
    """The driver prepares, waits, then executes. The server must not hold a snapshot while it waits for the rest."""
    left = Query(
        "left",
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
        " and backend_type = 'client backend'",
    )

    for steps in range(40):
        # A different text each time, or the statement would already be prepared.
        caller = asyncio.create_task(db.fetchval(Query("new", f"select {steps} as n{steps} from things")))

        for _ in range(steps):
            await asyncio.sleep(0)

        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        async with db.pool.acquire(), db.pool.acquire() as other:
            await eventually(lambda other=other: is_alone(other, left))


async def is_alone(connection: Any, active: Query) -> bool:
    return bool(await connection.fetchval(active.sql) == 1)


async def test_connection_state_does_not_leak_to_the_next_user(fresh_database) -> None:
    """A failed statement, an open transaction and a listener do not affect the next user of a connection."""
    db = await Database.connect(await fresh_database(), max_size=1)
    await db.execute(MAKE)
    async with db.pool.acquire() as connection:
        pid = connection.get_server_pid()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("insert into things values (1, null)")

    assert await db.fetchval(COUNT) == 0
    with pytest.warns(asyncpg.InterfaceWarning, match="listener"):
        async with db.pool.acquire() as connection:
            await connection.add_listener("news", lambda *_: None)

    async with db.pool.acquire() as connection:
        assert not connection._con._listeners
        assert connection.get_server_pid() == pid, "the connection was not replaced"

    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await connection.fetchval("select 1")

    await db.close()


async def test_replace_connections_opens_new_ones(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    query = Query("pid", "select pg_backend_pid()")
    async with db.pool.acquire() as connection:
        before = connection.get_server_pid()
        await db.pool.expire_connections()

    assert await db.fetchval(query) != before
    assert await db.fetchval(query) == await db.fetchval(query), "the new connection is kept"
    await db.close()


async def test_connection_that_dies_during_a_statement_is_replaced(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    for _ in range(5):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await db.fetchval(Query("die", "select pg_terminate_backend(pg_backend_pid())"))
        assert await db.fetchval(Query("live", "select 1")) == 1

    await db.close()


async def test_pool_neither_loses_nor_shares_connections(fresh_database) -> None:
    """Users are cancelled, fail or wait. Afterwards all connections are free, and no transaction is open."""
    db = await Database.connect(await fresh_database(), max_size=3)
    await db.execute(MAKE)

    # Open all connections first: the driver handles one that is cancelled while it is opened.
    async with db.pool.acquire(), db.pool.acquire(), db.pool.acquire():
        pass

    async def work(number: int) -> None:
        if number % 5 == 0:
            await db.fetchval(Query("broken", "select 1 / 0"))
        elif number % 5 == 1:
            async with db.transaction() as tx:
                await tx.execute(INSERT, id=number, data=None)
        else:
            assert await db.fetchval(Query("same", f"select :number::int + 0 * {number % 40}"), number=number) == number

    working = [asyncio.create_task(work(number)) for number in range(200)]
    for number in range(0, 200, 3):
        await asyncio.sleep(0)
        working[number].cancel()

    ended = await asyncio.gather(*working, return_exceptions=True)
    kinds = (asyncio.CancelledError, asyncpg.DivisionByZeroError)
    assert [each for each in ended if each is not None and not isinstance(each, kinds)] == []

    async def are_all_free() -> bool:
        # What a cancelled user had is reset in a task of its own.
        return db.pool.get_idle_size() == db.pool.get_size() > 0

    await eventually(are_all_free)
    assert await db.fetchval(COUNT) >= sum(each is None for each in ended[1::5]), "a commit may be cancelled too late"
    await db.close()

    with pytest.raises(asyncpg.InterfaceError):
        await db.fetchval(COUNT)


@pytest.mark.usefixtures("patient_checks")
async def test_concurrent_health_checks_share_one_query(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    queries: list[str] = []
    async with db.pool.acquire() as connection:
        connection.add_query_logger(lambda record: queries.append(record.query))
        callers = [asyncio.create_task(db.is_alive()) for _ in range(20)]
        await asyncio.sleep(0)

        # The caller that runs the query, and one that waits for it.
        callers[0].cancel()
        callers[7].cancel()

    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [each for each in results if each is True] == [True] * 18
    assert await db.is_alive()

    # The driver logs a statement in the next iteration of the loop.
    await asyncio.sleep(0)
    assert queries == ["select true"] * 2, "one query for the concurrent callers, and one for the later call"
    await db.close()


SLOW = Query("slow", "select pg_sleep(:seconds::float8)")
HOLDERS = Query("holders", "select count(*) from pg_stat_activity where datname = current_database()")


class BackgroundTask(Task):
    every_s = 0.01

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        await self._db.execute(SLOW, seconds=0.001)
        async with self._db.transaction() as tx:
            await tx.execute(SLOW, seconds=0.001)

        return Status()


async def test_background_work_shares_one_connection(db, monkeypatch) -> None:
    # On a busy machine the first connection takes longer to open than the others would wait for it.
    monkeypatch.setattr("portside.kernel.pool.BACKGROUND_WAITS_S", 60.0)
    driver = Driver([BackgroundTask(db) for _ in range(8)])
    driver.start()

    async def have_all_run() -> bool:
        return min(report.activations for report in driver.reports()) > 5

    await eventually(have_all_run)
    await driver.close()
    assert db.pool.get_size() == 1


async def test_background_work_blocks_nothing_and_waits_only_briefly(fresh_database) -> None:
    url = await fresh_database()
    db = await Database.connect(url)
    await db.execute(MAKE)

    async def work() -> None:
        with background():
            await db.execute(Query("wait", "select pg_advisory_xact_lock(7)"))

    blocking = await asyncpg.connect(url)
    await blocking.execute("select pg_advisory_lock(7)")
    long = [asyncio.create_task(work()) for _ in range(2)]

    async def are_both_running() -> bool:
        return db.pool.get_size() - db.pool.get_idle_size() == 2

    await eventually(are_both_running)
    assert await db.fetchval(COUNT) == 0
    assert not any(task.done() for task in long)
    await blocking.close()
    await asyncio.gather(*long)
    await db.close()


async def test_task_started_by_background_work_is_not_marked(fresh_database, monkeypatch) -> None:
    monkeypatch.setattr("portside.kernel.pool.BACKGROUND_WAITS_S", 3600.0)
    url = await fresh_database()
    db = await Database.connect(url)
    wait = Query("wait", "select pg_advisory_xact_lock_shared(7)")

    async def run_four() -> None:
        await asyncio.gather(*(db.execute(wait) for _ in range(4)))

    async def have_four() -> bool:
        return db.pool.get_size() - db.pool.get_idle_size() == 4

    blocking = await asyncpg.connect(url)
    await blocking.execute("select pg_advisory_lock(7)")
    with background():
        running = asyncio.create_task(run_four())

    # Marked work would share one connection.
    await eventually(have_four)
    await blocking.close()
    await running
    await db.close()


async def test_idle_connections_are_closed(fresh_database, postgres, monkeypatch) -> None:
    monkeypatch.setattr("portside.kernel.pool.IDLE_S", 0.2)
    url = await fresh_database()
    db = await Database.connect(url)
    await asyncio.gather(*(db.execute(SLOW, seconds=0.02) for _ in range(6)))

    async def is_empty() -> bool:
        return db.pool.get_size() == 0

    await eventually(is_empty)

    async def has_one_connection() -> bool:
        # A closed connection is counted until its backend has exited.
        return bool(await db.fetchval(HOLDERS) == 1)

    await eventually(has_one_connection)
    await db.close()


async def test_a_holder_that_was_refused_a_connection_hides_no_open_one(db) -> None:
    """Whatever order they were put back in: a statement must not open a connection while one is free."""
    pool = db.pool
    async with pool.acquire(), pool.acquire():
        pass

    free = [pool._queue.get_nowait() for _ in range(pool._queue.qsize())]
    for holder in sorted(free, key=lambda holder: holder.is_connected(), reverse=True):
        pool._queue.put_nowait(holder)

    await asyncio.gather(db.execute(SLOW, seconds=0.01), db.execute(SLOW, seconds=0.01))
    assert pool.get_size() == 2


async def test_open_connections_are_shared_if_postgres_refuses_more(fresh_database, monkeypatch) -> None:
    # However long Postgres takes to refuse a connection.
    monkeypatch.setattr("portside.kernel.pool.FREE_TIMEOUT_S", 600.0)
    name = f"few_{secrets.token_hex(6)}"
    url = await fresh_database()
    admin = await asyncpg.connect(url)
    await admin.execute(f"create role {name} login connection limit 2 password 'x'")

    base, _, query = url.partition("?")
    scheme, _, place = base.rpartition("@")

    mine = f"{scheme.split('://')[0]}://{name}:x@{place}{'?' + query if query else ''}"
    try:
        db = await Database.connect(mine)
        # Connections that are opened at the same moment count each other, and Postgres could refuse all of them.
        async with db.pool.acquire(), db.pool.acquire():
            pass

        await asyncio.gather(*(db.execute(SLOW, seconds=0.02) for _ in range(12)))
        assert db.pool.get_size() == 2
        await db.close()
        await admin.execute(f"alter role {name} connection limit 0")

        with pytest.raises(UserMistake, match="connections"):
            await Database.connect(mine)
    finally:
        await admin.execute(f"drop role {name}")
        await admin.close()
