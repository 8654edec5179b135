import asyncio
import json
import socket

import asyncpg
import pytest

from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.queries import Query

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


async def test_an_exception_rolls_the_whole_transaction_back(db) -> None:
    with pytest.raises(RuntimeError):
        async with db.transaction() as tx:
            await tx.execute(INSERT, id=1, data=None)
            assert await tx.fetchval(COUNT) == 1
            assert await db.fetchval(COUNT) == 0, "nobody else sees it before the commit"
            raise RuntimeError
    assert await db.fetchval(COUNT) == 0
    async with db.transaction() as tx:
        await tx.execute(INSERT, id=1, data=None)
    assert await db.fetchval(COUNT) == 1


async def test_execute_says_how_many_rows_it_touched(db) -> None:
    await db.executemany(INSERT, [{"id": number, "data": {}} for number in range(3)])
    assert await db.execute(Query("change", "update things set data = 'null' where id < :id"), id=2) == 2
    assert await db.execute(MAKE_AGAIN) == 0
    assert await db.fetchrow(READ, id=9) is None
    assert len(await db.fetch(Query("all", "select * from things"))) == 3


MAKE_AGAIN = Query("again", "create table if not exists things (id int)")


@pytest.mark.parametrize(
    "value", [True, 1.5, "text", "", [], {}, {"a": [1, {"b": None}]}, 2**70, "Zoë 😀", {"quote": "'\"\\"}]
)
async def test_json_columns_give_back_what_they_got(db, value) -> None:
    await db.execute(INSERT, id=1, data=value)
    row = await db.fetchrow(READ, id=1)
    assert row is not None
    assert row["data"] == value
    assert json.loads(await db.fetchval(Query("text", "select data::text from things"))) == value


@pytest.mark.parametrize("text", ["'; drop table things; --", "$1", ":id", "%s", "{x}"])
async def test_values_are_never_read_as_sql(db, text: str) -> None:
    await db.execute(INSERT, id=1, data=text)
    assert (
        await db.fetchval(Query("same", "select data #>> '{}' from things where data #>> '{}' = :text"), text=text)
        == text
    )


async def test_a_broken_statement_leaves_the_pool_usable(db) -> None:
    for _ in range(30):
        with pytest.raises(asyncpg.PostgresError):
            await db.fetch(Query("broken", "select * from nothing"))
    assert await db.fetchval(COUNT) == 0


async def test_liveness_follows_the_database(fresh_database, postgres) -> None:
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
async def test_a_database_that_does_not_answer_is_the_operators_mistake(postgres, kind: str) -> None:
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


async def test_a_cancelled_transaction_leaves_its_connection_usable(fresh_database) -> None:
    """Wherever it is cancelled: while it begins, works, or ends. What comes after on that connection is committed."""
    url = await fresh_database()
    one, other = await Database.connect(url, max_size=1), await Database.connect(url)
    await one.execute(MAKE)

    async def work() -> None:
        async with one.transaction() as tx:
            await tx.fetchval(COUNT)

    for turns in range(40):
        working = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        async with one.transaction() as tx:
            await tx.execute(INSERT, id=turns, data=None)
    assert await other.fetchval(COUNT) == 40
    await one.close()
    await other.close()


async def test_json_is_stored_without_nul_which_postgres_cannot_hold(db):
    assert await db.pool.fetchval("select $1::jsonb", {"a": "x\0y"}) == {"a": "x\ufffdy"}


async def test_a_statement_that_is_cancelled_between_its_parts_leaves_nothing_open(db) -> None:
    """The driver prepares, waits, then executes: the server must not wait for the rest with a snapshot held."""
    left = Query(
        "left",
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
        " and backend_type = 'client backend'",
    )
    for turns in range(40):
        # A text of its own each time, else it is prepared already.
        asking = asyncio.create_task(db.fetchval(Query("new", f"select {turns} as n{turns} from things")))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with db.pool.acquire(), db.pool.acquire() as other:
            assert await other.fetchval(left.sql) == 1, turns


async def test_what_a_connection_was_left_with_does_not_meet_its_next_user(fresh_database) -> None:
    """A statement that failed, a transaction that nobody ended, and a listener are gone with whoever left them."""
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
        assert connection.get_server_pid() == pid, "it is the same connection all the time"
    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await connection.fetchval("select 1")
    await db.close()


async def test_connections_that_are_to_be_made_anew_are(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    query = Query("pid", "select pg_backend_pid()")
    async with db.pool.acquire() as connection:
        before = connection.get_server_pid()
        await db.pool.expire_connections()
    assert await db.fetchval(query) != before
    assert await db.fetchval(query) == await db.fetchval(query), "and is then kept"
    await db.close()


async def test_a_connection_that_dies_with_a_statement_is_replaced(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    for _ in range(5):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await db.fetchval(Query("die", "select pg_terminate_backend(pg_backend_pid())"))
        assert await db.fetchval(Query("live", "select 1")) == 1
    await db.close()


async def test_no_connection_is_lost_or_lent_twice(fresh_database) -> None:
    """Whoever is cancelled, fails or waits: afterwards all connections are there, and no transaction is open."""
    db = await Database.connect(await fresh_database(), max_size=3)
    await db.execute(MAKE)
    # All are made first: one that is cancelled while it is made is the driver's to clean up.
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
    assert db.pool.get_idle_size() == db.pool.get_size() > 0
    assert await db.fetchval(COUNT) >= sum(each is None for each in ended[1::5]), "a commit may be cancelled too late"
    await db.close()
    with pytest.raises(asyncpg.InterfaceError):
        await db.fetchval(COUNT)


async def test_however_many_ask_whether_it_is_alive_the_database_is_asked_once(fresh_database) -> None:
    db = await Database.connect(await fresh_database(), max_size=1)
    queries: list[str] = []
    async with db.pool.acquire() as connection:
        connection.add_query_logger(lambda record: queries.append(record.query))
        asking = [asyncio.create_task(db.is_alive()) for _ in range(20)]
        await asyncio.sleep(0)
        # The one that asks for all, and one that waits for it.
        asking[0].cancel()
        asking[7].cancel()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert [each for each in told if each is True] == [True] * 18
    assert await db.is_alive()
    # The driver tells of a statement in the next turn of the loop.
    await asyncio.sleep(0)
    assert queries == ["select true"] * 2, "once for those who asked together, and once for who asked later"
    await db.close()
