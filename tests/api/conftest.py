"""An agent server on a database of its own for each module, and the stock client for it; a module may bring others."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.api import control_server, hosted
from tests.conftest import build_databases_fixture
from tests.databases import EmptiedDatabase, MigratedDatabases, with_name
from tests.servers import ServerProcess, agent_server

hosted_databases = build_databases_fixture(hosted.PACKAGES)
control_databases = build_databases_fixture(control_server.PACKAGES)


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent")) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url, api_key="") as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(
    postgres: str, migrated: MigratedDatabases
) -> AsyncIterator[tuple[control_server.ControlServer, EmptiedDatabase]]:
    name = migrated.copy(control_server.PACKAGES)
    url = with_name(postgres, name)
    emptied = await EmptiedDatabase.remember(url)
    async with control_server.control_server(url) as running:
        yield running, emptied

    await emptied.close()
    await migrated.drop(name)


@pytest_asyncio.fixture(loop_scope="module")
async def plane(
    control_plane: tuple[control_server.ControlServer, EmptiedDatabase],
) -> AsyncIterator[control_server.Control]:
    """A new control plane on a database without rows, for modules whose tests share a loop."""
    server, emptied = control_plane
    await emptied.empty()
    async with server.begin() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_hosted(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[hosted.Hosted]:
    """The hosted API of a module whose tests have a workspace each."""
    name = migrated.copy(hosted.PACKAGES)
    async with hosted.open_hosted(with_name(postgres, name)) as running:
        yield running

    await migrated.drop(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosted_api(
    postgres: str, migrated: MigratedDatabases
) -> AsyncIterator[tuple[hosted.HostedServer, EmptiedDatabase]]:
    name = migrated.copy(hosted.PACKAGES)
    url = with_name(postgres, name)
    emptied = await EmptiedDatabase.remember(url)
    async with hosted.hosted_server(url) as running:
        yield running, emptied

    await emptied.close()
    await migrated.drop(name)


@pytest_asyncio.fixture(loop_scope="module")
async def own_server(hosted_api: tuple[hosted.HostedServer, EmptiedDatabase]) -> AsyncIterator[hosted.Hosted]:
    """The hosted API on a database without rows, for modules whose tests share a loop."""
    server, emptied = hosted_api
    await emptied.empty()
    async with server.begin() as running:
        yield running
