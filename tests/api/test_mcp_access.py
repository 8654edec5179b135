"""Authorization of MCP tools: callers see only their assistants, and a call runs as its caller."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_sync_client

from tests.api.streaming import open_stream
from tests.servers import ServerProcess, agent_server

BOTH = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="guarded") as running:
        yield running


@pytest.fixture(scope="module")
def diary(server: ServerProcess) -> str:
    """The id of an assistant that only alice sees."""
    with get_sync_client(url=server.url, api_key="", headers={"Authorization": "Bearer alice"}) as client:
        return client.assistants.create("echo", name="diary")["assistant_id"]


async def ask(server: ServerProcess, who: str, method: str, **params: Any) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with httpx2.AsyncClient(base_url=server.url, timeout=300, headers=BOTH) as http:
        return await http.post("/mcp", json=message, headers={"Authorization": f"Bearer {who}"})


async def names(server: ServerProcess, who: str) -> set[str]:
    tools = (await ask(server, who, "tools/list")).json()["result"]["tools"]
    return {tool["name"] for tool in tools}


async def test_calls_without_token_get_401(server: ServerProcess) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300, headers=BOTH) as http:
        for body in (b"{", b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b""):
            response = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == 401

        assert (await http.get("/mcp")).status_code == 401
        assert (await http.delete("/mcp")).status_code == 401

    assert (await ask(server, "banned", "ping")).status_code == 403


async def test_tools_of_other_users_are_hidden(server: ServerProcess, diary: str) -> None:
    assert {"diary", "echo"} <= await names(server, "alice")
    assert "diary" not in await names(server, "bob")
    assert "echo" in await names(server, "bob")
    refused = (await ask(server, "bob", "tools/call", name="diary", arguments={})).json()
    assert refused["error"] == {"code": -32602, "message": "Unknown tool: diary"}
    by_id = (await ask(server, "bob", "tools/call", name=diary, arguments={})).json()
    assert by_id["error"]["code"] == -32602


@pytest.mark.usefixtures("diary")
async def test_call_runs_as_its_caller(server: ServerProcess) -> None:
    for who, tool in (("alice", "echo"), ("bob", "echo"), ("alice", "diary")):
        result = (await ask(server, who, "tools/call", name=tool, arguments={})).json()["result"]
        assert result["structuredContent"]["reported"]["identity"] == who


async def test_call_needs_permission_to_run(server: ServerProcess) -> None:
    response = await ask(server, "nosy", "tools/call", name="echo", arguments={})
    assert response.status_code >= 400
    assert "everything" not in response.text


async def test_handlers_are_asked_about_tools_and_their_runs(server: ServerProcess) -> None:
    call = {"name": "echo", "arguments": {}}
    for action, method, params in (
        ("assistants.search", "tools/list", {}),
        ("assistants.search", "tools/call", call),
        ("threads.create_run", "tools/call", call),
    ):
        refused = await ask(server, f"without {action}", method, **params)
        assert (refused.status_code, refused.json()) == (403, {"detail": f"Without {action}."}), method


async def test_only_the_caller_answers_questions(server: ServerProcess) -> None:
    alice, bob = ({"Authorization": f"Bearer {who}"} for who in ("alice", "bob"))
    async with httpx2.AsyncClient(base_url=server.url, timeout=300, headers=BOTH) as http:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        begun = await http.post("/mcp", json=message, headers=alice)

        known = {**alice, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
        message |= {"method": "tools/call", "params": {"name": "asking", "arguments": {}}}
        async with open_stream(http, "POST", "/mcp", json=message, headers=known) as stream:
            for answered in range(2):
                question = (await stream.next()).data["id"]
                reply: dict[str, Any] = {"jsonrpc": "2.0", "id": question}
                accepted = {"action": "accept", "content": {"answer": "yes"}}
                for result in ({"action": "decline"}, accepted):
                    response = await http.post("/mcp", json={**reply, "result": result}, headers=bob)
                    assert (response.status_code, response.content) == (202, b"")

                thread_id = question.split(":")[1]
                runs = (await http.get(f"/threads/{thread_id}/runs", headers=alice)).json()
                assert len(runs) == answered + 1
                await http.post("/mcp", json={**reply, "result": accepted}, headers=alice)

            result = (await stream.next()).data["result"]

    assert result == {"content": [{"type": "text", "text": "{}"}], "structuredContent": {}, "isError": False}
