"""Assistants: create, read, change, versions, search, graph and schemas."""

from bench.parity.talk import Talk, alone

ECHO = "046b5dc7-2108-582c-9c6c-31d556d138f0"
ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"
GIVEN = "5d9f3c1e-4d7a-4c1b-9f5e-3a2b1c0d9e8f"


async def _create(talk: Talk, **body: object) -> str:
    return (await talk.quietly("POST", "/assistants", {"graph_id": "echo", **body}))["assistant_id"]


async def defaults(talk: Talk) -> None:
    await talk.get("read", f"/assistants/{ECHO}")
    await talk.post("search by graph", "/assistants/search", {"graph_id": "echo", "metadata": {"created_by": "system"}})
    await talk.post("count by graph", "/assistants/count", {"graph_id": "remember"})


async def create(talk: Talk) -> None:
    await talk.post("bare", "/assistants", {"graph_id": "echo"})
    everything = {
        "graph_id": "configurable",
        "name": "Every field",
        "description": "d",
        "metadata": {"tag": "create"},
        "config": {"tags": ["x"], "recursion_limit": 7},
        "context": {"greeting": "hi"},
    }

    await talk.post("everything", "/assistants", everything)
    await talk.post("configurable", "/assistants", {"graph_id": "echo", "config": {"configurable": {"a": 1}}})
    await talk.post("context", "/assistants", {"graph_id": "echo", "context": {"a": 1}})
    both = {"graph_id": "echo", "config": {"configurable": {"a": 1}}, "context": {"b": 1}}

    await talk.post("configurable and context", "/assistants", both)
    await talk.post("given id", "/assistants", {"graph_id": "echo", "assistant_id": GIVEN})
    await talk.post("again", "/assistants", {"graph_id": "echo", "assistant_id": GIVEN})
    again = {"graph_id": "boom", "assistant_id": GIVEN, "if_exists": "do_nothing"}

    await talk.post("again, do nothing", "/assistants", again)
    await talk.post("unknown graph", "/assistants", {"graph_id": "nope"})
    await talk.post("no graph", "/assistants", {"name": "x"})
    await talk.post("bad id", "/assistants", {"graph_id": "echo", "assistant_id": "abc"})
    await talk.post("bad if_exists", "/assistants", {"graph_id": "echo", "if_exists": "maybe"})
    await talk.post("unknown field", "/assistants", {"graph_id": "echo", "shoe_size": 43})
    await talk.post("description null", "/assistants", {"graph_id": "echo", "description": None})


async def read(talk: Talk) -> None:
    await talk.get("absent", f"/assistants/{ABSENT}")
    await talk.get("bad id", "/assistants/abc")
    await talk.get("graph id", "/assistants/echo")


async def change(talk: Talk) -> None:
    made = await _create(talk, name="before", metadata={"keep": 1, "over": 1}, context={"a": 1})
    path = f"/assistants/{made}"
    await talk.patch("name", path, {"name": "after"})
    await talk.patch("metadata", path, {"metadata": {"over": 2, "new": 3}})
    await talk.patch("context", path, {"context": {"b": 2}})
    await talk.patch("config", path, {"config": {"configurable": {"c": 3}, "tags": ["t"]}})
    await talk.patch("description", path, {"description": "said"})

    await talk.patch("graph", path, {"graph_id": "boom"})
    await talk.patch("nothing", path, {})
    await talk.patch("unknown graph", path, {"graph_id": "nope"})
    await talk.patch("both", path, {"config": {"configurable": {"a": 1}}, "context": {"b": 1}})
    await talk.get("afterwards", path)
    await talk.patch("absent", f"/assistants/{ABSENT}", {"name": "x"})
    await talk.patch("bad id", "/assistants/abc", {"name": "x"})


async def versions(talk: Talk) -> None:
    made = await _create(talk, name="one", metadata={"v": 1}, config={"tags": ["one"]})
    path = f"/assistants/{made}"
    await talk.quietly("PATCH", path, {"name": "two", "metadata": {"v": 2}, "config": {"tags": ["two"]}})
    await talk.quietly("PATCH", path, {"name": "three", "metadata": {"w": 3}, "graph_id": "boom"})
    await talk.post("list", f"{path}/versions", {})
    await talk.post("page", f"{path}/versions", {"limit": 1, "offset": 1})
    await talk.post("by metadata", f"{path}/versions", {"metadata": {"v": 1}})

    await talk.post("back to one", f"{path}/latest", {"version": 1})
    await talk.get("reads one", path)
    await talk.post("list after", f"{path}/versions", {})
    await talk.patch("next number", path, {"name": "four"})
    await talk.post("unknown version", f"{path}/latest", {"version": 99})
    await talk.post("no version", f"{path}/latest", {})
    await talk.post("absent latest", f"/assistants/{ABSENT}/latest", {"version": 1})

    await talk.post("absent versions", f"/assistants/{ABSENT}/versions", {})


async def delete(talk: Talk) -> None:
    made = await _create(talk)
    await talk.delete("first", f"/assistants/{made}")
    await talk.delete("second", f"/assistants/{made}")
    await talk.get("gone", f"/assistants/{made}")
    await talk.delete("bad id", "/assistants/abc")


async def delete_with_threads(talk: Talk) -> None:
    made = await _create(talk)
    thread = await talk.thread()
    body = {"assistant_id": made, "input": {"messages": "hi"}}
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", body)

    other = await talk.thread()
    await talk.delete("delete", f"/assistants/{made}?delete_threads=true")
    await talk.get("its thread", f"/threads/{thread}")
    await talk.get("another thread", f"/threads/{other}")


async def delete_without_threads(talk: Talk) -> None:
    made = await _create(talk)
    thread = await talk.thread()
    body = {"assistant_id": made, "input": {"messages": "hi"}}
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", body)
    await talk.delete("delete", f"/assistants/{made}?delete_threads=false")
    await talk.get("its thread", f"/threads/{thread}", keep=lambda body: body.get("status"))


async def search(talk: Talk) -> None:
    for number, name in enumerate(["Alpha", "beta", "Gamma alpha"]):
        graph = "boom" if number == 1 else "echo"
        await _create(talk, name=name, graph_id=graph, metadata={"tag": "search", "n": number, "deep": {"a": number}})

    tag = {"metadata": {"tag": "search"}}

    async def names(step: str, **body: object) -> None:
        await talk.post(step, "/assistants/search", {**tag, **body}, keep=_names)

    await talk.post("all", "/assistants/search", tag)
    await names("by name", name="ALPHA")
    await names("by graph", graph_id="boom")
    await names("limit", limit=1)
    await names("offset", limit=2, offset=2)
    await names("beyond", offset=10)

    for field in ("assistant_id", "created_at", "updated_at", "name", "graph_id"):
        kept = _count if field in {"assistant_id", "graph_id"} else _names
        await talk.post(
            f"sort {field}", "/assistants/search", {**tag, "sort_by": field, "sort_order": "asc"}, keep=kept
        )

    await names("nested metadata", metadata={"tag": "search", "deep": {"a": 2}})
    await talk.post("select", "/assistants/search", {**tag, "select": ["name", "graph_id"], "sort_by": "name"})
    await talk.post("count", "/assistants/count", tag)
    await talk.post("count name", "/assistants/count", {**tag, "name": "alpha"})
    await talk.post("unknown graph", "/assistants/search", {"graph_id": "nope"})
    await talk.post("bad sort", "/assistants/search", {"sort_by": "shoe_size"})
    await talk.post("bad order", "/assistants/search", {"sort_order": "sideways"})

    await talk.post("bad select", "/assistants/search", {"select": ["shoe_size"]})
    await talk.post("limit 0", "/assistants/search", {"limit": 0})
    await talk.post("limit 1001", "/assistants/search", {"limit": 1001})
    await talk.post("negative offset", "/assistants/search", {"offset": -1})
    await talk.post("limit text", "/assistants/search", {"limit": "ten"})


def _names(body: object) -> object:
    return [row.get("name") for row in body] if isinstance(body, list) else body


def _count(body: object) -> object:
    return len(body) if isinstance(body, list) else body


@alone
async def search_nothing_asked(talk: Talk) -> None:
    await talk.post("ten at most", "/assistants/search", {}, keep=_count)
    await talk.post("page", "/assistants/search", {"limit": 5, "offset": 5}, keep=_count)


async def graphs(talk: Talk) -> None:
    await talk.get("by id", f"/assistants/{ECHO}/graph")
    await talk.get("by graph id", "/assistants/echo/graph")

    for graph in ("approval", "slow", "parent", "two_questions", "nested_approval"):
        await talk.get(f"{graph}", f"/assistants/{graph}/graph")

    await talk.get("xray", "/assistants/parent/graph?xray=true")
    await talk.get("xray 1", "/assistants/parent/graph?xray=1")
    await talk.get("xray false", "/assistants/parent/graph?xray=false")
    await talk.get("xray 0", "/assistants/parent/graph?xray=0")
    await talk.get("xray words", "/assistants/parent/graph?xray=deep")
    await talk.get("absent", f"/assistants/{ABSENT}/graph")
    await talk.get("unknown graph", "/assistants/nope/graph")


async def schemas(talk: Talk) -> None:
    for graph in ("echo", "plain", "configurable", "slow", "approval"):
        made = await _create(talk, graph_id=graph)
        await talk.get(graph, f"/assistants/{made}/schemas")

    await talk.get("absent", f"/assistants/{ABSENT}/schemas")
    await talk.get("bad id", "/assistants/abc/schemas")
    await talk.get("graph id", "/assistants/echo/schemas")


async def subgraphs(talk: Talk) -> None:
    made = await _create(talk, graph_id="parent")
    await talk.get("list", f"/assistants/{made}/subgraphs")
    await talk.get("recurse", f"/assistants/{made}/subgraphs?recurse=true")
    await talk.get("one", f"/assistants/{made}/subgraphs/child")
    await talk.get("unknown namespace", f"/assistants/{made}/subgraphs/nope")
    await talk.get("none", f"/assistants/{ECHO}/subgraphs")
    await talk.get("absent", f"/assistants/{ABSENT}/subgraphs")


async def used_in_runs(talk: Talk) -> None:
    made = await _create(
        talk,
        graph_id="configurable",
        context={"greeting": "moin", "times": 2},
        config={"tags": ["mine"], "recursion_limit": 9},
        metadata={"team": "a"},
    )

    await talk.post("wait", "/runs/wait", {"assistant_id": made, "input": {"said": ""}})
    more = {"assistant_id": made, "input": {"said": ""}, "context": {"times": 1}}
    await talk.post("context over", "/runs/wait", more)
    thread = await talk.thread()

    run = await talk.post(
        "create",
        f"/threads/{thread}/runs",
        {"assistant_id": made, "input": {"said": ""}, "config": {"tags": ["run"]}, "metadata": {"m": 1}},
        keep=lambda body: {**body, "status": "-"},
    )

    await talk.wait_for_end(thread, run["run_id"])
    await talk.get("thread", f"/threads/{thread}")
    await talk.quietly("PATCH", f"/assistants/{made}", {"context": {"greeting": "ahoy"}})
    await talk.post("newest version", "/runs/wait", {"assistant_id": made, "input": {"said": ""}})
