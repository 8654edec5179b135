"""A database for each test that has its tables already: copied from one that is migrated once in a run."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from portside.agent.checkpoints import writer
from portside.kernel.db import Database
from tests.conftest import AGENT, MigratedDatabases, get_schema, with_name

if TYPE_CHECKING:
    from portside.identity.types import Actor


@pytest.fixture
async def db(request: pytest.FixtureRequest, postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Database]:
    """A database of this test, with the tables of its module's PACKAGES: those of the agent server if it has none."""
    packages = getattr(request.module, "PACKAGES", AGENT)
    name = migrated.copy(packages)
    opened = await Database.connect(with_name(postgres, name), max_size=12, schema=get_schema(packages))
    yield opened
    await opened.close()
    migrated.give_back(name)


@pytest.fixture
def patient_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give checkpoints minutes to be written: a database that gets no CPU is not out of service."""
    monkeypatch.setattr(writer, "WRITE_TIMEOUT_S", 600.0)


@pytest.fixture
async def actor(db: Database) -> "Actor":
    """The actor of the API key that the first start of a platform makes; PACKAGES must have `portside.identity`."""
    # Imported here: an environment in which only the agent server is installed has no packages of the platform.
    from portside.identity import first_start
    from portside.identity.authentication import Authenticator

    return await Authenticator(db).authenticate(await first_start.set_up(db))
