"""Tiers: one server answers, another executes, on one database that both find empty when they start."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
ALL_STEPS = ["one", "two", "three"]


class Tiers(NamedTuple):
    """The address of each server."""

    api: str
    queue: str


@pytest.fixture(scope="module")
def tiers(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiers]:
    """Start both at once: they race for the migrations."""

    def server(tier: str) -> contextlib.AbstractContextManager[ServerProcess]:
        return agent_server(module_database, tmp_path_factory.mktemp(tier), PORTSIDE_TIER=tier)

    servers = [server("api"), server("queue")]
    with ThreadPoolExecutor(2) as starters, contextlib.ExitStack() as stop:
        starting = [starters.submit(each.__enter__) for each in servers]
        for each in servers:
            stop.push(each.__exit__)

        yield Tiers(*(each.result().url for each in starting))


@pytest.fixture
async def client(tiers: Tiers) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=tiers.api, api_key="") as opened:
        yield opened


def metrics(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{url}/metrics", params={"format": "json"}).json()
    return found


def sample(url: str, name: str) -> float:
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == name), 0.0)


async def has_no_active_worker(url: str) -> bool:
    return bool(metrics(url)["workers"]["active"] == 0)


async def test_each_tier_serves_only_its_routes(tiers: Tiers) -> None:
    assert httpx2.get(f"{tiers.api}/ok").json() == {"ok": True, "services": {"postgres": True}}
    assert httpx2.get(f"{tiers.queue}/ok").json() == {"ok": True, "services": {"postgres": True, "worker": True}}
    assert httpx2.get(f"{tiers.queue}/info").json() == httpx2.get(f"{tiers.api}/info").json()

    for path in ("/", "/docs", "/openapi.json", "/assistants/search", "/runs/wait", "/threads"):
        assert httpx2.post(f"{tiers.queue}{path}", json={}).status_code == 404, path

    # Runs that another test left may still end.
    async def are_idle() -> bool:
        workers = metrics(tiers.api)["workers"], metrics(tiers.queue)["workers"]
        return workers == ({"max": 0, "active": 0, "available": 0}, {"max": 10, "active": 0, "available": 10})

    await eventually(are_idle)


async def test_a_client_waits_for_what_another_process_executes(tiers: Tiers, client: LangGraphClient) -> None:
    before = sample(tiers.queue, "lg_api_run_queue_wait_time_1st_attempt_count")
    thread = await client.threads.create()
    values = await client.runs.wait(thread["thread_id"], "echo", input=HI)
    assert values["messages"][-1]["content"] == "echo: hi"
    stateless = await client.runs.wait(None, "echo", input=HI)
    assert stateless["messages"][-1]["content"] == "echo: hi"
    assert sample(tiers.queue, "lg_api_run_queue_wait_time_1st_attempt_count") >= before + 2

    async def are_counted() -> bool:
        # A run is counted after its clients were woken.
        names = ('lg_api_run_duration_seconds_count{status="success"}', 'lg_api_runs_total{status="success"}')
        return all(sample(tiers.queue, name) >= 2 for name in names)

    await eventually(are_counted)
    assert "lg_api_runs_total{" not in httpx2.get(f"{tiers.api}/metrics").text


async def test_a_background_run_is_joined_and_its_state_read(client: LangGraphClient) -> None:
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "steps", input={"done": []})
    assert run["status"] == "pending"
    joined = await client.runs.join(thread["thread_id"], run["run_id"])
    assert joined["done"] == ALL_STEPS
    state = await client.threads.get_state(thread["thread_id"])
    assert (state["values"]["done"], state["next"]) == (ALL_STEPS, [])

    await client.threads.update_state(thread["thread_id"], {"done": ["by hand"]})
    assert (await client.threads.get_state(thread["thread_id"]))["values"]["done"] == [*ALL_STEPS, "by hand"]


async def test_a_stream_has_every_event_and_ends_when_the_run_does(client: LangGraphClient) -> None:
    thread = await client.threads.create()
    stream = client.runs.stream(thread["thread_id"], "steps", input={"done": []}, stream_mode="updates")
    parts = [part async for part in stream]
    assert [part.event for part in parts] == ["metadata", "updates", "updates", "updates"]
    assert [name for part in parts[1:] for name in part.data] == ALL_STEPS
    alone = client.runs.stream(None, "steps", input={"done": []}, stream_mode="updates")
    assert [part.event async for part in alone] == ["metadata", "updates", "updates", "updates"]

    run = (await client.runs.list(thread["thread_id"]))[0]
    assert run["status"] == "success"
    assert [part async for part in client.runs.join_stream(thread["thread_id"], run["run_id"])] == []


async def test_a_cancel_reaches_the_other_process(tiers: Tiers, client: LangGraphClient) -> None:
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "steps", input={"done": [], "pause_s": 600})

    async def is_running() -> bool:
        return (await client.runs.get(thread["thread_id"], run["run_id"]))["status"] == "running"

    await eventually(is_running)
    await client.runs.cancel(thread["thread_id"], run["run_id"], wait=True)
    assert (await client.runs.get(thread["thread_id"], run["run_id"]))["status"] == "interrupted"
    await eventually(lambda: has_no_active_worker(tiers.queue))


async def test_cron_fires_once_for_each_instant(client: LangGraphClient) -> None:
    thread = await client.threads.create()
    created_s = int(time.time())
    cron = await client.crons.create_for_thread(thread["thread_id"], "echo", schedule="* * * * * *", input=HI)

    async def fired() -> list[Any]:
        runs = await client.runs.list(thread["thread_id"], limit=100)
        return runs if len(runs) >= 6 else []

    await eventually(fired)
    await client.crons.delete(cron["cron_id"])
    runs = await client.runs.list(thread["thread_id"], limit=100)
    assert len(runs) <= int(time.time()) - created_s


async def test_delayed_runs_wait_but_want_no_capacity(tiers: Tiers, client: LangGraphClient) -> None:
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "echo", input=HI, after_seconds=3600)

    # Runs that another test left may still wait.
    async def is_counted() -> bool:
        pending, ready = (sample(tiers.api, f"lg_api_num_{name}_runs") for name in ("pending", "ready"))
        return (metrics(tiers.api)["queue"]["n_pending"], pending, ready) == (1, 1, 0)

    await eventually(is_counted)
    await client.runs.delete(thread["thread_id"], run["run_id"])


@pytest.mark.thorough
async def test_an_idle_server_holds_three_connections_at_most(
    module_database: str, tiers: Tiers, client: LangGraphClient
):
    """Two servers here, each of them: after runs that took many connections, and all chores at their start."""
    await asyncio.gather(*(client.runs.wait(None, "echo", input=HI) for _ in range(20)))
    admin = await asyncpg.connect(module_database)
    ours = "datname = current_database() and application_name = 'portside'"
    count = f"select count(*) from pg_stat_activity where {ours}"

    async def are_few_left() -> bool:
        return bool(await admin.fetchval(count) <= 3 * len(tiers))

    assert not await are_few_left()
    await eventually(are_few_left)
    await admin.close()
