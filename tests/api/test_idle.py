"""An agent server says since when it has nothing to do, and its database when it has something to do next."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx2
import pytest
import websockets
from langgraph_sdk.client import LangGraphClient

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
HELD = {"configurable": {"hold_at": "one"}}
EVERY_DAY = "0 9 * * *"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent")) as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as opened:
        yield opened


async def idle_s(http: httpx2.AsyncClient) -> float:
    found: float = (await http.get("/metrics?format=json")).json()["idle_s"]
    return found


async def grows(http: httpx2.AsyncClient) -> None:
    """Wait until the server has been idle for a while, which it counts again from each request."""
    await eventually(lambda: above(http, 1.5))


async def above(http: httpx2.AsyncClient, least: float) -> bool:
    return await idle_s(http) > least


async def test_server_is_idle_without_requests_and_runs(client: LangGraphClient, http: httpx2.AsyncClient):
    await grows(http)
    # Those of monitors do not count.
    before = await idle_s(http)
    await http.get("/ok")
    await http.get("/metrics")
    assert await idle_s(http) >= before
    await http.get("/info")
    assert await idle_s(http) < before
    await grows(http)
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "steps", input={"done": []}, config=HELD)
    await eventually(lambda: runs(client, thread["thread_id"], run["run_id"]))
    assert await idle_s(http) == 0
    await client.runs.cancel(thread["thread_id"], run["run_id"], wait=True)
    await grows(http)


async def runs(client: LangGraphClient, thread: str, run: str) -> bool:
    return (await client.runs.get(thread, run))["status"] == "running"


async def test_streams_and_websockets_keep_a_server_busy(
    server: ServerProcess, client: LangGraphClient, http: httpx2.AsyncClient
):
    thread = (await client.threads.create())["thread_id"]
    async with http.stream("GET", f"/threads/{thread}/stream"):
        await asyncio.sleep(0.2)
        assert await idle_s(http) == 0
    async with websockets.connect(f"{server.url.replace('http', 'ws')}/threads/{thread}/stream/events") as socket:
        await socket.send(json.dumps({"id": 1, "method": "agent.getTree", "params": {}}))
        await socket.recv()
        assert await idle_s(http) == 0
    await grows(http)


async def next_due(database_url: str) -> Any:
    connection = await asyncpg.connect(database_url)
    try:
        return await connection.fetchval("select portside.next_due_at()")
    finally:
        await connection.close()


async def test_database_says_when_something_is_due(
    client: LangGraphClient, http: httpx2.AsyncClient, module_database: str
):
    assert await next_due(module_database) is None
    cron = await client.crons.create("echo", schedule=EVERY_DAY, input=HI)
    assert await next_due(module_database) == datetime.fromisoformat(cron["next_run_date"])
    thread = await client.threads.create()
    now = datetime.now(UTC)
    run = await client.runs.create(thread["thread_id"], "echo", input=HI, after_seconds=5)
    due = await next_due(module_database)
    assert now < due < now + timedelta(minutes=2)
    # A run that was done leaves the next thing, and a delayed one does not keep the server busy.
    await client.runs.join(thread["thread_id"], run["run_id"])
    assert await next_due(module_database) == datetime.fromisoformat(cron["next_run_date"])
    later = await client.runs.create(thread["thread_id"], "echo", input=HI, after_seconds=3600)
    await grows(http)
    await client.crons.delete(cron["cron_id"])
    assert await next_due(module_database) > now + timedelta(minutes=50)
    await client.runs.cancel(thread["thread_id"], later["run_id"])
    assert await next_due(module_database) is None
