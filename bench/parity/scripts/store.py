"""The store: items, search, namespaces."""

from urllib.parse import quote

from bench.parity.talk import Talk, alone


async def items(talk: Talk) -> None:
    put = {"namespace": ["parity", "items"], "key": "k", "value": {"a": 1, "b": [None, "ü"]}}
    await talk.put("put", "/store/items", put)
    await talk.get("get", "/store/items?namespace=parity.items&key=k")
    await talk.get("get refreshing", "/store/items?namespace=parity.items&key=k&refresh_ttl=true")
    await talk.get("other key", "/store/items?namespace=parity.items&key=x")
    await talk.get("other namespace", "/store/items?namespace=parity.nope&key=k")
    await talk.put("put again", "/store/items", {**put, "value": {"a": 2}})

    await talk.get("get again", "/store/items?namespace=parity.items&key=k")
    await talk.delete("delete", "/store/items", {"namespace": ["parity", "items"], "key": "k"})
    await talk.delete("delete again", "/store/items", {"namespace": ["parity", "items"], "key": "k"})
    await talk.get("gone", "/store/items?namespace=parity.items&key=k")


async def odd_items(talk: Talk) -> None:
    def put(**over: object) -> dict:
        return {"namespace": ["parity", "odd"], "key": "k", "value": {"a": 1}, **over}

    await talk.put("no namespace", "/store/items", put(namespace=[]))
    await talk.put("dotted label", "/store/items", put(namespace=["a.b"]))
    await talk.put("empty label", "/store/items", put(namespace=["a", ""]))
    await talk.put("reserved root", "/store/items", put(namespace=["langgraph", "x"]))
    await talk.put("number label", "/store/items", put(namespace=[1]))
    await talk.put("value text", "/store/items", put(value="x"))
    await talk.put("value null", "/store/items", put(value=None))

    await talk.put("value list", "/store/items", put(value=[1]))
    await talk.put("no key", "/store/items", {"namespace": ["parity"], "value": {}})
    await talk.put("no value", "/store/items", {"namespace": ["parity"], "key": "k"})
    await talk.put("number key", "/store/items", put(key=5))
    await talk.put("empty key", "/store/items", put(key=""))
    await talk.get("get empty key", "/store/items?namespace=parity.odd&key=")
    await talk.put("unicode key", "/store/items", put(key="schlüssel/ü"))

    await talk.get("get unicode key", f"/store/items?namespace=parity.odd&key={quote('schlüssel/ü')}")
    await talk.get("get without key", "/store/items?namespace=parity.odd")
    await talk.get("get without namespace", "/store/items?key=k")
    await talk.put("index false", "/store/items", put(index=False))
    await talk.put("index fields", "/store/items", put(index=["a"]))
    await talk.put("index text", "/store/items", put(index="a"))
    await talk.put("index null", "/store/items", put(index=None))

    await talk.put("ttl", "/store/items", put(key="ttl", ttl=60))
    await talk.put("ttl null", "/store/items", put(key="ttl", ttl=None))
    await talk.put("ttl words", "/store/items", put(key="ttl", ttl="an hour"))
    await talk.put("ttl negative", "/store/items", put(key="ttl", ttl=-1))
    await talk.delete("delete without key", "/store/items", {"namespace": ["parity", "odd"]})


async def search(talk: Talk) -> None:
    for number in range(4):
        value = {"n": number, "even": number % 2 == 0, "deep": {"x": f"w{number}"}, "tags": ["a", "b"][: number % 3]}
        namespace = ["parity", "search", "left" if number < 2 else "right"]
        await talk.quietly("PUT", "/store/items", {"namespace": namespace, "key": f"k{number}", "value": value})

    async def keys(step: str, **body: object) -> None:
        body = {"namespace_prefix": ["parity", "search"], **body}
        await talk.post(step, "/store/items/search", body, keep=_keys)

    await talk.post(
        "one", "/store/items/search", {"namespace_prefix": ["parity", "search", "right"], "filter": {"n": 2}}
    )
    await keys("all")
    await keys("part", namespace_prefix=["parity", "search", "left"])
    await keys("half a label", namespace_prefix=["parity", "sea"])
    await keys("limit", limit=2)

    await keys("offset", limit=2, offset=3)
    await keys("equal", filter={"even": True})
    await keys("two filters", filter={"even": True, "n": 2})
    await keys("nested equal", filter={"deep": {"x": "w1"}})
    await keys("list equal", filter={"tags": ["a"]})
    await keys("missing field", filter={"nope": 1})
    await keys("no filter", filter={})

    await keys("null filter", filter=None)

    for operator, value in (("$eq", 1), ("$ne", 1), ("$gt", 1), ("$gte", 1), ("$lt", 1), ("$lte", 1)):
        await keys(f"operator {operator}", filter={"n": {operator: value}})

    await keys("range", filter={"n": {"$gt": 0, "$lt": 3}})
    await keys("unknown operator", filter={"n": {"$x": 1}})
    await keys("text compared", filter={"even": {"$gt": 1}})
    await keys("query without index", query="w1")
    await keys("limit 0", limit=0)
    await keys("negative offset", offset=-1)
    await keys("limit words", limit="ten")

    await talk.post("filter list", "/store/items/search", {"namespace_prefix": ["parity"], "filter": [1]})
    await talk.post("prefix text", "/store/items/search", {"namespace_prefix": "parity"})


def _keys(body: object) -> object:
    if not isinstance(body, dict) or "items" not in body:
        return body
    return sorted(item["key"] for item in body["items"]) if len(body["items"]) == 4 else len(body["items"])


async def namespaces(talk: Talk) -> None:
    for namespace in (["spaces", "a", "x"], ["spaces", "a", "y"], ["spaces", "b", "x"], ["spaces", "b", "x", "deep"]):
        await talk.quietly("PUT", "/store/items", {"namespace": namespace, "key": "k", "value": {}})

    async def listed(step: str, **body: object) -> None:
        await talk.post(step, "/store/namespaces", body, keep=_sort)

    await listed("prefix", prefix=["spaces"])
    await listed("longer prefix", prefix=["spaces", "a"])
    await listed("suffix", prefix=["spaces"], suffix=["x"])
    await listed("wildcard prefix", prefix=["spaces", "*", "x"])
    await listed("wildcard suffix", prefix=["spaces"], suffix=["b", "*"])
    await listed("depth", prefix=["spaces"], max_depth=2)
    await talk.post("limit", "/store/namespaces", {"prefix": ["spaces"], "limit": 2}, keep=_number)

    await talk.post("offset", "/store/namespaces", {"prefix": ["spaces"], "limit": 2, "offset": 3}, keep=_number)
    await listed("nothing", prefix=["nowhere"])
    await listed("depth 0", prefix=["spaces"], max_depth=0)
    await listed("prefix text", prefix="spaces")
    await listed("limit words", limit="ten")


def _sort(body: object) -> object:
    return {"namespaces": sorted(body["namespaces"])} if isinstance(body, dict) and "namespaces" in body else body


def _number(body: object) -> object:
    return len(body["namespaces"]) if isinstance(body, dict) and "namespaces" in body else body


async def from_a_graph(talk: Talk) -> None:
    run = {"assistant_id": "remember", "input": {"said": "graph key"}}
    await talk.post("first", "/runs/wait", run)
    await talk.post("second", "/runs/wait", run)
    await talk.get("item", "/store/items?namespace=parity.graph&key=graph%20key")


@alone
async def no_prefix(talk: Talk) -> None:
    await talk.post("empty prefix", "/store/items/search", {"namespace_prefix": [], "limit": 1}, keep=_keys)
    await talk.post("absent prefix", "/store/items/search", {"limit": 1}, keep=_keys)
    await talk.post("namespaces", "/store/namespaces", {}, keep=list)
