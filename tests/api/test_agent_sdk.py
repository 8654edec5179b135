"""The stock Python SDK against an agent server of ours."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.servers import ServerProcess

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def test_system_assistants_have_the_ids_that_clients_compute(client: LangGraphClient):
    assistants = await client.assistants.search(graph_id="echo")
    assert [assistant["name"] for assistant in assistants] == ["echo"]
    assert assistants[0]["metadata"] == {"created_by": "system"}
    assert (await client.assistants.get("046b5dc7-2108-582c-9c6c-31d556d138f0"))["graph_id"] == "echo"


async def test_wait_returns_the_final_values(client: LangGraphClient):
    thread = await client.threads.create(metadata={"topic": "tests"})
    result = await client.runs.wait(thread["thread_id"], "echo", input=HI)
    assert [message["content"] for message in result["messages"]] == ["hi", "echo: hi"]
    after = await client.threads.get(thread["thread_id"])
    assert after["status"] == "idle"
    assert after["metadata"]["graph_id"] == "echo"
    assert after["metadata"]["topic"] == "tests"

    assert after["values"] == result


async def test_stream_modes_arrive_in_order(client: LangGraphClient):
    thread = await client.threads.create()
    modes = ["values", "updates", "messages-tuple"]
    parts = [p async for p in client.runs.stream(thread["thread_id"], "echo", input=HI, stream_mode=modes)]
    names = [part.event for part in parts]
    assert names[0] == "metadata"
    assert parts[0].data["attempt"] == 1
    assert {"values", "updates", "messages"} <= set(names)

    assert names.index("updates") < len(names) - 1 - names[::-1].index("values")
    assert next(p.data for p in parts if p.event == "updates")["answer"]["messages"][0]["content"] == "echo: hi"
    assert next(p.data for p in parts if p.event == "messages")[0]["content"] == "echo: hi"


async def test_state_and_history(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "echo", input=HI)
    await client.runs.wait(thread_id, "echo", input=HI)
    state = await client.threads.get_state(thread_id)
    assert len(state["values"]["messages"]) == 4
    assert state["next"] == []
    history = await client.threads.get_history(thread_id, limit=10)
    assert len(history) == 6

    assert history[0]["checkpoint"] == state["checkpoint"]
    assert len(await client.threads.get_history(thread_id, limit=1)) == 1
    older = await client.threads.get_state(thread_id, checkpoint_id=history[3]["checkpoint"]["checkpoint_id"])
    assert len(older["values"]["messages"]) == 2


async def test_interrupt_and_resume(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    first = await client.runs.wait(thread_id, "approval", input={"text": "a"})
    assert first["__interrupt__"][0]["value"] == {"question": "approve?", "text": "a!"}
    thread = await client.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert "__interrupt__" not in thread["values"]
    assert next(iter(thread["interrupts"].values()))[0]["value"]["question"] == "approve?"

    result = await client.runs.wait(thread_id, "approval", command={"resume": "yes"})
    assert result == {"text": "a!", "decision": "yes"}
    assert (await client.threads.get(thread_id))["interrupts"] == {}


async def test_a_failing_graph_ends_in_an_error(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    result = await client.runs.wait(thread_id, "boom", input={"done": []}, raise_error=False)
    assert result["__error__"] == {"error": "ValueError", "message": "kaboom"}
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]["message"]) == ("error", "kaboom")
    events = [p async for p in client.runs.stream(None, "boom", input={"done": []})]
    assert events[-1].event == "error"

    assert (await client.runs.list(thread_id))[0]["status"] == "error"


async def test_background_runs_join_and_stay_in_order(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    made = [await client.runs.create(thread_id, "echo", input=HI) for _ in range(4)]
    assert {run["multitask_strategy"] for run in made} == {"enqueue"}
    final = await client.runs.join(thread_id, made[-1]["run_id"])
    assert len(final["messages"]) == 8
    runs = await client.runs.list(thread_id)
    assert [run["run_id"] for run in runs] == [run["run_id"] for run in reversed(made)]
    assert {run["status"] for run in runs} == {"success"}


async def test_reject_refuses_a_second_run(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    first = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 600})
    with pytest.raises(APIStatusError) as refused:
        await client.runs.create(thread_id, "echo", input=HI, multitask_strategy="reject")

    assert refused.value.status_code == 409
    assert "already running" in refused.value.response.json()["detail"]
    await client.runs.cancel(thread_id, first["run_id"], wait=True)


async def test_join_stream_follows_a_run_under_way(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread_id, "steps", input={"done": [], "pause_s": 0.2}, stream_mode="updates", stream_resumable=True
    )
    parts = [p async for p in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")]
    assert [p.event for p in parts] == ["metadata", "updates", "updates", "updates"]
    ids = [part.id for part in parts]
    assert ids == sorted(ids, key=lambda text: tuple(map(int, text.split("-"))))

    again = [p async for p in client.runs.join_stream(thread_id, run["run_id"], last_event_id=ids[1])]
    assert [p.id for p in again] == ids[2:]


async def test_stateless_runs_leave_nothing_behind(client: LangGraphClient, server: ServerProcess):
    before = {thread["thread_id"] for thread in await client.threads.search(limit=1000)}
    result = await client.runs.wait(None, "echo", input=HI)
    assert result["messages"][-1]["content"] == "echo: hi"
    assert {thread["thread_id"] for thread in await client.threads.search(limit=1000)} <= before
    kept = await client.runs.create(None, "echo", input=HI, on_completion="keep")
    assert (await client.runs.join(kept["thread_id"], kept["run_id"]))["messages"][-1]["content"] == "echo: hi"


async def test_update_state_forks_the_thread(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "approval", input={"text": "a"})
    made = await client.threads.update_state(thread_id, {"text": "b"}, as_node="draft")
    assert made["checkpoint"]["thread_id"] == thread_id
    assert (await client.threads.get_state(thread_id))["values"]["text"] == "b"
    assert (await client.threads.get(thread_id))["values"]["text"] == "b"


async def test_factories_get_the_config(client: LangGraphClient):
    config = {"configurable": {"who": "world"}}
    assert (await client.runs.wait(None, "factory", input={"done": []}, config=config))["done"] == ["hello world"]


async def test_a_blocking_node_does_not_stall_the_server(
    client: LangGraphClient, server: ServerProcess, tmp_path: Path
):
    gate = tmp_path / "gate"
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread_id, "blocking", input={"done": [], "gate": str(gate)})
    async with httpx2.AsyncClient(base_url=server.url) as http:
        answers = [(await http.get("/ok")).status_code for _ in range(20)]
        answered_while_blocked = (await http.get(f"/threads/{thread_id}/runs/{run['run_id']}")).json()["status"]

    assert answers == [200] * 20
    assert answered_while_blocked in {"pending", "running"}
    gate.touch()
    await client.runs.join(thread_id, run["run_id"])


async def test_unsupported_fields_are_refused_and_unknown_ones_named(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        body = {"assistant_id": "echo", "input": HI}
        refused = await http.post("/runs/wait", json={**body, "webhook": "ftp://example.com"})
        assert refused.status_code == 422
        assert refused.json()["detail"].startswith("body.webhook: ")
        assert refused.json()["errors"][0]["loc"] == ["body", "webhook"]
        ignored = await http.post("/runs/wait", json={**body, "whatever": True})
        assert (ignored.status_code, ignored.headers["x-ignored-fields"]) == (200, "whatever")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/threads/abc", None, 422, "must be a UUID"),
        ("GET", "/threads/01a1fbd3-88f9-7738-8000-000000000000", None, 404, "not found"),
        ("GET", "/threads/01a1fbd3-88f9-7738-8000-000000000000/state", None, 404, "not found"),
        ("POST", "/threads/01a1fbd3-88f9-7738-8000-000000000000/runs", {"assistant_id": "echo"}, 404, "not found"),
        ("POST", "/runs/wait", {"assistant_id": "nope"}, 422, "Invalid assistant"),
        ("POST", "/runs/wait", {}, 422, "assistant_id"),
        ("POST", "/runs/wait", {"assistant_id": "echo", "stream_mode": "x"}, 422, "stream_mode"),
        ("POST", "/runs/wait", {"assistant_id": "echo", "command": {"goto": 5}}, 422, "goto"),
        ("POST", "/threads/search", {"offset": 2**63}, 422, "offset"),
        ("POST", "/assistants/search", {"offset": 2**63}, 422, "offset"),
        ("GET", "/nope", None, 404, "Not Found"),
        ("PUT", "/threads", None, 405, "Method Not Allowed"),
    ],
)
async def test_bad_requests_are_explained(server: ServerProcess, method, path, body, status, says):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        response = await http.request(method, path, json=body)

    assert response.status_code == status
    assert says in str(response.json()["detail"])


async def test_many_clients_at_once(server: ServerProcess):
    async def one(number: int) -> str:
        result = await client.runs.wait(None, "echo", input={"messages": [{"role": "user", "content": str(number)}]})
        return result["messages"][-1]["content"]

    # The client has fewer connections than calls, and would give up on a slow machine while these wait for one.
    async with get_client(url=server.url, api_key="", timeout=300) as client:
        assert await asyncio.gather(*(one(number) for number in range(60))) == [f"echo: {n}" for n in range(60)]


async def test_many_streams_at_once_miss_nothing(client: LangGraphClient):
    async def one(number: int) -> list[str]:
        message = {"messages": [{"role": "user", "content": str(number)}]}
        return [part.event async for part in client.runs.stream(None, "echo", input=message, stream_mode="values")]

    for _ in range(3):
        assert await asyncio.gather(*(one(n) for n in range(50))) == [["metadata", "values", "values"]] * 50
