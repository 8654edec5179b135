"""The fields of a run request, through the stock SDK.

A documented field acts, or is refused with a 422 that names it. An unknown field is ignored and named in
`X-Ignored-Fields`.
"""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, NotFoundError

from tests.api.streaming import new_id
from tests.conftest import eventually
from tests.servers import ServerProcess

HI = {"messages": [{"role": "user", "content": "hi"}]}
NOBODY = "01a1fbd3-88f9-7738-8000-000000000000"
MODES = ["values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"]


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as opened:
        yield opened


@pytest.fixture
async def thread_id(client: LangGraphClient) -> str:
    return (await client.threads.create())["thread_id"]


async def test_a_run_as_the_contract_shows_it(client: LangGraphClient, thread_id: str):
    run = await client.runs.create(
        thread_id,
        "contextual",
        input={"done": []},
        metadata={"m": 1, "graph_id": "mine", "assistant_id": "x"},
        config={"tags": ["t"], "recursion_limit": 7},
        context={"name": "ann"},
        stream_mode="updates",
        headers={"x-request-id": "from-the-client"},
    )

    assert (run["status"], run["multitask_strategy"], run["cancel_reason"]) == ("pending", "enqueue", None)
    assert run["metadata"] == {
        "created_by": "system",
        "graph_id": "mine",
        "assistant_id": run["assistant_id"],
        "m": 1,
    }

    kwargs = run["kwargs"]
    configurable = kwargs["config"]["configurable"]
    assert kwargs["context"] == {"name": "ann"}
    assert (kwargs["config"]["tags"], kwargs["config"]["recursion_limit"]) == (["t"], 7)
    assert (configurable["name"], configurable["graph_id"]) == ("ann", "contextual")
    assert configurable["langgraph_request_id"] == "from-the-client"
    assert (kwargs["stream_mode"], kwargs["temporary"], kwargs["durability"]) == (["updates"], False, "async")

    assert (await client.runs.join(thread_id, run["run_id"]))["done"] == ["ann"]
    assert (await client.threads.get(thread_id))["config"] == {
        "tags": ["t"],
        "recursion_limit": 7,
        "configurable": {},
    }


async def test_context_and_configurable_mirror_each_other(client: LangGraphClient, thread_id: str):
    config = {"configurable": {"name": "bob", "thread_id": NOBODY, "run_id": NOBODY}}
    run = await client.runs.create(thread_id, "contextual", input={"done": []}, config=config)
    assert run["kwargs"]["context"]["name"] == "bob"
    assert run["kwargs"]["config"]["configurable"]["thread_id"] == thread_id
    assert run["kwargs"]["config"]["configurable"]["run_id"] == run["run_id"]
    assert (await client.runs.join(thread_id, run["run_id"]))["done"] == ["bob"]

    with pytest.raises(APIStatusError) as refused:
        await client.runs.create(thread_id, "contextual", config=config, context={"name": "ann"})

    assert refused.value.status_code == 400


async def test_an_assistant_brings_its_own_config(client: LangGraphClient, thread_id: str):
    assistant = await client.assistants.create(
        "contextual", config={"tags": ["theirs"], "recursion_limit": 9}, context={"name": "carl", "other": 1}
    )
    name = assistant["assistant_id"]
    run = await client.runs.create(thread_id, name, input={"done": []}, config={"tags": ["mine"]})
    config = run["kwargs"]["config"]
    assert (config["tags"], config["recursion_limit"]) == (["mine"], 9)

    assert run["kwargs"]["context"] == {"name": "carl", "other": 1}
    assert (await client.runs.join(thread_id, run["run_id"]))["done"] == ["carl"]
    run = await client.runs.create(thread_id, name, input={"done": []}, context={"name": "dora"})
    assert run["kwargs"]["context"] == {"name": "dora", "other": 1}
    await client.runs.join(thread_id, run["run_id"])


@pytest.mark.parametrize("mode", MODES)
async def test_every_stream_mode_streams(client: LangGraphClient, mode: str):
    parts = [part async for part in client.runs.stream(None, "echo", input=HI, stream_mode=mode)]
    assert parts[0].event == "metadata"
    assert "error" not in [part.event for part in parts]
    assert mode == "custom" or len(parts) > 1


@pytest.mark.parametrize("modes", ["tools", ["values", "lifecycle"]])
async def test_an_unknown_stream_mode_is_refused_with_those_there_are(http: httpx2.AsyncClient, modes):
    response = await http.post("/runs/wait", json={"assistant_id": "echo", "input": HI, "stream_mode": modes})
    assert response.status_code == 422
    for word in ("stream_mode", "messages-tuple", "checkpoints"):
        assert word in response.text


async def test_static_interrupts(client: LangGraphClient, thread_id: str):
    start = {"done": [], "pause_s": 0}
    result = await client.runs.wait(thread_id, "steps", input=start, interrupt_before=["two"])
    assert result["done"] == ["one"]
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    result = await client.runs.wait(thread_id, "steps", input=None, interrupt_after=["two"])
    assert result["done"] == ["one", "two"]
    assert (await client.runs.wait(thread_id, "steps", input=None))["done"] == ["one", "two", "three"]

    assert (await client.threads.get(thread_id))["status"] == "idle"
    assert {run["status"] for run in await client.runs.list(thread_id)} == {"success"}


async def test_commands(client: LangGraphClient, thread_id: str):
    start = {"done": [], "pause_s": 0}
    await client.runs.wait(thread_id, "steps", input=start)
    result = await client.runs.wait(thread_id, "steps", command={"goto": "three"})
    assert result["done"] == ["one", "two", "three", "three"]
    result = await client.runs.wait(thread_id, "steps", command={"goto": ["three"], "update": {"done": ["u"]}})
    assert result["done"][4:] == ["u", "three"]

    send = {"node": "three", "input": {"done": [], "pause_s": 0}}
    for goto in (send, [send]):
        result = await client.runs.wait(thread_id, "steps", command={"goto": goto})
        assert result["done"][-1] == "three"

    result = await client.runs.wait(thread_id, "steps", command={"goto": "three", "update": [["done", ["pair"]]]})
    assert result["done"][-2:] == ["pair", "three"]


@pytest.mark.needs("langgraph", "1.2.20")
async def test_an_interrupt_is_answered_by_its_id_and_strictly(client: LangGraphClient, thread_id: str):
    asked = await client.runs.wait(thread_id, "approval", input={"text": "a"})
    answer = {asked["__interrupt__"][0]["id"]: "yes"}
    before = await client.threads.get(thread_id)
    wrong = await client.runs.wait(
        thread_id, "approval", command={"resume": {"0" * 32: "no"}}, strict_resume=True, raise_error=False
    )
    assert wrong["__error__"]["error"] == "UnknownInterruptError"

    after = await client.threads.get(thread_id)
    for name in ("status", "values", "interrupts", "error"):
        assert after[name] == before[name], name

    assert (await client.runs.list(thread_id))[0]["status"] == "error"
    result = await client.runs.wait(thread_id, "approval", command={"resume": answer}, strict_resume=True)
    assert result["decision"] == "yes"


async def test_a_run_may_start_from_an_older_checkpoint(client: LangGraphClient, thread_id: str):
    await client.runs.wait(thread_id, "steps", input={"done": ["a"], "pause_s": 0})
    history = await client.threads.get_history(thread_id, limit=10)
    before_two = next(state for state in history if state["next"] == ["two"])
    checkpoint = before_two["checkpoint"]
    again = await client.runs.wait(thread_id, "steps", input=None, checkpoint=checkpoint)
    assert again["done"] == ["a", "one", "two", "three"]
    by_id = await client.runs.wait(thread_id, "steps", input=None, checkpoint_id=checkpoint["checkpoint_id"])
    assert by_id == again


@pytest.mark.parametrize(
    ("asked", "kept"), [({"durability": "exit"}, 1), ({"checkpoint_during": False}, 1), ({"durability": "sync"}, 5)]
)
async def test_durability(http: httpx2.AsyncClient, client: LangGraphClient, thread_id: str, asked: dict, kept: int):
    body = {"assistant_id": "steps", "input": {"done": [], "pause_s": 0}, **asked}
    run = (await http.post(f"/threads/{thread_id}/runs", json=body)).json()
    await client.runs.join(thread_id, run["run_id"])
    assert run["kwargs"]["checkpoint_during"] == (kept > 1)
    assert len(await client.threads.get_history(thread_id, limit=20)) == kept


async def test_a_delayed_run_waits_and_keeps_its_thread_busy(client: LangGraphClient, thread_id: str):
    later = await client.runs.create(thread_id, "echo", input=HI, after_seconds=3600)
    assert (await client.threads.get(thread_id))["status"] == "busy"
    assert (await client.runs.get(thread_id, later["run_id"]))["status"] == "pending"
    await client.runs.cancel(thread_id, later["run_id"])

    soon = await client.runs.create(thread_id, "echo", input=HI, after_seconds=1)
    assert (await client.runs.join(thread_id, soon["run_id"]))["messages"][-1]["content"] == "echo: hi"
    ended = await client.runs.get(thread_id, soon["run_id"])
    created_at, ended_at = (datetime.fromisoformat(ended[name]) for name in ("created_at", "updated_at"))
    assert ended_at - created_at >= timedelta(seconds=1)


async def test_a_missing_thread_is_made_when_asked_for(client: LangGraphClient):
    missing = "01a1fbd3-88f9-7738-8000-0000000000aa"
    with pytest.raises(NotFoundError):
        await client.runs.create(missing, "echo", input=HI)

    await client.runs.wait(missing, "echo", input=HI, if_not_exists="create")
    assert (await client.threads.get(missing))["status"] == "idle"


async def test_run_reports_its_tracing_project(client: LangGraphClient, thread_id: str):
    tracing = {"project_name": "evals", "example_id": NOBODY}
    run = await client.runs.create(thread_id, "echo", input=HI, langsmith_tracing=tracing)
    assert run["langsmith_session_name"] == "evals"
    await client.runs.join(thread_id, run["run_id"])
    assert (await client.runs.get(thread_id, run["run_id"]))["langsmith_session_name"] == "evals"


async def test_unsupported_fields_of_a_run_are_refused(http: httpx2.AsyncClient):
    for field, value in (("feedback_keys", ["thumbs"]), ("webhook", "https://127.0.0.1/")):
        response = await http.post("/runs/stream", json={"assistant_id": "echo", "input": HI, field: value})
        assert response.status_code == 422
        assert field in response.text


async def test_batch_starts_all_runs_or_none(client: LangGraphClient, http: httpx2.AsyncClient):
    made = await client.runs.create_batch(
        [{"assistant_id": "echo", "input": HI, "metadata": {"n": n}, "on_completion": "keep"} for n in range(3)]
    )

    assert [run["metadata"]["n"] for run in made] == [0, 1, 2]
    assert len({run["thread_id"] for run in made}) == 3
    for run in made:
        result = await client.runs.join(run["thread_id"], run["run_id"])
        assert result["messages"][-1]["content"] == "echo: hi"

    # Threads of earlier tests may go meanwhile, so only those with this mark are counted.
    mark = {"batch": new_id()}
    good = {"assistant_id": "echo", "input": HI, "on_completion": "keep", "metadata": mark}
    for bad, status in (({"assistant_id": "nope"}, 422), ({"assistant_id": NOBODY}, 404), ({"input": HI}, 422)):
        assert (await http.post("/runs/batch", json=[good, bad])).status_code == status

    assert (await http.post("/runs/batch", json=[])).status_code == 422
    assert await client.threads.count(metadata=mark) == 0
    (run,) = (await http.post("/runs/batch", json=[good])).json()
    assert await client.threads.count(metadata=mark) == 1
    await client.runs.join(run["thread_id"], run["run_id"])


async def test_lists_show_what_was_selected(client: LangGraphClient, http: httpx2.AsyncClient, thread_id: str):
    for _ in range(3):
        await client.runs.wait(thread_id, "echo", input=HI)

    runs = await client.runs.list(thread_id)
    assert {"kwargs", "metadata", "cancel_reason"} <= set(runs[0])
    page = await client.runs.list(thread_id, limit=1, offset=1, select=["run_id", "status"])
    assert page == [{"run_id": runs[1]["run_id"], "status": "success"}]
    assert (await client.runs.list(thread_id, select=["kwargs"]))[0]["kwargs"] == runs[0]["kwargs"]
    assert await client.runs.list(thread_id, status="error") == []
    assert len(await client.runs.list(thread_id, status="success")) == 3

    assert (await http.get(f"/threads/{thread_id}/runs?status=whatever")).json() == []
    assert (await http.get(f"/threads/{thread_id}/runs?select=bogus")).status_code == 422
    assert (await http.get(f"/threads/{NOBODY}/runs")).status_code == 404


async def test_late_join_returns_the_same_as_a_live_one(client: LangGraphClient, thread_id: str):
    run = await client.runs.create(thread_id, "approval", input={"text": "a"}, after_seconds=1)
    live = await client.runs.join(thread_id, run["run_id"])
    assert live["__interrupt__"][0]["value"]["question"] == "approve?"
    assert live["text"] == "a!"
    assert await client.runs.join(thread_id, run["run_id"]) == live
    failed = await client.runs.wait(thread_id, "boom", input={"done": []}, raise_error=False)
    run_id = (await client.runs.list(thread_id, limit=1))[0]["run_id"]
    assert await client.runs.join(thread_id, run_id) == failed


async def test_unknown_runs_are_not_found(http: httpx2.AsyncClient, thread_id: str):
    for method, path in (
        ("GET", f"/threads/{thread_id}/runs/{NOBODY}"),
        ("GET", f"/threads/{thread_id}/runs/{NOBODY}/join"),
        ("GET", f"/threads/{thread_id}/runs/{NOBODY}/stream"),
        ("GET", f"/runs/{NOBODY}/stream"),
        ("GET", f"/runs/{NOBODY}/join"),
        ("DELETE", f"/threads/{thread_id}/runs/{NOBODY}"),
        ("POST", f"/threads/{thread_id}/runs/{NOBODY}/cancel"),
    ):
        assert (await http.request(method, path)).status_code == 404, path


async def test_runs_are_found_again_by_their_headers(http: httpx2.AsyncClient, thread_id: str):
    body = {"assistant_id": "echo", "input": HI}
    waited = await http.post(f"/threads/{thread_id}/runs/wait", json=body)
    path = waited.headers["content-location"]
    assert waited.headers["location"] == f"{path}/join"
    assert (await http.get(waited.headers["location"])).json() == waited.json()
    streamed = await http.post(f"/threads/{thread_id}/runs/stream", json=body)
    assert streamed.headers["location"] == f"{streamed.headers['content-location']}/stream"

    assert (await http.get(streamed.headers["location"])).status_code == 200


async def test_stateless_run_is_followed_by_its_id_alone(
    client: LangGraphClient, http: httpx2.AsyncClient, tmp_path: Path
):
    gate = tmp_path / "gate"
    config: dict[str, Any] = {"configurable": {"gates": {"three": str(gate)}}}
    run = await client.runs.create(None, "steps", input={"done": []}, config=config, stream_mode="updates")

    path = f"/runs/{run['run_id']}"
    async with http.stream("GET", f"{path}/stream") as stream, http.stream("GET", f"{path}/join") as join:
        assert (stream.status_code, join.status_code) == (200, 200)
        gate.touch()
        assert b"three" in await stream.aread()
        assert json.loads(await join.aread())["done"] == ["one", "two", "three"]

    async def is_gone() -> bool:
        return (await http.get(f"/threads/{run['thread_id']}")).status_code == 404

    await eventually(is_gone)


async def test_a_background_run_without_a_thread_is_joined_after_its_end_too(
    client: LangGraphClient, http: httpx2.AsyncClient
):
    run = await client.runs.create(None, "echo", input=HI)

    async def is_gone() -> bool:
        return (await http.get(f"/threads/{run['thread_id']}")).status_code == 404

    await eventually(is_gone)
    result = await client.runs.join(run["thread_id"], run["run_id"])
    assert [message["content"] for message in result["messages"]] == ["hi", "echo: hi"]


async def test_rollback_of_a_run_ends_joins(client: LangGraphClient, http: httpx2.AsyncClient, thread_id: str):
    run = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 600})
    async with http.stream("GET", f"/threads/{thread_id}/runs/{run['run_id']}/join") as join:
        assert join.status_code == 200
        await client.runs.cancel(thread_id, run["run_id"], action="rollback")
        result = json.loads(await join.aread())

    assert result["__error__"]["message"] == "404: Run not found"


@pytest.mark.parametrize("place", ["run", "assistant", "neither"])
async def test_anonymous_client_may_name_the_user(client: LangGraphClient, thread_id: str, place: str):
    config = {"configurable": {"user_id": "ann"}}
    assistant = await client.assistants.create("echo", config=config if place == "assistant" else None)
    given = config if place == "run" else None
    run = await client.runs.create(thread_id, assistant["assistant_id"], input=HI, config=given)
    stored = await client.runs.get(thread_id, run["run_id"])
    assert stored["kwargs"]["config"]["configurable"]["user_id"] == ("" if place == "neither" else "ann")
