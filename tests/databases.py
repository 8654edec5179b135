"""The Postgres of a run, and databases on it: empty ones, and copies of one that has the tables of some packages.

A run of several processes has one server. The process that starts the others makes it; they find it by their
environment. Each combination of packages is migrated once in a run, and a copy that a test gives back serves another.
"""

import asyncio
import hashlib
import io
import os
import secrets
import tempfile
import threading
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.migrations import migrate
from tests import guard, sql_functions

T = TypeVar("T")
PostgresConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
AGENT = ("portside.agent",)
AGENT_SCHEMA = "portside"
SERVER = "PORTSIDE_TEST_POSTGRES"
TEMPLATE_LOCK = 7_261_104
# How the connection that stays open to each copy is told from those of tests.
KEEPER = {"application_name": "keeper of the tests"}
# Stands for the packages of the platform, which an environment for agents alone does not have.
PLATFORM = ("platform",)


class RunPostgres:
    """An embedded Postgres for the tests of this process, and of those that it starts."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=guard.memory_folder(), prefix="postgres-")
        self._server = EmbeddedPostgres(Path(self._folder.name))
        self.url = self._server.acquire()
        asyncio.run(_spare_work(self.url))
        asyncio.run(sql_functions.count_calls(self.url))

    def stop(self) -> None:
        asyncio.run(sql_functions.note_all_calls(self.url))
        self._server.release()
        self._folder.cleanup()


async def _spare_work(url: str) -> None:
    """Turn off what only matters to databases that live for long, or outlive their machine."""
    admin = await asyncpg.connect(url)
    # With hundreds of databases one is vacuumed all the time. Each copy of a database is a checkpoint, after which
    # each page would be written to the log as a whole.
    for setting in ("autovacuum", "full_page_writes", "fsync", "synchronous_commit", "jit"):
        await admin.execute(f"alter system set {setting} = off")

    await admin.execute("select pg_reload_conf()")
    await admin.close()


class MigratedDatabases:
    """Databases to copy, by the packages whose tables they have, and copies that tests have given back.

    A copy takes 50 ms of CPU, and a connection to it 10 more. So what a test gives back is as it was at first for the
    next one, and one connection to it stays open. A thread with an event loop holds the connections, because the loops
    of tests end with them.
    """

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres
        self._templates: dict[tuple[str, ...], str] = {}
        self._contents: dict[tuple[str, ...], Contents] = {}
        self._copies: dict[str, Copy] = {}
        self._free: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        self._administrator: PostgresConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="databases", daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def copy(self, packages: Sequence[str]) -> str:
        """Return the name of a database that has the tables of these packages, and what migrations write into them."""
        key = _packages_of_the_platform() if tuple(packages) == PLATFORM else tuple(packages)
        return self._free[key].pop() if self._free[key] else self._run(self._copy(key))

    async def _copy(self, packages: tuple[str, ...]) -> str:
        if packages not in self._templates:
            self._templates[packages] = await self._find_or_migrate(packages)

        name = new_name()
        # Copying files takes half of the CPU of copying pages through the log.
        copied = f'template "{self._templates[packages]}" strategy file_copy'
        await self._administer(f'create database "{name}" {copied}')

        connection = await asyncpg.connect(with_name(self._postgres, name), server_settings=KEEPER)
        if packages not in self._contents:
            self._contents[packages] = await Contents.read(connection)

        catalogs = await connection.fetchval(f"select {_CATALOGS}")
        self._copies[name] = Copy(packages, connection, catalogs)
        return name

    async def _administer(self, statement: str) -> None:
        if self._administrator is None or self._administrator.is_closed():
            self._administrator = await asyncpg.connect(self._postgres)

        await self._administrator.execute(statement)

    async def _find_or_migrate(self, packages: tuple[str, ...]) -> str:
        """Return the database to copy. The processes of a run make it once: the others wait for the first."""
        digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
        name = f"{prefix()}template_{digest}"
        admin = await asyncpg.connect(self._postgres)
        try:
            await admin.execute("select pg_advisory_lock($1)", TEMPLATE_LOCK)

            if not await admin.fetchval("select 1 from pg_database where datname = $1", name):
                unfinished = new_name()
                await admin.execute(f'create database "{unfinished}"')
                await _fill(with_name(self._postgres, unfinished), packages)
                await admin.execute(f'alter database "{unfinished}" rename to "{name}"')
        finally:
            await admin.close()

        return name

    def give_back(self, name: str) -> None:
        """Let another test have a database as it was at first, or drop it if that takes more than emptying tables."""
        self._run(self._give_back(name))

    async def _give_back(self, name: str) -> None:
        copy = self._copies[name]
        try:
            is_restored = await self._contents[copy.packages].restore(copy.connection, copy.catalogs)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # the test has ended the connection
            is_restored = False

        if is_restored:
            self._free[copy.packages].append(name)
        else:
            await self._drop(name)

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self._run(self._drop(name))

    async def _drop(self, name: str) -> None:
        copy = self._copies.pop(name)
        copy.connection.terminate()
        await sql_functions.note_calls(with_name(self._postgres, name), name)
        await self._administer(f'drop database if exists "{name}" with (force)')

    def close(self) -> None:
        """Drop the copies that are left."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for name in list(self._copies):
            await self._drop(name)

        if self._administrator is not None:
            await self._administrator.close()


class Copy(NamedTuple):
    """A database that was copied: the packages whose tables it has, and how its catalogs were at first."""

    packages: tuple[str, ...]
    connection: PostgresConnection
    catalogs: str


# Changes with each table, index, function, setting and right of a database, and when `analyze` or `vacuum` has run.
_CATALOGS = """concat_ws(' ',
    (select hashtext(string_agg(concat_ws(',', oid, xmin, relpages, reltuples), ' ' order by oid))
        from pg_class where oid >= 16384 and relpersistence <> 't'),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_attribute where attrelid in (
        select oid from pg_class where oid >= 16384 and relpersistence <> 't')),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_proc where oid >= 16384),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_constraint where oid >= 16384),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_trigger),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_extension),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_default_acl),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_event_trigger),
    (select concat_ws(',', count(*), max(xmin::text::int8)) from pg_namespace where nspname !~ '^pg_(toast_)?temp'),
    (select concat_ws(',', datconnlimit, datallowconn, datacl, datdba)
        from pg_database where datname = current_database()),
    (select count(*) from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
        where datname = current_database())
)"""
# The tables that have held rows, with their sizes.
_FILLED = """
select format('%I.%I', nspname, relname) as name,
    pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0) as bytes
from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind = 'r' and c.oid >= 16384 and nspname !~ '^pg_' and pg_relation_size(c.oid) > 0
"""
# The sequences, with the numbers that come next.
_SEQUENCES = """
select format('%I.%I', nspname, relname) as name, coalesce(pg_sequence_last_value(c.oid) + 1, seqstart) as value
from pg_class c join pg_namespace n on n.oid = relnamespace join pg_sequence on seqrelid = c.oid where c.oid >= 16384
"""
# Whoever else is connected: a process that a test forgot would work in the database of another test.
_OTHERS = """
select count(*) from pg_stat_get_activity(null)
where datid = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()
    and backend_type = 'client backend'
"""
# Deleted rows stay in the files until a vacuum: a database with more of them is dropped.
_MAX_BYTES = 256_000


class Contents:
    """What the tables and sequences of a database hold."""

    def __init__(self, tables: dict[str, bytes], hashes: str, sequences: dict[str, int]) -> None:
        self._tables = tables
        self._hashes = hashes
        self._sequences = sequences
        self._look = _build_look(list(tables))

    @classmethod
    async def read(cls, connection: PostgresConnection) -> Self:
        tables = {}
        for row in await connection.fetch(_FILLED):
            copied = io.BytesIO()
            schema, _, table = row["name"].partition(".")
            await connection.copy_from_table(table, schema_name=schema, output=copied)
            tables[row["name"]] = copied.getvalue()

        found = await connection.fetchrow(_build_look(list(tables)))
        return cls(tables, found["hashes"], dict(zip(found["sequences"], found["values"], strict=True)))

    async def restore(self, connection: PostgresConnection, catalogs: str) -> bool:
        """Make a database hold this again, or return False if it has changed in other ways than by its rows."""
        found = await connection.fetchrow(self._look)
        for _ in range(40):
            if not found["others"]:
                break

            # A connection that was closed ends a moment later.
            await asyncio.sleep(0.005)
            found = await connection.fetchrow(self._look)

        if found["others"] or found["catalogs"] != catalogs or found["bytes"] > _MAX_BYTES:
            return False

        changed = [name for name in found["filled"] if name not in self._tables]
        lost = list(self._tables) if found["hashes"] != self._hashes else []
        # Neither triggers nor references are of use while rows go, and others come back.
        statements = ["set session_replication_role = replica"]
        statements += [f"delete from {name}" for name in (*changed, *lost)]

        for name, value in zip(found["sequences"], found["values"], strict=True):
            if value != self._sequences[name]:
                statements.append(f"select setval('{name}', {self._sequences[name]}, false)")

        await connection.execute("; ".join(statements))

        for name in lost:
            schema, _, table = name.partition(".")
            await connection.copy_to_table(table, schema_name=schema, source=io.BytesIO(self._tables[name]))

        return True


def _build_look(tables: list[str]) -> str:
    """Return the statement that says how a database has changed, and what holds rows."""
    hashes = [f"(select sum(hashtextextended(t::text, 0)) from {name} t)" for name in tables]
    return f"""
        with filled as ({_FILLED}), sequences as ({_SEQUENCES})
        select ({_OTHERS}) as others, {_CATALOGS} as catalogs,
            array(select name from filled) as filled, coalesce((select max(bytes) from filled), 0) as bytes,
            array(select name from sequences order by name) as sequences,
            array(select value from sequences order by name) as values,
            concat_ws(' ', {", ".join(hashes)}) as hashes
    """


class EmptiedDatabase:
    """A database whose tables hold again what they held at first: quicker than another copy, and its server goes on.

    It is for tests that change rows. What changes tables needs a database of its own.
    """

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", statement: str) -> None:
        self._connection = connection
        self._statement = statement

    @classmethod
    async def remember(cls, url: str) -> "EmptiedDatabase":
        """Keep what a database holds now."""
        connection = await asyncpg.connect(url)
        # Neither triggers nor references are of use while rows go, and others come back.
        statements = ["begin", "set local session_replication_role = replica"]
        await connection.execute("create schema kept")
        for table in await _list_names(connection, "pg_tables", "tablename"):
            statements.append(f"delete from {table}")
            if await connection.fetchval(f"select exists (select from {table})"):
                await connection.execute(f"create table kept.{table} as table {table}")
                statements.append(f"insert into {table} overriding system value table kept.{table}")

        for sequence in await _list_names(connection, "pg_sequences", "sequencename"):
            last, is_called = await connection.fetchrow(f"select last_value, is_called from {sequence}")
            statements.append(f"select setval('{sequence}', {last}, {is_called})")

        return cls(connection, "; ".join([*statements, "commit"]))

    async def empty(self) -> None:
        await self._connection.execute(self._statement)

    async def close(self) -> None:
        await self._connection.close()


async def _list_names(connection: "asyncpg.Connection[asyncpg.Record]", view: str, column: str) -> list[str]:
    """Return the quoted names of the tables, or the sequences, of the platform."""
    rows = await connection.fetch(f"select quote_ident({column}) from {view} where schemaname = 'public'")
    return [row[0] for row in rows]


def _packages_of_the_platform() -> tuple[str, ...]:
    from portside.platform.modules import PACKAGES

    return tuple(PACKAGES)


async def _fill(url: str, packages: tuple[str, ...]) -> None:
    db = await Database.connect(url, max_size=1, schema=get_schema(packages))
    await migrate(db, list(packages), schema=get_schema(packages))

    if "portside.tracing" in packages:
        from portside.tracing.prices import sync_prices

        await sync_prices(db)

    await db.close()


def prefix() -> str:
    """How the names of this run's databases begin, so that they can be told from those of another run."""
    return os.environ.get(guard.DATABASE_PREFIX, "test_")


def new_name() -> str:
    return f"{prefix()}{secrets.token_hex(6)}"


def get_schema(packages: tuple[str, ...]) -> str | None:
    """Return the schema of the tables of these packages; None for that of Postgres."""
    return AGENT_SCHEMA if packages == AGENT else None


def with_name(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    base, _, query = url.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{name}{'?' + query if query else ''}"


def with_user(url: str, user: str, password: str) -> str:
    """Return the URL of the same database for another user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{password}@{host}").geturl()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def drop(url: str, name: str) -> None:
    """Drop a database of this server, whoever is connected to it."""
    await sql_functions.note_calls(with_name(url, name), name)
    await execute(url, f'drop database if exists "{name}" with (force)')
