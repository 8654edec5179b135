"""The store on Postgres, compared with langgraph's in-memory store, and what that one does not promise.

An item is written with its vectors or not at all.
"""

import asyncio
import itertools
import random
import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from portside.agent.config import StoreTtl
from portside.agent.local_store import PostgresStore
from portside.agent.store import operations
from portside.agent.store.items import ExpiredItems, Items
from portside.agent.store.operations import read_op
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import StoreSetup
from portside.agent.types.store import ItemPut, ItemQuery, ItemSearch, NamespaceSearch
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError


@pytest.fixture
async def store(db: Database) -> PostgresStore:
    return PostgresStore(db, StoreSetup())


class Counted(Database):
    """A database that remembers which statements it ran."""

    def __init__(self, db: Database) -> None:
        super().__init__(db.pool)
        self.ran: list[str] = []

    async def fetch(self, query, **values):
        self.ran.append(query.name)
        return await super().fetch(query, **values)

    async def execute(self, query, **values):
        self.ran.append(query.name)
        return await super().execute(query, **values)


async def keys(store: PostgresStore, *prefix: str, **options: Any) -> list[str]:
    return [item.key for item in await store.asearch(prefix, **options)]


async def test_batch_reads_see_the_state_before_the_batch(db: Database):
    counted = Counted(db)
    store = PostgresStore(counted, StoreSetup())
    await store.abatch([PutOp(("a",), "1", {"n": 1}), PutOp(("a", "b"), "2", {"n": 2}), PutOp(("c",), "3", {"n": 3})])
    assert counted.ran == ["write_items"]
    counted.ran.clear()

    results = await store.abatch(
        [
            PutOp(("a",), "1", {"n": 10}),
            GetOp(("a",), "1"),
            SearchOp(("a",)),
            GetOp(("a",), "absent"),
            ListNamespacesOp(),
            PutOp(("c",), "3", None),
            SearchOp((), {"n": 3}),
            GetOp(("c",), "3"),
            ListNamespacesOp((MatchCondition("prefix", ("a",)),)),
            PutOp(("a",), "1", {"n": 11}),
        ]
    )

    assert counted.ran == ["get_items", "search_items", "walk_namespaces", "write_items"]
    assert [results[0], results[3], results[5], results[9]] == [None] * 4
    assert results[1].value == {"n": 1}
    assert isinstance(results[1], Item)
    assert {item.key for item in results[2]} == {"1", "2"}
    assert results[4] == [("a",), ("a", "b"), ("c",)]
    assert [item.key for item in results[6]] == ["3"]

    assert results[7].value == {"n": 3}
    assert results[8] == [("a",), ("a", "b")]
    assert (await store.aget(("a",), "1")).value == {"n": 11}
    assert await store.aget(("c",), "3") is None
    assert await store.abatch([]) == []


def test_an_operation_that_this_server_does_not_know_is_refused():
    """An executor may have a newer langgraph. A field that it leaves unset means nothing."""
    named = {"namespace": ["a"], "key": "k"}
    assert read_op("get", {**named, "shine": None}) == operations.GetOp(("a",), "k")
    for kind, fields, said in (
        ("drop", named, "unknown operation 'drop'"),
        ("get", {**named, "shine": True}, "does not know shine"),
        ("get", {"namespace": ["a"]}, "malformed"),
    ):
        with pytest.raises(ValueError, match=said):
            read_op(kind, fields)


VALUES: list[dict[str, Any]] = [
    {},
    {"a": 1, "t": "x"},
    {"a": 2.5, "t": "y", "m": {"k": 1, "deep": {"z": "v"}}},
    {"a": None, "m": {"k": None}},
    {"a": [1, 2], "m": {}},
    {"a": [{"k": 1, "j": 2}], "m": 5},
    {"a": True, "t": "", "": "empty", 'q"uote': 'v"', "$odd": 1, "a.b": 3},
    {"a": "1", "m": {"k": 1}},
    {"a": {"k": 1}, "t": "zß→"},
]
FILTERS: list[dict[str, Any]] = [
    {"a": 1},
    {"a": 2.5},
    {"a": None},
    {"a": [1, 2]},
    {"a": [1]},
    {"a": [{"k": 1}]},
    {"a": True},
    {"a": "1"},
    {"a": {}},
    {"a": {"k": 1}},
    {"m": {"k": None}},
    {"m": {"k": 1}},
    {"m": {"deep": {"z": "v"}}},
    {"missing": None},
    {"a": {"$eq": 1}},
    {"a": {"$eq": None}},
    {"a": {"$eq": [1, 2]}},
    {"a": {"$eq": {"k": 1}}},
    {"a": {"$ne": 1}},
    {"a": {"$ne": None}},
    {"a": {"$ne": [1, 2]}},
    {"t": {"$ne": "x"}},
    {"missing": {"$ne": 1}},
    {"m": {"k": {"$ne": 1}}},
    {"m": {"k": {"$eq": 1}}},
    {"t": "x", "a": 1},
    {"t": "x", "a": 2},
    {"": "empty"},
    {'q"uote': 'v"'},
    {"a.b": 3},
    {"t": "zß→"},
    {"m": {}},
    {},
]

# Python holds that True is 1; JSON does not.
TRUE_IS_ONE = {"{'a': 1}": {"6"}, "{'a': {'$eq': 1}}": {"6"}, "{'a': {'$ne': 1}}": {"6"}, "{'a': True}": {"1"}}


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
async def test_filters_match_as_in_the_memory_store(filled_stores: tuple[PostgresStore, InMemoryStore], wanted: dict):
    store, memory = filled_stores
    expected = {item.key for item in memory.search(("f",), filter=wanted, limit=100)}
    expected = expected ^ TRUE_IS_ONE.get(str(wanted), set())
    assert set(await keys(store, "f", filter=wanted, limit=100)) == expected
    assert set(await keys(store, filter=wanted, limit=100)) == expected


@pytest.fixture
async def filled_stores(store: PostgresStore) -> tuple[PostgresStore, InMemoryStore]:
    memory = InMemoryStore()
    ops = [PutOp(("f",), str(number), value) for number, value in enumerate(VALUES)]
    await store.abatch(ops)
    memory.batch(ops)
    return store, memory


async def test_comparisons_need_comparable_types(store: PostgresStore):
    values = [1, 10, 2.5, "10", "9", None, True, [1], {"k": 1}]
    await store.abatch(
        [PutOp(("c",), str(number), {"v": value, "in": {"v": value}}) for number, value in enumerate(values)]
    )

    for operator, operand, expected in (
        ("$gt", 2, {1, 2}),
        ("$gte", 2.5, {1, 2}),
        ("$lt", 2.5, {0}),
        ("$lte", 2.5, {0, 2}),
        ("$gt", "10", {4}),
        ("$lte", "10", {3}),
        ("$gt", True, set()),
        ("$lt", None, set()),
    ):
        for wanted in ({"v": {operator: operand}}, {"in": {"v": {operator: operand}}}):
            found = {int(key) for key in await keys(store, "c", filter=wanted)}
            assert found == expected, wanted

    assert await keys(store, "c", filter={"v": {"$gt": 1, "$lt": 10}}) == ["2"]


@pytest.mark.parametrize(
    "wanted", [{"a": {"$in": [1]}}, {"a": {"b": {"$x": 1}}}, {"a": {"$gt": 1, "b": 2}}, {"$gt": 1}]
)
async def test_an_unknown_operator_is_named(store: PostgresStore, wanted: dict):
    with pytest.raises(ValueError, match="Unsupported operator"):
        await store.asearch((), filter=wanted)


async def test_namespaces_are_listed_as_in_memory(store: PostgresStore):
    memory = InMemoryStore()
    chance = random.Random(8)
    labels = ["a", "b", "ab", "a ", "é", "*", "B", "a\x01"]
    for number in range(60):
        path = tuple(chance.choices(labels, k=chance.randint(1, 4)))
        await store.aput(path, str(number), {})
        memory.put(path, str(number), {})

    patterns = [
        None,
        ("a",),
        ("*",),
        ("a", "*"),
        ("*", "b"),
        ("a", "b"),
        ("*", "*", "*"),
        ("é",),
        ("nowhere",),
        ("a",) * 5,
    ]

    for prefix, suffix, depth in itertools.product(patterns, patterns, (None, 1, 2)):
        for page in ({"limit": 100}, {"limit": 3, "offset": 2}):
            asked = {"prefix": prefix, "suffix": suffix, "max_depth": depth, **page}
            assert await store.alist_namespaces(**asked) == memory.list_namespaces(**asked), asked

    for one, other in itertools.product([("a",), ("b",), ("a", "b")], repeat=2):
        op = ListNamespacesOp((MatchCondition("prefix", one), MatchCondition("prefix", other)))
        assert await store.abatch([op]) == memory.batch([op])


async def test_namespace_prefix_matches_whole_labels(store: PostgresStore):
    for path in (("u",), ("u", "1"), ("u1",), ("u\x01",), ("u ",), ("t", "u"), ("é",), ("z" * 500, "z" * 500)):
        await store.aput(path, "k", {"at": list(path)})

    assert len(await keys(store, "u")) == 2
    assert len(await keys(store, "u\x01")) == 1
    assert len(await keys(store)) == 8
    assert len(await store.alist_namespaces(max_depth=1)) == 7


async def test_expired_items_have_no_namespace(db: Database, store: PostgresStore):
    for path in (("a", "x"), ("b", "x"), ("c", "x")):
        await store.aput(path, "k", {}, ttl=5)

    await db.pool.execute("update store_items set expires_at = now() - interval '1 s' where namespace[1] <> 'b'")
    assert await store.alist_namespaces() == [("b", "x")]
    assert await store.alist_namespaces(suffix=("x",)) == [("b", "x")]
    await db.pool.execute("update store_items set expires_at = now() + (namespace[1] <> 'b')::int * interval '1 min'")
    assert await store.alist_namespaces() == [("a", "x"), ("c", "x")]
    assert await store.alist_namespaces(suffix=("x",)) == [("a", "x"), ("c", "x")]


async def test_only_the_named_item_is_deleted(store: PostgresStore):
    paths = [("u", "1"), ("u", "2"), ("u",)]
    await store.abatch([PutOp(path, key, {}) for path in paths for key in ("k", "other")])
    await store.adelete(("u", "1"), "k")
    assert [await keys(store, "u", "1"), await keys(store, "u", "2")] == [["other"], ["other", "k"]]
    assert sorted(await keys(store, "u")) == ["k", "k", "other", "other", "other"]


async def test_values_round_trip_or_are_refused(store: PostgresStore):
    value = {
        "t": 'ünï "q" \\u0000 \U0001f600',
        "n": [1, -(2**63), 1.5, 2.0, 1e17, -1e300, 5e-7, True, None],
        "m": {"": {}},
        "2": [],
    }

    await store.aput(("v",), "plain", value)
    found = (await store.aget(("v",), "plain")).value
    assert found == value
    assert [type(part) for part in found["n"]] == [type(part) for part in value["n"]]
    await store.aput(("v",), "message", {"said": HumanMessage("hi")})
    assert (await store.aget(("v",), "message")).value["said"]["content"] == "hi"
    said_nan = HumanMessage("hi", additional_kwargs={"score": float("nan")})

    not_finite = ({"a": float("nan")}, {"a": [{"b": float("-inf")}]}, {"a": (said_nan,)})
    for wrong in ({"a": object()}, {"a": "\0"}, {"a\0": 1}, {"a": "\ud800"}, {"a": 2**70}, *not_finite, "text"):
        with pytest.raises(ValueError, match="the value of an item"):
            await store.aput(("v",), "wrong", wrong)

    for namespace, key in (((), "k"), (("langgraph",), "k"), (("a.b",), "k"), (("a", ""), "k"), (("x" * 2000,), "k")):
        with pytest.raises(InvalidNamespaceError):
            await store.aput(namespace, key, {})

    # As executors send it: the names have not been checked by langgraph.
    for namespace in ((), ("x",) * 33, ("é" * 513,), ("\U0010ffffx",)):
        with pytest.raises(ValueError, match=r"Namespace"):
            await store.abatch([PutOp(namespace, "k", {})])

    for key in ("k" * 2000, "é" * 513):
        with pytest.raises(ValueError, match="Key"):
            await store.aput(("v",), key, {})

    with pytest.raises(ValueError, match="ttl"):
        await store.aput(("v",), "k", {}, ttl=-1)

    with pytest.raises(ValueError, match="limit"):
        await store.asearch(("v",), limit=-1)

    await store.aput(("x" * 32,) * 32, "é" * 512, {})
    assert len(await keys(store)) == 3


async def test_overwriting_keeps_the_creation_unless_the_item_had_expired(db: Database, store: PostgresStore):
    await store.aput(("o",), "k", {"n": 1}, ttl=5)
    first = await store.aget(("o",), "k")
    await store.aput(("o",), "k", {"n": 2})
    second = await store.aget(("o",), "k")
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    assert await db.pool.fetchval("select expires_at is null from store_items")

    await db.pool.execute("update store_items set expires_at = now() - interval '1 s'")
    assert await store.aget(("o",), "k") is None
    assert await keys(store) == []
    assert await store.alist_namespaces() == await store.alist_namespaces(suffix=("o",)) == []
    await store.aput(("o",), "k", {"n": 3})
    assert (await store.aget(("o",), "k")).created_at > first.created_at


async def test_lifetimes_follow_the_configuration_and_the_call(db: Database):
    store = PostgresStore(db, StoreSetup(StoreTtl(refresh_on_read=False, default_ttl=600)))
    assert store.supports_ttl
    await store.abatch([PutOp(("t",), "explicit", {}, None, 210.0)])
    await store.aput(("t",), "default", {})
    await store.aput(("t",), "never", {}, ttl=None)

    # In minutes, so that half a minute may pass between a write and a look.
    left = "select key, round(extract(epoch from expires_at - now()) / 60)::int from store_items"
    assert dict(await db.pool.fetch(left)) == {"explicit": 210, "default": 600, "never": None}
    await db.pool.execute("update store_items set expires_at = now() + interval '9 min' where expires_at is not null")
    await store.aget(("t",), "default")
    await store.asearch(("t",))
    assert set(dict(await db.pool.fetch(left)).values()) == {9, None}
    await store.aget(("t",), "default", refresh_ttl=True)

    assert dict(await db.pool.fetch(left))["default"] == 600
    await store.asearch(("t",), refresh_ttl=True, limit=2)
    assert dict(await db.pool.fetch(left))["never"] is None


async def test_requests_without_limits_and_lifetimes_get_the_defaults(db: Database, store: PostgresStore):
    setup = StoreSetup(StoreTtl(refresh_on_read=False, default_ttl=600))
    requests = StoreRequests(Items(db, setup))
    await store.abatch([PutOp(("n", str(number)), "k", {}) for number in range(101)])
    assert len((await requests.search(ItemSearch())).items) == 10
    assert len((await requests.list_namespaces(NamespaceSearch())).namespaces) == 100

    await requests.put(ItemPut(["t"], "k", {}))
    await db.pool.execute("update store_items set expires_at = now() + interval '9 min' where expires_at is not null")
    left = "select max(round(extract(epoch from expires_at - now()) / 60)::int) from store_items"
    await requests.get(ItemQuery("t", "k"))
    await requests.search(ItemSearch(["t"]))
    assert await db.pool.fetchval(left) == 9
    await requests.get(ItemQuery("t", "k", refresh_ttl=True))
    assert await db.pool.fetchval(left) == 600


async def test_reading_a_just_refreshed_item_writes_nothing(db: Database, store: PostgresStore):
    await store.aput(("t",), "k", {}, ttl=60)
    before = await db.pool.fetchval("select xmin::text from store_items")
    for _ in range(3):
        await store.aget(("t",), "k")

    assert await db.pool.fetchval("select xmin::text from store_items") == before


async def test_expired_items_are_deleted_in_batches(db: Database, store: PostgresStore):
    await store.abatch([PutOp(("s",), str(number), {}, None, 1) for number in range(5)])
    await store.aput(("s",), "stays", {})
    sweep = ExpiredItems(db, StoreSetup(StoreTtl(sweep_interval_minutes=2)))
    sweep.batch = 3
    assert sweep.report.every_s == 120
    assert (await sweep.activate()).did == {"deleted": 0}
    await db.pool.execute("update store_items set expires_at = now() where expires_at is not null")

    first = await sweep.activate()
    second = await sweep.activate()
    assert (first.did, first.again, second.did, second.again) == ({"deleted": 3}, True, {"deleted": 2}, False)
    assert await db.pool.fetchval("select count(*) from store_items") == 1


async def test_concurrent_batches_of_the_same_items_do_not_deadlock(store: PostgresStore):
    names = [str(number) for number in range(20)]

    async def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(10):
            order = chance.sample(names, 20)
            await store.abatch(
                [PutOp(("d",), name, None if chance.random() < 0.3 else {"n": seed}, None, 5) for name in order]
            )
            await store.asearch(("d",), limit=20)

    await asyncio.gather(*(write(seed) for seed in range(6)))
    assert len(await keys(store, "d", limit=50)) == len(set(await keys(store, "d", limit=50)))


async def test_synchronous_calls_work_from_threads_and_are_refused_on_the_loop(store: PostgresStore):
    def remember() -> Any:
        store.put(("s",), "k", {"by": threading.current_thread().name})
        found = store.get(("s",), "k"), store.search(("s",)), store.list_namespaces()
        store.delete(("s",), "k")
        return *found, store.get(("s",), "k")

    item, hits, namespaces, gone = await asyncio.to_thread(remember)
    assert (len(hits), namespaces, gone) == (1, [("s",)], None)
    assert item.key == "k"

    calls = {
        "get": lambda: store.get(("s",), "k"),
        "put": lambda: store.put(("s",), "k", {}),
        "delete": lambda: store.delete(("s",), "k"),
        "search": lambda: store.search(("s",)),
        "list_namespaces": store.list_namespaces,
        "batch": lambda: store.batch([]),
    }

    for name, call in calls.items():
        with pytest.raises(asyncio.InvalidStateError, match=rf"await store\.a{name}\("):
            call()


async def test_another_loop_may_use_the_store(store: PostgresStore):
    async def remember() -> Any:
        await store.aput(("l",), "k", {"n": 1})
        return (await store.aget(("l",), "k")).value

    assert await asyncio.to_thread(lambda: asyncio.run(remember())) == {"n": 1}


async def test_error_of_one_call_does_not_fail_others(store: PostgresStore):
    calls = [store.aput(("a",), "k", {}), store.asearch((), filter={"a": {"$x": 1}}), store.aget(("a",), "z")]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[1], ValueError)
    assert isinstance(results[1], PortsideError)
    assert results[0] is results[2] is None
    assert await keys(store) == ["k"]


async def test_read_does_not_wait_for_a_locked_item(db: Database, store: PostgresStore):
    await store.aput(("w",), "k", {"n": 1}, ttl=5)
    await db.pool.execute("update store_items set expires_at = now() + interval '1 min'")
    async with db.transaction() as tx:
        await tx.connection.execute("select * from store_items for update")
        assert (await asyncio.wait_for(store.aget(("w",), "k"), 60)).value == {"n": 1}
