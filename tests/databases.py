"""The Postgres of a run, and databases on it: empty ones, and copies of one that has the tables of some packages.

A run of several processes has one server. The process that starts the others makes it; they find it by their
environment. Each combination of packages is migrated once in a run.
"""

import asyncio
import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.migrations import migrate
from tests import guard, sql_functions

AGENT = ("portside.agent",)
AGENT_SCHEMA = "portside"
SERVER = "PORTSIDE_TEST_POSTGRES"
TEMPLATE_LOCK = 7_261_104
# Stands for the packages of the platform, which an environment for agents alone does not have.
PLATFORM = ("platform",)


class RunPostgres:
    """An embedded Postgres for the tests of this process, and of those that it starts."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=guard.memory_folder(), prefix="postgres-")
        self._server = EmbeddedPostgres(Path(self._folder.name))
        self.url = self._server.acquire()
        asyncio.run(sql_functions.count_calls(self.url))

    def stop(self) -> None:
        asyncio.run(sql_functions.note_all_calls(self.url))
        self._server.release()
        self._folder.cleanup()


class MigratedDatabases:
    """Databases to copy, by the packages whose tables they have."""

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres
        self._names: dict[tuple[str, ...], str] = {}

    async def copy(self, packages: Sequence[str]) -> str:
        """Make a database that has the tables of these packages; return its name."""
        key = _packages_of_the_platform() if tuple(packages) == PLATFORM else tuple(packages)
        if key not in self._names:
            self._names[key] = await self._find_or_migrate(key)

        name = new_name()
        # Copying files takes half of the CPU of copying pages through the log.
        copied = f'template "{self._names[key]}" strategy file_copy'
        await execute(self._postgres, f'create database "{name}" {copied}')

        return name

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

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        await drop(self._postgres, name)


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
