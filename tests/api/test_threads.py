"""Threads as the stock Python SDK makes, finds, changes, copies and deletes them."""

import asyncio
from datetime import datetime, timedelta
from uuid import uuid4

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError

from tests.servers import ServerProcess

HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def mark() -> dict[str, str]:
    """Metadata that only the threads of one test have."""
    return {"test": uuid4().hex}


def post(server: ServerProcess, path: str, body: object, **headers: str) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, headers=headers, timeout=300)


async def expect_refusal(call) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await call
    return caught.value


async def test_new_thread_has_the_fields_of_the_contract(client):
    thread = await client.threads.create(metadata={"topic": "tests"}, graph_id="echo")
    assert thread.keys() == {
        "thread_id",
        "created_at",
        "updated_at",
        "state_updated_at",
        "metadata",
        "status",
        "config",
        "values",
    }

    assert (thread["status"], thread["config"], thread["values"]) == ("idle", {}, None)
    assert thread["metadata"] == {"topic": "tests", "graph_id": "echo"}
    assert thread["created_at"].endswith("+00:00")
    assert await client.threads.get(thread["thread_id"]) == thread


async def test_after_a_run_interrupts_and_error_are_there(client):
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "echo", input=HI)
    thread = await client.threads.get(thread_id)
    assert (thread["interrupts"], thread["error"], len(thread["values"]["messages"])) == ({}, None, 2)


async def test_creating_twice(client):
    thread_id = str(uuid4())
    first = await client.threads.create(thread_id=thread_id, metadata={"n": 1})
    assert (await expect_refusal(client.threads.create(thread_id=thread_id))).status_code == 409
    again = await client.threads.create(thread_id=thread_id, metadata={"n": 2}, if_exists="do_nothing")
    assert again == first


async def test_concurrent_creates_of_one_thread_create_one(client):
    thread_id = str(uuid4())
    made = await asyncio.gather(
        *(client.threads.create(thread_id=thread_id, metadata={"n": n}, if_exists="do_nothing") for n in range(10))
    )
    assert len({thread["metadata"]["n"] for thread in made}) == 1


async def test_a_lifetime_is_shown_when_asked_for(client):
    plain = await client.threads.create()
    assert "ttl" not in await client.threads.get(plain["thread_id"], include=["ttl", "unknown"])
    thread = await client.threads.create(ttl=30)
    assert "ttl" not in thread
    shown = (await client.threads.get(thread["thread_id"], include=["ttl"]))["ttl"]
    expires = datetime.fromisoformat(shown.pop("expires_at"))
    assert shown == {"strategy": "delete", "ttl_minutes": 30}

    assert expires == datetime.fromisoformat(thread["updated_at"]) + timedelta(minutes=30)
    ttl = {"ttl": 0.5, "strategy": "keep_latest"}
    updated = await client.threads.update(thread["thread_id"], metadata={}, ttl=ttl)
    shown = (await client.threads.get(thread["thread_id"], include=["ttl"]))["ttl"]
    assert (shown["strategy"], shown["ttl_minutes"]) == ("keep_latest", 0.5)
    assert datetime.fromisoformat(shown["expires_at"]) > datetime.fromisoformat(updated["updated_at"])


async def test_a_bare_number_is_a_lifetime_too(server):
    made = post(server, "/threads", {"ttl": 7}).json()
    shown = httpx2.get(f"{server.url}/threads/{made['thread_id']}?include=ttl").json()["ttl"]
    assert (shown["strategy"], shown["ttl_minutes"]) == ("delete", 7)


async def test_an_update_merges_metadata_and_moves_updated_at_alone(client):
    thread = await client.threads.create(metadata={"a": 1, "b": {"x": 1}})
    updated = await client.threads.update(thread["thread_id"], metadata={"b": {"y": 2}, "c": None})
    assert updated["metadata"] == {"a": 1, "b": {"y": 2}, "c": None}
    assert updated["updated_at"] > thread["updated_at"]
    assert updated["state_updated_at"] == thread["state_updated_at"]
    assert await client.threads.update(thread["thread_id"], metadata={"d": 1}, return_minimal=True) is None
    assert (await client.threads.get(thread["thread_id"]))["metadata"]["d"] == 1

    assert (await expect_refusal(client.threads.update(str(uuid4()), metadata={}))).status_code == 404


async def test_deleting(client):
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "echo", input=HI)
    await client.threads.delete(thread_id)

    for call in (client.threads.get(thread_id), client.threads.get_state(thread_id), client.threads.delete(thread_id)):
        assert (await expect_refusal(call)).status_code == 404


async def create_threads(client: LangGraphClient, mark: dict[str, str], count: int, **more: object) -> list[str]:
    return [(await client.threads.create(metadata={**mark, "n": n, **more}))["thread_id"] for n in range(count)]


async def test_search_finds_the_last_updated_first(client, mark):
    threads = await create_threads(client, mark, 4)
    await client.threads.update(threads[1], metadata={"touched": True})
    found = await client.threads.search(metadata=mark)
    assert [thread["thread_id"] for thread in found] == [threads[1], threads[3], threads[2], threads[0]]
    assert await client.threads.count(metadata=mark) == 4
    assert await client.threads.count(metadata=mark, status="busy") == 0


async def test_search_returns_total_and_next_offset(client, server, mark):
    await create_threads(client, mark, 5)
    pages = [post(server, "/threads/search", {"metadata": mark, "limit": 2, "offset": n}) for n in (0, 2, 4, 9)]
    assert [len(page.json()) for page in pages] == [2, 2, 1, 0]
    assert [page.headers["x-pagination-total"] for page in pages] == ["5"] * 4
    assert [page.headers.get("x-pagination-next") for page in pages] == ["2", "4", None, None]

    total = int(post(server, "/threads/search", {"limit": 1}).headers["x-pagination-total"])
    for body in ({"limit": 1000}, {"limit": 1, "offset": total + 5}, {"limit": 1, "offset": total - 1}):
        assert post(server, "/threads/search", body).headers["x-pagination-total"] == str(total)

    assert await client.threads.count() == total


async def test_search_by_ids(client, server):
    threads = await create_threads(client, {}, 3)
    found = await client.threads.search(ids=[threads[0], threads[2], str(uuid4())])
    assert {thread["thread_id"] for thread in found} == {threads[0], threads[2]}
    assert post(server, "/threads/search", {"ids": []}).json() != []
    bad = post(server, "/threads/search", {"ids": [threads[0], "abc"]})
    assert bad.status_code in (400, 422)
    assert "ids" in bad.text


async def test_search_by_status_and_values(client, mark):
    threads = await create_threads(client, mark, 3)
    await client.runs.wait(threads[0], "echo", input=HI)
    await client.runs.wait(threads[1], "approval", input={"text": "a"})
    assert [t["thread_id"] for t in await client.threads.search(metadata=mark, status="interrupted")] == [threads[1]]
    idle = await client.threads.search(metadata=mark, status="idle", sort_by="created_at", sort_order="asc")
    assert [thread["thread_id"] for thread in idle] == [threads[0], threads[2]]

    # The peer answers a list inside `values` with a 500.
    nested = {"messages": [{"content": "echo: hi"}]}
    assert [t["thread_id"] for t in await client.threads.search(metadata=mark, values=nested)] == [threads[0]]
    assert [t["thread_id"] for t in await client.threads.search(metadata=mark, values={"text": "a!"})] == [threads[1]]
    assert await client.threads.count(metadata=mark, values={"text": "a!"}) == 1
    assert await client.threads.search(metadata=mark, values={"text": "b"}) == []


@pytest.mark.parametrize("by", ["thread_id", "status", "created_at", "updated_at", "state_updated_at"])
async def test_every_sort_order_is_total_and_reversible(client, mark, by):
    threads = await create_threads(client, mark, 3)
    await client.runs.wait(threads[1], "approval", input={"text": "a"})

    orders = {}
    for order in ("asc", "desc"):
        pages = [
            await client.threads.search(metadata=mark, sort_by=by, sort_order=order, limit=1, offset=n)
            for n in range(3)
        ]

        orders[order] = [page[0] for page in pages]

    keys = [thread[by] for thread in orders["asc"]]
    assert keys == sorted(keys)
    assert orders["desc"] == orders["asc"][::-1]


async def test_select_returns_only_selected_fields(client, mark):
    thread_id = (await create_threads(client, mark, 1))[0]
    await client.runs.wait(thread_id, "echo", input=HI)
    [thread] = await client.threads.search(metadata=mark, select=["thread_id", "status"])
    assert thread == {"thread_id": thread_id, "status": "idle"}
    [thread] = await client.threads.search(metadata=mark, select=["values", "context", "interrupts"])
    assert thread.keys() == {"values", "context", "interrupts"}


async def test_extract_returns_values_at_paths(client, mark):
    thread_id = (await create_threads(client, mark, 1, deep={"a": [{"b": 1}, {"b": 2}]}))[0]
    await client.runs.wait(thread_id, "echo", input=HI)
    paths = {
        "last": "values.messages[-1].content",
        "first": "values.messages[0].type",
        "deep": "metadata.deep.a[1].b",
        "whole": "metadata.deep",
        "none": "values.nothing.at[3].all",
        "asked": "interrupts",
        "config": "config.tags",
    }

    [thread] = await client.threads.search(metadata=mark, select=["thread_id"], extract=paths)
    assert thread == {
        "thread_id": thread_id,
        "extracted": {
            "last": "echo: hi",
            "first": "human",
            "deep": 2,
            "whole": {"a": [{"b": 1}, {"b": 2}]},
            "none": None,
            "asked": {},
            "config": None,
        },
    }


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/threads", {"thread_id": "abc"}, "thread_id"),
        ("/threads", {"ttl": 0}, "ttl"),
        ("/threads", {"ttl": {"ttl": -1}}, "ttl"),
        ("/threads", {"ttl": {"ttl": 1e300}}, "ttl"),
        ("/threads", {"ttl": {"ttl": 1, "strategy": "archive"}}, "strategy"),
        ("/threads", {"metadata": [1]}, "metadata"),
        ("/threads", {"if_exists": "maybe"}, "if_exists"),
        ("/threads", {"supersteps": [{"updates": []}]}, "updates"),
        ("/threads/search", {"extract": {"x": "secrets.a"}}, "extract"),
        ("/threads/search", {"extract": {"x": "values..a"}}, "extract"),
        ("/threads/search", {"extract": {"x": "values[a]"}}, "extract"),
        ("/threads/search", {"extract": {"x": "values" + ".a" * 1000}}, "extract"),
        ("/threads/search", {"extract": {str(n): "values.a" for n in range(11)}}, "extract"),
        ("/threads/search", {"select": ["password"]}, "select"),
        ("/threads/search", {"sort_by": "values"}, "sort_by"),
        ("/threads/search", {"sort_order": "sideways"}, "sort_order"),
        ("/threads/search", {"status": "asleep"}, "status"),
        ("/threads/search", {"limit": 0}, "limit"),
        ("/threads/search", {"limit": 1001}, "limit"),
        ("/threads/count", {"status": "asleep"}, "status"),
        ("/threads/prune", {"thread_ids": ["abc"]}, "thread_ids"),
        ("/threads/prune", {"thread_ids": [], "strategy": "some"}, "strategy"),
        ("/threads/prune", {}, "thread_ids"),
    ],
)
async def test_bad_fields_are_refused_by_name(server, path, body, names):
    response = post(server, path, body)
    assert response.status_code == 422
    assert names in response.text


async def test_null_means_absent(server):
    body = dict.fromkeys(["thread_id", "metadata", "if_exists", "ttl", "supersteps"])
    assert post(server, "/threads", body).status_code == 200
    fields = ["ids", "metadata", "values", "status", "limit", "offset", "sort_by", "sort_order", "select", "extract"]
    assert post(server, "/threads/search", dict.fromkeys(fields)).status_code == 200
    assert post(server, "/threads/count", dict.fromkeys(fields[1:4])).status_code == 200


@pytest.mark.parametrize("text", ["\x00", "a\x00b"])
async def test_a_character_that_cannot_be_stored_is_refused(server, text):
    thread_id = str(uuid4())
    for value in ({"a": text}, {text: 1}, {"a": [{"b": text}]}):
        assert 400 <= post(server, "/threads", {"thread_id": thread_id, "metadata": value}).status_code < 500

    assert httpx2.get(f"{server.url}/threads/{thread_id}").status_code == 404


async def test_numbers_and_texts_of_every_kind_survive(server):
    metadata = {"id": uuid4().hex, "float": 0.1, "text": "zażółć 🦊", "deep": [[[{}]]], "none": None}
    thread = post(server, "/threads", {"metadata": metadata}).json()
    assert httpx2.get(f"{server.url}/threads/{thread['thread_id']}").json()["metadata"] == metadata
    assert post(server, "/threads/count", {"metadata": metadata}).json() == 1


async def test_copy_has_the_history_and_is_independent(client):
    thread = await client.threads.create(metadata={"topic": "copy"})
    await client.runs.wait(thread["thread_id"], "echo", input=HI)
    copy = await client.threads.copy(thread["thread_id"])
    assert copy["thread_id"] != thread["thread_id"]
    assert (copy["status"], copy["metadata"]["topic"]) == ("idle", "copy")
    history = [await client.threads.get_history(one["thread_id"], limit=10) for one in (thread, copy)]
    assert [s["checkpoint_id"] for s in history[0]] == [s["checkpoint_id"] for s in history[1]]
    assert {s["metadata"]["thread_id"] for s in history[1]} == {copy["thread_id"]}

    assert await client.runs.list(copy["thread_id"]) == []
    await client.runs.wait(copy["thread_id"], "echo", input=HI)
    states = [await client.threads.get_state(one["thread_id"]) for one in (thread, copy)]
    assert [len(state["values"]["messages"]) for state in states] == [2, 4]

    # The peer answers a missing thread with 409.
    with pytest.raises(NotFoundError):
        await client.threads.copy(str(uuid4()))


async def test_thread_of_a_stateless_run_is_gone_after_it(client, server):
    run = await client.runs.create(None, "echo", input=HI)
    thread_id = run["thread_id"]
    await client.runs.join(thread_id, run["run_id"])

    calls = [
        ("GET", "", None),
        ("PATCH", "", {"metadata": {"n": 1}}),
        ("GET", "/storage", None),
        ("POST", "/copy", {}),
        ("POST", "/runs", {"assistant_id": "echo", "input": HI}),
    ]

    for method, path, body in calls:
        answer = httpx2.request(method, f"{server.url}/threads/{thread_id}{path}", json=body)
        assert answer.status_code == 404, (method, path, answer.text)


async def test_pruning(client):
    threads = await create_threads(client, {}, 3)
    for thread_id in threads[:2]:
        await client.runs.wait(thread_id, "echo", input=HI)

    assert await client.threads.prune([threads[0], str(uuid4())], strategy="keep_latest") == {"pruned_count": 1}
    [state] = await client.threads.get_history(threads[0], limit=10)
    assert len(state["values"]["messages"]) == 2
    await client.runs.wait(threads[0], "echo", input=HI)
    assert len((await client.threads.get_state(threads[0]))["values"]["messages"]) == 4
    assert await client.threads.prune([threads[1], threads[2], threads[2]]) == {"pruned_count": 2}
    assert await client.threads.search(ids=threads[1:]) == []

    assert await client.threads.prune([]) == {"pruned_count": 0}


@pytest.mark.parametrize("strategy", ["delete", "keep_latest"])
async def test_prune_skips_threads_with_active_runs(client, strategy):
    thread_id = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 600})
    assert await client.threads.prune([thread_id], strategy=strategy) == {"pruned_count": 0}
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] in {"pending", "running"}
    await client.runs.cancel(thread_id, run["run_id"], wait=True)


async def test_storage_is_measured(client, server):
    thread_id = (await client.threads.create())["thread_id"]
    url = f"{server.url}/threads/{thread_id}/storage"
    empty = httpx2.get(url).json()
    assert (empty["total_bytes"], empty["channel_values"]["by_channel"]) == (0, {})
    await client.runs.wait(thread_id, "echo", input=HI)

    full = httpx2.get(url).json()
    assert full.keys() == {"thread_id", "total_bytes", "checkpoints", "channel_values", "pending_writes"}
    assert (full["thread_id"], full["checkpoints"]["count"]) == (thread_id, 3)
    assert full["channel_values"]["by_channel"]["messages"]["versions"] == 2
    parts = [full[name]["bytes"] for name in ("checkpoints", "channel_values", "pending_writes")]
    assert full["total_bytes"] == sum(parts) > 0
    assert httpx2.get(f"{server.url}/threads/{uuid4()}/storage").status_code == 404


def superstep(*updates: dict[str, object]) -> dict[str, object]:
    return {"updates": list(updates)}


async def test_supersteps_give_a_thread_its_state(client):
    steps = [
        superstep({"values": {"text": "a"}, "as_node": "__start__"}),
        superstep({"values": {"text": "a!"}, "as_node": "draft"}),
    ]

    thread = await client.threads.create(graph_id="approval", supersteps=steps)
    assert (thread["status"], thread["values"], thread["interrupts"]) == ("interrupted", {"text": "a!"}, {})
    state = await client.threads.get_state(thread["thread_id"])
    assert (state["values"], state["next"]) == ({"text": "a!"}, ["ask"])
    assert len(await client.threads.get_history(thread["thread_id"], limit=10)) == 2
    await client.runs.wait(thread["thread_id"], "approval", input=None)

    assert await client.runs.wait(thread["thread_id"], "approval", command={"resume": "y"}) == {
        "text": "a!",
        "decision": "y",
    }


async def test_a_superstep_may_hold_a_command(client):
    update = {"values": None, "command": {"update": {"text": "c"}}, "as_node": "draft"}
    thread = await client.threads.create(graph_id="approval", supersteps=[superstep(update)])
    assert thread["values"] == {"text": "c"}


@pytest.mark.parametrize(
    ("metadata", "update", "names"),
    [
        ({}, {"values": {"text": "a"}, "as_node": "draft"}, "metadata.graph_id"),
        ({"graph_id": "nope"}, {"values": {"text": "a"}, "as_node": "draft"}, "metadata.graph_id"),
        ({"graph_id": ["approval"]}, {"values": {"text": "a"}, "as_node": "draft"}, "metadata.graph_id"),
        ({"graph_id": "approval"}, {"values": {"text": "a"}, "as_node": "bogus"}, "supersteps"),
        ({"graph_id": "approval"}, {"values": [1, 2], "as_node": "draft"}, "supersteps"),
        ({"graph_id": "approval"}, {"values": {}, "command": {"goto": 3}, "as_node": "draft"}, "goto"),
        ({"graph_id": "approval"}, {"values": {}}, "as_node"),
    ],
)
async def test_bad_supersteps_create_no_thread(server, metadata, update, names):
    thread_id = str(uuid4())
    steps = [superstep({"values": {"text": "in"}, "as_node": "__start__"}), superstep(update)]

    # The peer makes the thread and answers 201.
    response = post(server, "/threads", {"thread_id": thread_id, "metadata": metadata, "supersteps": steps})
    assert 400 <= response.status_code < 500
    assert all(part in response.text for part in names.split("."))
    assert httpx2.get(f"{server.url}/threads/{thread_id}").status_code == 404
    again = post(server, "/threads", {"thread_id": thread_id, "metadata": {"graph_id": "approval"}})
    assert again.status_code == 200
    assert httpx2.get(f"{server.url}/threads/{thread_id}/history?limit=10").json() == []


async def test_supersteps_do_not_touch_a_thread_that_exists(client):
    thread = await client.threads.create(graph_id="approval")
    same = {"thread_id": thread["thread_id"], "graph_id": "approval"}
    steps = [superstep({"values": {"text": "a"}, "as_node": "__start__"})]
    with pytest.raises(ConflictError):
        await client.threads.create(**same, supersteps=steps)

    assert await client.threads.create(**same, supersteps=steps, if_exists="do_nothing") == thread
    assert await client.threads.get_history(thread["thread_id"]) == []
