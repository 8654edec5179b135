"""Agents as tools of stock clients: the protocol's own one, and LangChain's adapter."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INVALID_PARAMS

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


async def test_stock_client(server: ServerProcess) -> None:
    progress: list[tuple[float, float | None, str | None]] = []

    async def note(*reported: Any) -> None:
        progress.append(reported)

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
        with pytest.raises(McpError, match="Unknown tool: nope") as refused:
            await client.call_tool("nope", {})

        assert refused.value.error.code == INVALID_PARAMS
        await client.send_ping()

    assert progress == [(reached, 100, f"{reached} of 100") for reached in (0, 50, 100)]


MIXED = [
    {"type": "text", "text": "look"},
    {"type": "image", "base64": "aGk=", "mime_type": "image/gif"},
    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}},
    {"type": "audio", "source_type": "base64", "data": "aGk=", "mime_type": "audio/ogg"},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
    {"type": "file", "base64": "aGk=", "mime_type": "application/pdf", "extras": {"filename": "a b.pdf"}},
    {"type": "file", "file": {"file_data": "data:text/csv;base64,aGk=", "filename": "t.csv"}},
    {"type": "resource", "resource": {"uri": "memo://one", "mimeType": "text/plain", "text": "remember"}},
    {"type": "image_url", "image_url": "https://files.example/a.png"},
    {"type": "resource_link", "uri": "memo://two", "name": "two"},
    {"type": "reasoning", "reasoning": "not for others"},
]


async def test_files_arrive_with_their_types(server: ServerProcess) -> None:
    async with session(f"{server.url}/mcp") as client:
        result = await client.call_tool("show", {"messages": json.dumps(MIXED)})
        plain = await client.call_tool("show", {"messages": json.dumps(MIXED[:1])})

    reported = [block.model_dump(mode="json", exclude_none=True) for block in result.content]
    assert reported == [
        {"type": "text", "text": "look"},
        {"type": "image", "data": "aGk=", "mimeType": "image/gif"},
        {"type": "image", "data": "aGk=", "mimeType": "image/jpeg"},
        {"type": "image", "data": "aGk=", "mimeType": "image/webp"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/ogg"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/mp3"},
        build_resource(uri="attachment:///a%20b.pdf", mimeType="application/pdf", blob="aGk="),
        build_resource(uri="attachment:///t.csv", mimeType="text/csv", blob="aGk="),
        build_resource(uri="memo://one", mimeType="text/plain", text="remember"),
        {"type": "resource_link", "uri": "https://files.example/a.png", "name": "a.png", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "memo://two", "name": "two"},
    ]

    assert result.structuredContent is not None
    assert result.structuredContent["messages"][-1]["content"] == MIXED
    assert [block.type for block in plain.content] == ["text"]
    assert json.loads(plain.content[0].text) == plain.structuredContent


def build_resource(**resource: str) -> dict[str, Any]:
    return {"type": "resource", "resource": resource}


async def test_langchain_adapter_returns_images_and_files(server: ServerProcess) -> None:
    agents = MultiServerMCPClient({"agents": {"transport": "streamable_http", "url": f"{server.url}/mcp"}})
    tools = {tool.name: tool for tool in await agents.get_tools()}
    blocks = await tools["show"].ainvoke({"messages": json.dumps([*MIXED[:2], MIXED[6], MIXED[9]])})
    assert [block["type"] for block in blocks] == ["text", "image", "file", "image"]
    assert (blocks[1]["base64"], blocks[3]["url"]) == ("aGk=", "https://files.example/a.png")


async def test_langchain_adapter(server: ServerProcess) -> None:
    agents = MultiServerMCPClient({"agents": {"transport": "streamable_http", "url": f"{server.url}/mcp"}})
    tools = {tool.name: tool for tool in await agents.get_tools()}
    assert tools["echo"].description == "Repeats what it hears."
    assert "nobody hears hi" in str(await tools["echo"].ainvoke({"messages": "hi"}))
