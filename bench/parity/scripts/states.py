"""State and history: read, at a checkpoint, with subgraphs, update, fork."""

from bench.parity.talk import Talk, gate, hold

ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"


async def _ran(talk: Talk, graph: str, **body: object) -> str:
    thread = await talk.thread(metadata={"label": "x"})
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", {"assistant_id": graph, **body})
    return thread


async def read(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.get("fresh", f"/threads/{thread}/state")
    await talk.get("fresh history", f"/threads/{thread}/history")
    await talk.get("absent", f"/threads/{ABSENT}/state")
    await talk.get("absent history", f"/threads/{ABSENT}/history")
    await talk.get("bad id", "/threads/abc/state")
    await talk.get("bad id history", "/threads/abc/history")

    thread = await _ran(talk, "twostep", input={"foo": ["in"]})
    state = await talk.get("after a run", f"/threads/{thread}/state")
    checkpoint = state["checkpoint"]["checkpoint_id"]
    await talk.get("at checkpoint", f"/threads/{thread}/state/{checkpoint}")

    body = {"checkpoint": {"checkpoint_id": checkpoint, "checkpoint_ns": ""}}
    await talk.post("by checkpoint", f"/threads/{thread}/state/checkpoint", body)
    await talk.get("unknown checkpoint", f"/threads/{thread}/state/{ABSENT}")
    await talk.get("malformed checkpoint", f"/threads/{thread}/state/abc")
    await talk.post("no checkpoint", f"/threads/{thread}/state/checkpoint", {})


async def history(talk: Talk) -> None:
    thread = await _ran(talk, "twostep", input={"foo": ["in"]})
    path = f"/threads/{thread}/history"
    await talk.get("all", f"{path}?limit=10")
    await talk.get("default limit", path, keep=len)

    everything = await talk.post("posted", path, {"limit": 10})
    await talk.post("posted default", path, {}, keep=len)
    second = everything[1]["checkpoint"]
    await talk.get("before", f"{path}?limit=10&before={second['checkpoint_id']}", keep=_steps)
    await talk.post("before config", path, {"limit": 10, "before": {"configurable": second}}, keep=_steps)
    await talk.post("before checkpoint", path, {"limit": 10, "before": second}, keep=_steps)
    await talk.post("before text", path, {"limit": 10, "before": second["checkpoint_id"]}, keep=_steps)

    await talk.post("by metadata", path, {"limit": 10, "metadata": {"step": 1}}, keep=_steps)
    await talk.post("by source", path, {"limit": 10, "metadata": {"source": "input"}}, keep=_steps)
    await talk.get("limit text", f"{path}?limit=abc")
    await talk.get("limit 0", f"{path}?limit=0")
    await talk.post("posted limit 0", path, {"limit": 0})
    await talk.post("posted limit 1001", path, {"limit": 1001})


def _steps(body: object) -> object:
    return [state["metadata"]["step"] for state in body] if isinstance(body, list) else body


async def interrupted(talk: Talk) -> None:
    thread = await _ran(talk, "approval", input={"text": "a"})
    await talk.get("state", f"/threads/{thread}/state")
    await talk.get("thread", f"/threads/{thread}")
    thread = await _ran(talk, "nested_approval", input={"foo": ["in"]})

    await talk.get("nested", f"/threads/{thread}/state")
    state = await talk.get("with subgraphs", f"/threads/{thread}/state?subgraphs=true")
    inner = state["tasks"][0]["state"]["checkpoint"]
    await talk.post(
        "inner by checkpoint", f"/threads/{thread}/state/checkpoint", {"checkpoint": inner, "subgraphs": True}
    )

    where = {"checkpoint": {"checkpoint_ns": inner["checkpoint_ns"]}, "limit": 5}
    await talk.post("inner history", f"/threads/{thread}/history", where)
    thread = await _ran(talk, "two_questions", input={"foo": ["in"]})
    await talk.get("two", f"/threads/{thread}/state")


async def failed(talk: Talk) -> None:
    thread = await _ran(talk, "boom", input={"n": 0})
    await talk.get("state", f"/threads/{thread}/state")
    await talk.get("thread", f"/threads/{thread}")


async def update(talk: Talk) -> None:
    thread = await _ran(talk, "twostep", input={"foo": ["in"]})
    path = f"/threads/{thread}/state"
    await talk.post("values", path, {"values": {"foo": ["hand"]}})
    await talk.get("afterwards", path)
    await talk.get("thread", f"/threads/{thread}")
    await talk.post("as node", path, {"values": {"foo": ["as a"]}, "as_node": "a"})
    await talk.get("next is b", path, keep=lambda body: [body["values"], body["next"]])

    await talk.get("thread interrupted", f"/threads/{thread}", keep=lambda body: body["status"])
    await talk.post("unknown node", path, {"values": {"foo": []}, "as_node": "bogus"})
    await talk.post("null", path, {"values": None})
    await talk.post("as end", path, {"values": None, "as_node": "__end__"})
    await talk.get("after null", path, keep=lambda body: [body["values"], body["next"]])
    await talk.post("list of values", path, {"values": [{"foo": ["1"]}, {"foo": ["2"]}], "as_node": "b"})
    await talk.post("text", path, {"values": "x"})

    await talk.post("unknown channel", path, {"values": {"bar": 1}})
    await talk.post("wrong type", path, {"values": {"foo": 5}})
    await talk.post("absent", f"/threads/{ABSENT}/state", {"values": {}})


async def update_without_graph(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.post("no graph", f"/threads/{thread}/state", {"values": {"foo": ["x"]}})
    thread = await talk.thread(metadata={"graph_id": "twostep"})
    await talk.post("graph in metadata", f"/threads/{thread}/state", {"values": {"foo": ["x"]}})
    await talk.get("state", f"/threads/{thread}/state", keep=lambda body: [body["values"], body["next"]])
    await talk.get("thread", f"/threads/{thread}")


async def update_while_running(talk: Talk) -> None:
    thread = await talk.thread()
    with gate() as opening:
        body = {"assistant_id": "slow", "input": {"count": 3, "pause_s": 0}, "config": hold(opening)}
        run = await talk.quietly("POST", f"/threads/{thread}/runs", body)
        await talk.post("update", f"/threads/{thread}/state", {"values": {"count": 1}})
        opening.touch()
        await talk.wait_for_end(thread, run["run_id"])


async def fork(talk: Talk) -> None:
    thread = await _ran(talk, "twostep", input={"foo": ["in"]})
    past = (await talk.quietly("GET", f"/threads/{thread}/history?limit=10"))[1]["checkpoint"]
    body = {"values": {"foo": ["fork"]}, "checkpoint": past, "as_node": "a"}
    await talk.post("update at checkpoint", f"/threads/{thread}/state", body)
    await talk.get("state", f"/threads/{thread}/state")

    go_on = {"assistant_id": "twostep", "input": None}
    await talk.post("go on", f"/threads/{thread}/runs/wait", go_on)
    by_id = {"values": {"foo": ["old way"]}, "checkpoint_id": past["checkpoint_id"]}
    await talk.post("update at checkpoint id", f"/threads/{thread}/state", by_id)

    replay = {"assistant_id": "twostep", "checkpoint": past}
    await talk.post("replay", f"/threads/{thread}/runs/wait", replay)
    fresh = {"assistant_id": "twostep", "checkpoint_id": past["checkpoint_id"], "input": {"foo": ["new"]}}
    await talk.post("run from checkpoint id", f"/threads/{thread}/runs/wait", fresh)
    await talk.get("history", f"/threads/{thread}/history?limit=20", keep=_sources)


def _sources(body: object) -> object:
    return [[s["metadata"]["source"], s["metadata"]["step"], s["next"], s["values"]] for s in body]


async def edit_interrupted(talk: Talk) -> None:
    thread = await _ran(talk, "approval", input={"text": "a"})
    await talk.post("answer by hand", f"/threads/{thread}/state", {"values": {"decision": "by hand"}, "as_node": "ask"})
    await talk.get("state", f"/threads/{thread}/state")
    await talk.get("thread", f"/threads/{thread}")
    await talk.post("go on", f"/threads/{thread}/runs/wait", {"assistant_id": "approval", "input": None})


async def durability(talk: Talk) -> None:
    for durability in ("sync", "async", "exit"):
        thread = await talk.thread()
        body = {"assistant_id": "twostep", "input": {"foo": ["in"]}, "durability": durability}
        await talk.quietly("POST", f"/threads/{thread}/runs/wait", body)
        await talk.get(durability, f"/threads/{thread}/history?limit=10", keep=_steps)

    thread = await talk.thread()
    body = {"assistant_id": "twostep", "input": {"foo": ["in"]}, "checkpoint_during": False}
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", body)
    await talk.get("checkpoint_during false", f"/threads/{thread}/history?limit=10", keep=_steps)
