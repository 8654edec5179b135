"""Questions of agents over MCP: asked of the stock clients that take them, and answered on any server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph_sdk import get_client
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult, ErrorData

from tests.api.streaming import open_stream
from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

BOTH = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="tools") as running:
        yield running


class Person:
    """Somebody who gives answers, one after the other, and remembers the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, _context: Any, params: Any, *_more: Any) -> ElicitResult | ErrorData:
        self.asked.append((params.message, params.requestedSchema["properties"]))
        answer = self.answers.pop(0)
        if isinstance(answer, dict):
            return ElicitResult(action="accept", content=answer)

        return ElicitResult(action=answer) if isinstance(answer, str) else answer


@asynccontextmanager
async def session(url: str, person: Person) -> AsyncIterator[ClientSession]:
    async with (
        streamable_http_client(f"{url}/mcp") as (read, write, _),
        ClientSession(read, write, elicitation_callback=person) as client,
    ):
        await client.initialize()
        yield client


async def threads_go(url: str) -> None:
    async with get_client(url=url, api_key="") as client:

        async def are_gone() -> bool:
            return await client.threads.count() == 0

        await eventually(are_gone)


async def test_answer_resumes_the_graph(server: ServerProcess) -> None:
    person = Person({"answer": "yes"})
    async with session(server.url, person) as client:
        result = await client.call_tool("approval", {"text": "draft"})
        plain = await client.call_tool("echo", {"messages": "hi"})

    assert (result.isError, result.structuredContent) == (False, {"text": "draft", "decision": "yes"})
    assert person.asked == [("approve?", {"answer": {"title": "Answer", "type": "string"}})]
    assert plain.structuredContent["messages"][-1]["content"] == "nobody hears hi"
    await threads_go(server.url)


async def test_question_has_the_schema_of_the_graph(server: ServerProcess) -> None:
    person = Person({"size": "L"}, {"answer": True})
    reported: list[str | None] = []

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        reported.append(message)

    async with session(server.url, person) as client:
        result = await client.call_tool("form", {}, progress_callback=note)

    assert result.structuredContent["decision"] == "L True for None"
    assert person.asked == [
        ("Which size?", {"size": {"type": "string", "enum": ["S", "L"]}}),
        ("Sure?", {"answer": {"title": "Answer", "type": "boolean"}}),
    ]

    assert reported == ["Done: fill"]


async def test_several_questions_are_asked_one_after_the_other(server: ServerProcess) -> None:
    person = Person({"answer": "a"}, {"answer": "b"})
    async with session(server.url, person) as client:
        result = await client.call_tool("both", {})

    answers = dict(zip((message for message, _ in person.asked), ("a", "b"), strict=True))
    assert result.structuredContent == {"text": answers["What text?"], "decision": answers["What decision?"]}


@pytest.mark.parametrize("refusal", ["decline", "cancel", ErrorData(code=-32000, message="no")])
async def test_refusal_ends_the_call(server: ServerProcess, refusal: Any) -> None:
    async with session(server.url, Person(refusal)) as client:
        result = await client.call_tool("approval", {"text": "draft"})

    assert result.isError
    assert "declined" in result.content[0].text
    await threads_go(server.url)


async def test_adapter_for_langchain_answers(server: ServerProcess) -> None:
    connections: Any = {"agents": {"transport": "streamable_http", "url": f"{server.url}/mcp"}}
    person = Person({"answer": "yes"})
    agents = MultiServerMCPClient(connections, callbacks=Callbacks(on_elicitation=person))
    tools = {tool.name: tool for tool in await agents.get_tools()}
    (block,) = await tools["approval"].ainvoke({"text": "draft"})
    assert json.loads(block["text"]) == {"text": "draft", "decision": "yes"}


def message(method: str, request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


async def begun(http: httpx2.AsyncClient, **capabilities: Any) -> dict[str, str]:
    asked = message("initialize", protocolVersion="2025-11-25", capabilities=capabilities)
    return {key: value for key, value in (await http.post("/mcp", json=asked)).headers.items() if "session" in key}


async def test_any_server_accepts_the_answer(server: ServerProcess, module_database: str, tmp_path: Path) -> None:
    with agent_server(module_database, tmp_path, project="tools") as other:
        async with (
            httpx2.AsyncClient(base_url=server.url, headers=BOTH, timeout=300) as http,
            httpx2.AsyncClient(base_url=other.url, headers=BOTH, timeout=300) as elsewhere,
        ):
            known = await begun(http, elicitation={})
            asked = message("tools/call", name="form", arguments={}, context={"name": "Ann"})
            async with open_stream(http, "POST", "/mcp", json=asked, headers=known) as stream:
                for content in ({"size": "S"}, {"answer": False}):
                    question = (await stream.next()).data
                    assert question["method"] == "elicitation/create"
                    reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": content}}
                    responses = await asyncio.gather(*(elsewhere.post("/mcp", json=reply) for _ in range(10)))
                    assert {response.status_code for response in responses} == {202}

                result = (await stream.next()).data["result"]

    assert result["structuredContent"] == {"decision": "S False for Ann"}


async def test_clients_without_the_capability_are_not_asked(server: ServerProcess) -> None:
    async with httpx2.AsyncClient(base_url=server.url, headers=BOTH, timeout=300) as http:
        assert await begun(http) == {}
        assert await begun(http, elicitation={"url": {}}) == {}
        known = await begun(http, elicitation={"form": {}})
        assert (await http.delete("/mcp", headers=known)).status_code == 204

        called = message("tools/call", name="approval", arguments={"text": "draft"})
        for headers in ({}, {**known, "Accept": "application/json"}):
            result = (await http.post("/mcp", json=called, headers=headers)).json()["result"]
            assert "accepts no questions" in result["content"][1]["text"]


async def test_waiting_call_can_be_left_and_cancelled(server: ServerProcess) -> None:
    async with httpx2.AsyncClient(base_url=server.url, headers=BOTH, timeout=300) as http:
        known = await begun(http, elicitation={})
        asked = message("tools/call", 5, name="approval", arguments={"text": "draft"})
        async with open_stream(http, "POST", "/mcp", json=asked, headers=known) as stream:
            question = (await stream.next()).data

        await threads_go(server.url)
        late = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"answer": "yes"}}}
        for request_id in (question["id"], "question:a:b:c:d", "question", 7):
            assert (await http.post("/mcp", json={**late, "id": request_id})).status_code == 202

        async with open_stream(http, "POST", "/mcp", json=asked, headers=known) as stream:
            await stream.next()
            taken_back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
            await http.post("/mcp", json=taken_back)
            result = (await stream.next()).data["result"]

        assert "cancelled" in json.dumps(result)

    await threads_go(server.url)
