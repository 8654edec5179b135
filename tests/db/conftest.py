"""A database for each test that has its tables already: copied from one that each process of tests migrates once."""

from collections.abc import AsyncIterator

import pytest

from portside.identity import first_start
from portside.identity.authentication import Authenticator
from portside.identity.types import Actor
from portside.kernel.db import Database
from tests.conftest import AGENT, MigratedDatabases, get_schema, with_name


@pytest.fixture
async def db(request: pytest.FixtureRequest, postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Database]:
    """A database of this test, with the tables of its module's PACKAGES: those of the agent server if it has none."""
    packages = getattr(request.module, "PACKAGES", AGENT)
    name = await migrated.copy(packages)
    opened = await Database.connect(with_name(postgres, name), max_size=12, schema=get_schema(packages))
    yield opened
    await opened.close()
    await migrated.drop(name)


@pytest.fixture
async def actor(db: Database) -> Actor:
    """The actor of the API key that the first start of a platform makes; PACKAGES must have `portside.identity`."""
    return await Authenticator(db).authenticate(await first_start.set_up(db))
