"""Runs across threads: the queue in its order with the reason why a run waits, failed runs, and the runs of a cron."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

HELD = {"configurable": {"hold_at": "two"}}
STEPS = {"done": [], "pause_s": 0}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    environment = {"STEP_LOG": str(folder / "steps"), "N_JOBS_PER_WORKER": "1"}
    with agent_server(module_database, folder, **environment) as running:
        yield running


async def search(client: LangGraphClient, **body: Any) -> list[dict[str, Any]]:
    response: list[dict[str, Any]] = await client.http.post("/runs/search", json=body)
    return response


async def test_queue_says_why_runs_wait(client: LangGraphClient, server: ServerProcess) -> None:
    first, second = [(await client.threads.create())["thread_id"] for _ in range(2)]
    running = (await client.runs.create(first, "steps", input=STEPS, config=HELD))["run_id"]

    async def is_running() -> bool:
        return (await client.runs.get(first, running))["status"] == "running"

    await eventually(is_running)
    blocked = (await client.runs.create(first, "steps", input=STEPS))["run_id"]
    later = (await client.runs.create(second, "steps", input=STEPS, after_seconds=3600))["run_id"]
    third = (await client.threads.create())["thread_id"]
    ready = (await client.runs.create(third, "steps", input=STEPS))["run_id"]
    found = {each["run_id"]: each for each in await search(client)}
    assert next(iter(found)) == running

    assert list(found)[-1] == later
    assert {run: each["waits_for"] for run, each in found.items()} == {
        running: None,
        blocked: "thread",
        ready: "slot",
        later: "time",
    }

    assert found[blocked]["blocked_by"] == running
    of_thread = {each["run_id"]: each["waits_for"] for each in await search(client, thread_id=first)}
    assert of_thread == {running: None, blocked: "thread"}
    (one,) = await search(client, thread_id=first, run_id=blocked)
    assert one["run_id"] == blocked
    assert await search(client, thread_id=second, run_id=blocked) == []
    assert (found[running]["attempt"], found[running]["lost_attempts"]) == (1, 0)

    assert found[running]["worker_id"]
    assert [each["run_id"] for each in await search(client, status=["running"])] == [running]
    async with httpx2.AsyncClient(base_url=server.url) as http:
        page = await http.post("/runs/search", json={"limit": 3})
        assert (len(page.json()), page.headers["x-pagination-next"]) == (3, "3")
        page = await http.post("/runs/search", json={"limit": 3, "offset": 3})
        assert (len(page.json()), page.headers.get("x-pagination-next")) == (1, None)
        refused = await http.post("/runs/search", json={"run_id": blocked})
        assert (refused.status_code, "thread_id" in refused.text) == (422, True)
        assert (await http.post("/runs/cancel", json={"status": "all"})).status_code == 204

    async def is_empty() -> bool:
        return not await search(client)

    await eventually(is_empty)


async def test_failed_runs_are_found_across_threads(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": "no number"})
    await client.runs.join(thread_id, run["run_id"])
    (found,) = await search(client, status=["error", "timeout"])
    assert (found["run_id"], found["status"], found["waits_for"]) == (run["run_id"], "error", None)
    assert found["error"]["message"]
    assert [each["run_id"] for each in await search(client, thread_id=thread_id)] == [run["run_id"]]

    with pytest.raises(APIStatusError) as refused:
        await search(client, status=["success"])

    assert refused.value.status_code == 422
    assert "pending and running, or error and timeout" in str(refused.value.body)


async def test_runs_of_a_cron_are_its_history(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(thread_id, "steps", schedule="* * * * * *", input=STEPS)
    try:

        async def has_ended() -> list[dict[str, Any]]:
            return await search(client, cron_id=cron["cron_id"], status=["success"])

        found = await eventually(has_ended)
    finally:
        await client.crons.delete(cron["cron_id"])

    assert {each["cron_id"] for each in found} == {cron["cron_id"]}
    assert await search(client, cron_id=str(uuid4())) == []

    # What a client writes there must not break a run or the list.
    config = {"configurable": {"cron_id": "x" * 10_000}}
    run = await client.runs.create(thread_id, "steps", input=STEPS, config=config, multitask_strategy="enqueue")
    await client.runs.join(thread_id, run["run_id"])
    assert run["run_id"] in {each["run_id"] for each in await search(client, thread_id=thread_id)}
