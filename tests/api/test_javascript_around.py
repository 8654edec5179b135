"""What the server does around graphs works for JavaScript: crons, webhooks, tools, encryption, search, recycling."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from tests.api.agents import Remote, said
from tests.conftest import eventually
from tests.node_packages import copy_of_project, javascript_runtime
from tests.receiver import Receiver, serve
from tests.servers import PROJECTS, ServerProcess, agent_server

pytestmark = pytest.mark.timeout(600)
EXAMPLE = PROJECTS.parents[1] / "examples" / "hello-agent-js"
MAX_RUNS = 20
# A process that holds little has some 120 MB; one that holds far more than the limit is killed.
MAX_MEMORY_MB = 300
HELD_MB = 220
BOTH = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("javascript")
    settings = {
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_START_SECS": "600",
        "EXECUTOR_MAX_RUNS": str(MAX_RUNS),
        "GRAPH_AES_KEY": "0123456789abcdef0123456789abcdef",
        "GRAPH_AES_JSON_KEYS": "*",
    }

    project = copy_of_project(folder / "project", PROJECTS / "javascript_around")
    with agent_server(module_database, folder, project=str(project), **settings) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as made:
        yield made


async def send(client: httpx2.AsyncClient, method: str, path: str, **body: Any) -> Any:
    response = await client.request(method, path, json=body or None)
    assert response.is_success, response.text
    return response.json()


def message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def process_id(client: httpx2.AsyncClient, size: int = 0) -> int:
    values = await send(client, "POST", "/runs/wait", assistant_id="process", input={"bytes": size})
    assert isinstance(values.get("pid"), int), values
    return int(values["pid"])


async def test_agent_asks_before_it_calls_a_tool(client: httpx2.AsyncClient):
    thread = (await send(client, "POST", "/threads", metadata={}))["thread_id"]
    runs = f"/threads/{thread}/runs/wait"
    values = await send(client, "POST", runs, assistant_id="assistant", input=message("hello"))
    (question,) = values["__interrupt__"]
    (request,) = question["value"]["actionRequests"]
    assert (request["name"], request["args"]) == ("send", {"text": "hello"})
    edited = {"type": "edit", "editedAction": {"name": "send", "args": {"text": "goodbye"}}}
    answer = {"resume": {"decisions": [edited]}}
    values = await send(client, "POST", runs, assistant_id="assistant", command=answer)
    assert (values["messages"][-1]["content"], values["calls"]) == ("done: sent goodbye", 2)

    assert (await send(client, "GET", f"/threads/{thread}/state"))["next"] == []


async def test_rows_of_encrypted_threads_leave_long_lists_out(client: httpx2.AsyncClient, module_database: str):
    thread = (await send(client, "POST", "/threads", metadata={}))["thread_id"]
    for number in range(3):
        values = await send(
            client,
            "POST",
            f"/threads/{thread}/runs/wait",
            assistant_id="echo",
            input=message(f"{number} {'long ' * 900}"),
        )

    assert (await send(client, "GET", f"/threads/{thread}"))["values"] == values
    db = await asyncpg.connect(module_database)
    row = await db.fetchrow(
        "select octet_length(values::text) as bytes, long_values from portside.threads where thread_id = $1",
        UUID(thread),
    )

    await db.close()
    assert list(json.loads(row["long_values"])) == ["messages"]
    assert row["bytes"] < 1000


async def test_cron_runs_and_calls_its_webhook(client: httpx2.AsyncClient):
    receiver = Receiver()
    async with serve(receiver) as url:
        cron = await send(
            client,
            "POST",
            "/runs/crons",
            assistant_id="echo",
            schedule="* * * * * *",
            input=message("tick"),
            webhook=f"{url}/ended",
        )

        async def is_called() -> bool:
            return bool(receiver.got)

        await eventually(is_called)
        assert (await client.delete(f"/runs/crons/{cron['cron_id']}")).is_success
        called = receiver.messages()[0]

    assert (called["status"], called["values"]["messages"][-1]["content"]) == ("success", "echo: tick")


async def test_graphs_are_tools(client: httpx2.AsyncClient):
    async def ask(method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await client.post("/mcp", json=body, headers=BOTH)).json()
        assert "result" in answer, answer
        return answer["result"]

    tools = {each["name"]: each for each in (await ask("tools/list"))["tools"]}
    assert tools["echo"]["description"] == "Says what it hears."
    called = await ask("tools/call", name="echo", arguments=message("from MCP"))
    assert called["structuredContent"]["messages"][-1]["content"] == "echo: from MCP"


async def test_graphs_talk_to_other_agents(client: httpx2.AsyncClient):
    task = await Remote(client, "echo").send("from A2A")
    assert task["status"]["state"] == "completed"
    assert said(task["history"])[-1] == ("agent", "echo: from A2A")


async def test_graphs_search_by_meaning(client: httpx2.AsyncClient):
    books = ["a cat sleeps", "how to make tea"]
    found = await send(client, "POST", "/runs/wait", assistant_id="library", input={"books": books, "query": "cat"})
    assert found["found"] == ["a cat sleeps"]
    items = await send(client, "POST", "/store/items/search", namespace_prefix=["books"], query="tea", limit=1)
    assert items["items"][0]["key"] == "how to make tea"


async def test_nothing_of_a_thread_is_stored_in_clear_text(client: httpx2.AsyncClient, module_database: str):
    word = "marzipan"
    thread = (await send(client, "POST", "/threads", metadata={}))["thread_id"]
    for _ in range(2):
        values = await send(
            client, "POST", f"/threads/{thread}/runs/wait", assistant_id="echo", input=message(word * 50)
        )

    assert values["messages"][-1]["content"] == f"echo: {word * 50}"
    history = await send(client, "POST", f"/threads/{thread}/history", limit=10)
    assert history[0]["values"] == values
    db = await asyncpg.connect(module_database)
    tables = await db.fetch("select tablename from pg_tables where schemaname = 'portside'")
    count = "select count(*) from portside.{0} t where t::text like '%{1}%' or t::text like '%{2}%'"
    found = {
        name: await db.fetchval(count.format(name, word, word.encode().hex())) for name in (row[0] for row in tables)
    }

    await db.close()
    assert [name for name, rows in found.items() if rows] == []


async def is_replaced_for(server: ServerProcess, reason: str, least: int) -> bool:
    """Whether a process was replaced with this much of a reason."""
    found = re.findall(rf"an executor is replaced.*{reason}=(\d+)", server.log.read_text())
    return any(int(each) >= least for each in found)


async def test_processes_are_replaced_by_runs(client: httpx2.AsyncClient, server: ServerProcess):
    first = await process_id(client)

    # Every look is a run. The log alone would not do: it may be about a process that other tests used up.
    async def is_replaced() -> bool:
        return await process_id(client) != first and await is_replaced_for(server, "runs", MAX_RUNS)

    await eventually(is_replaced)


async def test_processes_are_replaced_by_memory(agent_databases: Callable[[], Awaitable[str]], tmp_path: Path):
    settings = {
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_START_SECS": "600",
        "EXECUTOR_MAX_MEMORY_MB": str(MAX_MEMORY_MB),
    }

    project = copy_of_project(tmp_path / "project", PROJECTS / "javascript_around")
    with agent_server(await agent_databases(), tmp_path, project=str(project), **settings) as running:
        async with httpx2.AsyncClient(base_url=running.url, timeout=300) as client:
            heavy = await process_id(client, HELD_MB * 1_000_000)
            # Without another run, which would let go of the memory.
            await eventually(lambda: is_replaced_for(running, "memory_mb", MAX_MEMORY_MB))
            assert await process_id(client) != heavy


async def test_example_calculates_and_asks_before_it_sends(module_databases: Callable[[], str], tmp_path: Path):
    project = copy_of_project(tmp_path / "project", EXAMPLE)
    settings = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600"}
    with agent_server(module_databases(), tmp_path, project=str(project), **settings) as running:
        async with httpx2.AsyncClient(base_url=running.url, timeout=300) as client:
            values = await send(client, "POST", "/runs/wait", assistant_id="agent", input=message("what is 6*7"))
            assert values["messages"][-1]["content"] == "The answer: 42"
            thread = (await send(client, "POST", "/threads", metadata={}))["thread_id"]
            runs = f"/threads/{thread}/runs/wait"
            values = await send(client, "POST", runs, assistant_id="agent", input=message("send hello to Ada"))
            assert values["__interrupt__"][0]["value"]["actionRequests"][0]["args"] == {"text": "hello to Ada"}
            approved = {"resume": {"decisions": [{"type": "approve"}]}}
            values = await send(client, "POST", runs, assistant_id="agent", command=approved)
            assert values["messages"][-1]["content"] == 'The answer: sent "hello to Ada"'
