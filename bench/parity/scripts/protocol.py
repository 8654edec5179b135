"""The event streaming protocol: commands and the thread's session of events."""

from bench.parity.talk import Event, Talk


def _ends_with(*names: str):
    def enough(events: list[Event]) -> bool:
        return any(e.name == "lifecycle" and e.data["params"]["data"]["event"] in names for e in events)

    return enough


async def command_errors(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/commands"
    start = {"assistant_id": "plain", "input": {"question": "q"}}
    await talk.post("no id", path, {"method": "run.start", "params": start})
    await talk.post("text id", path, {"id": "a", "method": "run.start", "params": start})
    await talk.post("no method", path, {"id": 1})
    await talk.post("unknown method", path, {"id": 1, "method": "shoes.buy", "params": {}})

    await talk.post("no assistant", path, {"id": 1, "method": "run.start", "params": {}})
    await talk.post("unknown assistant", path, {"id": 1, "method": "run.start", "params": {"assistant_id": "nope"}})
    answer = {"namespace": [], "interrupt_id": "x", "response": "yes"}
    await talk.post("unknown interrupt", path, {"id": 2, "method": "input.respond", "params": answer})
    await talk.post("tree when idle", path, {"id": 3, "method": "agent.getTree", "params": {}})
    await talk.send("broken", "POST", path, content=b"{")
    await talk.send("a list", "POST", path, content=b"[]")

    events = f"/threads/{thread}/stream/events"
    await talk.post("no channels", events, {})
    await talk.post("empty channels", events, {"channels": []})
    await talk.post("unknown channel", events, {"channels": ["bogus"]})


async def plain_run(talk: Talk) -> None:
    thread = await talk.thread()
    start = {"assistant_id": "twostep", "input": {"foo": ["in"]}}
    await talk.post("start", f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": start})
    body = {"channels": ["values", "lifecycle", "updates", "messages", "tools", "custom", "input", "tasks"]}
    events = await talk.stream("events", f"/threads/{thread}/stream/events", body, enough=_ends_with("completed"))
    since = {**body, "since": events[1].data["seq"] if len(events) > 1 else 1}

    await talk.stream("since", f"/threads/{thread}/stream/events", since, enough=_ends_with("completed"))


async def chat(talk: Talk) -> None:
    thread = await talk.thread()
    start = {"assistant_id": "fake_chat", "input": {"messages": [{"role": "user", "content": "go"}]}}
    await talk.post("start", f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": start})
    body = {"channels": ["messages", "lifecycle"]}

    await talk.stream("events", f"/threads/{thread}/stream/events", body, enough=_ends_with("completed"))


async def approval(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}"
    start = {"assistant_id": "approval", "input": {"text": "a"}}
    await talk.post("start", f"{path}/commands", {"id": 1, "method": "run.start", "params": start})

    body = {"channels": ["values", "input", "lifecycle"]}
    events = await talk.stream("ask", f"{path}/stream/events", body, enough=_ends_with("interrupted"))
    ids = [e.data["params"]["data"]["interrupt_id"] for e in events if e.name == "input.requested"]
    answer = {"namespace": [], "interrupt_id": ids[0] if ids else "", "response": "yes"}

    await talk.post("answer", f"{path}/commands", {"id": 2, "method": "input.respond", "params": answer})
    await talk.stream("both", f"{path}/stream/events", body, enough=_ends_with("completed"))


async def failure(talk: Talk) -> None:
    thread = await talk.thread()
    start = {"assistant_id": "boom", "input": {"n": 0}}
    await talk.post("start", f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": start})
    body = {"channels": ["values", "lifecycle"]}

    await talk.stream("events", f"/threads/{thread}/stream/events", body, enough=_ends_with("failed"))


async def subgraph(talk: Talk) -> None:
    thread = await talk.thread()
    start = {"assistant_id": "parent", "input": {"foo": ["in"]}}
    await talk.post("start", f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": start})
    body = {"channels": ["values", "lifecycle"]}

    def root_ended(events: list[Event]) -> bool:
        return any(
            e.data["params"]["data"].get("event") == "completed" and not e.data["params"]["namespace"] for e in events
        )

    await talk.stream("events", f"/threads/{thread}/stream/events", body, enough=root_ended)
    inside = {**body, "namespaces": [["child"]]}

    def child_ended(events: list[Event]) -> bool:
        return any(e.data["params"]["data"].get("event") == "completed" for e in events)

    await talk.stream("namespace", f"/threads/{thread}/stream/events", inside, enough=child_ended)
