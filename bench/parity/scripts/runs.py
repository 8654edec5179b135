"""Runs: create, wait, read, list, join, delete; stateless runs and batches; what a thread looks like after each."""

from bench.parity.talk import Talk

ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"
HI = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}


def _hide_status(body: object) -> object:
    """A run may have begun by the time that the answer is written."""
    return {**body, "status": "-"} if isinstance(body, dict) and body.get("status") in {"pending", "running"} else body


async def create(talk: Talk) -> None:
    thread = await talk.thread(metadata={"topic": "t"})
    more = {"metadata": {"m": 1}, "config": {"tags": ["x"], "configurable": {"foo": "bar"}}}
    run = await talk.post("create", f"/threads/{thread}/runs", {**HI, **more}, keep=_hide_status)
    await talk.wait_for_end(thread, run["run_id"])
    await talk.get("read", f"/threads/{thread}/runs/{run['run_id']}")
    await talk.get("thread", f"/threads/{thread}")
    await talk.get("join", f"/threads/{thread}/runs/{run['run_id']}/join")


async def create_with_everything(talk: Talk) -> None:
    thread = await talk.thread()
    body = {
        "assistant_id": "twostep",
        "input": {"foo": ["in"]},
        "metadata": {"m": 1},
        "context": {"c": 1},
        "config": {"tags": ["x"], "recursion_limit": 12},
        "interrupt_before": ["b"],
        "interrupt_after": "*",
        "stream_mode": ["values", "updates"],
        "stream_subgraphs": True,
        "stream_resumable": True,
        "multitask_strategy": "reject",
        "if_not_exists": "reject",
        "durability": "sync",
        "after_seconds": 0,
    }

    run = await talk.post("create", f"/threads/{thread}/runs", body, keep=_hide_status)
    await talk.wait_for_end(thread, run["run_id"])
    await talk.get("thread", f"/threads/{thread}")


async def create_errors(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.post("absent thread", f"/threads/{ABSENT}/runs", HI)
    await talk.post("bad thread", "/threads/abc/runs", HI)
    await talk.post("unknown assistant", f"/threads/{thread}/runs", {"assistant_id": "nope"})
    await talk.post("absent assistant", f"/threads/{thread}/runs", {"assistant_id": ABSENT})
    await talk.post("no assistant", f"/threads/{thread}/runs", {"input": {}})
    await talk.post("absent thread wait", f"/threads/{ABSENT}/runs/wait", HI)

    await talk.post("absent thread stream", f"/threads/{ABSENT}/runs/stream", HI)
    await talk.post("unknown assistant wait", "/runs/wait", {"assistant_id": "nope"})
    await talk.post("unknown assistant stream", "/runs/stream", {"assistant_id": "nope"})
    await talk.get("thread untouched", f"/threads/{thread}")


async def if_not_exists(talk: Talk) -> None:
    path = "/threads/6f1e0d9c-8b7a-4695-8432-1a2b3c4d5e6f"
    await talk.post("create", f"{path}/runs/wait", {**HI, "if_not_exists": "create"})
    await talk.get("thread", path)


async def wait(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.post("echo", f"/threads/{thread}/runs/wait", HI)
    await talk.post("echo again", f"/threads/{thread}/runs/wait", {**HI, "input": {"messages": "bare text"}})
    await talk.post("plain", "/runs/wait", {"assistant_id": "plain", "input": {"question": "hi"}})
    await talk.post("boom", "/runs/wait", {"assistant_id": "boom", "input": {"n": 0}})
    await talk.post("no input", "/runs/wait", {"assistant_id": "twostep"})
    await talk.post("subgraph", "/runs/wait", {"assistant_id": "parent", "input": {"foo": ["in"]}})

    await talk.post("two questions", "/runs/wait", {"assistant_id": "two_questions", "input": {"foo": []}})
    nested = {"assistant_id": "nested_approval", "input": {"foo": []}}
    await talk.post("nested question", "/runs/wait", nested)
    limited = {"assistant_id": "slow", "input": {"pause_s": 0}, "config": {"recursion_limit": 3}}

    await talk.post("recursion limit", "/runs/wait", limited)
    context = {"assistant_id": "configurable", "input": {"said": ""}, "context": {"greeting": "moin", "shoes": 1}}
    await talk.post("context", "/runs/wait", context)

    configurable = {
        "assistant_id": "configurable",
        "input": {"said": ""},
        "config": {"configurable": {"greeting": "ahoy"}},
    }

    await talk.post("configurable", "/runs/wait", configurable)
    await talk.post("wrong input", "/runs/wait", {"assistant_id": "twostep", "input": "text"})
    await talk.post("unknown input key", "/runs/wait", {"assistant_id": "twostep", "input": {"bar": 1}})


async def failure(talk: Talk) -> None:
    thread = await talk.thread()
    run = await talk.quietly("POST", f"/threads/{thread}/runs", {"assistant_id": "boom", "input": {"n": 0}})
    await talk.wait_for_end(thread, run["run_id"])
    await talk.get("join", f"/threads/{thread}/runs/{run['run_id']}/join")
    await talk.get("run", f"/threads/{thread}/runs/{run['run_id']}", keep=lambda body: body["status"])
    await talk.get("thread", f"/threads/{thread}")
    await talk.quietly("POST", f"/threads/{thread}/runs/wait", {"assistant_id": "twostep", "input": {"foo": []}})

    await talk.get("thread after a good run", f"/threads/{thread}")


async def approval(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}"
    await talk.post("ask", f"{path}/runs/wait", {"assistant_id": "approval", "input": {"text": "a"}})
    await talk.get("thread", path)

    runs = await talk.get("runs", f"{path}/runs", keep=lambda body: [run["status"] for run in body])
    await talk.get("late join", f"{path}/runs/{runs[0]['run_id']}/join")
    await talk.post("resume", f"{path}/runs/wait", {"assistant_id": "approval", "command": {"resume": "yes"}})
    await talk.get("thread after", path)


async def two_questions(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/runs/wait"
    first = await talk.post("ask", path, {"assistant_id": "two_questions", "input": {"foo": []}})
    await talk.post("bare answer", path, {"assistant_id": "two_questions", "command": {"resume": "x"}})

    ids = [item["id"] for item in first["__interrupt__"]]
    await talk.post("answer one", path, {"assistant_id": "two_questions", "command": {"resume": {ids[0]: "l"}}})
    await talk.get("thread between", f"/threads/{thread}")
    await talk.get("state between", f"/threads/{thread}/state", keep=lambda body: [body["values"], body["next"]])
    await talk.post("answer other", path, {"assistant_id": "two_questions", "command": {"resume": {ids[1]: "r"}}})
    await talk.get("thread after", f"/threads/{thread}")


async def commands(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/runs/wait"
    await talk.quietly("POST", path, {"assistant_id": "twostep", "input": {"foo": ["in"]}})
    await talk.post("update", path, {"assistant_id": "twostep", "command": {"update": {"foo": ["u"]}}})
    await talk.post("update pairs", path, {"assistant_id": "twostep", "command": {"update": [["foo", ["p"]]]}})
    await talk.post("goto", path, {"assistant_id": "twostep", "command": {"goto": "b"}})
    await talk.post(
        "goto send", path, {"assistant_id": "twostep", "command": {"goto": {"node": "b", "input": {"foo": ["s"]}}}}
    )

    both = {"assistant_id": "twostep", "command": {"update": {"foo": ["both"]}, "goto": ["b"]}}
    await talk.post("update and goto", path, both)
    await talk.post("goto unknown", path, {"assistant_id": "twostep", "command": {"goto": "nope"}})


async def static_interrupts(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/runs/wait"
    await talk.post("before b", path, {"assistant_id": "twostep", "input": {"foo": ["in"]}, "interrupt_before": ["b"]})
    await talk.get("thread", f"/threads/{thread}")
    await talk.post("go on", path, {"assistant_id": "twostep", "input": None})
    await talk.get("thread after", f"/threads/{thread}", keep=lambda body: [body["status"], body["values"]])
    await talk.post("after all", path, {"assistant_id": "twostep", "input": {"foo": ["2"]}, "interrupt_after": "*"})

    await talk.get("next", f"/threads/{thread}/state", keep=lambda body: body["next"])


async def reads(talk: Talk) -> None:
    thread = await talk.thread()
    for number in range(3):
        graph = "boom" if number == 1 else "plain"
        body = {"assistant_id": graph, "input": {"question": "q", "n": 0}, "metadata": {"number": number}}
        await talk.quietly("POST", f"/threads/{thread}/runs/wait", body)

    path = f"/threads/{thread}/runs"

    async def numbers(step: str, query: str) -> None:
        await talk.get(step, f"{path}{query}", keep=_numbers)

    await talk.get("one", f"{path}?limit=1")
    await numbers("all", "")
    await numbers("page", "?limit=1&offset=1")
    await numbers("errors", "?status=error")
    await numbers("unknown status", "?status=asleep")
    await talk.get("select", f"{path}?select=status&select=metadata&limit=1")
    await talk.get("bad select", f"{path}?select=shoes")

    await talk.get("bad limit", f"{path}?limit=abc")
    await talk.get("limit 0", f"{path}?limit=0", keep=lambda _body: None)
    await talk.get("absent thread", f"/threads/{ABSENT}/runs")
    await talk.get("absent run", f"{path}/{ABSENT}")
    await talk.get("bad run", f"{path}/abc")
    await talk.get("absent join", f"{path}/{ABSENT}/join")

    other = await talk.thread()
    run = (await talk.quietly("GET", path))[0]["run_id"]
    await talk.get("run of another thread", f"/threads/{other}/runs/{run}")


def _numbers(body: object) -> object:
    return [run["metadata"].get("number") for run in body] if isinstance(body, list) else body


async def delete(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/runs"
    for word in ("one", "two"):
        await talk.quietly("POST", f"{path}/wait", {"assistant_id": "twostep", "input": {"foo": [word]}})

    runs = await talk.quietly("GET", path)
    await talk.delete("last", f"{path}/{runs[0]['run_id']}")
    await talk.get("state falls back", f"/threads/{thread}/state", keep=lambda body: body["values"])
    await talk.delete("again", f"{path}/{runs[0]['run_id']}")
    await talk.get("gone", f"{path}/{runs[0]['run_id']}")
    await talk.delete("absent", f"{path}/{ABSENT}")
    await talk.delete("bad", f"{path}/abc")

    await talk.get("thread", f"/threads/{thread}", keep=lambda body: [body["status"], body["values"]])


async def stateless(talk: Talk) -> None:
    await talk.post("wait", "/runs/wait", HI)
    run = await talk.post("create", "/runs", {**HI, "on_completion": "keep", "metadata": {"m": 1}}, keep=_hide_status)
    thread = run["thread_id"]
    await talk.get("join", f"/threads/{thread}/runs/{run['run_id']}/join")
    await talk.until(f"/threads/{thread}", lambda body: body.get("status") != "busy")
    await talk.get("kept thread", f"/threads/{thread}")

    run = await talk.quietly("POST", "/runs", HI)
    thread = run["thread_id"]
    await talk.until(f"/threads/{thread}", lambda body: "thread_id" not in body)
    await talk.get("thread is gone", f"/threads/{thread}")
    await talk.post("bad completion", "/runs", {**HI, "on_completion": "burn"})


async def batch(talk: Talk) -> None:
    runs = await talk.post(
        "two", "/runs/batch", [HI, {**HI, "metadata": {"n": 2}}], keep=lambda body: [_hide_status(run) for run in body]
    )
    await talk.until(f"/threads/{runs[1]['thread_id']}", lambda body: "thread_id" not in body)
    await talk.post("none", "/runs/batch", [])
    await talk.post("one bad", "/runs/batch", [HI, {"assistant_id": "nope"}])
    await talk.post("an object", "/runs/batch", HI)


async def delayed(talk: Talk) -> None:
    thread = await talk.thread()
    run = await talk.post("create", f"/threads/{thread}/runs", {**HI, "after_seconds": 600})
    await talk.get("thread", f"/threads/{thread}", keep=lambda body: body["status"])
    await talk.get("run", f"/threads/{thread}/runs/{run['run_id']}", keep=lambda body: body["status"])
    await talk.post("cancel", f"/threads/{thread}/runs/{run['run_id']}/cancel?wait=1")
    await talk.get("thread after", f"/threads/{thread}", keep=lambda body: body["status"])

    run = await talk.quietly("POST", f"/threads/{thread}/runs", {**HI, "after_seconds": 1})
    await talk.get("join", f"/threads/{thread}/runs/{run['run_id']}/join")


async def request_id(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.post(
        "wait", f"/threads/{thread}/runs/wait", HI, headers={"x-request-id": "req-1"}, look=("x-request-id",)
    )

    kept = "langgraph_request_id"
    await talk.get(
        "run", f"/threads/{thread}/runs", keep=lambda body: body[0]["kwargs"]["config"]["configurable"][kept]
    )


async def assistant_by_id(talk: Talk) -> None:
    thread = await talk.thread()
    body = {
        **HI,
        "assistant_id": "046b5dc7-2108-582c-9c6c-31d556d138f0",
        "metadata": {"assistant_id": "x", "graph_id": "y"},
    }

    run = await talk.post("create", f"/threads/{thread}/runs", body, keep=_hide_status)
    await talk.wait_for_end(thread, run["run_id"])
    await talk.get("thread", f"/threads/{thread}", keep=lambda body: body["metadata"])
