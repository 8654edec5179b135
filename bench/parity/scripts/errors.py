"""Wrong and hostile input, field by field. Only the status is compared: the words are each server's own."""

from bench.parity.talk import Talk

WRONG = {"text": "x", "number": 7, "list": [1], "object": {"a": 1}, "bool": True, "null": None}


async def _fields(talk: Talk, method: str, path: str, base: dict, fields: dict[str, str]) -> None:
    """Give each field every type that it does not have; `fields` names the types that it has."""
    for field, right in fields.items():
        for kind, value in WRONG.items():
            if kind not in right.split():
                body = {**base, field: value}
                await talk.send(f"{field} {kind}", method, path, body, keep=lambda _body: None)


async def thread_create(talk: Talk) -> None:
    fields = {"thread_id": "", "metadata": "object", "if_exists": "", "ttl": "object", "supersteps": ""}
    await _fields(talk, "POST", "/threads", {}, fields)


async def thread_search(talk: Talk) -> None:
    fields = {
        "ids": "list",
        "metadata": "object",
        "values": "object",
        "status": "",
        "limit": "number",
        "offset": "number",
        "sort_by": "",
        "sort_order": "",
        "select": "",
        "extract": "",
    }

    await _fields(talk, "POST", "/threads/search", {"metadata": {"tag": "nobody"}}, fields)


async def thread_state(talk: Talk) -> None:
    thread = await talk.thread(metadata={"graph_id": "twostep"})
    fields = {"values": "object list null", "as_node": "text", "checkpoint": "object", "checkpoint_id": "text"}
    await _fields(talk, "POST", f"/threads/{thread}/state", {"values": {"foo": ["x"]}, "as_node": "a"}, fields)


async def assistant_create(talk: Talk) -> None:
    fields = {
        "graph_id": "text",
        "assistant_id": "",
        "config": "object",
        "context": "object",
        "metadata": "object",
        "name": "text",
        "description": "text null",
        "if_exists": "",
    }

    await _fields(talk, "POST", "/assistants", {"graph_id": "echo"}, fields)


async def run_create(talk: Talk) -> None:
    thread = await talk.thread()
    fields = {
        "command": "object null",
        "metadata": "object",
        "config": "object",
        "context": "object",
        "webhook": "text",
        "interrupt_before": "text",
        "interrupt_after": "text",
        "stream_mode": "",
        "stream_subgraphs": "bool",
        "stream_resumable": "bool",
        "multitask_strategy": "",
        "if_not_exists": "",
        "checkpoint": "object",
        "checkpoint_id": "text",
        "on_disconnect": "",
        "after_seconds": "number",
        "durability": "",
        "checkpoint_during": "bool",
        "assistant_id": "",
    }

    # A graph that cannot start keeps what is let through from running.
    await _fields(talk, "POST", f"/threads/{thread}/runs", {"assistant_id": "echo", "after_seconds": 600}, fields)


async def run_fields(talk: Talk) -> None:
    thread = await talk.thread()

    async def tried(step: str, **body: object) -> None:
        path = f"/threads/{thread}/runs"
        base = {"assistant_id": "echo", "after_seconds": 600}
        await talk.post(step, path, {**base, **body}, keep=lambda _body: None)

    await tried("goto name", command={"goto": "answer"})
    await tried("goto names", command={"goto": ["answer", "answer"]})
    await tried("goto send", command={"goto": {"node": "answer", "input": {}}})
    await tried("goto sends", command={"goto": [{"node": "answer", "input": {}}]})
    await tried("goto mixed", command={"goto": ["answer", {"node": "answer", "input": {}}]})
    await tried("goto number", command={"goto": 5})
    await tried("goto send without input", command={"goto": {"node": "answer"}})

    await tried("update object", command={"update": {"messages": []}})
    await tried("update pairs", command={"update": [["messages", []]]})
    await tried("update text", command={"update": "x"})
    await tried("resume null", command={"resume": None})
    await tried("empty command", command={})
    await tried("unknown command field", command={"resume": 1, "jump": 2})
    await tried("command and input", command={"resume": 1}, input={"messages": "hi"})

    await tried("recursion limit text", config={"recursion_limit": "ten"})
    await tried("recursion limit 0", config={"recursion_limit": 0})
    await tried("tags text", config={"tags": "x"})
    await tried("configurable text", config={"configurable": "x"})
    await tried("configurable and context", config={"configurable": {"a": 1}}, context={"b": 1})
    await tried("spoofed ids", config={"configurable": {"thread_id": "x", "langgraph_auth_user_id": "root"}})
    await tried("unknown node", interrupt_before=["nope"])

    await tried("all nodes", interrupt_before="*")
    await tried("no stream modes", stream_mode=[])
    await tried("unknown stream mode", stream_mode=["shoes"])
    await tried("after nothing", after_seconds=-1)
    await tried("webhook without host", webhook="not a url")
    await tried("webhook loopback", webhook="http://127.0.0.1:9/x")
    await tried("webhook metadata address", webhook="http://169.254.169.254/x")

    await tried("webhook scheme", webhook="ftp://example.com/x")
    await tried("unknown assistant", assistant_id="nope")
    await tried("absent assistant", assistant_id="01a1fbd3-88f4-74ad-8000-000000000000")
    await tried("checkpoint unknown", checkpoint={"checkpoint_id": "01a1fbd3-88f4-74ad-8000-000000000000"})
    await tried("both checkpoints", checkpoint={"checkpoint_id": "a"}, checkpoint_id="b")
    await talk.delete("cleaned", f"/threads/{thread}")


async def paths(talk: Talk) -> None:
    for name, value in (
        ("nul", "%00"),
        ("dots", ".."),
        ("quote", "'--"),
        ("long", "a" * 5000),
        ("utf", "%F0%9F%98%80"),
    ):
        await talk.get(f"thread {name}", f"/threads/{value}")
        await talk.get(f"assistant {name}", f"/assistants/{value}")
        await talk.get(f"run {name}", f"/threads/01a1fbd3-88f4-74ad-8000-000000000000/runs/{value}")
