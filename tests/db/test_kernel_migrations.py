import asyncio
import subprocess
import sys
import textwrap
from functools import partial

import pytest

from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate, migrations_of

FIRST = "create table things (id int primary key); insert into things values (1);"
SECOND = "create table parts (id int); insert into things values (2);"


class Room:
    """A package with migrations that the tests change."""

    def __init__(self, folder, name: str) -> None:
        self.name = name
        self.files = folder / name / "migrations"
        self.files.mkdir(parents=True)
        (folder / name / "__init__.py").touch()

    def write(self, number: int, sql: str) -> None:
        (self.files / f"{number:04d}_step.sql").write_text(sql)


@pytest.fixture
def room(tmp_path, monkeypatch) -> Room:
    monkeypatch.syspath_prepend(str(tmp_path))
    room = Room(tmp_path, f"room_{tmp_path.name}")
    room.write(1, FIRST)
    return room


@pytest.fixture
async def url(fresh_database) -> str:
    return await fresh_database()


@pytest.fixture
async def db(url):
    db = await Database.connect(url)
    yield db
    await db.close()


async def ledger(db: Database) -> list[int]:
    return [row["number"] for row in await db.pool.fetch("select number from applied_migrations order by number")]


async def test_what_is_missing_is_applied_once_and_in_order(db, room) -> None:
    room.write(10, "insert into things select 10 from parts;")
    room.write(2, SECOND)
    assert [migration.number for migration in migrations_of(room.name)] == [1, 2, 10]
    assert await migrate(db, [room.name]) == 3
    assert await migrate(db, [room.name]) == 0
    room.write(11, "insert into things values (11);")
    assert await migrate(db, [room.name]) == 1
    assert await ledger(db) == [1, 2, 10, 11]
    assert await db.pool.fetchval("select array_agg(id order by id) from things") == [1, 2, 11]


async def test_processes_that_start_at_once_apply_each_file_once(url, db, room, tmp_path) -> None:
    room.write(2, "select pg_sleep(0.2);" + SECOND)
    program = f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        from portside.kernel.db import Database
        from portside.kernel.migrations import migrate
        async def main():
            db = await Database.connect({url!r})
            print(await migrate(db, [{room.name!r}]))
            await db.close()
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
    ended = await asyncio.gather(*(asyncio.to_thread(run) for _ in range(4)))
    assert [done.stderr for done in ended] == [""] * 4
    assert sorted(int(done.stdout) for done in ended) == [0, 0, 0, 2]
    assert await db.pool.fetchval("select count(*) from things") == 2


async def test_tasks_that_start_at_once_on_a_new_schema_apply_each_file_once(url, room) -> None:
    databases = [await Database.connect(url, schema="portside") for _ in range(4)]
    counts = await asyncio.gather(*(migrate(database, [room.name], schema="portside") for database in databases))
    assert sorted(counts) == [0, 0, 0, 1]
    assert await databases[0].pool.fetchval("select to_regclass('portside.things') is not null")
    for database in databases:
        await database.close()


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(db, room) -> None:
    await migrate(db, [room.name])
    room.write(1, FIRST + " -- better")
    with pytest.raises(UserMistake, match=r"0001_step\.sql was changed"):
        await migrate(db, [room.name])


async def test_a_database_newer_than_the_program_is_refused(db, room) -> None:
    room.write(2, SECOND)
    await migrate(db, [room.name])
    (room.files / "0002_step.sql").unlink()
    with pytest.raises(UserMistake, match=r"newer than this program.*0002_step\.sql"):
        await migrate(db, [room.name])


async def test_a_file_that_fails_leaves_nothing(db, room) -> None:
    room.write(2, SECOND + " select 1/0;")
    with pytest.raises(Exception, match="division by zero"):
        await migrate(db, [room.name])
    assert await db.pool.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    room.write(2, SECOND)
    assert await migrate(db, [room.name]) == 2


async def test_a_lock_that_nobody_lets_go_is_named(db, room, monkeypatch) -> None:
    monkeypatch.setattr("portside.kernel.migrations.LOCK_TIMEOUT_S", 0.05)
    async with db.transaction() as other:
        await other.connection.execute("select pg_advisory_xact_lock($1)", 0x706F7274)
        with pytest.raises(UserMistake, match="another process is changing the database"):
            await migrate(db, [room.name])
