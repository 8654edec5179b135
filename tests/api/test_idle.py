"""An agent server says since when it has nothing to do, and its database when it has something to do next."""

import json
import time
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


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent")) as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as opened:
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
    asked_at = time.monotonic()

    await http.get("/info")
    idle = await idle_s(http)

    # However long the two answers took, it counts from the request on.
    assert idle <= time.monotonic() - asked_at
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


async def test_database_returns_when_work_is_due_next(
    client: LangGraphClient, http: httpx2.AsyncClient, module_database: str
):
    assert await next_due(module_database) is None
    now = datetime.now(UTC)

    # Due in eleven to twelve hours, whatever the time is.
    cron = await client.crons.create("echo", schedule=f"0 {(now.hour + 12) % 24} * * *", timezone="UTC", input=HI)
    assert await next_due(module_database) == datetime.fromisoformat(cron["next_run_date"])

    # A run that was done leaves the next thing.
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "echo", input=HI, after_seconds=1)
    await client.runs.join(thread["thread_id"], run["run_id"])
    assert await next_due(module_database) == datetime.fromisoformat(cron["next_run_date"])

    # A delayed run is the next thing, and does not keep the server busy.
    later = await client.runs.create(thread["thread_id"], "echo", input=HI, after_seconds=3600)
    assert now + timedelta(minutes=50) < await next_due(module_database) < now + timedelta(hours=5)
    await grows(http)
    await client.crons.delete(cron["cron_id"])
    assert await next_due(module_database) > now + timedelta(minutes=50)
    await client.runs.cancel(thread["thread_id"], later["run_id"])
    assert await next_due(module_database) is None
