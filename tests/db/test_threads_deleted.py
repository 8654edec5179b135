"""A thread that is deleted: the worker of its run is notified, and its followers end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from uuid import UUID

import httpx2
import pytest

from portside.agent.app import open_app
from portside.agent.config import load_config
from portside.agent.queue import active_run, worker
from portside.agent.settings import AgentSettings
from portside.agent.streams.events import parse_thread_modes
from portside.agent.wiring import AgentApp
from portside.executor.load import load_graphs
from tests.conftest import eventually
from tests.servers import PROJECTS

SLOW = {"assistant_id": "steps", "input": {"done": [], "pause_s": 600}}


@pytest.fixture
async def apps(
    agent_databases: Callable[[], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[AgentApp]]:
    """Two servers whose workers check their runs only when they are notified."""
    for module in (active_run, worker):
        monkeypatch.setattr(module, "LEASE_S", 36000.0)

    url = await agent_databases()

    config = load_config(PROJECTS / "graphs" / "langgraph.json")
    graphs = load_graphs(config.project)
    settings = AgentSettings(database_url=url)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_app(config, graphs, settings, url)) for _ in range(2)]
        for app in opened:
            stack.push_async_callback(app.worker.drain, 0.0)

        yield opened


@pytest.mark.parametrize("is_deleted_elsewhere", [False, True])
async def test_the_run_of_a_deleted_thread_stops(apps: list[AgentApp], *, is_deleted_elsewhere: bool):
    for app in apps:
        await until(lambda app=app: app.hub.transport.has_others)

    async with open_client(apps[0]) as client:
        thread_id = (await client.post("/threads", json={})).json()["thread_id"]
        assert (await client.post(f"/threads/{thread_id}/runs", json=SLOW)).status_code == 200

    # The other server takes a run that comes while the first one looks into the queue.
    await until(lambda: any(app.worker.busy_slots for app in apps))
    executing, other = sorted(apps, key=lambda app: app.worker.busy_slots, reverse=True)

    async with open_client(other if is_deleted_elsewhere else executing) as client:
        assert (await client.delete(f"/threads/{thread_id}")).status_code == 204
        await until(lambda: executing.worker.busy_slots == 0)


@pytest.mark.parametrize("way", ["delete", "prune", "assistant"])
async def test_followers_of_a_deleted_thread_end_with_the_request(apps: list[AgentApp], way: str):
    app = apps[0]
    async with open_client(app) as client:
        assistant_id = (await client.post("/assistants", json={"graph_id": "echo"})).json()["assistant_id"]
        metadata = {"assistant_id": assistant_id}
        thread_id = (await client.post("/threads", json={"metadata": metadata})).json()["thread_id"]
        follower = await app.hub.follow_thread(UUID(thread_id), parse_thread_modes([]), None)
        if way == "delete":
            response = await client.delete(f"/threads/{thread_id}")
        elif way == "prune":
            response = await client.post("/threads/prune", json={"thread_ids": [thread_id]})
        else:
            response = await client.delete(f"/assistants/{assistant_id}?delete_threads=true")

        assert response.is_success
        assert follower._is_ended


async def test_followers_of_a_busy_thread_that_is_not_pruned_stay(apps: list[AgentApp]):
    app = apps[0]
    async with open_client(app) as client:
        thread_id = (await client.post("/threads", json={})).json()["thread_id"]
        assert (await client.post(f"/threads/{thread_id}/runs", json=SLOW)).status_code == 200
        follower = await app.hub.follow_thread(UUID(thread_id), parse_thread_modes([]), None)

        response = await client.post("/threads/prune", json={"thread_ids": [thread_id]})
        assert response.json() == {"pruned_count": 0}
        assert not follower._is_ended


def open_client(app: AgentApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app.asgi), base_url="http://agent", timeout=300)


async def until(is_so: Callable[[], bool]) -> None:
    async def look() -> bool:
        return is_so()

    await eventually(look)
