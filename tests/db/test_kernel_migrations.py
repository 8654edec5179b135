"""Migrations and SQL functions on Postgres.

No server starts on a database that lacks objects of its migrations and function files, or that a newer version changed.
"""

import asyncio
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import pytest

from portside.kernel.db import Database
from portside.kernel.errors import DependencyUnavailable, UserMistake
from portside.kernel.migrations import DatabaseIsNewer, find_pending, migrate
from portside.kernel.schema_files import TABLES, read_functions, read_migrations
from portside.platform.modules import PACKAGES

FIRST = "create table things (id int primary key); insert into things values (1);"
SECOND = "create table parts (id int); insert into things values (2);"


class MigrationsPackage:
    """A package with migrations that the tests change."""

    def __init__(self, folder, name: str) -> None:
        self.name = name
        self.files = folder / name / "migrations"
        self.files.mkdir(parents=True)
        (folder / name / "__init__.py").touch()

    def write(self, number: int, sql: str) -> None:
        (self.files / f"{number:04d}_step.sql").write_text(sql)

    def functions(self, before: dict[str, str], after: dict[str, str], *, revision: int = 1) -> None:
        folder = self.files.parent / "functions"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

        for name, sql in (before | after).items():
            (folder / name).write_text(sql)

        (folder / "order.txt").write_text("\n".join(["# Comment", *before, TABLES, "", *after]))
        (folder / "revision.txt").write_text(f"{revision} checksum\n")


@pytest.fixture
def package(tmp_path, monkeypatch) -> MigrationsPackage:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = MigrationsPackage(tmp_path, f"package_{tmp_path.name}")
    package.write(1, FIRST)
    return package


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


async def test_missing_migrations_are_applied_once_in_order(db, package) -> None:
    package.write(10, "insert into things select 10 from parts;")
    package.write(2, SECOND)
    assert [migration.number for migration in read_migrations(package.name)] == [1, 2, 10]
    assert await migrate(db, [package.name]) == 3
    assert await migrate(db, [package.name]) == 0
    package.write(11, "insert into things values (11);")
    assert await migrate(db, [package.name]) == 1

    assert await ledger(db) == [1, 2, 10, 11]
    assert await db.pool.fetchval("select array_agg(id order by id) from things") == [1, 2, 11]


def test_two_migrations_with_one_number_are_refused(package) -> None:
    (package.files / "0001_other.sql").write_text(SECOND)
    with pytest.raises(ValueError, match=r"0001_other.sql.*0001_step.sql|0001_step.sql.*0001_other.sql"):
        read_migrations(package.name)


async def test_concurrent_processes_apply_each_migration_once(url, db, package, tmp_path) -> None:
    package.write(2, "select pg_sleep(0.2);" + SECOND)
    program = f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        from portside.kernel.db import Database
        from portside.kernel.migrations import migrate
        async def main():
            db = await Database.connect({url!r})
            print(await migrate(db, [{package.name!r}]))
            await db.close()
        asyncio.run(main())
    """

    command = [sys.executable, "-c", textwrap.dedent(program)]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False, timeout=300)
    ended = await asyncio.gather(*(asyncio.to_thread(run) for _ in range(4)))
    assert [done.stderr for done in ended] == [""] * 4
    assert sorted(int(done.stdout) for done in ended) == [0, 0, 0, 2]
    assert await db.pool.fetchval("select count(*) from things") == 2


async def test_concurrent_tasks_on_a_new_schema_apply_each_migration_once(url, package) -> None:
    databases = [await Database.connect(url, schema="portside") for _ in range(4)]
    counts = await asyncio.gather(*(migrate(database, [package.name], schema="portside") for database in databases))
    assert sorted(counts) == [0, 0, 0, 1]
    assert await databases[0].pool.fetchval("select to_regclass('portside.things') is not null")

    for database in databases:
        await database.close()


async def test_changed_migration_is_refused(db, package) -> None:
    await migrate(db, [package.name])
    package.write(1, FIRST + " -- better")
    with pytest.raises(UserMistake, match=r"0001_step\.sql was changed"):
        await migrate(db, [package.name])


async def test_newer_database_is_refused(db, package) -> None:
    package.write(2, SECOND)
    await migrate(db, [package.name])
    (package.files / "0002_step.sql").unlink()

    with pytest.raises(UserMistake, match=r"newer than this program.*0002_step\.sql"):
        await migrate(db, [package.name])


async def test_older_program_runs_on_additions_of_a_newer_one(db, package) -> None:
    functions = {"one.sql": "create or replace function one() returns int language sql return 1;"}
    package.functions({}, functions, revision=4)
    await migrate(db, [package.name])
    package.write(2, "-- Older versions run: they do not know the table.\n" + SECOND)
    package.functions({}, functions | {"two.sql": "create function two() returns int language sql return 2;"})
    (package.files.parent / "functions" / "revision.txt").write_text("6 checksum 4\n")
    await migrate(db, [package.name])

    (package.files / "0002_step.sql").unlink()
    package.functions({}, functions, revision=4)
    assert await find_pending(db, [package.name]) == []
    assert await migrate(db, [package.name]) == 0
    assert await db.pool.fetchval("select two()") == 2, "an older program leaves the functions of the newer one"


async def test_older_program_is_refused_where_it_does_not_run(db, package) -> None:
    package.functions({}, {}, revision=4)
    await migrate(db, [package.name])
    package.write(2, "-- Older versions are refused: they read things.id.\nalter table things rename id to number;")
    await migrate(db, [package.name])
    (package.files / "0002_step.sql").unlink()

    with pytest.raises(DatabaseIsNewer, match=r"0002_step\.sql.*they read things\.id.*restore the backup"):
        await migrate(db, [package.name])


async def test_older_program_is_refused_without_the_functions_that_it_calls(db, package) -> None:
    package.functions({}, {"one.sql": "create function one() returns int language sql return 1;"}, revision=6)
    (package.files.parent / "functions" / "revision.txt").write_text("6 checksum 5\n")
    await migrate(db, [package.name])
    package.functions({}, {"two.sql": "create function two() returns int language sql return 2;"}, revision=4)

    refused = r"have revision 6, and this program has 4.*restore the backup"
    with pytest.raises(DatabaseIsNewer, match=refused):
        await migrate(db, [package.name])

    # As a program recorded it that did not declare yet which functions older ones can call.
    await db.pool.execute("update applied_functions set oldest = null")
    with pytest.raises(DatabaseIsNewer, match=refused):
        await migrate(db, [package.name])


# Files that databases recorded before there were declarations.
UNDECLARED = {
    "agent": 8,
    "alerts": 1,
    "annotation": 1,
    "audit": 1,
    "control": 4,
    "datasets": 1,
    "identity": 6,
    "limits": 1,
    "prompts": 1,
    "tracing": 6,
    "usage": 1,
}


@pytest.mark.parametrize("name", [*PACKAGES, "portside.agent"])
def test_each_migration_declares_whether_older_versions_run(name) -> None:
    short = name.removeprefix("portside.")
    undeclared = [
        migration.name
        for migration in read_migrations(name)
        if migration.number > UNDECLARED.get(short, 0) and migration.older_versions is None
    ]

    assert undeclared == [], "begin them with -- Older versions run: … or -- Older versions are refused: …"


async def test_failed_migration_is_rolled_back(db, package) -> None:
    package.write(2, SECOND + " select 1/0;")
    with pytest.raises(Exception, match="division by zero"):
        await migrate(db, [package.name])

    assert await db.pool.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    package.write(2, SECOND)
    assert await migrate(db, [package.name]) == 2


async def test_migrate_refuses_to_start_if_the_lock_is_not_released(db, package, monkeypatch) -> None:
    monkeypatch.setattr("portside.kernel.migrations.LOCK_TIMEOUT_S", 0.05)
    async with db.transaction() as other:
        await other.connection.execute("select pg_advisory_xact_lock($1)", 0x706F7274)
        with pytest.raises(UserMistake, match="another process is changing the database"):
            await migrate(db, [package.name])


async def test_migrate_names_the_migration_that_waits_for_a_table(db, package, monkeypatch) -> None:
    await migrate(db, [package.name])
    monkeypatch.setattr("portside.kernel.migrations.LOCK_TIMEOUT_S", 0.05)
    package.write(2, "alter table things add column name text;")

    async with db.transaction() as other:
        await other.connection.execute("select * from things")
        with pytest.raises(DependencyUnavailable, match=r"0002_step\.sql waited 0\.05 s for a lock"):
            await migrate(db, [package.name])

    assert await migrate(db, [package.name]) == 1


async def test_database_without_its_tables_is_refused(db, package) -> None:
    package.write(2, "create view known as select id from things;\ncreate unique index things_once on things (id);")
    package.write(3, "create table gone (id int);\ndrop table gone;")
    await migrate(db, [package.name])
    assert await migrate(db, [package.name]) == 0
    await db.pool.execute("drop table things cascade")

    with pytest.raises(UserMistake, match="missing: table things, view known, unique index things_once"):
        await migrate(db, [package.name])


async def test_incomplete_database_is_refused_before_any_migration(db, package) -> None:
    await migrate(db, [package.name])
    await db.pool.execute("drop table things")
    package.write(2, "alter table things add column name text;")

    with pytest.raises(UserMistake, match=r"package_\w+ were applied, but these are missing: table things"):
        await migrate(db, [package.name])

    assert await ledger(db) == [1]


TOTAL = "create or replace function total() returns int language sql stable return (select sum(id)::int from things);"
LABEL = """create or replace function label(p_id int) returns text language sql immutable return 'thing ' || p_id;
"""
WITH_LABELS = "create table things (id int primary key, label text generated always as (label(id)) stored);"


async def read_objects(db: Database) -> list[str]:
    return await db.pool.fetchval("select objects from applied_functions")


async def test_functions_are_applied_around_the_migrations_and_only_when_they_changed(db, package) -> None:
    package.write(1, WITH_LABELS)
    package.functions({"label.sql": LABEL}, {"total.sql": TOTAL})
    assert await migrate(db, [package.name]) == 1
    await db.pool.execute("insert into things values (2)")
    assert await db.pool.fetchval("select label from things") == "thing 2"
    applied = "select xmin::text || ' ' || oid from pg_proc where proname = 'total'"
    first = await db.pool.fetchval(applied)

    assert await migrate(db, [package.name]) == 0
    assert await db.pool.fetchval(applied) == first
    package.functions({"label.sql": LABEL}, {"total.sql": TOTAL.replace("sum(id)", "1 + sum(id)")}, revision=2)
    await migrate(db, [package.name])
    assert await db.pool.fetchval("select total()") == 3
    assert (await db.pool.fetchval(applied)).split()[1] == first.split()[1], "replaced in place"
    assert await read_objects(db) == ["function label(integer)", "function total()"]


async def test_functions_that_cannot_be_replaced_in_place_are_created_again(db, package) -> None:
    view = "create or replace view totals as select total() as value;"
    package.functions({}, {"total.sql": TOTAL, "view.sql": view})
    await migrate(db, [package.name])
    package.functions({}, {"total.sql": TOTAL.replace("int l", "text l").replace("int f", "text f"), "view.sql": view})
    await migrate(db, [package.name])
    assert await db.pool.fetchval("select value from totals") == "1"
    package.functions({}, {"total.sql": TOTAL, "view.sql": view.replace("as value", "as other")})

    await migrate(db, [package.name])
    assert await db.pool.fetchval("select other from totals") == 1


async def test_removed_and_changed_functions_are_dropped(db, package) -> None:
    of_one = "create or replace function sum_of(a int) returns int language sql return a;"
    package.functions({}, {"total.sql": TOTAL, "sum.sql": of_one})
    await migrate(db, [package.name])
    of_two = "create or replace function sum_of(a int, b int) returns int language sql return a + b;"

    package.functions({}, {"sum.sql": of_two})
    await migrate(db, [package.name])
    assert await read_objects(db) == ["function sum_of(integer,integer)"]
    found = "select proname || pronargs from pg_proc where pronamespace = 'public'::regnamespace"
    assert await db.pool.fetchval(found) == "sum_of2"


async def test_functions_of_a_newer_program_are_kept(db, package) -> None:
    package.functions({}, {"total.sql": TOTAL}, revision=2)
    await migrate(db, [package.name])
    package.functions({}, {"total.sql": TOTAL}, revision=1)
    assert await migrate(db, [package.name]) == 0, "the functions are the same"
    package.functions({}, {"total.sql": TOTAL + " -- older"}, revision=1)

    with pytest.raises(UserMistake, match=r"newer than this program: .* have revision 2, and this program has 1"):
        await migrate(db, [package.name])


async def test_function_of_stored_data_changes_only_with_a_migration(db, package) -> None:
    package.write(1, WITH_LABELS)
    package.functions({"label.sql": LABEL}, {})
    await migrate(db, [package.name])
    await db.pool.execute("insert into things values (2)")
    package.functions({"label.sql": "-- A better comment.\n" + LABEL}, {})
    assert await migrate(db, [package.name]) == 0
    package.functions({"label.sql": LABEL.replace("thing", "part")}, {})

    with pytest.raises(UserMistake, match=r"changes label\(integer\), whose results are stored"):
        await migrate(db, [package.name])

    package.write(2, "alter table things drop label, add label text generated always as (label(id)) stored;")
    assert await migrate(db, [package.name]) == 1
    assert await db.pool.fetchval("select label from things") == "part 2"


async def test_database_without_a_function_is_refused(db, package) -> None:
    package.functions({}, {"total.sql": TOTAL})
    await migrate(db, [package.name])
    await db.pool.execute("drop function total(); create function total(of int) returns int language sql return of;")

    with pytest.raises(UserMistake, match=r"these are missing: function total\(\)\."):
        await migrate(db, [package.name])


async def test_failed_functions_are_rolled_back_and_named(db, package) -> None:
    package.functions({}, {"total.sql": TOTAL.replace("things", "nothing")})
    with pytest.raises(Exception, match="nothing") as failed:
        await migrate(db, [package.name])

    assert failed.value.__notes__ == [f"in {package.name}/functions/total.sql"]
    assert await db.pool.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0


async def test_every_function_file_is_listed_in_the_order(package) -> None:
    package.functions({}, {"total.sql": TOTAL})
    (package.files.parent / "functions" / "forgotten.sql").touch()
    with pytest.raises(ValueError, match=r"functions/order\.txt must name"):
        read_functions(package.name)
