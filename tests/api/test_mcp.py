"""Agents as tools: what the Model Context Protocol says over HTTP, byte by byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.api.streaming import open_stream
from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

BOTH = {"Accept": "application/json, text/event-stream"}
NEWEST = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": NEWEST, "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="tools") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, headers=BOTH, timeout=300) as opened:
        yield opened


def message(method: str, request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


async def ask(http: httpx2.AsyncClient, method: str, **params: Any) -> dict[str, Any]:
    response = await http.post("/mcp", json=message(method, **params))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


async def all_tools(http: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """List the tools of all pages: other tests of this module fill more than one."""
    page = (await ask(http, "tools/list"))["result"]
    tools = page["tools"]
    while "nextCursor" in page:
        page = (await ask(http, "tools/list", cursor=page["nextCursor"]))["result"]
        tools += page["tools"]

    return tools


async def call(http: httpx2.AsyncClient, name: str, **arguments: Any) -> dict[str, Any]:
    return (await ask(http, "tools/call", name=name, arguments=arguments))["result"]


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        (None, "2025-11-25"),
    ],
)
async def test_initialize_negotiates_version(http: httpx2.AsyncClient, asked: Any, agreed: str) -> None:
    result = (await ask(http, "initialize", protocolVersion=asked, capabilities={}))["result"]
    assert result["protocolVersion"] == agreed
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert set(result["serverInfo"]) == {"name", "title", "version"}


async def test_server_keeps_no_session(http: httpx2.AsyncClient) -> None:
    begun = await http.post("/mcp", json=message("initialize", protocolVersion="2025-11-25"))
    assert "mcp-session-id" not in begun.headers
    response = await http.post("/mcp", json=message("ping"), headers={"Mcp-Session-Id": "anything"})
    assert response.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.parametrize(
    "given",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "id": 4, "result": {}},
        {"jsonrpc": "2.0", "id": 4, "error": {"code": 1, "message": "no"}},
    ],
)
async def test_notifications_get_no_answer(http: httpx2.AsyncClient, given: dict[str, Any]) -> None:
    response = await http.post("/mcp", json=given)
    assert (response.status_code, response.content) == (202, b"")


async def test_unknown_methods_are_not_found(http: httpx2.AsyncClient) -> None:
    for method in ("resources/list", "prompts/list", "nothing"):
        answer = await ask(http, method)
        assert answer["error"] == {"code": -32601, "message": f"Method not found: {method}"}

    response = await http.get("/mcp")
    deleted = await http.delete("/mcp")
    assert (response.status_code, response.content, response.headers["allow"]) == (405, b"", "POST")
    assert (deleted.status_code, deleted.content) == (404, b"")


async def test_assistants_are_tools(http: httpx2.AsyncClient) -> None:
    tools = {tool["name"]: tool for tool in await all_tools(http)}
    echo = tools["echo"]
    assert echo["description"] == "Repeats what it hears."
    assert echo["inputSchema"]["properties"]["messages"]["type"] == "string"
    assert "$defs" not in echo["inputSchema"]

    assert echo["annotations"] == {
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": False,
        "openWorldHint": True,
    }

    assert tools["approval"]["description"] == "Tool based on the approval assistant"
    assert set(tools["approval"]["inputSchema"]["properties"]) == {"text", "decision"}
    assert tools["shout"]["inputSchema"]["required"] == ["input"]


async def test_tool_names_come_from_assistant_names(http: httpx2.AsyncClient, client: LangGraphClient) -> None:
    first = await client.assistants.create("echo", name="My Tool! v2", description="the first")
    await client.assistants.create("echo", name="My Tool! v2", description="the second")
    other = await client.assistants.create("echo", name="My Tool; v2")
    await client.assistants.create("echo", name="道具")

    listed = await all_tools(http)
    tools = {tool["name"]: tool for tool in listed}
    assert len(tools) == len(listed)
    assert (tools["My_Tool_v2"]["title"], tools["My_Tool_v2"]["description"]) == ("My Tool! v2", "the first")
    assert tools[f"My_Tool_v2_{other['assistant_id'][:8]}"]["title"] == "My Tool; v2"
    assert tools["agent"]["title"] == "道具"
    await client.assistants.update(first["assistant_id"], context={"name": "Ann"})

    assert "Ann hears hi" in (await call(http, "My_Tool_v2", messages="hi"))["content"][0]["text"]


async def test_assistant_of_a_removed_graph_is_no_tool(
    module_database: str, http: httpx2.AsyncClient, client: LangGraphClient
) -> None:
    """A later revision may lack a graph that a person has made assistants of."""
    tools = await all_tools(http)
    assistant = await client.assistants.create("echo", name="of a removed graph")
    assert "of_a_removed_graph" in {each["name"] for each in await all_tools(http)}
    connection = await asyncpg.connect(module_database)

    await connection.execute(
        "update portside.assistants set graph_id = 'removed' where assistant_id = $1", assistant["assistant_id"]
    )
    await connection.close()
    assert await all_tools(http) == tools
    await client.assistants.delete(assistant["assistant_id"])


async def test_tools_are_paginated(http: httpx2.AsyncClient, client: LangGraphClient) -> None:
    made = [client.assistants.create("echo", name=f"page_{number:03}") for number in range(120)]
    for begun in range(0, 120, 20):
        await asyncio.gather(*made[begun : begun + 20])

    first = (await ask(http, "tools/list"))["result"]
    second = (await ask(http, "tools/list", cursor=first["nextCursor"]))["result"]
    names = [tool["name"] for tool in first["tools"] + second["tools"]]
    assert len(first["tools"]) == 100
    assert "nextCursor" not in second
    assert names == sorted(set(names))
    assert {f"page_{number:03}" for number in range(120)} <= set(names)

    for cursor in ("%", 7, {}, "é"):
        assert (await ask(http, "tools/list", cursor=cursor))["error"]["code"] == -32602


async def test_call_returns_final_values(http: httpx2.AsyncClient) -> None:
    result = await call(http, "echo", messages="hi")
    said = [message["content"] for message in result["structuredContent"]["messages"]]
    assert said == ["hi", "nobody hears hi"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["isError"] is False
    context = await ask(http, "tools/call", name="echo", arguments={"messages": "hi"}, context={"name": "Ann"})
    assert "Ann hears hi" in context["result"]["content"][0]["text"]


async def test_non_object_result_is_text(http: httpx2.AsyncClient) -> None:
    assert await call(http, "shout", input="hi") == {"content": [{"type": "text", "text": "HI"}], "isError": False}


async def test_failed_call_returns_reason(http: httpx2.AsyncClient) -> None:
    result = await call(http, "test_error_handling")
    why = "ValueError: This tool intentionally returns an error for testing"
    assert result == {"content": [{"type": "text", "text": why}], "isError": True}


async def test_interrupted_call_says_so(http: httpx2.AsyncClient) -> None:
    result = await call(http, "approval", text="draft")
    assert result["structuredContent"]["__interrupt__"][0]["value"] == {"question": "approve?", "text": "draft"}
    assert "not done" in result["content"][1]["text"]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"name": "nope"}, "Unknown tool: nope"),
        ({"name": 7}, "name must be"),
        ({}, "name must be"),
        ({"name": "echo", "arguments": []}, "arguments must be"),
        ({"name": "echo", "arguments": {}, "context": "x"}, "context must be"),
        ({"name": "__proto__", "arguments": {}}, "Unknown tool: __proto__"),
        ({"name": "echo' or 1=1 --"}, "Unknown tool"),
    ],
)
async def test_invalid_calls_are_refused(http: httpx2.AsyncClient, params: dict[str, Any], why: str) -> None:
    error = (await ask(http, "tools/call", **params))["error"]
    assert error["code"] == -32602
    assert why in error["message"]


async def test_stateless_calls_leave_no_thread(http: httpx2.AsyncClient, client: LangGraphClient) -> None:
    await call(http, "test_simple_text")

    # No test of this module keeps a thread; those of calls that earlier tests left may be gone only later.
    async def are_gone() -> bool:
        return await client.threads.count() == 0

    await eventually(are_gone)


async def test_progress_is_sent_with_token(http: httpx2.AsyncClient) -> None:
    asked = message("tools/call", name="test_tool_with_progress", arguments={}, _meta={"progressToken": "p"})
    async with open_stream(http, "POST", "/mcp", json=asked) as stream:
        *reported, last = [event.data for event in await stream.all()]

    assert [event["params"] for event in reported] == [
        {"progressToken": "p", "progress": reached, "total": 100, "message": f"{reached} of 100"}
        for reached in (0, 50, 100)
    ]

    assert last["result"]["structuredContent"] == {"text": "counted"}


async def test_steps_count_as_progress(http: httpx2.AsyncClient) -> None:
    asked = message("tools/call", name="echo", arguments={"messages": "hi"}, _meta={"progressToken": 0})
    async with open_stream(http, "POST", "/mcp", json=asked) as stream:
        reported, last = [event.data for event in await stream.all()]

    assert reported["params"] == {"progressToken": 0, "progress": 1, "message": "Done: answer"}
    assert last["id"] == 1


async def test_progress_needs_a_client_that_accepts_streams(http: httpx2.AsyncClient) -> None:
    asked = message("tools/call", name="test_simple_text", arguments={}, _meta={"progressToken": "p"})
    response = await http.post("/mcp", json=asked, headers={"Accept": "application/json"})
    assert response.json()["result"]["isError"] is False


async def test_client_that_leaves_cancels_its_call(server: ServerProcess, tmp_path: Path) -> None:
    for number, meta in enumerate(({}, {"progressToken": "p"})):
        gate = tmp_path / f"gate{number}"
        body = json.dumps(message("tools/call", name="gate", arguments={"path": str(gate)}, _meta=meta)).encode()
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nAccept: {BOTH['Accept']}\r\nContent-Type: application/json\r\n"
            )
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await eventually(exists(gate.with_suffix(".begun")))

        await eventually(exists(gate.with_suffix(".cancelled")))


async def test_call_can_be_cancelled(http: httpx2.AsyncClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    asked = message("tools/call", 77, name="gate", arguments={"path": str(gate)})
    waiting = asyncio.create_task(http.post("/mcp", json=asked))
    await eventually(exists(gate.with_suffix(".begun")))

    for other in ("77", 77.0, 78, None):
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": other}}
        await http.post("/mcp", json=body)

    stranger = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
    await http.post("/mcp", json=stranger, headers={"User-Agent": "somebody else"})
    assert not waiting.done()
    await http.post("/mcp", json=stranger)

    result = (await waiting).json()["result"]
    assert (result["isError"], "cancelled" in result["content"][0]["text"]) == (True, True)
    assert gate.with_suffix(".cancelled").exists()


def exists(path: Path) -> Any:
    async def probe() -> bool:
        return path.exists()  # noqa: ASYNC240 - a look at the file system of this machine

    return probe


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b"[]", "Invalid message format."),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', "Invalid message format."),
        (b"7", "Invalid message format."),
        (b'{"id":1,"method":"ping"}', "Invalid JSON-RPC message. Missing or invalid jsonrpc version."),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', "Invalid JSON-RPC message. Missing or invalid jsonrpc version."),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', "Invalid message format."),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', "Invalid message format."),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', "Invalid message format."),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', "Invalid message format."),
        (b'{"jsonrpc":"2.0","id":1}', "Invalid message format."),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\u0000"}', "Invalid message format."),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 300 + b"]" * 300 + b"}",
            "Invalid message format.",
        ),
    ],
)
async def test_malformed_messages_are_refused(http: httpx2.AsyncClient, body: bytes, said: str) -> None:
    response = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"] == said


async def test_params_must_be_an_object(http: httpx2.AsyncClient) -> None:
    response = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 5, "method": "ping", "params": [1]})
    assert response.json()["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Accept": "*/*"}, 400),
        ({"Accept": ""}, 400),
        ({"Accept": "text/html"}, 400),
        ({"Accept": "application/json;q=0.9"}, 200),
        ({"Accept": "text/event-stream"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Origin": "http://[::1]:8080"}, 200),
        ({"Origin": "https://pages.example"}, 403),
        ({"Origin": "http://localhost.pages.example"}, 403),
        ({"Origin": "http://pages.example", "Host": "pages.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
        ({"MCP-Protocol-Version": "2025-11-25"}, 200),
        ({"MCP-Protocol-Version": "1999-01-01"}, 400),
        ({"MCP-Protocol-Version": NEWEST}, 400),
    ],
)
async def test_headers_are_checked(http: httpx2.AsyncClient, headers: dict[str, str], status: int) -> None:
    assert (await http.post("/mcp", json=message("ping"), headers=headers)).status_code == status


def build_headers(method: str, **changed: str) -> dict[str, str]:
    return {"MCP-Protocol-Version": NEWEST, "Mcp-Method": method, **changed}


async def test_clients_may_declare_their_version(http: httpx2.AsyncClient) -> None:
    response = await http.post(
        "/mcp", json=message("server/discover", _meta=META), headers=build_headers("server/discover")
    )
    result = response.json()["result"]
    assert result["supportedVersions"][0] == NEWEST
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "Portside"
    asked = message("tools/call", name="shout", arguments={"input": "hi"}, _meta=META)
    names = build_headers("tools/call", **{"Mcp-Name": "=?base64?c2hvdXQ=?="})
    called = (await http.post("/mcp", json=asked, headers=names)).json()["result"]
    assert (called["content"][0]["text"], called["resultType"]) == ("HI", "complete")


@pytest.mark.parametrize(
    ("method", "params", "headers", "status", "code"),
    [
        ("tools/list", {}, build_headers("tools/list"), 400, -32602),
        ("tools/list", {"_meta": {**META, "io.modelcontextprotocol/clientCapabilities": {}}}, {}, 400, -32020),
        ("tools/list", {"_meta": META}, {"MCP-Protocol-Version": NEWEST}, 400, -32020),
        ("tools/list", {"_meta": META}, build_headers("TOOLS/LIST"), 400, -32020),
        ("tools/call", {"_meta": META, "name": "echo"}, build_headers("tools/call"), 400, -32020),
        (
            "tools/call",
            {"_meta": META, "name": "echo"},
            build_headers("tools/call", **{"Mcp-Name": "shout"}),
            400,
            -32020,
        ),
        (
            "tools/call",
            {"_meta": META, "name": "a"},
            build_headers("tools/call", **{"Mcp-Name": "=?base64?"}),
            400,
            -32020,
        ),
        ("tools/call", {"_meta": META, "name": "no"}, build_headers("tools/call", **{"Mcp-Name": "no"}), 400, -32602),
        ("ping", {"_meta": META}, build_headers("ping"), 404, -32601),
        ("initialize", {"_meta": META}, build_headers("initialize"), 404, -32601),
    ],
)
async def test_invalid_declarations_are_refused(
    http: httpx2.AsyncClient, method: str, params: dict[str, Any], headers: dict[str, str], status: int, code: int
) -> None:
    response = await http.post("/mcp", json=message(method, 9, **params), headers=headers)
    answer = response.json()
    assert (response.status_code, answer["error"]["code"], answer["id"]) == (status, code, 9)


async def test_unsupported_version_lists_supported_ones(http: httpx2.AsyncClient) -> None:
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    headers = build_headers("tools/list", **{"MCP-Protocol-Version": "2099-01-01"})
    response = await http.post("/mcp", json=message("tools/list", _meta=meta), headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, -32022)
    assert error["data"]["requested"] == "2099-01-01"
    assert NEWEST in error["data"]["supported"]
