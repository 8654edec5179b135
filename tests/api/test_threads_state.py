"""The state and history of threads through the stock Python SDK and RemoteGraph.

A person's change of a state locks the thread and is one transaction with the thread's row: no run starts in between,
and no change is partial.
"""

import asyncio
from uuid import uuid4

import httpx2
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.servers import agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
FIELDS = {
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
}


@pytest.fixture
async def waiting_thread(client: LangGraphClient) -> str:
    """A thread that waits for an answer: draft has run, ask has not."""
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "approval", input={"text": "a"})
    return thread_id


@pytest.fixture
async def nested_thread(client: LangGraphClient) -> str:
    """A thread whose subgraph waits for an answer."""
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "nested", input={"text": "a"})
    return thread_id


async def expect_refusal(call) -> tuple[int, str]:
    with pytest.raises(APIStatusError) as caught:
        await call
    return caught.value.status_code, caught.value.response.text


async def test_a_thread_without_a_checkpoint_has_the_empty_state(client):
    thread_id = (await client.threads.create())["thread_id"]
    state = await client.threads.get_state(thread_id)
    assert state.keys() == FIELDS
    assert (state["values"], state["next"], state["tasks"], state["interrupts"]) == ({}, [], [], [])
    assert state["checkpoint"] is state["metadata"] is state["created_at"] is None
    assert await client.threads.get_history(thread_id) == []


async def test_state_of_an_interrupted_thread(client, waiting_thread):
    state = await client.threads.get_state(waiting_thread)
    assert state.keys() == FIELDS
    assert (state["values"], state["next"]) == ({"text": "a!"}, ["ask"])
    assert state["checkpoint"] == {
        "thread_id": waiting_thread,
        "checkpoint_ns": "",
        "checkpoint_id": state["checkpoint_id"],
    }
    assert [task["name"] for task in state["tasks"]] == ["ask"]
    assert [one.keys() for one in state["interrupts"]] == [{"id", "value"}]
    assert state["metadata"]["thread_id"] == waiting_thread


async def test_a_state_by_its_checkpoint(client, waiting_thread):
    latest, before = (await client.threads.get_history(waiting_thread, limit=2))[:2]
    for at in ({"checkpoint_id": before["checkpoint_id"]}, {"checkpoint": before["checkpoint"]}):
        state = await client.threads.get_state(waiting_thread, **at)
        assert (state["values"], state["next"]) == ({"text": "a"}, ["draft"])

    assert latest["parent_checkpoint"] == before["checkpoint"]
    newest = await client.threads.get_state(
        waiting_thread, checkpoint={"thread_id": waiting_thread, "checkpoint_ns": ""}
    )
    assert newest["checkpoint_id"] == latest["checkpoint_id"]


@pytest.mark.parametrize("unknown", ["abc", "1f1e5503-cdc6-6000-8000-000000000000", "~", "é"])
async def test_missing_checkpoint_is_404(client, waiting_thread, unknown):
    fresh = (await client.threads.create())["thread_id"]
    for thread_id in (waiting_thread, fresh):
        # The peer answers with an empty state.
        for at in ({"checkpoint_id": unknown}, {"checkpoint": {"checkpoint_id": unknown, "checkpoint_ns": ""}}):
            status, text = await expect_refusal(client.threads.get_state(thread_id, **at))
            assert (status, unknown in text) == (404, True)

    status, _ = await expect_refusal(client.threads.update_state(waiting_thread, {"text": "x"}, checkpoint_id=unknown))
    assert status == 404
    assert len(await client.threads.get_history(waiting_thread, limit=10)) == 3


async def test_a_subgraph_with_and_without_its_own_state(client, nested_thread):
    state = await client.threads.get_state(nested_thread)
    [task] = state["tasks"]
    assert task["checkpoint"] == {"thread_id": nested_thread, "checkpoint_ns": f"child:{task['id']}"}
    assert task["state"] is None
    deep = (await client.threads.get_state(nested_thread, subgraphs=True))["tasks"][0]
    assert deep["checkpoint"] is None
    assert deep["state"]["next"] == ["inquire"]

    inner = await client.threads.get_state(nested_thread, checkpoint=task["checkpoint"])
    assert (inner["next"], inner["values"]) == (["inquire"], {"text": "a!"})
    history = await client.threads.get_history(nested_thread, checkpoint=task["checkpoint"], limit=10)
    assert {one["checkpoint"]["checkpoint_ns"] for one in history} == {f"child:{task['id']}"}

    # The subgraph has later checkpoints than the graph.
    patched = await client.http.patch(f"/threads/{nested_thread}/state", json={"metadata": {"label": "outer"}})
    assert patched["checkpoint_id"] == state["checkpoint_id"]
    assert "label" not in (await client.threads.get_state(nested_thread, checkpoint=task["checkpoint"]))["metadata"]


@pytest.mark.needs("langgraph", "1.2.15")
async def test_missing_subgraph_has_no_state_and_cannot_be_changed(client, waiting_thread):
    at = {"thread_id": waiting_thread, "checkpoint_ns": "bogus:1"}
    state = await client.threads.get_state(waiting_thread, checkpoint=at)
    assert (state["values"], state["next"]) == ({}, [])
    assert await client.threads.get_history(waiting_thread, checkpoint=at) == []
    status, text = await expect_refusal(client.threads.update_state(waiting_thread, {"text": "x"}, checkpoint=at))
    assert (status, "bogus" in text) == (400, True)


async def test_select_returns_only_selected_fields(client, waiting_thread):
    before = (await client.threads.get_history(waiting_thread, limit=2))[1]
    for at in ({}, {"checkpoint_id": before["checkpoint_id"]}, {"checkpoint": before["checkpoint"]}):
        state = await client.threads.get_state(waiting_thread, **at, select=["next", "values.text", "values.nothing"])
        assert state.keys() == {"next", "values"}
        assert state["values"].keys() == {"text"}
        assert (await expect_refusal(client.threads.get_state(waiting_thread, **at, select=["secrets"])))[0] == 422

    assert [set(one) for one in await client.threads.get_history(waiting_thread, limit=5, select=["values"])] == [
        {"values"}
    ] * 3
    assert (await expect_refusal(client.threads.get_history(waiting_thread, select=["secrets"])))[0] == 422


async def test_history_is_one_checkpoint_unless_more_is_asked_for(server, waiting_thread):
    url = f"{server.url}/threads/{waiting_thread}/history"
    assert [len(response.json()) for response in (httpx2.get(url), httpx2.post(url, json={}))] == [1, 1]
    everything = httpx2.post(url, json={"limit": 10, "before": None, "metadata": None, "checkpoint": None}).json()
    assert [state["metadata"]["step"] for state in everything] == [1, 0, -1]
    assert httpx2.get(url, params={"limit": 10}).json() == everything

    for limit in (0, 1001, "abc"):
        assert httpx2.get(url, params={"limit": limit}).status_code == 422
        assert httpx2.post(url, json={"limit": limit}).status_code == 422


async def test_history_before_a_checkpoint_in_every_form(client, server, waiting_thread):
    everything = await client.threads.get_history(waiting_thread, limit=10)
    first = everything[0]

    # The peer answers the second with a 500 and the first with a 422.
    for before in (first["checkpoint_id"], first["checkpoint"], {"configurable": first["checkpoint"]}):
        assert await client.threads.get_history(waiting_thread, limit=10, before=before) == everything[1:]

    url = f"{server.url}/threads/{waiting_thread}/history"
    assert httpx2.get(url, params={"limit": 10, "before": first["checkpoint_id"]}).json() == everything[1:]

    for bad in (3, {}, {"checkpoint_id": 1}, {"configurable": None}):
        response = httpx2.post(url, json={"before": bad})
        assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["body", "before"])


async def test_history_filtered_by_metadata(client, waiting_thread):
    history = await client.threads.get_history(waiting_thread, limit=10, metadata={"source": "input"})
    assert [state["metadata"]["step"] for state in history] == [-1]
    assert await client.threads.get_history(waiting_thread, limit=10, metadata={"source": "nowhere"}) == []


async def test_an_update_refreshes_the_thread(client, waiting_thread):
    before = await client.threads.get(waiting_thread)
    made = await client.threads.update_state(waiting_thread, {"text": "edited"}, as_node="draft")
    assert made["checkpoint"] == made["configurable"]
    assert made["checkpoint"] == {
        "thread_id": waiting_thread,
        "checkpoint_ns": "",
        "checkpoint_id": made["checkpoint_id"],
    }
    state = await client.threads.get_state(waiting_thread)

    assert (state["values"], state["next"], state["checkpoint_id"]) == (
        {"text": "edited"},
        ["ask"],
        made["checkpoint_id"],
    )

    assert (state["metadata"]["source"], state["metadata"]["graph_id"]) == ("update", "approval")
    thread = await client.threads.get(waiting_thread)
    assert (thread["values"], thread["status"]) == ({"text": "edited"}, "interrupted")
    assert thread["state_updated_at"] > before["state_updated_at"]
    await client.threads.update_state(waiting_thread, {"decision": "no"}, as_node="ask")

    thread = await client.threads.get(waiting_thread)
    assert (thread["values"], thread["status"], thread["interrupts"]) == (
        {"text": "edited", "decision": "no"},
        "idle",
        {},
    )


@pytest.mark.parametrize("by", ["checkpoint", "checkpoint_id"])
async def test_an_update_of_an_old_checkpoint_forks(client, waiting_thread, by):
    old = (await client.threads.get_history(waiting_thread, limit=3))[2]
    made = await client.threads.update_state(waiting_thread, {"text": "fork"}, as_node="__start__", **{by: old[by]})
    state = await client.threads.get_state(waiting_thread)
    assert (state["checkpoint_id"], state["parent_checkpoint_id"]) == (made["checkpoint_id"], old["checkpoint_id"])

    # The peer leaves the values of the thread as they were.
    assert (await client.threads.get(waiting_thread))["values"] == {"text": "fork"}
    assert (await client.runs.wait(waiting_thread, "approval", input=None))["text"] == "fork!"


async def test_an_update_inside_a_subgraph(client, nested_thread):
    [task] = (await client.threads.get_state(nested_thread))["tasks"]
    made = await client.threads.update_state(nested_thread, {"text": "inside"}, checkpoint=task["checkpoint"])
    assert made["checkpoint"]["checkpoint_ns"] == f"child:{task['id']}"
    inner = (await client.threads.get_state(nested_thread, subgraphs=True))["tasks"][0]["state"]
    assert inner["values"] == {"text": "inside"}


@pytest.mark.parametrize(
    ("values", "as_node", "said"),
    [({"text": "x"}, "bogus", "Node bogus does not exist"), ([1, 2], "draft", "dict"), (["a"], None, "dict")],
)
async def test_invalid_update_changes_nothing(client, waiting_thread, values, as_node, said):
    before = await client.threads.get_history(waiting_thread, limit=10)
    status, text = await expect_refusal(client.threads.update_state(waiting_thread, values, as_node=as_node))
    assert (status, said in text) == (400, True)
    assert await client.threads.get_history(waiting_thread, limit=10) == before


async def test_an_update_needs_a_graph(client):
    thread_id = (await client.threads.create())["thread_id"]
    status, text = await expect_refusal(client.threads.update_state(thread_id, {"text": "x"}))
    assert (status, f"Thread '{thread_id}' has no assigned graph ID" in text) == (400, True)
    assert (await expect_refusal(client.threads.update_state(str(uuid4()), {"text": "x"})))[0] == 404


async def test_thread_of_a_removed_graph_is_a_clear_error(client):
    thread_id = (await client.threads.create(graph_id="gone"))["thread_id"]
    calls = (
        client.threads.get_state(thread_id),
        client.threads.get_history(thread_id),
        client.threads.update_state(thread_id, {"text": "x"}),
    )

    for call in calls:
        status, text = await expect_refusal(call)
        assert (status, "Graph 'gone' not found" in text) == (404, True)


async def test_an_update_is_refused_while_a_run_is_in_flight(client):
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 600})
    status, text = await expect_refusal(client.threads.update_state(thread_id, {"done": ["x"]}, as_node="one"))
    assert (status, f"Thread {thread_id} has in-flight runs" in text) == (409, True)
    await client.runs.cancel(thread_id, run["run_id"], wait=True)
    await client.threads.update_state(thread_id, {"done": ["x"]}, as_node="three")
    assert (await client.threads.get(thread_id))["values"]["done"] == ["x"]


async def test_concurrent_updates_and_runs_are_serialized(client):
    thread_id = (await client.threads.create(graph_id="steps"))["thread_id"]

    async def update() -> int:
        try:
            await client.threads.update_state(thread_id, {"done": ["x"]}, as_node="three")
        except APIStatusError as exc:
            assert exc.status_code == 409
            return 0

        return 1

    async def run() -> int:
        return len((await client.runs.wait(thread_id, "steps", input={"done": [], "pause_s": 0}))["done"]) and 3

    added = sum(await asyncio.gather(*(call() for _ in range(8) for call in (update, run))))
    state = await client.threads.get_state(thread_id)
    thread = await client.threads.get(thread_id)
    assert len(state["values"]["done"]) == added
    assert thread["values"]["done"] == state["values"]["done"]
    assert thread["status"] == "idle"


async def test_metadata_of_a_checkpoint_can_be_patched(client, server, waiting_thread):
    url = f"{server.url}/threads/{waiting_thread}/state"
    state = await client.threads.get_state(waiting_thread)
    made = httpx2.patch(url, json={"metadata": {"label": "good"}}).json()
    assert made["checkpoint"] == state["checkpoint"]
    assert (await client.threads.get_state(waiting_thread))["metadata"] == {**state["metadata"], "label": "good"}
    older = state["parent_checkpoint_id"]

    httpx2.patch(url, json={"metadata": {"label": "old"}, "checkpoint_id": older}).raise_for_status()
    history = await client.threads.get_history(waiting_thread, limit=10, metadata={"label": "old"})
    assert [one["checkpoint_id"] for one in history] == [older]

    kept = ("source", "step", "parents", "run_id", "thread_id", "counters_since_delta_snapshot")
    for body, status in (
        *(({"metadata": {name: 3}}, 422) for name in kept),
        ({"metadata": {"a": 1}, "checkpoint_id": "nope"}, 404),
        ({}, 422),
    ):
        assert httpx2.patch(url, json=body).status_code == status

    assert httpx2.patch(f"{server.url}/threads/{uuid4()}/state", json={"metadata": {}}).status_code == 404


async def test_a_remote_graph_reads_and_changes_states(client, waiting_thread):
    remote = RemoteGraph("approval", client=client)
    config = {"configurable": {"thread_id": waiting_thread}}
    state = await remote.aget_state(config)
    assert (state.values, state.next) == ({"text": "a!"}, ("ask",))
    history = [one async for one in remote.aget_state_history(config, limit=10)]
    assert [one.metadata["step"] for one in history] == [1, 0, -1]
    older = [one async for one in remote.aget_state_history(config, limit=10, before=history[0].config)]
    assert len(older) == 2

    made = await remote.aupdate_state(history[1].config, {"text": "remote"}, as_node="draft")
    assert (await remote.aget_state(made)).values == {"text": "remote"}


async def test_a_remote_graph_reads_a_thread_without_a_state(client):
    thread_id = (await client.threads.create(graph_id="approval"))["thread_id"]
    state = await RemoteGraph("approval", client=client).aget_state({"configurable": {"thread_id": thread_id}})
    assert (state.values, state.next) == ({}, ())


async def test_a_thread_whose_run_failed_on_its_input_can_be_read(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    result = await client.runs.wait(thread_id, "echo", input={"messages": [{"role": "nope"}]}, raise_error=False)
    assert result["__error__"]["error"] == "ValueError"
    state = await client.threads.get_state(thread_id)
    assert (state["values"], state["next"]) == ({"messages": []}, ["__start__"])
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]["error"]) == ("error", "ValueError")

    await client.threads.update_state(thread_id, {"messages": []}, as_node="__start__")
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]) == ("interrupted", None)
    await client.runs.wait(thread_id, "echo", input=HI)
    assert len((await client.threads.get_state(thread_id))["values"]["messages"]) == 2


async def test_two_servers_read_each_others_changes(client, module_database, tmp_path, waiting_thread):
    with agent_server(module_database, tmp_path) as second:
        async with get_client(url=second.url, api_key="") as other:
            for by in (other, client):
                await by.threads.update_state(waiting_thread, {"text": str(id(by))}, as_node="draft")
                for reader in (client, other, client, other):
                    assert (await reader.threads.get_state(waiting_thread))["values"]["text"] == str(id(by))

            await other.runs.wait(waiting_thread, "approval", command={"resume": "yes"})
            states = [await reader.threads.get_state(waiting_thread) for reader in (client, other)]
            assert states[0] == states[1]
            assert (states[0]["next"], states[0]["values"]["decision"]) == ([], "yes")
            await other.threads.delete(waiting_thread)
            assert (await expect_refusal(client.threads.get_state(waiting_thread)))[0] == 404


@pytest.mark.parametrize("place", ["run", "assistant"])
async def test_the_state_of_a_graph_made_by_a_factory_is_read_with_its_configuration(
    client: LangGraphClient, place: str
):
    config = {"configurable": {"names": ["draft", "review"]}}
    assistant = await client.assistants.create("configured", config=config if place == "assistant" else None)
    thread_id = (await client.threads.create())["thread_id"]
    given = config if place == "run" else None

    await client.runs.wait(thread_id, assistant["assistant_id"], input={"done": []}, config=given)
    state = await client.threads.get_state(thread_id)
    assert (state["next"], state["interrupts"][0]["value"]) == (["review"], "review?")

    history = await client.threads.get_history(thread_id)
    assert [each["next"] for each in history] == [["review"], ["draft"], ["__start__"]]

    # The configuration of a run that forks names the checkpoint where it began, which is not the thread's latest.
    older = history[-1]["checkpoint_id"]
    await client.runs.wait(thread_id, assistant["assistant_id"], input=None, config=given, checkpoint_id=older)
    assert (await client.threads.get_state(thread_id))["next"] == ["review"]

    await client.threads.update_state(thread_id, {"done": ["yes"]}, as_node="review")
    state = await client.threads.get_state(thread_id)
    assert (state["next"], state["values"]["done"]) == ([], ["draft", "yes"])


async def test_the_state_of_a_thread_without_runs_is_changed_with_its_assistants_configuration(client: LangGraphClient):
    config = {"configurable": {"names": ["draft", "review"]}}
    assistant = await client.assistants.create("configured", config=config)
    metadata = {"graph_id": "configured", "assistant_id": assistant["assistant_id"]}
    thread_id = (await client.threads.create(metadata=metadata))["thread_id"]

    await client.threads.update_state(thread_id, {"done": ["said"]}, as_node="draft")
    assert (await client.threads.get_state(thread_id))["next"] == ["review"]
