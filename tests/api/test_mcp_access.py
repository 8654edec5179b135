"""Tools and those who may call them: everybody sees their own, and a call is made by who asks for it."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.servers import ServerProcess, agent_server

BOTH = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="guarded") as running:
        yield running


async def ask(server: ServerProcess, who: str, method: str, **params: Any) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60, headers=BOTH) as http:
        return await http.post("/mcp", json=message, headers={"Authorization": f"Bearer {who}"})


async def names(server: ServerProcess, who: str) -> set[str]:
    tools = (await ask(server, who, "tools/list")).json()["result"]["tools"]
    return {tool["name"] for tool in tools}


async def test_nobody_is_answered_who_is_not_let_in(server: ServerProcess) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60, headers=BOTH) as http:
        for body in (b"{", b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b""):
            response = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == 401
        assert (await http.get("/mcp")).status_code == 401
        assert (await http.delete("/mcp")).status_code == 401
    assert (await ask(server, "banned", "ping")).status_code == 403


async def test_tools_of_others_are_not_there(server: ServerProcess) -> None:
    async with get_client(url=server.url, api_key="", headers={"Authorization": "Bearer alice"}) as client:
        made = await client.assistants.create("echo", name="diary")
    assert {"diary", "echo"} <= await names(server, "alice")
    assert "diary" not in await names(server, "bob")
    assert "echo" in await names(server, "bob")
    refused = (await ask(server, "bob", "tools/call", name="diary", arguments={})).json()
    assert refused["error"] == {"code": -32602, "message": "Unknown tool: diary"}
    by_id = (await ask(server, "bob", "tools/call", name=made["assistant_id"], arguments={})).json()
    assert by_id["error"]["code"] == -32602


async def test_a_call_is_made_by_who_asks_for_it(server: ServerProcess) -> None:
    for who, tool in (("alice", "echo"), ("bob", "echo"), ("alice", "diary")):
        result = (await ask(server, who, "tools/call", name=tool, arguments={})).json()["result"]
        assert result["structuredContent"]["told"]["identity"] == who


async def test_who_may_not_run_may_not_call(server: ServerProcess) -> None:
    response = await ask(server, "nosy", "tools/call", name="echo", arguments={})
    assert response.status_code >= 400
    assert "everything" not in response.text
