"""Every public method of the stock Python client against a server of ours: the asynchronous one.

`test_sdk_coverage.py` fails when a method of the client is called nowhere here.
"""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest
from langgraph_sdk import get_client
from langgraph_sdk._async.stream import AsyncThreadStream
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError

from tests.conftest import eventually
from tests.servers import PARITY_PROJECT, ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
FOO = {"foo": ["in"]}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project=str(PARITY_PROJECT)) as running:
        yield running


@pytest.fixture
def tag() -> dict[str, str]:
    return {"tag": uuid4().hex}


async def new_thread(client: LangGraphClient, **fields) -> str:
    return (await client.threads.create(**fields))["thread_id"]


async def first_interrupt(session: AsyncThreadStream) -> dict | None:
    return session.interrupts[0] if session.interrupts else None


def texts(values: dict) -> list[str]:
    return [message["content"] for message in values["messages"]]


# Assistants


async def test_assistants_are_made_read_changed_and_deleted(client: LangGraphClient, tag: dict[str, str]):
    assistant = await client.assistants.create(
        "configurable", config={"tags": ["a"]}, context={"greeting": "moin"}, metadata=tag, name="Mine", description="d"
    )
    read = await client.assistants.get(assistant["assistant_id"])
    assert (read["name"], read["description"], read["context"]) == ("Mine", "d", {"greeting": "moin"})
    changed = await client.assistants.update(assistant["assistant_id"], name="Yours", metadata={"more": 1})
    assert (changed["name"], changed["version"], changed["metadata"]) == ("Yours", 2, {**tag, "more": 1})

    await client.assistants.delete(assistant["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(assistant["assistant_id"])


async def test_assistants_are_searched_and_counted(client: LangGraphClient, tag: dict[str, str]):
    for number in range(3):
        await client.assistants.create("echo", name=f"number {number}", metadata=tag)

    assistants = await client.assistants.search(
        metadata=tag, limit=2, sort_by="name", sort_order="asc", select=["name"]
    )
    assert assistants == [{"name": "number 0"}, {"name": "number 1"}]
    page = await client.assistants.search(metadata=tag, limit=2, response_format="object")
    assert (len(page["assistants"]), page["next"]) == (2, "2")
    assert await client.assistants.count(metadata=tag) == 3
    assert await client.assistants.count(metadata=tag, graph_id="boom") == 0


async def test_assistants_have_versions(client: LangGraphClient):
    assistant = await client.assistants.create("configurable", context={"greeting": "one"})
    await client.assistants.update(assistant["assistant_id"], context={"greeting": "two"})
    versions = await client.assistants.get_versions(assistant["assistant_id"])
    assert [row["version"] for row in versions] == [2, 1]
    latest = await client.assistants.set_latest(assistant["assistant_id"], 1)
    assert (latest["version"], latest["context"]) == (1, {"greeting": "one"})
    assert (await client.runs.wait(None, assistant["assistant_id"], input={"said": ""}))["said"] == "one"


async def test_assistants_show_their_graphs(client: LangGraphClient):
    graph = await client.assistants.get_graph("parent", xray=True)
    assert {"child:sub1", "child:sub2"} <= {node["id"] for node in graph["nodes"]}
    assistant = await client.assistants.create("parent")
    schemas = await client.assistants.get_schemas(assistant["assistant_id"])
    assert schemas["input_schema"]["properties"]["foo"]["type"] == "array"
    assert set(await client.assistants.get_subgraphs(assistant["assistant_id"], recurse=True)) == {"child"}


# Threads


async def test_threads_are_made_read_changed_and_deleted(client: LangGraphClient, tag: dict[str, str]):
    given = str(uuid4())
    thread = await client.threads.create(thread_id=given, metadata=tag, ttl=60)
    assert thread["thread_id"] == given
    assert (await client.threads.create(thread_id=given, if_exists="do_nothing"))["metadata"] == tag
    assert (await client.threads.get(given, include=["ttl"]))["ttl"]["ttl_minutes"] == 60
    assert (await client.threads.update(given, metadata={"more": 1}))["metadata"] == {**tag, "more": 1}
    assert await client.threads.update(given, metadata={"less": 1}, return_minimal=True) is None

    await client.threads.delete(given)
    with pytest.raises(NotFoundError):
        await client.threads.get(given)


async def test_threads_are_made_with_a_history(client: LangGraphClient):
    steps = [
        {"updates": [{"values": FOO, "as_node": "__start__"}]},
        {"updates": [{"values": {"foo": ["by hand"]}, "as_node": "a"}]},
    ]

    thread_id = await new_thread(client, graph_id="twostep", supersteps=steps)
    assert (await client.threads.get_state(thread_id))["next"] == ["b"]
    assert (await client.runs.wait(thread_id, "twostep"))["foo"] == ["in", "by hand", "b"]


async def test_threads_are_searched_and_counted(client: LangGraphClient, tag: dict[str, str]):
    ids = [await new_thread(client, metadata={**tag, "n": n}) for n in range(3)]
    await client.runs.wait(ids[2], "approval", input={"text": "a"})
    threads = await client.threads.search(
        metadata=tag, status="interrupted", values={"text": "a!"}, extract={"said": "values.text"}, select=["metadata"]
    )
    assert [(row["metadata"]["n"], row["extracted"]) for row in threads] == [(2, {"said": "a!"})]
    ordered = await client.threads.search(ids=ids, sort_by="created_at", sort_order="asc", limit=2, offset=1)
    assert [row["metadata"]["n"] for row in ordered] == [1, 2]

    assert await client.threads.count(metadata=tag) == 3
    assert await client.threads.count(metadata=tag, status="idle") == 2


async def test_threads_are_copied_and_pruned(client: LangGraphClient):
    thread_id = await new_thread(client, metadata={"label": "original"})
    await client.runs.wait(thread_id, "echo", input=HI)
    copied = await client.threads.copy(thread_id)
    assert copied["thread_id"] != thread_id
    assert texts((await client.threads.get_state(copied["thread_id"]))["values"]) == ["hi", "echo: hi"]
    assert await client.threads.prune([thread_id], strategy="keep_latest") == {"pruned_count": 1}
    assert len(await client.threads.get_history(thread_id, limit=10)) == 1

    assert await client.threads.prune([thread_id, copied["thread_id"]]) == {"pruned_count": 2}


async def test_threads_have_states_and_a_history(client: LangGraphClient):
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "twostep", input=FOO)
    history = await client.threads.get_history(thread_id, limit=10)
    assert [state["metadata"]["step"] for state in history] == [2, 1, 0, -1]
    older = history[1]["checkpoint"]
    assert (await client.threads.get_state(thread_id, checkpoint=older))["next"] == ["b"]
    assert (await client.threads.get_state(thread_id, checkpoint_id=older["checkpoint_id"]))["next"] == ["b"]

    before = await client.threads.get_history(thread_id, before=older, limit=10)
    assert [state["metadata"]["step"] for state in before] == [0, -1]
    assert len(await client.threads.get_history(thread_id, metadata={"step": 0}, limit=10)) == 1
    made = await client.threads.update_state(thread_id, {"foo": ["fork"]}, as_node="a", checkpoint=older)
    assert made["checkpoint"]["thread_id"] == thread_id
    assert (await client.runs.wait(thread_id, "twostep"))["foo"] == ["in", "a", "fork", "b"]


async def test_states_of_subgraphs(client: LangGraphClient):
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "nested_approval", input=FOO)
    state = await client.threads.get_state(thread_id, subgraphs=True)
    inner = state["tasks"][0]["state"]
    assert (inner["values"], inner["next"]) == ({"foo": ["in"]}, ["ia"])
    below = await client.threads.get_history(
        thread_id, checkpoint={"checkpoint_ns": inner["checkpoint"]["checkpoint_ns"]}, limit=5
    )
    assert below[0]["next"] == ["ia"]

    assert (await client.runs.wait(thread_id, "nested_approval", command={"resume": "yes"}))["foo"][-1] == "ia:yes"


async def test_a_threads_stream_has_all_its_runs(client: LangGraphClient):
    thread_id = await new_thread(client)
    for word in ("one", "two"):
        await client.runs.wait(thread_id, "twostep", input={"foo": [word]})

    names = []
    async with asyncio.timeout(60):
        async for part in await client.threads.join_stream(thread_id, last_event_id="-", stream_mode="lifecycle"):
            names.append((part.event, part.data.get("status")))
            if names.count(("metadata", "run_done")) == 2:
                break

    assert names.count(("metadata", None)) == 2


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_threads_session_of_events(client: LangGraphClient, transport: str):
    async with asyncio.timeout(60), client.threads.stream(assistant_id="approval", transport=transport) as thread:
        asked = thread.subscribe(["input", "lifecycle"])
        await thread.run.start(input={"text": "a"}, metadata={"from": "the session"})

        async for event in asked:
            if event["method"] == "lifecycle" and event["params"]["data"]["event"] == "interrupted":
                break

        # The session gets its interrupts over a stream of its own, which may be later than this one.
        interrupt = await eventually(lambda: first_interrupt(thread))
        assert interrupt["value"] == {"question": "approve?", "text": "a!"}
        await thread.run.respond("yes")
        assert await thread.output == {"text": "done:yes", "decision": "yes"}
        assert (await thread.agent.get_tree())["nodes"][0]["id"] == "__start__"


async def test_a_sessions_messages_come_token_by_token(client: LangGraphClient):
    async with asyncio.timeout(60), client.threads.stream(assistant_id="fake_chat") as thread:
        messages: asyncio.Queue = asyncio.Queue()

        async def gather_messages() -> None:
            async for message in thread.messages:
                messages.put_nowait(message)

        # A message gets its tokens while somebody asks for the next message.
        gathering = asyncio.create_task(gather_messages())
        await thread.run.start(input=HI)
        message = await messages.get()
        assert "".join([token async for token in message.text]) == "one two three four"
        assert texts(await thread.output) == ["hi", "one two three four"]
        gathering.cancel()


# Runs


async def test_runs_wait_and_stream(client: LangGraphClient):
    thread_id = await new_thread(client)
    assert texts(await client.runs.wait(thread_id, "echo", input=HI)) == ["hi", "echo: hi"]
    parts = [p async for p in client.runs.stream(thread_id, "echo", input=HI, stream_mode=["updates", "values"])]
    assert [part.event for part in parts] == ["metadata", "values", "updates", "values"]
    newer = [p async for p in client.runs.stream(None, "parent", input=FOO, stream_subgraphs=True, version="v2")]
    assert any(part["type"] == "values" and part["ns"] and part["ns"][0].startswith("child:") for part in newer)


async def test_runs_are_made_read_listed_joined_and_deleted(client: LangGraphClient):
    thread_id = await new_thread(client)
    run = await client.runs.create(
        thread_id,
        "twostep",
        input=FOO,
        metadata={"m": 1},
        stream_resumable=True,
        stream_mode="updates",
        if_not_exists="create",
        durability="sync",
        on_run_created=None,
    )

    assert (await client.runs.join(thread_id, run["run_id"]))["foo"] == ["in", "a", "b"]
    read = await client.runs.get(thread_id, run["run_id"])
    assert (read["status"], read["metadata"]["m"]) == ("success", 1)
    parts = [part async for part in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")]
    assert [part.event for part in parts] == ["metadata", "updates", "updates"]
    runs = await client.runs.list(thread_id, status="success", select=["run_id", "status"], limit=5)
    assert runs == [{"run_id": run["run_id"], "status": "success"}]

    await client.runs.delete(thread_id, run["run_id"])
    assert await client.runs.list(thread_id) == []


async def test_the_callback_learns_the_run(client: LangGraphClient):
    thread_id = await new_thread(client)
    reported = []
    await client.runs.wait(thread_id, "echo", input=HI, on_run_created=reported.append)

    async for _ in client.runs.stream(None, "echo", input=HI, on_run_created=reported.append):
        pass

    assert reported[0]["thread_id"] == thread_id
    assert all(one["run_id"] for one in reported)


async def test_runs_in_batches(client: LangGraphClient):
    runs = await client.runs.create_batch(
        [{"assistant_id": "echo", "input": HI, "on_completion": "keep"}, {"assistant_id": "plain", "input": {}}]
    )
    assert [run["metadata"]["graph_id"] for run in runs] == ["echo", "plain"]
    assert texts(await client.runs.join(runs[0]["thread_id"], runs[0]["run_id"])) == ["hi", "echo: hi"]


async def start_run(client: LangGraphClient) -> tuple[str, str]:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "slow", input={"count": 10_000, "pause_s": 0.05})

    async def has_begun() -> bool:
        return bool((await client.threads.get_state(thread_id))["values"])

    await eventually(has_begun)
    return thread_id, run["run_id"]


async def test_runs_are_cancelled(client: LangGraphClient):
    thread_id, run_id = await start_run(client)
    await client.runs.cancel(thread_id, run_id, wait=True)
    assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"
    thread_id, run_id = await start_run(client)

    await client.runs.cancel(thread_id, run_id, wait=True, action="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run_id)

    thread_id, run_id = await start_run(client)
    await client.runs.cancel_many(thread_id=thread_id, run_ids=[run_id])

    async def stopped() -> bool:
        return (await client.runs.get(thread_id, run_id))["status"] == "interrupted"

    await eventually(stopped)


# The store


async def test_the_store(client: LangGraphClient):
    space = ["sdk", uuid4().hex]
    await client.store.put_item(space, "k", {"n": 1, "text": "a"}, ttl=60)
    await client.store.put_item([*space, "deeper"], "k", {"n": 2}, index=False)
    item = await client.store.get_item(space, "k", refresh_ttl=True)
    assert (item["namespace"], item["key"], item["value"]) == (space, "k", {"n": 1, "text": "a"})
    items = await client.store.search_items(space, filter={"n": {"$gte": 2}}, limit=5)
    assert [row["namespace"] for row in items["items"]] == [[*space, "deeper"]]

    spaces = await client.store.list_namespaces(prefix=space, max_depth=3)
    assert sorted(spaces["namespaces"]) == [space, [*space, "deeper"]]
    await client.store.delete_item(space, "k")
    assert await client.store.get_item(space, "k") is None


# Crons


async def test_crons(client: LangGraphClient, tag: dict[str, str]):
    cron = await client.crons.create("echo", schedule="0 0 1 1 *", input=HI, metadata=tag, timezone="Europe/Berlin")
    thread_id = await new_thread(client)
    bound = await client.crons.create_for_thread(thread_id, "echo", schedule="@daily", input=HI, metadata=tag)
    assert bound["thread_id"] == thread_id
    crons = await client.crons.search(thread_id=thread_id, limit=5)
    assert [row["cron_id"] for row in crons] == [bound["cron_id"]]
    assert await client.crons.count(thread_id=thread_id) == 1

    changed = await client.crons.update(cron["cron_id"], schedule="0 0 2 1 *", enabled=False)
    assert (changed["schedule"], changed["enabled"]) == ("0 0 2 1 *", False)

    for one in (cron, bound):
        await client.crons.delete(one["cron_id"])

    assert await client.crons.count(thread_id=thread_id) == 0


# The client itself


async def test_the_plain_requests_of_the_client(client: LangGraphClient, tag: dict[str, str]):
    thread = await client.http.post("/threads", json={"metadata": tag})
    path = f"/threads/{thread['thread_id']}"
    assert (await client.http.get(path))["metadata"] == tag
    assert (await client.http.patch(path, json={"metadata": {"a": 1}}))["metadata"] == {**tag, "a": 1}
    body = {"assistant_id": "echo", "input": HI}
    assert texts(await client.http.request_reconnect(f"{path}/runs/wait", "POST", json=body)) == ["hi", "echo: hi"]
    names = [part.event async for part in client.http.stream(f"{path}/runs/stream", "POST", json=body)]
    assert names == ["metadata", "values", "values"]

    await client.http.put("/store/items", json={"namespace": ["http"], "key": "k", "value": {}})
    await client.http.delete("/store/items", json={"namespace": ["http"], "key": "k"})


async def test_a_client_is_closed(server: ServerProcess):
    opened = get_client(url=server.url, api_key="")
    assert await opened.assistants.count() >= 1
    await opened.aclose()
