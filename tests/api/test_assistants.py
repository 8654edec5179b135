"""Assistants over HTTP with the stock SDKs: created, changed, versioned, searched, deleted; their effect on runs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import httpx2
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

NOBODY = "01a1fbd3-88f9-7738-8000-000000000000"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="assistants") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url) as opened:
        yield opened


async def test_create_get_and_defaults(client: LangGraphClient):
    assistant = await client.assistants.create("parent")
    assert assistant == await client.assistants.get(assistant["assistant_id"])
    assert (assistant["graph_id"], assistant["name"], assistant["description"], assistant["version"]) == (
        "parent",
        "Untitled",
        None,
        1,
    )
    assert (assistant["config"], assistant["context"], assistant["metadata"]) == ({}, {}, {})
    assert assistant["created_at"] == assistant["updated_at"]
    full = await client.assistants.create(
        "parent", {"tags": ["t"], "recursion_limit": 9}, metadata={"a": 1}, name="N", description="D"
    )
    assert (full["name"], full["description"], full["metadata"]) == ("N", "D", {"a": 1})

    assert full["config"] == {"tags": ["t"], "recursion_limit": 9}


async def test_context_and_configurable_are_one_thing(client: LangGraphClient):
    by_context = await client.assistants.create("configured", {"tags": ["t"]}, context={"model": "big"})
    assert by_context["config"] == {"tags": ["t"], "configurable": {"model": "big"}}
    by_config = await client.assistants.create("configured", {"configurable": {"model": "big"}})
    assert by_config["context"] == {"model": "big"}

    with pytest.raises(APIStatusError, match="Cannot specify both configurable and context") as refused:
        await client.assistants.create("configured", {"configurable": {"model": "big"}}, context={"model": "x"})

    assert refused.value.status_code == 400

    assistant_id = by_context["assistant_id"]
    changed = await client.assistants.update(assistant_id, context={"model": "small"})
    assert changed["config"] == {"tags": ["t"], "configurable": {"model": "small"}}
    changed = await client.assistants.update(assistant_id, config={"configurable": {"heat": 1}})
    assert (changed["config"], changed["context"]) == ({"configurable": {"heat": 1}}, {"heat": 1})
    changed = await client.assistants.update(assistant_id, config={"tags": ["u"]})
    assert (changed["config"], changed["context"]) == ({"tags": ["u"], "configurable": {"heat": 1}}, {"heat": 1})

    changed = await client.assistants.update(assistant_id, context={})
    assert (changed["config"], changed["context"]) == ({"tags": ["u"]}, {})
    with pytest.raises(APIStatusError, match="Cannot specify both"):
        await client.assistants.update(assistant_id, config={"configurable": {"a": 1}}, context={"a": 1})

    assert (await client.assistants.get(assistant_id))["version"] == changed["version"]


async def test_an_id_that_is_taken(client: LangGraphClient):
    assistant_id = str(uuid4())
    first = await client.assistants.create("chat", assistant_id=assistant_id, name="first")
    with pytest.raises(APIStatusError, match=f"Assistant {assistant_id} already exists") as refused:
        await client.assistants.create("chat", assistant_id=assistant_id, name="second")

    assert refused.value.status_code == 409
    again = await client.assistants.create("parent", assistant_id=assistant_id, name="x", if_exists="do_nothing")
    assert again == first
    assert len(await client.assistants.get_versions(assistant_id)) == 1


async def test_one_id_asked_for_many_times_at_once_is_one_assistant(client: LangGraphClient):
    assistant_id = str(uuid4())
    made = await asyncio.gather(
        *(
            client.assistants.create("chat", assistant_id=assistant_id, name=str(n), if_exists="do_nothing")
            for n in range(8)
        )
    )

    assert all(assistant == made[0] for assistant in made)


async def test_every_change_is_a_version(client: LangGraphClient):
    assistant = await client.assistants.create("chat", metadata={"a": 1, "b": 1}, context={"x": 1}, name="one")
    assistant_id = assistant["assistant_id"]
    second = await client.assistants.update(assistant_id, metadata={"b": None, "c": 3}, name="two", graph_id="parent")
    assert (second["version"], second["metadata"]) == (2, {"a": 1, "b": None, "c": 3})
    assert (second["graph_id"], second["name"], second["context"]) == ("parent", "two", {"x": 1})
    assert second["created_at"] == assistant["created_at"] < second["updated_at"]
    third = await client.assistants.update(assistant_id)
    assert third["version"] == 3

    versions = await client.assistants.get_versions(assistant_id)
    assert [version["version"] for version in versions] == [3, 2, 1]
    assert versions[1] == {key: second[key] for key in second if key != "updated_at"} | {
        "created_at": second["updated_at"]
    }
    assert [v["version"] for v in await client.assistants.get_versions(assistant_id, limit=1, offset=1)] == [2]
    assert [v["version"] for v in await client.assistants.get_versions(assistant_id, {"c": 3})] == [3, 2]

    assert await client.assistants.get_versions(assistant_id, offset=3) == []


async def test_older_version_is_restored_completely(client: LangGraphClient):
    assistant = await client.assistants.create(
        "configured", context={"model": "old"}, metadata={"a": 1}, description="D"
    )
    assistant_id = assistant["assistant_id"]
    await client.assistants.update(
        assistant_id, context={"model": "new"}, metadata={"b": 2}, name="N", graph_id="chat", description="E"
    )

    back = await client.assistants.set_latest(assistant_id, 1)
    same = [key for key in assistant if key != "updated_at"]
    assert {key: back[key] for key in same} == {key: assistant[key] for key in same}
    assert back == await client.assistants.get(assistant_id)
    result = await client.runs.wait(None, assistant_id, input={"foo": []})
    assert "model=old" in result["foo"]
    assert (await client.assistants.update(assistant_id, name="later"))["version"] == 3

    with pytest.raises(APIStatusError, match=f"Version 99 not found for assistant {assistant_id}") as refused:
        await client.assistants.set_latest(assistant_id, 99)

    assert refused.value.status_code == 404


async def test_the_latest_version_by_query_as_well(client: LangGraphClient, http: httpx2.AsyncClient):
    assistant_id = (await client.assistants.create("chat", name="one"))["assistant_id"]
    await client.assistants.update(assistant_id, name="two")
    response = await http.post(f"/assistants/{assistant_id}/latest?version=1")
    assert (response.status_code, response.json()["name"]) == (200, "one")
    missing = await http.post(f"/assistants/{assistant_id}/latest", json={})
    assert (missing.status_code, "version" in str(missing.json()["detail"])) == (422, True)


async def test_changes_at_once_are_versions_of_their_own(client: LangGraphClient):
    assistant_id = (await client.assistants.create("chat"))["assistant_id"]
    changed = await asyncio.gather(
        *(client.assistants.update(assistant_id, metadata={str(n): n}) for n in range(12)),
        *(client.assistants.set_latest(assistant_id, 1) for _ in range(4)),
    )

    assert sorted(found["version"] for found in changed[:12]) == list(range(2, 14))
    versions = await client.assistants.get_versions(assistant_id, limit=100)
    assert [version["version"] for version in versions] == list(range(13, 0, -1))


async def test_search_filters_sorts_and_selects(client: LangGraphClient):
    mark = {"suite": uuid4().hex}
    names = ["100% Sure", "100 per cent", "a_b", "Zebra", "aXb", "back\\slash", "Ärger"]
    for number, name in enumerate(names):
        graph_id = "chat" if number % 2 else "parent"
        await client.assistants.create(graph_id, name=name, metadata={**mark, "deep": {"n": number, "m": 1}})

    async def found(**query) -> list[str]:
        return [each["name"] for each in await client.assistants.search(metadata=mark, **query)]

    assert await found() == names[::-1]
    assert await found(sort_by="created_at", sort_order="asc") == names
    assert await found(sort_by="name", sort_order="asc") == sorted(names, key=str.lower)
    assert await found(sort_by="name") == sorted(names, key=str.lower, reverse=True)
    assert await found(graph_id="chat") == [name for name in names[::-1] if names.index(name) % 2]
    assert await found(name="0%") == ["100% Sure"]
    assert await found(name="A_B") == ["a_b"]

    assert await found(name="k\\S") == ["back\\slash"]
    assert await found(name="äRG") == ["Ärger"]
    assert await found(limit=2, offset=1) == names[::-1][1:3]
    deep = await client.assistants.search(metadata={**mark, "deep": {"n": 2}})

    assert [each["name"] for each in deep] == ["a_b"]
    for sort_by in ("assistant_id", "updated_at", "graph_id", "created_at", "name"):
        up = await client.assistants.search(metadata=mark, sort_by=sort_by, sort_order="asc", select=[sort_by])
        assert up == sorted(up, key=lambda each, by=sort_by: each[by].lower())
        down = await client.assistants.search(metadata=mark, sort_by=sort_by, sort_order="desc", select=[sort_by])
        assert down == sorted(up, key=lambda each, by=sort_by: each[by].lower(), reverse=True)

    selected = await client.assistants.search(metadata=mark, select=["name", "version"], limit=1)
    assert selected == [{"name": "Ärger", "version": 1}]


async def test_pages_return_the_total(client: LangGraphClient, http: httpx2.AsyncClient):
    mark = {"suite": uuid4().hex}
    for _ in range(5):
        await client.assistants.create("chat", metadata=mark, name="same")

    seen = []
    cursor = "0"
    while cursor is not None:
        page = await client.assistants.search(
            metadata=mark, limit=2, offset=int(cursor), sort_by="name", response_format="object"
        )
        seen += [each["assistant_id"] for each in page["assistants"]]
        cursor = page["next"]

    assert len(seen) == len(set(seen)) == 5
    totals = [
        (await http.post("/assistants/search", json={"metadata": mark, "limit": 2, "offset": offset})).headers
        for offset in (0, 4, 5, 9)
    ]

    assert [headers["x-pagination-total"] for headers in totals] == ["5"] * 4
    assert [headers.get("x-pagination-next") for headers in totals] == ["2", None, None, None]
    assert await client.assistants.count(metadata=mark) == 5
    assert await client.assistants.count(metadata=mark, name="SAM", graph_id="chat") == 5
    assert await client.assistants.count(metadata=mark, graph_id="parent") == 0

    for ask in (client.assistants.count, client.assistants.search):
        with pytest.raises(APIStatusError, match="nowhere"):
            await ask(graph_id="nowhere")


async def test_delete_keeps_threads_by_default(client: LangGraphClient):
    async def run_on_thread(assistant_id: str) -> str:
        thread_id = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread_id, assistant_id, input={"foo": []})
        return thread_id

    one = (await client.assistants.create("parent"))["assistant_id"]
    two = (await client.assistants.create("parent"))["assistant_id"]
    kept = await run_on_thread(one)
    gone = await run_on_thread(two)

    await client.assistants.delete(one)
    await client.assistants.delete(two, delete_threads=True)
    assert (await client.threads.get(kept))["metadata"]["assistant_id"] == one

    with pytest.raises(APIStatusError, match="not found"):
        await client.threads.get(gone)

    for assistant_id in (one, two):
        with pytest.raises(APIStatusError, match=f"Assistant with ID {assistant_id} not found"):
            await client.assistants.delete(assistant_id)

        with pytest.raises(APIStatusError, match="Assistant not found"):
            await client.assistants.get_versions(assistant_id)


async def test_runs_on_deleted_threads_are_stopped(client: LangGraphClient, http: httpx2.AsyncClient):
    assistant_id = (await client.assistants.create("endless"))["assistant_id"]
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread_id, assistant_id, input={"foo": []})

    async def is_running() -> bool:
        return (await client.runs.get(thread_id, run["run_id"]))["status"] == "running"

    async def is_active() -> bool:
        return (await http.get("/metrics?format=json")).json()["workers"]["active"] > 0

    async def is_stopped() -> bool:
        return not await is_active()

    await eventually(is_running)
    # A worker counts a run once it has read the answer to its claim, which is after the status is visible.
    await eventually(is_active)
    await client.assistants.delete(assistant_id, delete_threads=True)
    await eventually(is_stopped)


async def test_runs_use_the_configuration_of_their_assistant(client: LangGraphClient):
    assistant = await client.assistants.create(
        "configured", {"tags": ["mine"], "recursion_limit": 7}, context={"model": "big", "heat": 0.9, "unknown": 1}
    )
    said = (await client.runs.wait(None, assistant["assistant_id"], input={"foo": []}))["foo"]
    assert said == ["model=big", "heat=0.9", "mirror=big", "tags=['mine']", "limit=7"]

    said = (
        await client.runs.wait(
            None,
            assistant["assistant_id"],
            input={"foo": []},
            context={"model": "tiny"},
            config={"tags": ["its"], "recursion_limit": 5},
        )
    )["foo"]

    assert said == ["model=tiny", "heat=0.9", "mirror=tiny", "tags=['its']", "limit=5"]
    said = (await client.runs.wait(None, "configured", input={"foo": []}))["foo"]
    assert said[:3] == ["model=small", "heat=0.5", "mirror=None"]


def test_the_sync_client_does_it_as_well(server: ServerProcess):
    with get_sync_client(url=server.url, api_key="") as client:
        assistants = client.assistants
        made = assistants.create("chat", name="sync", metadata={"s": 1})
        assistant_id = made["assistant_id"]
        assert assistants.update(assistant_id, name="sync2")["version"] == 2
        assert assistants.set_latest(assistant_id, 1)["name"] == "sync"
        assert [version["version"] for version in assistants.get_versions(assistant_id)] == [2, 1]
        assert [each["name"] for each in assistants.search(metadata={"s": 1})] == ["sync"]

        assert assistants.count(metadata={"s": 1}) == 1
        assert assistants.get(assistant_id)["version"] == 1
        assert assistants.get_graph(assistant_id)["nodes"][0]["id"] == "__start__"
        assert assistants.get_schemas(assistant_id)["graph_id"] == "chat"
        assert assistants.get_subgraphs(assistant_id) == {}
        assistants.delete(assistant_id)
        assert assistants.count(metadata={"s": 1}) == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/assistants", {"graph_id": "nope"}, 404, "Graph 'nope' not found. Expected one of: ['chat'"),
        ("POST", "/assistants", {}, 422, "graph_id"),
        ("POST", "/assistants", {"graph_id": None}, 422, "graph_id"),
        ("POST", "/assistants", {"graph_id": "chat", "assistant_id": "x"}, 422, "assistant_id"),
        ("POST", "/assistants", {"graph_id": "chat", "if_exists": "x"}, 422, "if_exists"),
        ("POST", "/assistants", {"graph_id": "chat", "metadata": []}, 422, "metadata"),
        ("POST", "/assistants", {"graph_id": "chat", "name": "n" * 513}, 422, "name"),
        ("POST", "/assistants", {"graph_id": "chat", "config": {"recursion_limit": 2**70}}, 422, "recursion_limit"),
        ("POST", "/assistants", {"graph_id": "chat", "config": {"tags": [1]}}, 422, "tags"),
        ("GET", "/assistants/chat", None, 422, "Invalid assistant ID: must be a UUID"),
        ("GET", f"/assistants/{NOBODY}", None, 404, "Assistant not found"),
        ("PATCH", f"/assistants/{NOBODY}", {}, 404, f"Assistant {NOBODY} not found"),
        ("PATCH", f"/assistants/{NOBODY}", {"graph_id": "nope"}, 404, "Graph 'nope' not found"),
        ("DELETE", f"/assistants/{NOBODY}", None, 404, f"Assistant with ID {NOBODY} not found"),
        ("DELETE", f"/assistants/{NOBODY}?delete_threads=maybe", None, 422, "delete_threads"),
        ("POST", f"/assistants/{NOBODY}/versions", {}, 404, "Assistant not found"),
        ("POST", f"/assistants/{NOBODY}/versions", {"limit": 0}, 422, "limit"),
        ("POST", f"/assistants/{NOBODY}/latest", {"version": 1}, 404, "Version 1 not found"),
        ("POST", f"/assistants/{NOBODY}/latest", {"version": 2**40}, 422, "version"),
        ("POST", "/assistants/search", {"graph_id": "nope"}, 404, "Graph 'nope' not found"),
        ("POST", "/assistants/search", {"limit": 1001}, 422, "limit"),
        ("POST", "/assistants/search", {"sort_by": "version"}, 422, "sort_by"),
        ("POST", "/assistants/search", {"sort_order": "up"}, 422, "sort_order"),
        ("POST", "/assistants/search", {"select": ["secret"]}, 422, "select"),
        ("POST", "/runs/wait", {"assistant_id": NOBODY}, 404, "Thread or assistant not found."),
    ],
)
async def test_bad_requests_are_explained(http: httpx2.AsyncClient, method, path, body, status, says):
    before = await http.post("/assistants/count", json={})
    response = await http.request(method, path, json=body)
    assert (response.status_code, says in str(response.json()["detail"])) == (status, True), response.text
    assert (await http.post("/assistants/count", json={})).json() == before.json()


async def test_null_is_absent(http: httpx2.AsyncClient):
    nothing = dict.fromkeys(("config", "context", "metadata", "name", "description", "if_exists", "assistant_id"))
    response = await http.post("/assistants", json={"graph_id": "chat", **nothing})
    assert (response.status_code, response.json()["name"]) == (200, "Untitled")
    changed = await http.patch(f"/assistants/{response.json()['assistant_id']}", json={"graph_id": None, **nothing})
    assert (changed.json()["version"], changed.json()["graph_id"]) == (2, "chat")
    everything = dict.fromkeys(("limit", "offset", "sort_by", "sort_order", "select", "name", "metadata", "graph_id"))
    assert (await http.post("/assistants/search", json=everything)).status_code == 200
