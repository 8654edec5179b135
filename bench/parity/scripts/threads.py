"""Threads: create, read, change, search, copy, prune, storage."""

from bench.parity.talk import Talk

ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"
GIVEN = "7a8b9c0d-1e2f-4a3b-8c4d-5e6f7a8b9c0d"
HI = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}


async def create(talk: Talk) -> None:
    await talk.post("empty object", "/threads", {})
    await talk.post("metadata", "/threads", {"metadata": {"a": {"b": [1, None, "x"]}}})
    await talk.post("given id", "/threads", {"thread_id": GIVEN, "metadata": {"first": True}})
    await talk.post("again", "/threads", {"thread_id": GIVEN})
    await talk.post(
        "again, do nothing", "/threads", {"thread_id": GIVEN, "if_exists": "do_nothing", "metadata": {"b": 1}}
    )

    await talk.post("bad id", "/threads", {"thread_id": "abc"})
    await talk.post("bad if_exists", "/threads", {"if_exists": "maybe"})
    await talk.post("metadata text", "/threads", {"metadata": "x"})
    await talk.post("unknown field", "/threads", {"shoe_size": 43})
    await talk.post("upper case id", "/threads", {"thread_id": "AAAAAAAA-BBBB-4CCC-8DDD-EEEEEEEEEEEE"})


async def ttl(talk: Talk) -> None:
    made = await talk.post("create", "/threads", {"ttl": {"ttl": 60, "strategy": "delete"}})
    await talk.get("include", f"/threads/{made['thread_id']}?include=ttl")
    await talk.patch("change", f"/threads/{made['thread_id']}", {"ttl": {"ttl": 5, "strategy": "keep_latest"}})
    await talk.post("bad strategy", "/threads", {"ttl": {"ttl": 60, "strategy": "burn"}})
    await talk.post("number", "/threads", {"ttl": 60})
    await talk.post("words", "/threads", {"ttl": "an hour"})


async def supersteps(talk: Talk) -> None:
    steps = [
        {"updates": [{"values": {"foo": ["in"]}, "as_node": "__start__"}]},
        {"updates": [{"values": {"foo": ["a!"]}, "as_node": "a"}]},
    ]

    made = await talk.post("create", "/threads", {"metadata": {"graph_id": "twostep"}, "supersteps": steps})
    await talk.get("state", f"/threads/{made['thread_id']}/state")
    await talk.get("history", f"/threads/{made['thread_id']}/history?limit=10")
    await talk.get("thread", f"/threads/{made['thread_id']}")

    wrong = [{"updates": [{"values": {"foo": ["x"]}, "as_node": "nope"}]}]
    await talk.post("unknown node", "/threads", {"metadata": {"graph_id": "twostep"}, "supersteps": wrong})


async def read(talk: Talk) -> None:
    await talk.get("absent", f"/threads/{ABSENT}")
    await talk.get("bad id", "/threads/abc")
    thread = await talk.thread(metadata={"a": 1})
    await talk.get("fresh", f"/threads/{thread}")
    await talk.get("unknown include", f"/threads/{thread}?include=shoes")
    await talk.quietly(
        "POST", f"/threads/{thread}/runs/wait", {**HI, "metadata": {"run": 1}, "config": {"tags": ["t"]}}
    )

    await talk.get("after a run", f"/threads/{thread}")


async def change(talk: Talk) -> None:
    thread = await talk.thread(metadata={"keep": 1, "over": 1, "deep": {"a": 1}})
    path = f"/threads/{thread}"
    await talk.patch("merge", path, {"metadata": {"over": 2, "deep": {"b": 2}, "gone": None}})
    await talk.patch("minimal", path, {"metadata": {"m": 1}}, headers={"Prefer": "return=minimal"})
    await talk.get("afterwards", path)
    await talk.patch("nothing", path, {})
    await talk.patch("absent", f"/threads/{ABSENT}", {"metadata": {}})

    await talk.patch("bad id", "/threads/abc", {"metadata": {}})
    await talk.patch("metadata list", path, {"metadata": []})


async def delete(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", HI)
    await talk.delete("first", f"/threads/{thread}")
    await talk.delete("second", f"/threads/{thread}")
    await talk.get("gone", f"/threads/{thread}")
    await talk.get("state gone", f"/threads/{thread}/state")
    await talk.get("runs gone", f"/threads/{thread}/runs")

    await talk.delete("bad id", "/threads/abc")


async def delete_busy(talk: Talk) -> None:
    thread = await talk.thread()
    run = await talk.quietly("POST", f"/threads/{thread}/runs", {"assistant_id": "slow", "input": {"count": 50}})
    await talk.until(f"/threads/{thread}/runs/{run['run_id']}", lambda body: body["status"] == "running")
    await talk.delete("delete", f"/threads/{thread}")
    await talk.get("gone", f"/threads/{thread}")
    await talk.get("run gone", f"/threads/{thread}/runs/{run['run_id']}")


async def search(talk: Talk) -> None:
    ids = [await talk.thread(metadata={"tag": "search", "n": n, "deep": {"even": n % 2 == 0}}) for n in range(3)]
    await talk.quietly("POST", f"/threads/{ids[0]}/runs/wait", HI)
    await talk.quietly("POST", f"/threads/{ids[1]}/runs/wait", {"assistant_id": "boom", "input": {"n": 0}})
    await talk.quietly("POST", f"/threads/{ids[2]}/runs/wait", {"assistant_id": "approval", "input": {"text": "a"}})

    tag = {"metadata": {"tag": "search"}}

    async def numbers(step: str, **body: object) -> None:
        await talk.post(step, "/threads/search", {**tag, **body}, keep=_numbers)

    await talk.post("all", "/threads/search", {**tag, "sort_by": "created_at", "sort_order": "asc"})

    for status in ("idle", "busy", "interrupted", "error"):
        await numbers(f"status {status}", status=status)

    await numbers("values", values={"text": "a!"})
    await numbers("values nothing", values={"text": "b"})
    await numbers("values list", values={"messages": [{"content": "hi"}]})
    await numbers("ids", ids=ids[:2], sort_by="created_at")
    await numbers("no ids", ids=[])
    await numbers("limit", limit=1, sort_by="created_at")
    await numbers("offset", limit=2, offset=2, sort_by="created_at")

    for field in ("thread_id", "status", "created_at", "updated_at", "state_updated_at"):
        await numbers(f"sort {field}", sort_by=field, sort_order="asc")

    await numbers("default order")
    await numbers("nested", metadata={"tag": "search", "deep": {"even": True}}, sort_by="created_at")
    await talk.post("select", "/threads/search", {**tag, "select": ["status", "metadata"], "sort_by": "created_at"})

    extract = {
        "first": "values.messages[0].content",
        "n": "metadata.n",
        "last": "values.messages[-1].type",
        "no": "values.x",
    }

    found = {**tag, "extract": extract, "select": ["thread_id"], "sort_by": "created_at", "sort_order": "asc"}
    await talk.post("extract", "/threads/search", found)
    await talk.post("count", "/threads/count", tag)
    await talk.post("count status", "/threads/count", {**tag, "status": "error"})
    await talk.post("count values", "/threads/count", {**tag, "values": {"text": "a!"}})
    await talk.post("bad extract", "/threads/search", {"extract": {"a": "shoes.size"}})
    await talk.post("bad ids", "/threads/search", {"ids": ["abc"]})

    await talk.post("bad status", "/threads/search", {"status": "asleep"})
    await talk.post("bad sort", "/threads/search", {"sort_by": "shoe_size"})
    await talk.post("bad select", "/threads/search", {"select": ["shoe_size"]})
    await talk.post("limit 0", "/threads/search", {"limit": 0})
    await talk.post("limit 1001", "/threads/search", {"limit": 1001})
    await talk.post("negative offset", "/threads/search", {"offset": -1})
    await talk.post("count bad status", "/threads/count", {"status": "asleep"})


def _numbers(body: object) -> object:
    return [row.get("metadata", {}).get("n") for row in body] if isinstance(body, list) else body


async def copy(talk: Talk) -> None:
    thread = await talk.thread(metadata={"label": "original"})
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", HI)
    made = await talk.post("copy", f"/threads/{thread}/copy")
    other = made["thread_id"]

    await talk.get("thread", f"/threads/{other}")
    await talk.get(
        "state", f"/threads/{other}/state", keep=lambda body: [body["values"], body["next"], body["checkpoint"]]
    )
    await talk.get("history", f"/threads/{other}/history?limit=10", keep=len)
    await talk.get("runs", f"/threads/{other}/runs")
    await talk.quietly("POST", f"/threads/{other}/runs/wait", HI)

    await talk.get("original untouched", f"/threads/{thread}/history?limit=10", keep=len)
    await talk.get("copy goes on", f"/threads/{other}/history?limit=10", keep=len)
    await talk.post("absent", f"/threads/{ABSENT}/copy")
    await talk.post("bad id", "/threads/abc/copy")


async def prune(talk: Talk) -> None:
    ids = [await talk.thread() for _ in range(3)]
    for thread in ids:
        await talk.quietly("POST", f"/threads/{thread}/runs/wait", HI)

    await talk.post("delete", "/threads/prune", {"thread_ids": [ids[0], ABSENT]})
    await talk.get("gone", f"/threads/{ids[0]}")
    await talk.post("keep latest", "/threads/prune", {"thread_ids": [ids[1]], "strategy": "keep_latest"})
    await talk.get("history after keep", f"/threads/{ids[1]}/history?limit=10", keep=len)
    await talk.post("none", "/threads/prune", {"thread_ids": []})
    await talk.post("bad strategy", "/threads/prune", {"thread_ids": [ids[2]], "strategy": "burn"})
    await talk.post("bad id", "/threads/prune", {"thread_ids": ["abc"]})

    await talk.post("no ids", "/threads/prune", {})
    await talk.get("third is there", f"/threads/{ids[2]}", keep=lambda body: body["status"])


async def storage(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.get("fresh", f"/threads/{thread}/storage")
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", HI)
    await talk.get("after a run", f"/threads/{thread}/storage", keep=_shape)
    await talk.get("absent", f"/threads/{ABSENT}/storage")
    await talk.get("bad id", "/threads/abc/storage")


def _shape(body: object) -> object:
    if not isinstance(body, dict):
        return body

    return {
        **{key: sorted(value) if isinstance(value, dict) else value for key, value in body.items()},
        "checkpoints": {**body["checkpoints"]},
        "messages": sorted(body["channel_values"]["by_channel"]["messages"]),
    }
