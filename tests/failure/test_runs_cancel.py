"""Cancelling runs whose worker is in another process, dies or is blocked.

When the end of a cancelled run is written, its nodes have stopped. Every run ends, and no thread stays busy.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.conftest import eventually
from tests.servers import agent_server

SLOW = {"assistant_id": "steps", "input": {"done": [], "pause_s": 600}}
QUICK = {"assistant_id": "steps", "input": {"done": [], "pause_s": 0}}


def build_held_run(step: str, gate: Path) -> dict[str, Any]:
    """Return the body of a run that waits in a step until a file exists."""
    return {**QUICK, "config": {"configurable": {"gates": {step: str(gate)}}}}


class Replica:
    """A server, and what the tests ask of it."""

    def __init__(self, server: Any, http: httpx2.AsyncClient) -> None:
        self.server = server
        self.http = http

    async def thread(self) -> str:
        return (await self.http.post("/threads", json={})).json()["thread_id"]

    async def start_run(self, thread_id: str, body: dict[str, Any]) -> str:
        run = (await self.http.post(f"/threads/{thread_id}/runs", json=body)).json()["run_id"]
        await eventually(lambda: self.has_status(thread_id, run, "running"))
        await eventually(lambda: self.is_in_step(thread_id))
        return run

    async def is_in_step(self, thread_id: str) -> bool:
        """Whether a thread has a step to do. A run that is cancelled before its first step leaves the thread idle."""
        return bool((await self.http.get(f"/threads/{thread_id}/state")).json()["next"])

    async def has_status(self, thread_id: str, run_id: str, status: str) -> bool:
        response = await self.http.get(f"/threads/{thread_id}/runs/{run_id}")
        return response.status_code == 200 and response.json()["status"] == status

    async def wait_until_settled(self, thread_id: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            thread = (await self.http.get(f"/threads/{thread_id}")).json()
            return None if thread["status"] == "busy" else thread

        return await eventually(look)

    async def statuses(self, thread_id: str) -> list[str]:
        return [run["status"] for run in (await self.http.get(f"/threads/{thread_id}/runs")).json()]


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with ExitStack() as stack:
        yield [
            stack.enter_context(agent_server(module_database, tmp_path_factory.mktemp(name))) for name in ("one", "two")
        ]


@pytest.fixture
async def replicas(servers) -> AsyncIterator[list[Replica]]:
    async with open_replica(servers[0]) as one, open_replica(servers[1]) as two:
        yield [one, two]


@asynccontextmanager
async def open_replica(server: Any) -> AsyncIterator[Replica]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        yield Replica(server, http)


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_cancel_through_another_replica(replicas: list[Replica], action: str):
    here, there = replicas
    thread_id = await here.thread()
    run = await here.start_run(thread_id, SLOW)
    response = await there.http.post(f"/threads/{thread_id}/runs/{run}/cancel?wait=1&action={action}")
    assert (response.status_code, response.json()) == (200, {})
    thread = (await there.http.get(f"/threads/{thread_id}")).json()
    assert thread["status"] == ("interrupted" if action == "interrupt" else "idle")

    assert await there.statuses(thread_id) == (["interrupted"] if action == "interrupt" else [])


async def test_run_is_superseded_and_deleted_through_another_replica(replicas: list[Replica]):
    here, there = replicas
    thread_id = await here.thread()
    await here.start_run(thread_id, SLOW)
    response = await there.http.post(
        f"/threads/{thread_id}/runs/wait", json={**QUICK, "multitask_strategy": "interrupt"}
    )
    assert response.json()["done"] == ["one", "two", "three"]

    run = await here.start_run(thread_id, SLOW)
    assert (await there.http.delete(f"/threads/{thread_id}/runs/{run}")).status_code == 204
    assert (await there.wait_until_settled(thread_id))["values"]["done"] == ["one", "two", "three"]
    assert await there.statuses(thread_id) == ["success", "interrupted"]


async def test_stateless_run_is_joined_through_another_replica(replicas: list[Replica], tmp_path: Path):
    here, there = replicas
    gate = tmp_path / "gate"
    run = (await here.http.post("/runs", json=build_held_run("two", gate))).json()
    path = f"/threads/{run['thread_id']}/runs/{run['run_id']}/join"

    # The head of the response arrives before the run ends.
    async with there.http.stream("GET", path) as response:
        assert response.status_code == 200
        gate.touch()
        assert json.loads(await response.aread())["done"] == ["one", "two", "three"]


async def test_run_that_its_client_waits_for_is_joined_through_another_replica_too(
    replicas: list[Replica], tmp_path: Path, module_database: str
):
    """Without the second client its result would be gone with it; a replica that executes the run itself has it."""
    here, there = replicas
    gate = tmp_path / "gate"
    async with here.http.stream("POST", "/runs/wait", json=build_held_run("two", gate)) as waiting:
        path = waiting.headers["Location"]
        run_id = path.split("/")[-2]
        database = await asyncpg.connect(module_database)

        async def is_kept() -> bool:
            kept = "select admitted_by is null or worker_id <> admitted_by from portside.runs where run_id = $1"
            return await database.fetchval(kept, run_id)

        async with there.http.stream("GET", path) as joined:
            await eventually(is_kept)
            gate.touch()
            assert json.loads(await joined.aread())["done"] == ["one", "two", "three"]

        await database.close()
        assert json.loads(await waiting.aread())["done"] == ["one", "two", "three"]


async def test_thread_is_idle_after_concurrent_runs_cancels_and_deletions(replicas: list[Replica]):
    """New runs with every strategy, cancels and deletions, through both replicas at once."""
    thread_id = await replicas[0].thread()

    async def one(number: int) -> None:
        http = replicas[number % 2].http
        body = {**QUICK, "input": {"done": [], "pause_s": 0.02}}
        strategy = ("interrupt", "rollback", "enqueue")[number % 3]
        response = await http.post(f"/threads/{thread_id}/runs", json={**body, "multitask_strategy": strategy})
        assert response.status_code == 200, response.text

        path = f"/threads/{thread_id}/runs/{response.json()['run_id']}"
        if number % 4 == 1:
            action = ("interrupt", "rollback")[number % 8 == 1]
            assert (await http.post(f"{path}/cancel?action={action}&wait=1")).status_code in {200, 404}
        elif number % 4 == 3:
            assert (await http.delete(path)).status_code in {204, 404, 409}

    await asyncio.gather(*(one(number) for number in range(40)))
    thread = await replicas[1].wait_until_settled(thread_id)
    assert thread["status"] in {"idle", "interrupted"}
    runs = (await replicas[0].http.get(f"/threads/{thread_id}/runs?limit=100")).json()
    assert {run["status"] for run in runs} <= {"success", "interrupted"}
    state = (await replicas[0].http.get(f"/threads/{thread_id}/state")).json()
    assert (thread["values"] or {}) == state["values"]

    assert (thread["status"] == "interrupted") == bool(state["next"])


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_cancelled_run_of_a_dead_worker_is_ended_by_others(replicas: list[Replica], action: str):
    here, there = replicas
    thread_id = await here.thread()
    run = await here.start_run(thread_id, SLOW)
    after = (await there.http.post(f"/threads/{thread_id}/runs", json=QUICK)).json()["run_id"]

    here.server.send(signal.SIGSTOP)
    try:
        response = await there.http.post(f"/threads/{thread_id}/runs/{run}/cancel?wait=1&action={action}")
        assert (response.status_code, response.json()) == (200, {})
        joined = await there.http.get(f"/threads/{thread_id}/runs/{after}/join")
        assert joined.json()["done"] == ["one", "two", "three"]
        assert (await there.wait_until_settled(thread_id))["status"] == "idle"
    finally:
        here.server.send(signal.SIGCONT)

    assert await there.statuses(thread_id) == ["success", *(["interrupted"] if action == "interrupt" else [])]


async def test_run_of_a_killed_worker_can_be_superseded(agent_databases: Callable[[], Any], tmp_path: Path):
    with agent_server(await agent_databases(), tmp_path) as server:
        async with open_replica(server) as replica:
            thread_id = await replica.thread()
            await replica.start_run(thread_id, SLOW)
            server.kill()
            server.start()

        async with open_replica(server) as replica:
            body = {**QUICK, "multitask_strategy": "rollback"}
            result = await replica.http.post(f"/threads/{thread_id}/runs/wait", json=body)
            assert result.json()["done"] == ["one", "two", "three"]
            assert await replica.statuses(thread_id) == ["success"]


async def test_stopping_server_does_not_cancel_runs_of_its_clients(agent_databases: Callable[[], Any], tmp_path: Path):
    with agent_server(await agent_databases(), tmp_path) as server:
        async with open_replica(server) as replica:
            thread_id = await replica.thread()
            gate = tmp_path / "gate"
            body = {**build_held_run("one", gate), "on_disconnect": "cancel"}
            waiting = asyncio.create_task(replica.http.post(f"/threads/{thread_id}/runs/wait", json=body))

            await eventually(lambda: has_running_run(replica, thread_id))
            await asyncio.to_thread(server.stop, signal.SIGINT)
            await asyncio.gather(waiting, return_exceptions=True)
            gate.touch()
            server.start()

        async with open_replica(server) as replica:
            thread = await replica.wait_until_settled(thread_id)
            assert thread["values"]["done"] == ["one", "two", "three"]
            assert await replica.statuses(thread_id) == ["success"]


async def has_running_run(replica: Replica, thread_id: str) -> bool:
    return await replica.statuses(thread_id) == ["running"]
