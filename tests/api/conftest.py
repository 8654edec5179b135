"""An agent server on a database of its own for each module, and the stock client for it; a module may bring others."""

from collections.abc import AsyncIterator, Iterator

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.api import control_server, hosted
from tests.conftest import build_databases_fixture
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
