"""The store over HTTP with the stock SDK, and graphs that remember in it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.conftest import eventually
from tests.servers import FORMS, ServerProcess, agent_server


@pytest.fixture(scope="module", params=FORMS)
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="store", **request.param) as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url) as opened:
        yield opened


async def test_an_item_is_put_read_overwritten_and_deleted(client: LangGraphClient):
    here = ["users", "ada", "facts"]
    assert await client.store.put_item(here, "likes", {"text": "tea", "big": 2**60, "none": None, "f": 1.5}) is None
    first = await client.store.get_item(here, "likes")
    assert first["namespace"] == here
    assert first["key"] == "likes"
    assert first["value"] == {"text": "tea", "big": 2**60, "none": None, "f": 1.5}
    assert first["created_at"] == first["updated_at"]

    assert first["created_at"].endswith("+00:00")
    await client.store.put_item(here, "likes", {"text": "coffee"})
    second = await client.store.get_item(here, "likes")
    assert second["value"] == {"text": "coffee"}
    assert second["created_at"] == first["created_at"]
    assert second["updated_at"] > first["updated_at"]

    for _ in range(2):
        assert await client.store.delete_item(here, "likes") is None

    assert await client.store.get_item(here, "likes") is None


async def test_missing_item_is_null_and_creates_no_namespace(http: httpx2.AsyncClient, client: LangGraphClient):
    response = await http.get("/store/items", params={"namespace": "no.where", "key": "x"})
    assert (response.status_code, response.text) == (200, "null")
    assert (await client.store.search_items(["no", "where"]))["items"] == []
    assert (await client.store.list_namespaces(prefix=["no"]))["namespaces"] == []


async def test_search_filters_pages_and_orders_by_the_last_write(client: LangGraphClient):
    for number in range(5):
        await client.store.put_item(
            ["paged", str(number % 2)], f"k{number}", {"n": number, "meta": {"even": number % 2 == 0}}
        )

    every = (await client.store.search_items(["paged"]))["items"]
    assert [item["key"] for item in every] == ["k4", "k3", "k2", "k1", "k0"]
    assert {item["score"] for item in every} == {None}
    pages = [(await client.store.search_items(["paged"], limit=2, offset=offset))["items"] for offset in (0, 2, 4)]

    assert [item["key"] for page in pages for item in page] == ["k4", "k3", "k2", "k1", "k0"]
    for wanted, keys in (
        ({"n": 3}, ["k3"]),
        ({"n": {"$gte": 3}}, ["k4", "k3"]),
        ({"n": {"$gt": 0, "$lt": 3}}, ["k2", "k1"]),
        ({"n": {"$ne": 0}, "meta": {"even": True}}, ["k4", "k2"]),
        ({"missing": None}, ["k4", "k3", "k2", "k1", "k0"]),
    ):
        found = (await client.store.search_items(["paged"], filter=wanted))["items"]
        assert [item["key"] for item in found] == keys, wanted


async def test_namespaces_are_listed_by_prefix_suffix_depth_and_page(client: LangGraphClient):
    for path in (["ns", "a", "v1"], ["ns", "b", "v1"], ["ns", "b", "v2", "deep"]):
        await client.store.put_item(path, "k", {})

    async def listed(**options) -> list[list[str]]:
        return (await client.store.list_namespaces(**options))["namespaces"]

    assert await listed(prefix=["ns"]) == [["ns", "a", "v1"], ["ns", "b", "v1"], ["ns", "b", "v2", "deep"]]
    assert await listed(prefix=["ns", "*", "v1"]) == [["ns", "a", "v1"], ["ns", "b", "v1"]]
    assert await listed(prefix=["ns"], suffix=["*", "deep"]) == [["ns", "b", "v2", "deep"]]
    assert await listed(prefix=["ns"], max_depth=2) == [["ns", "a"], ["ns", "b"]]
    assert await listed(prefix=["ns"], limit=1, offset=1) == [["ns", "b", "v1"]]


async def test_search_by_meaning_scores_sorts_and_filters(client: LangGraphClient):
    here = ["meaning"]
    await client.store.put_item(here, "cats", {"text": "cat cat", "kind": "pet"})
    await client.store.put_item(here, "both", {"text": "cat dog", "kind": "pet"})
    await client.store.put_item(here, "many", {"tags": ["dog", "tea"], "kind": "list"})
    await client.store.put_item(here, "hidden", {"text": "cat"}, index=False)
    await client.store.put_item(here, "other", {"text": "dog", "title": "cat"}, index=["title"])

    async def scores(**options) -> list[tuple[str, float]]:
        found = (await client.store.search_items(here, **options))["items"]
        return [(item["key"], round(item["score"], 2)) for item in found]

    found = await scores(query="cat")
    assert sorted(found[:2]) == [("cats", 1.0), ("other", 1.0)]
    assert found[2:] == [("both", 0.71), ("many", 0.0)]
    assert await scores(query="tea", filter={"kind": "list"}) == [("many", 1.0)]
    assert await scores(query="cat", filter={"kind": "pet"}, limit=1, offset=1) == [("both", 0.71)]
    assert (await client.store.search_items(["elsewhere"], query="cat"))["items"] == []


async def test_failed_embedding_is_an_error_and_stores_nothing(http: httpx2.AsyncClient, client: LangGraphClient):
    for text, said in (("unreachable", "ConnectionError: the model is down"), ("short", "1 dimensions, but")):
        body = {"namespace": ["failing"], "key": "k", "value": {"text": text}}
        response = await http.put("/store/items", json=body)
        assert response.status_code == 502
        assert said in response.json()["detail"]
        response = await http.post("/store/items/search", json={"namespace_prefix": ["failing"], "query": text})
        assert response.status_code == 502

    assert (await client.store.list_namespaces(prefix=["failing"]))["namespaces"] == []


GOOD = {"namespace": ["bad"], "key": "k", "value": {}}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"namespace": []}, 400, "Namespace cannot be empty"),
        ({"namespace": ["langgraph", "x"]}, 400, "langgraph"),
        ({"namespace": ["a.b"]}, 422, "Namespace label 'a.b' must be a non-empty string without periods"),
        ({"namespace": ["a", ""]}, 422, "non-empty"),
        ({"namespace": ["x"] * 33}, 422, "namespace"),
        ({"namespace": ["x" * 1025]}, 422, "1024 bytes"),
        ({"namespace": "a"}, 422, "namespace"),
        ({"key": "k" * 1025}, 422, "key"),
        ({"key": None}, 422, "key"),
        ({"value": None}, 422, "value"),
        ({"value": "text"}, 422, "value"),
        ({"value": {"a": "\0"}}, 422, "value"),
        ({"value": {"a": 2**70}}, 422, "value"),
        ({"ttl": 0}, 422, "ttl"),
        ({"ttl": 1e12}, 422, "ttl"),
        ({"index": True}, 422, "index"),
        ({"value": {"tags": ["cat"] * 1001}}, 400, "at most 1000"),
    ],
)
async def test_values_that_cannot_be_stored_are_refused_by_name(
    http: httpx2.AsyncClient, change: dict, status: int, said: str
):
    response = await http.put("/store/items", json={**GOOD, **change})
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    assert said in response.text
    assert (await http.get("/store/items", params={"namespace": "bad", "key": "k"})).text == "null"


async def test_lone_surrogates_and_deep_json_are_refused(http: httpx2.AsyncClient):
    head = b'{"namespace": ["bad"], "key": "k", "value": '
    for value in (b'{"a": "\\ud800"}', b'{"a":' * 300 + b"1" + b"}" * 300):
        response = await http.put("/store/items", content=head + value + b"}")
        assert response.status_code == 422, response.text
        assert "detail" in response.json()


async def test_odd_searches_are_answered_or_refused(http: httpx2.AsyncClient, client: LangGraphClient):
    await client.store.put_item(["odd"], "", {"a.b": {"$x": 1}, 'q"': [1, 2]})
    assert (await client.store.get_item(["odd"], ""))["key"] == ""

    for body, status in (
        ({}, 200),
        ({"namespace_prefix": None, "filter": None, "limit": None, "offset": None, "query": None}, 200),
        ({"filter": {"a": {"$regex": "x"}}}, 400),
        ({"filter": {"$gt": 1}}, 400),
        ({"filter": {'q"': [1, 2]}}, 200),
        ({"filter": {'"; drop': {"$gt": 1}, "": {"$lte": "x"}}}, 200),
        ({"limit": 0}, 422),
        ({"limit": 100_000}, 422),
        ({"offset": -1}, 422),
        ({"namespace_prefix": ["a.b"]}, 422),
    ):
        response = await http.post("/store/items/search", json=body)
        assert response.status_code == status, (body, response.text)

    response = await http.get("/store/items", params={"namespace": "odd"})
    assert (response.status_code, response.json()) == (400, {"detail": "Key is required"})

    for without in ({"key": "k"}, {"key": "k", "namespace": ""}):
        response = await http.get("/store/items", params=without)
        assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["query", "namespace"])

    assert (await http.get("/store/items", params={"namespace": "a..b", "key": "k"})).status_code == 422
    assert (await http.request("DELETE", "/store/items", json={"namespace": ["odd"]})).status_code == 422
    named = {"namespace": ["odd"], "key": "k", "filter": {"a": 1}}
    assert (await http.request("DELETE", "/store/items", json=named)).status_code == 422
    assert (await http.post("/store/namespaces", json={"max_depth": 0})).status_code == 422
    assert (await http.post("/store/namespaces", json={})).status_code == 200


async def test_items_expire_unless_they_are_read(client: LangGraphClient, module_database: str):
    here = ["mortal"]
    await client.store.put_item(here, "by_default", {"n": 1})
    await client.store.put_item(here, "brief", {"n": 2}, ttl=1)
    admin = await asyncpg.connect(module_database)
    left = "select round(extract(epoch from expires_at - now()) / 60) from portside.store_items where key = $1"
    age = "update portside.store_items set expires_at = now() + $1 * interval '1 s' where key = $2"
    assert await admin.fetchval(left, "by_default") == 600

    assert await admin.fetchval(left, "brief") == 1
    brief = await client.http.get(
        "/store/items", params={"namespace": "mortal", "key": "brief", "refresh_ttl": "false"}
    )
    assert brief["ttl"] == 1
    assert datetime.fromisoformat(brief["expires_at"]) > datetime.fromisoformat(brief["updated_at"])
    await admin.execute(age, 60, "by_default")

    await client.store.get_item(here, "by_default", refresh_ttl=False)
    assert await admin.fetchval(left, "by_default") < 2
    await client.store.get_item(here, "by_default")
    assert await admin.fetchval(left, "by_default") == 600
    await admin.execute(age, 60, "by_default")
    await client.store.search_items(here)
    assert await admin.fetchval(left, "by_default") == 600

    await admin.execute(age, -1, "brief")
    assert await client.store.get_item(here, "brief") is None
    assert [item["key"] for item in (await client.store.search_items(here))["items"]] == ["by_default"]

    async def is_swept() -> bool:
        return not await admin.fetchval("select count(*) from portside.store_items where key = 'brief'")

    await eventually(is_swept)
    await admin.close()


async def run(client: LangGraphClient, graph: str, text: str) -> list[str]:
    return (await client.runs.wait(None, graph, input={"text": text}))["found"]


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ("async_node", ["cat tea", "last 1.00"]),
        ("sync_node", ["cat tea", "last", "[('memories', 'sync')]"]),
        ("get_store", ["cat tea"]),
        pytest.param("factory", ["cat tea"], marks=pytest.mark.needs("langgraph-sdk", "0.3.5")),
    ],
)
async def test_graphs_remember_across_threads(client: LangGraphClient, graph: str, found: list[str]):
    assert await run(client, graph, "cat tea") == found
    where = {"async_node": "async", "sync_node": "sync"}.get(graph, graph)
    item = await client.store.get_item(["memories", where], "last")
    assert item["value"] == {"text": "cat tea"}


async def test_tools_get_the_store_injected(client: LangGraphClient):
    result = await client.runs.wait(None, "tool", input={"messages": [{"role": "user", "content": "tea"}]})
    assert result["messages"][-1]["content"] == "tea"


async def test_graphs_find_items_stored_over_http(client: LangGraphClient):
    await client.store.put_item(["memories", "async"], "from outside", {"text": "code"})
    found = await run(client, "async_node", "code code")
    await client.store.delete_item(["memories", "async"], "from outside")
    assert set(found[1:]) == {"last 1.00", "from outside 1.00"}


async def test_a_synchronous_call_on_the_graphs_loop_says_what_to_write_instead(client: LangGraphClient):
    result = await client.runs.wait(None, "on_the_loop", input={"text": ""}, raise_error=False)
    assert result["__error__"]["error"] == "InvalidStateError"
    assert "await store.aget(...)" in result["__error__"]["message"]


async def test_bad_store_call_fails_only_its_run(client: LangGraphClient):
    result = await client.runs.wait(None, "async_node", input={"text": "unreachable"}, raise_error=False)
    assert result["__error__"]["error"] == "EmbeddingFailed"
    assert await run(client, "async_node", "tea") != []


async def test_isolated_loops_share_the_store(
    module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("isolated")
    with agent_server(
        module_databases(), folder, project="store", BG_JOB_ISOLATED_LOOPS="true", N_JOBS_PER_WORKER="3"
    ) as it:
        async with get_client(url=it.url, api_key="") as isolated:
            graphs = ("async_node", "sync_node", "async_node", "sync_node", "get_store", "async_node")
            for found in await asyncio.gather(*(run(isolated, graph, "dog") for graph in graphs)):
                assert found[0] == "dog"

            assert (await isolated.store.get_item(["memories", "sync"], "last"))["value"] == {"text": "dog"}
