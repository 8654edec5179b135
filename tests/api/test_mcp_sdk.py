"""Agents as tools of stock clients: the protocol's own one, and LangChain's adapter."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client

from tests.servers import ServerProcess, agent_server


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="tools") as running:
        yield running


@asynccontextmanager
async def session(url: str) -> AsyncIterator[ClientSession]:
    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as opened:
        await opened.initialize()
        yield opened


async def test_the_client_of_the_protocol(server: ServerProcess) -> None:
    progress: list[tuple[float, float | None, str | None]] = []

    async def note(*told: Any) -> None:
        progress.append(told)

    async with session(f"{server.url}/mcp") as client:
        await client.send_ping()
        tools = (await client.list_tools()).tools
        assert {"echo", "shout", "approval"} <= {tool.name for tool in tools}
        said = await client.call_tool("echo", {"messages": "hi"})
        assert said.structuredContent["messages"][-1]["content"] == "nobody hears hi"
        failed = await client.call_tool("test_error_handling", {})
        assert failed.isError
        assert "ValueError" in failed.content[0].text
        await client.call_tool("test_tool_with_progress", {}, progress_callback=note)
        with pytest.raises(McpError, match="Unknown tool"):
            await client.call_tool("nope", {})
    assert progress == [(reached, 100, f"{reached} of 100") for reached in (0, 50, 100)]


async def test_the_adapter_for_langchain(server: ServerProcess) -> None:
    agents = MultiServerMCPClient({"agents": {"transport": "streamable_http", "url": f"{server.url}/mcp"}})
    tools = {tool.name: tool for tool in await agents.get_tools()}
    assert tools["echo"].description == "Repeats what it hears."
    assert "nobody hears hi" in str(await tools["echo"].ainvoke({"messages": "hi"}))
