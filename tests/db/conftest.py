"""A database for each test that has its tables already: copied from one that each process of tests migrates once."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from portside.identity import first_start
from portside.identity.authentication import Authenticator
from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from tests.conftest import with_name

AGENT = ("portside.agent",)
AGENT_SCHEMA = "portside"


class MigratedDatabases:
    """Databases to copy, by the packages whose tables they have."""

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres
        self._names: dict[tuple[str, ...], str] = {}

    async def copy_of(self, packages: tuple[str, ...]) -> str:
        """Make a database that has the tables of these packages; return its name."""
        if packages not in self._names:
            self._names[packages] = await self._migrated(packages)
        return await self._create(f'template "{self._names[packages]}"')

    async def _migrated(self, packages: tuple[str, ...]) -> str:
        name = await self._create()
        db = await Database.connect(with_name(self._postgres, name), max_size=1, schema=schema_of(packages))
        await migrate(db, list(packages), schema=schema_of(packages))
        await db.close()
        return name

    async def _create(self, options: str = "") -> str:
        name = f"test_{secrets.token_hex(6)}"
        await self._execute(f'create database "{name}" {options}')
        return name

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        await self._execute(f'drop database if exists "{name}" with (force)')

    async def drop_all(self) -> None:
        """Drop the databases that were copied."""
        for name in self._names.values():
            await self.drop(name)

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._postgres)
        await connection.execute(statement)
        await connection.close()


def schema_of(packages: tuple[str, ...]) -> str | None:
    """Return the schema of the tables of these packages; None for that of Postgres."""
    return AGENT_SCHEMA if packages == AGENT else None


@pytest.fixture(scope="session")
def migrated(postgres: str) -> Iterator[MigratedDatabases]:
    """The databases to copy."""
    databases = MigratedDatabases(postgres)
    yield databases
    asyncio.run(databases.drop_all())


@pytest.fixture
async def db(request: pytest.FixtureRequest, postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Database]:
    """A database of this test, with the tables of its module's PACKAGES: those of the agent server if it has none."""
    packages = getattr(request.module, "PACKAGES", AGENT)
    name = await migrated.copy_of(packages)
    opened = await Database.connect(with_name(postgres, name), max_size=12, schema=schema_of(packages))
    yield opened
    await opened.close()
    await migrated.drop(name)


@pytest.fixture
async def actor(db: Database) -> Actor:
    """The actor of the API key that the first start of a platform makes; PACKAGES must have `portside.identity`."""
    return await Authenticator(db).authenticate(await first_start.set_up(db))
