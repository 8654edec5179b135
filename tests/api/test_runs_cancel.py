"""Stopping runs through the stock SDK: cancel, supersede, disconnect, delete.

When the end of a cancelled run is written, its nodes have stopped. No thread stays busy.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, NotFoundError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

NOBODY = "01a1fbd3-88f9-7738-8000-000000000000"
SLOW = {"done": [], "pause_s": 600}


@pytest.fixture(scope="module")
def step_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps") / "steps"


@pytest.fixture(scope="module")
def server(module_database: str, step_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environment = {"STEP_LOG": str(step_log)}
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), **environment) as running:
        yield running


@pytest.fixture
async def thread_id(client: LangGraphClient) -> str:
    return (await client.threads.create())["thread_id"]


async def begun(client: LangGraphClient, thread_id: str, done: list[str] | None = None) -> str:
    """A run on `steps` that is in its second node."""
    run = await client.runs.create(thread_id, "steps", input={"done": done or [], "pause_s": 0})
    await client.runs.join(thread_id, run["run_id"])
    held: dict[str, Any] = {"configurable": {"hold_at": "two"}}
    run = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 0}, config=held, durability="sync")

    async def is_in_second() -> bool:
        values = (await client.threads.get_state(thread_id))["values"]
        return values["done"].count("one") == 2

    await eventually(is_in_second)
    return run["run_id"]


async def start_run(client: LangGraphClient, thread_id: str, **options) -> str:
    run = await client.runs.create(thread_id, options.pop("graph", "steps"), input=SLOW, **options)

    async def is_running() -> bool:
        return (await client.runs.get(thread_id, run["run_id"]))["status"] == "running"

    await eventually(is_running)
    return run["run_id"]


async def wait_until_settled(client: LangGraphClient, thread_id: str) -> dict:
    async def look() -> dict | None:
        thread = await client.threads.get(thread_id)
        return None if thread["status"] == "busy" else thread

    return await eventually(look)


async def test_cancel_keeps_finished_steps_and_reports_the_reason(client: LangGraphClient, thread_id: str):
    run_id = await begun(client, thread_id)
    await client.runs.cancel(thread_id, run_id, wait=True)
    run = await client.runs.get(thread_id, run_id)
    thread = await client.threads.get(thread_id)
    reason = f"interrupt requested via POST /threads/{thread_id}/runs/{run_id}/cancel"
    assert (run["status"], run["cancel_reason"]) == ("interrupted", reason)
    assert (thread["status"], thread["error"]) == ("interrupted", {"error": "UserInterrupt", "message": reason})

    assert thread["values"]["done"] == ["one", "two", "three", "one"]
    state = await client.threads.get_state(thread_id)
    assert (state["values"], state["next"]) == (thread["values"], ["two"])
    assert await client.runs.join(thread_id, run_id) == thread["values"]


async def test_input_after_a_cancel_is_new_input(client: LangGraphClient, thread_id: str):
    run_id = await begun(client, thread_id)
    await client.runs.cancel(thread_id, run_id, wait=True)
    result = await client.runs.wait(thread_id, "steps", input={"done": ["new"], "pause_s": 0})
    assert result["done"] == ["one", "two", "three", "one", "new", "one", "two", "three"]
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]) == ("idle", None)


async def test_cancelled_run_continues_without_input(client: LangGraphClient, thread_id: str):
    run_id = await begun(client, thread_id)
    await client.runs.cancel(thread_id, run_id, wait=True)
    result = await client.runs.wait(thread_id, "steps", input=None)
    assert result["done"] == ["one", "two", "three", "one", "two", "three"]


async def test_cancel_rolls_back_checkpoints(client: LangGraphClient, thread_id: str):
    await client.runs.wait(thread_id, "approval", input={"text": "a"})
    before = await client.threads.get(thread_id)
    history = await client.threads.get_history(thread_id, limit=50)
    run_id = await start_run(client, thread_id)

    await client.runs.cancel(thread_id, run_id, wait=True, action="rollback")
    after = await client.threads.get(thread_id)
    for name in ("status", "values", "interrupts", "error"):
        assert after[name] == before[name], name

    assert after["status"] == "interrupted"
    assert await client.threads.get_history(thread_id, limit=50) == history
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run_id)

    assert "404" in str(await outcome(client.runs.join(thread_id, run_id)))
    assert (await client.runs.wait(thread_id, "approval", command={"resume": "yes"}))["decision"] == "yes"


async def test_rollback_without_waiting_frees_the_thread(client: LangGraphClient, thread_id: str):
    run_id = await start_run(client, thread_id, metadata={"run_id": NOBODY}, durability="sync")
    await eventually(lambda: client.threads.get_history(thread_id))
    await client.runs.cancel(thread_id, run_id, action="rollback")
    thread = await wait_until_settled(client, thread_id)
    assert (thread["status"], thread["values"]) == ("idle", None)
    assert await client.threads.get_history(thread_id) == []
    assert await client.runs.list(thread_id) == []


async def test_rollback_keeps_the_error_of_the_earlier_run(client: LangGraphClient, thread_id: str):
    await client.runs.wait(thread_id, "boom", input={"done": []}, raise_error=False)
    run_id = await start_run(client, thread_id)
    await client.runs.cancel(thread_id, run_id, wait=True, action="rollback")
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]["message"]) == ("error", "kaboom")


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_pending_runs_end_at_once(client: LangGraphClient, thread_id: str, action: str):
    await client.runs.wait(thread_id, "approval", input={"text": "a"})
    waiting = await client.runs.create(thread_id, "echo", input={"messages": []}, after_seconds=3600)
    assert (await client.threads.get(thread_id))["status"] == "busy"
    await client.runs.cancel(thread_id, waiting["run_id"], action=action)

    thread = await client.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert [run["status"] for run in await client.runs.list(thread_id)] == (
        ["interrupted", "success"] if action == "interrupt" else ["success"]
    )
    assert (thread["error"] is not None) == (action == "interrupt")


async def test_cancel_of_a_queued_run_keeps_the_order(client: LangGraphClient, thread_id: str):
    first = await start_run(client, thread_id)
    middle = await client.runs.create(thread_id, "echo", input={"messages": []})
    last = await client.runs.create(thread_id, "steps", input={"done": ["last"], "pause_s": 0})
    await client.runs.cancel(thread_id, middle["run_id"])
    assert (await client.runs.get(thread_id, last["run_id"]))["status"] == "pending"
    assert (await client.runs.get(thread_id, first))["status"] == "running"
    await client.runs.cancel(thread_id, first)

    result = await client.runs.join(thread_id, last["run_id"])
    assert result["done"] == ["last", "one", "two", "three"]


def read_steps(log: Path) -> list[str]:
    return log.read_text().split()


async def test_cancel_waits_for_a_node_in_a_thread(
    client: LangGraphClient, thread_id: str, step_log: Path, module_database: str, tmp_path: Path
):
    gate = tmp_path / "gate"
    # The pause is for a server that does not wait: it answers while the node sleeps.
    run = await client.runs.create(thread_id, "threaded", input={"done": [], "gate": str(gate), "pause_s": 0.3})

    async def is_dozing() -> bool:
        return (await client.threads.get_state(thread_id))["next"] == ["doze"]

    await eventually(is_dozing)
    admin = await asyncpg.connect(module_database)

    async def is_requested() -> bool:
        query = "select cancel_action is not null from portside.runs where run_id = $1::text::uuid"
        return bool(await admin.fetchval(query, run["run_id"]))

    cancelling = asyncio.create_task(client.runs.cancel(thread_id, run["run_id"], wait=True))
    await eventually(is_requested)
    await admin.close()
    gate.touch()
    await cancelling
    assert "dozed" in read_steps(step_log)
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["values"]["done"]) == ("interrupted", [])


async def test_subgraphs_stop(client: LangGraphClient, thread_id: str):
    run = await client.runs.create(thread_id, "deep", input={"done": [], "pause_s": 600})

    async def is_in_process() -> bool:
        tasks = (await client.threads.get_state(thread_id, subgraphs=True))["tasks"]
        return any((task["state"] or {}).get("next") == ["one"] for task in tasks)

    await eventually(is_in_process)
    await client.runs.cancel(thread_id, run["run_id"], wait=True)
    assert (await client.threads.get_state(thread_id))["next"] == ["inner"]


async def test_refused_cancels_name_the_reason(client: LangGraphClient, thread_id: str):
    run = await client.runs.create(thread_id, "echo", input={"messages": [{"role": "user", "content": "hi"}]})
    await client.runs.join(thread_id, run["run_id"])
    with pytest.raises(NotFoundError, match="No matching runs to cancel"):
        await client.runs.cancel(thread_id, run["run_id"])

    with pytest.raises(NotFoundError, match="No runs found to cancel"):
        await client.runs.cancel(thread_id, NOBODY)

    with pytest.raises(NotFoundError, match="No runs found to cancel"):
        await client.runs.cancel_many(thread_id=thread_id, run_ids=[NOBODY])

    with pytest.raises(APIStatusError) as refused:
        await client.runs.cancel_many(thread_id=thread_id, run_ids=[NOBODY], status="all")

    assert refused.value.status_code == 422

    for body in ({}, {"thread_id": thread_id}, {"run_ids": [NOBODY]}, {"status": "done"}, {"status": "all", "zap": 1}):
        response = httpx2.post(f"{client.http.client.base_url}/runs/cancel", json=body)
        assert response.status_code == 422, body


async def test_cancel_status_codes_and_headers(server: ServerProcess, client: LangGraphClient, thread_id: str):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        path = f"/threads/{thread_id}/runs/{await start_run(client, thread_id)}"
        response = await http.post(f"{path}/cancel?wait=0&action=interrupt")
        assert (response.status_code, response.content) == (202, b"")
        await wait_until_settled(client, thread_id)

        path = f"/threads/{thread_id}/runs/{await start_run(client, thread_id)}"
        response = await http.post(f"{path}/cancel?wait=true")
        assert (response.status_code, response.json(), response.headers["location"]) == (200, {}, f"{path}/join")
        assert (await http.post(f"{path}/cancel?action=destroy")).status_code == 422


async def test_cancel_many_by_ids(client: LangGraphClient, thread_id: str):
    first = await start_run(client, thread_id)
    second = await client.runs.create(thread_id, "echo", input={"messages": []})
    await client.runs.cancel_many(thread_id=thread_id, run_ids=[first, second["run_id"]])
    await wait_until_settled(client, thread_id)
    assert [run["status"] for run in await client.runs.list(thread_id)] == ["interrupted", "interrupted"]


async def test_cancel_many_by_status(client: LangGraphClient):
    threads = [(await client.threads.create())["thread_id"] for _ in range(3)]
    runs = [await start_run(client, thread) for thread in threads]
    waiting = [await client.runs.create(thread, "steps", input=SLOW) for thread in threads]
    await client.runs.cancel_many(status="pending")

    for thread, run in zip(threads, waiting, strict=True):
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"

    await client.runs.cancel_many(status="running")

    for thread, run in zip(threads, runs, strict=True):
        await wait_until_settled(client, thread)
        assert (await client.runs.get(thread, run))["status"] == "interrupted"

    with pytest.raises(NotFoundError):
        await client.runs.cancel_many(status="all")


@pytest.mark.parametrize(("strategy", "kept"), [("interrupt", ["one"]), ("rollback", [])])
async def test_new_run_supersedes_the_running_one(
    client: LangGraphClient, thread_id: str, strategy: str, kept: list[str]
):
    run_id = await begun(client, thread_id)
    waiting = await client.runs.create(thread_id, "echo", input={"messages": []})
    join = asyncio.create_task(outcome(client.runs.join(thread_id, run_id)))

    # The stream is open, so the server knows its client before the run is superseded.
    path = f"/threads/{thread_id}/runs/{run_id}/stream"
    async with client.http.client.stream("GET", path) as stream:
        assert stream.status_code == 200
        new = await client.runs.create(
            thread_id, "steps", input={"done": ["new"], "pause_s": 0}, multitask_strategy=strategy
        )
        result = await client.runs.join(thread_id, new["run_id"])
        assert b"event: error" not in await stream.aread()

    assert result["done"] == ["one", "two", "three", *kept, "new", "one", "two", "three"]
    left = {run["run_id"]: run for run in await client.runs.list(thread_id)}
    assert left[new["run_id"]]["status"] == "success"

    if strategy == "interrupt":
        assert (await join)["done"][3:] in (["one"], [*kept, "new", "one", "two", "three"])
        assert {left[old]["status"] for old in (run_id, waiting["run_id"])} == {"interrupted"}
        assert left[run_id]["cancel_reason"] == f"superseded by run {new['run_id']} (multitask_strategy=interrupt)"
    else:
        assert "404" in str(await join)
        assert len(left) == 2

    assert (await client.threads.get(thread_id))["status"] == "idle"


async def outcome(call: Awaitable) -> object:
    """Return what a call returned or raised: 404 if it came too late, otherwise the reason as text."""
    return (await asyncio.gather(call, return_exceptions=True))[0]


async def test_many_superseding_runs_at_once_leave_one(client: LangGraphClient, thread_id: str):
    strategies = ["interrupt", "rollback"] * 6
    made = await asyncio.gather(
        *(
            client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 0.05}, multitask_strategy=strategy)
            for strategy in strategies
        )
    )

    assert len({run["run_id"] for run in made}) == len(strategies)
    thread = await wait_until_settled(client, thread_id)
    statuses = [run["status"] for run in await client.runs.list(thread_id, limit=50)]
    assert thread["status"] == "idle"
    assert statuses[0] == "success"
    assert set(statuses) <= {"success", "interrupted"}


@pytest.mark.parametrize("path", ["wait", "stream"])
@pytest.mark.parametrize("where", ["thread", "stateless"])
async def test_on_disconnect_cancel_cancels_the_run(
    server: ServerProcess, client: LangGraphClient, thread_id: str, path: str, where: str
):
    body = {"assistant_id": "steps", "input": SLOW, "on_disconnect": "cancel", "on_completion": "keep"}
    is_stateless = where == "stateless"
    prefix = "" if is_stateless else f"/threads/{thread_id}"
    async with httpx2.AsyncClient(base_url=server.url) as http:
        asking = asyncio.create_task(http.post(f"{prefix}/runs/{path}", json=body))
        found = await eventually(lambda: a_running_thread(client, None if is_stateless else thread_id))
        asking.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asking

    thread = await wait_until_settled(client, found)
    assert thread["error"] == {
        "error": "UserInterrupt",
        "message": "the client disconnected (on_disconnect=cancel)",
    }

    assert [run["status"] for run in await client.runs.list(found)] == ["interrupted"]


async def a_running_thread(client: LangGraphClient, thread_id: str | None) -> str | None:
    threads = [thread_id] if thread_id else [t["thread_id"] for t in await client.threads.search(status="busy")]
    for candidate in threads:
        if [run["status"] for run in await client.runs.list(candidate)] == ["running"]:
            return candidate

    return None


@pytest.mark.parametrize("path", ["join", "stream"])
async def test_join_with_cancel_on_disconnect_cancels_the_run(
    server: ServerProcess, client: LangGraphClient, thread_id: str, path: str
):
    run_id = await start_run(client, thread_id)
    async with httpx2.AsyncClient(base_url=server.url) as http:
        for question, is_taken in (("", False), ("?cancel_on_disconnect=true", True)):
            # The client leaves once the answer has begun.
            async with http.stream(
                "GET", f"/threads/{thread_id}/runs/{run_id}/{path}{question}", timeout=300
            ) as response:
                assert response.status_code == 200

            if not is_taken:
                assert (await client.runs.get(thread_id, run_id))["status"] == "running"

    await wait_until_settled(client, thread_id)
    assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"


async def test_deleting_runs(client: LangGraphClient, thread_id: str):
    first = await client.runs.create(thread_id, "steps", input={"done": ["a"], "pause_s": 0})
    await client.runs.join(thread_id, first["run_id"])
    before = await client.threads.get(thread_id)
    second = await client.runs.create(thread_id, "approval", input={"text": "b"})

    await client.runs.join(thread_id, second["run_id"])
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    await client.runs.delete(thread_id, second["run_id"])
    after = await client.threads.get(thread_id)
    assert (after["status"], after["values"], after["interrupts"]) == ("idle", before["values"], {})

    with pytest.raises(NotFoundError):
        await client.runs.delete(thread_id, second["run_id"])


async def test_deleting_runs_that_are_not_over(client: LangGraphClient, thread_id: str):
    done = await client.runs.create(thread_id, "steps", input={"done": ["a"], "pause_s": 0})
    await client.runs.join(thread_id, done["run_id"])
    under_way = await start_run(client, thread_id)
    waiting = await client.runs.create(thread_id, "echo", input={"messages": []})

    with pytest.raises(APIStatusError) as refused:
        await client.runs.delete(thread_id, done["run_id"])

    assert refused.value.status_code == 409
    await client.runs.delete(thread_id, waiting["run_id"])
    await client.runs.delete(thread_id, under_way)
    assert [run["run_id"] for run in await client.runs.list(thread_id)] == [done["run_id"]]
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["values"]["done"]) == ("idle", ["a", "one", "two", "three"])


async def test_timed_out_run_keeps_its_state(agent_databases: Callable[[], Awaitable[str]], tmp_path: Path):
    with agent_server(await agent_databases(), tmp_path, BG_JOB_TIMEOUT_SECS="5") as server:
        async with get_client(url=server.url, api_key="") as client:
            # A first run may take long to begin.
            await client.runs.wait(None, "steps", input={"done": []}, raise_error=False)

            async def keeps_its_state() -> bool:
                """Let a run time out. On a busy machine the limit may pass before the run has stored its input."""
                thread_id = (await client.threads.create())["thread_id"]
                run = await client.runs.create(thread_id, "steps", input={"done": ["a"], "pause_s": 600})
                result = await client.runs.join(thread_id, run["run_id"])
                assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "timeout"
                thread = await client.threads.get(thread_id)
                assert (thread["status"], thread["error"]["error"]) == ("error", "TimeoutError")

                assert await client.runs.join(thread_id, run["run_id"]) == result
                return bool(result) and result["done"] == ["a"]

            await eventually(keeps_its_state)


async def test_wait_sends_the_run_id_before_the_run_ends(client: LangGraphClient, thread_id: str):
    """It ends because the waiting client, which has nothing but the heads of the answer, has it cancelled."""
    http = client.http.client
    path = f"/threads/{thread_id}/runs/wait"
    body = {"assistant_id": "steps", "input": {"done": [], "pause_s": 600}}

    async def has_stored_its_input() -> bool:
        return bool((await client.threads.get_state(thread_id))["values"])

    async with http.stream("POST", path, json=body, timeout=300) as response:
        made = response.headers["content-location"]
        await eventually(has_stored_its_input)
        assert (await http.post(f"{made}/cancel", params={"wait": 1})).status_code == 200
        values = json.loads(await response.aread())

    assert "three" not in values["done"]
