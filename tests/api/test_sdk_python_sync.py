"""Every public method of the stock Python client against a server of ours: the synchronous one, once each."""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import NotFoundError

from tests.servers import PARITY_PROJECT, ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
FOO = {"foo": ["in"]}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project=str(PARITY_PROJECT)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=server.url, api_key="") as opened:
        yield opened


def texts(values: dict) -> list[str]:
    return [message["content"] for message in values["messages"]]


def test_assistants(client: SyncLangGraphClient):
    tag = {"tag": uuid4().hex}
    assistant = client.assistants.create("parent", metadata=tag, name="one")
    assistant_id = assistant["assistant_id"]
    assert client.assistants.update(assistant_id, name="two")["version"] == 2
    assert client.assistants.get(assistant_id)["name"] == "two"
    assert [row["version"] for row in client.assistants.get_versions(assistant_id)] == [2, 1]
    assert client.assistants.set_latest(assistant_id, 1)["name"] == "one"

    assert [row["name"] for row in client.assistants.search(metadata=tag)] == ["one"]
    assert client.assistants.count(metadata=tag) == 1
    assert client.assistants.get_graph(assistant_id)["nodes"][0]["id"] == "__start__"
    assert client.assistants.get_schemas(assistant_id)["graph_id"] == "parent"
    assert set(client.assistants.get_subgraphs(assistant_id)) == {"child"}
    client.assistants.delete(assistant_id)

    with pytest.raises(NotFoundError):
        client.assistants.get(assistant_id)


def test_threads(client: SyncLangGraphClient):
    tag = {"tag": uuid4().hex}
    thread_id = client.threads.create(metadata=tag)["thread_id"]
    client.runs.wait(thread_id, "twostep", input=FOO)
    assert client.threads.get(thread_id)["status"] == "idle"
    assert client.threads.update(thread_id, metadata={"a": 1})["metadata"]["a"] == 1
    assert [row["thread_id"] for row in client.threads.search(metadata=tag)] == [thread_id]
    assert client.threads.count(metadata=tag) == 1

    assert client.threads.get_state(thread_id)["values"]["foo"] == ["in", "a", "b"]
    assert len(client.threads.get_history(thread_id, limit=10)) == 4
    client.threads.update_state(thread_id, {"foo": ["hand"]})
    assert client.threads.get_state(thread_id)["values"]["foo"][-1] == "hand"
    copied = client.threads.copy(thread_id)["thread_id"]
    assert client.threads.prune([copied]) == {"pruned_count": 1}

    for part in client.threads.join_stream(thread_id, last_event_id="-"):
        if part.data.get("status") == "run_done":
            break

    client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        client.threads.get(thread_id)


def test_a_threads_session_of_events(client: SyncLangGraphClient):
    with client.threads.stream(assistant_id="approval") as thread:
        thread.run.start(input={"text": "a"})

        for event in thread.subscribe(["lifecycle"]):
            if event["params"]["data"]["event"] == "interrupted":
                break

        deadline = time.monotonic() + 120
        while not thread.interrupts and time.monotonic() < deadline:
            time.sleep(0.01)

        thread.run.respond("yes")
        assert thread.output == {"text": "done:yes", "decision": "yes"}


def test_runs(client: SyncLangGraphClient):
    thread_id = client.threads.create()["thread_id"]
    assert texts(client.runs.wait(thread_id, "echo", input=HI)) == ["hi", "echo: hi"]
    names = [part.event for part in client.runs.stream(thread_id, "echo", input=HI)]
    assert names == ["metadata", "values", "values"]
    run = client.runs.create(thread_id, "echo", input=HI, stream_resumable=True)
    assert len(client.runs.join(thread_id, run["run_id"])["messages"]) == 6
    assert client.runs.get(thread_id, run["run_id"])["status"] == "success"

    parts = client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")
    assert [part.event for part in parts] == ["metadata", "values", "values"]
    assert len(client.runs.list(thread_id)) == 3
    client.runs.delete(thread_id, run["run_id"])
    assert len(client.runs.list(thread_id)) == 2
    batch = client.runs.create_batch([{"assistant_id": "echo", "input": HI}, {"assistant_id": "echo", "input": HI}])
    assert len(batch) == 2


def test_runs_are_cancelled(client: SyncLangGraphClient):
    thread_id = client.threads.create()["thread_id"]
    first = client.runs.create(thread_id, "slow", input={"count": 10_000, "pause_s": 0.05})
    second = client.runs.create(thread_id, "slow", input={"count": 10_000, "pause_s": 0.05})
    client.runs.cancel_many(thread_id=thread_id, run_ids=[second["run_id"]])
    client.runs.cancel(thread_id, first["run_id"], wait=True)
    assert {run["status"] for run in client.runs.list(thread_id)} == {"interrupted"}


def test_the_store(client: SyncLangGraphClient):
    space = ["sdk", uuid4().hex]
    client.store.put_item(space, "k", {"n": 1})
    assert client.store.get_item(space, "k")["value"] == {"n": 1}
    assert [item["key"] for item in client.store.search_items(space)["items"]] == ["k"]
    assert client.store.list_namespaces(space)["namespaces"] == [space]
    client.store.delete_item(space, "k")
    assert client.store.get_item(space, "k") is None


def test_crons(client: SyncLangGraphClient):
    thread_id = client.threads.create()["thread_id"]
    bound = client.crons.create_for_thread(thread_id, "echo", schedule="0 0 1 1 *", input=HI)
    loose = client.crons.create("echo", schedule="0 0 1 1 *", input=HI)
    assert [cron["cron_id"] for cron in client.crons.search(thread_id=thread_id)] == [bound["cron_id"]]
    assert client.crons.count(thread_id=thread_id) == 1
    assert client.crons.update(loose["cron_id"], enabled=False)["enabled"] is False

    for cron in (bound, loose):
        client.crons.delete(cron["cron_id"])


def test_the_plain_requests_of_the_client(client: SyncLangGraphClient):
    path = f"/threads/{client.http.post('/threads', json={})['thread_id']}"
    assert client.http.get(path)["status"] == "idle"
    assert client.http.patch(path, json={"metadata": {"a": 1}})["metadata"] == {"a": 1}
    body = {"assistant_id": "echo", "input": HI}
    assert texts(client.http.request_reconnect(f"{path}/runs/wait", "POST", json=body)) == ["hi", "echo: hi"]
    assert len(list(client.http.stream(f"{path}/runs/stream", "POST", json=body))) == 3
    client.http.put("/store/items", json={"namespace": ["http"], "key": "k", "value": {}})

    client.http.delete("/store/items", json={"namespace": ["http"], "key": "k"})


def test_a_client_is_closed(server: ServerProcess):
    opened = get_sync_client(url=server.url, api_key="")
    assert opened.assistants.count() >= 1
    opened.close()
