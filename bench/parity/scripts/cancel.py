"""Cancelling, and runs that meet on a thread."""

from bench.parity.talk import Talk, alone, gate, hold

ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"


async def _start_run(talk: Talk, **body: object) -> tuple[str, str]:
    thread = await talk.thread()
    asked = {"assistant_id": "slow", "input": {"count": 2000, "pause_s": 0.2}, **body}
    run = await talk.quietly("POST", f"/threads/{thread}/runs", asked)
    await talk.until(
        f"/threads/{thread}/state", lambda state: isinstance(state, dict) and bool(state.get("values", {}).get("ticks"))
    )

    return thread, run["run_id"]


def _kinds(body: object) -> object:
    return {key: "-" if key in {"values", "interrupts"} else value for key, value in body.items()}


def _status(body: object) -> object:
    return body.get("status") if isinstance(body, dict) else body


async def and_wait(talk: Talk) -> None:
    thread, run = await _start_run(talk)
    await talk.post("cancel", f"/threads/{thread}/runs/{run}/cancel?wait=1")
    await talk.get("run", f"/threads/{thread}/runs/{run}", keep=_status)
    await talk.get("thread", f"/threads/{thread}", keep=_kinds)
    await talk.get("next", f"/threads/{thread}/state", keep=lambda body: body["next"])
    await talk.post("again", f"/threads/{thread}/runs/{run}/cancel?wait=1")

    body = {"assistant_id": "slow", "input": {"count": 0, "pause_s": 0}}
    await talk.post("goes on", f"/threads/{thread}/runs/wait", body, keep=sorted)
    await talk.get("thread after", f"/threads/{thread}", keep=_kinds)


async def without_waiting(talk: Talk) -> None:
    thread, run = await _start_run(talk)
    await talk.post("cancel", f"/threads/{thread}/runs/{run}/cancel")
    await talk.wait_for_end(thread, run)
    await talk.get("run", f"/threads/{thread}/runs/{run}", keep=_status)
    await talk.get("join", f"/threads/{thread}/runs/{run}/join", keep=sorted)


async def rollback(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.quietly(
        "POST", f"/threads/{thread}/runs/wait", {"assistant_id": "slow", "input": {"count": 1, "pause_s": 0}}
    )

    body = {"assistant_id": "slow", "input": {"count": 2000, "pause_s": 0.2}}
    run = (await talk.quietly("POST", f"/threads/{thread}/runs", body))["run_id"]
    await talk.until(f"/threads/{thread}/state", lambda state: len(state["values"].get("ticks", [])) > 1)

    # What is answered depends on how far the run came.
    path = f"/threads/{thread}/runs/{run}/cancel?wait=1&action=rollback"
    await talk.post("cancel", path, keep=lambda _body: None)
    await talk.get("run", f"/threads/{thread}/runs/{run}")
    await talk.get("state", f"/threads/{thread}/state", keep=lambda body: [body["values"], body["next"]])
    await talk.get("thread", f"/threads/{thread}", keep=_status)


async def absent(talk: Talk) -> None:
    thread = await talk.thread()
    await talk.post("run", f"/threads/{thread}/runs/{ABSENT}/cancel")
    await talk.post("thread", f"/threads/{ABSENT}/runs/{ABSENT}/cancel")
    await talk.post("bad run", f"/threads/{thread}/runs/abc/cancel")

    run = await talk.quietly("POST", f"/threads/{thread}/runs", {"assistant_id": "plain", "input": {"question": "q"}})
    await talk.wait_for_end(thread, run["run_id"])
    await talk.post("finished", f"/threads/{thread}/runs/{run['run_id']}/cancel")
    await talk.post("unknown action", f"/threads/{thread}/runs/{run['run_id']}/cancel?action=burn")


async def pending(talk: Talk) -> None:
    thread, first = await _start_run(talk)
    second = (await talk.quietly("POST", f"/threads/{thread}/runs", {"assistant_id": "slow", "input": {"count": 1}}))[
        "run_id"
    ]

    await talk.post("cancel second", f"/threads/{thread}/runs/{second}/cancel?wait=1")
    await talk.get("second", f"/threads/{thread}/runs/{second}", keep=_status)
    await talk.get("first goes on", f"/threads/{thread}/runs/{first}", keep=_status)
    await talk.post("cancel first", f"/threads/{thread}/runs/{first}/cancel?wait=1")


async def many(talk: Talk) -> None:
    thread, run = await _start_run(talk)
    await talk.post("by ids", "/runs/cancel", {"thread_id": thread, "run_ids": [run]})
    await talk.wait_for_end(thread, run)
    await talk.get("run", f"/threads/{thread}/runs/{run}", keep=_status)
    await talk.post("both", "/runs/cancel", {"status": "all", "thread_id": thread, "run_ids": [run]})
    await talk.post("neither", "/runs/cancel", {})
    await talk.post("unknown ids", "/runs/cancel", {"thread_id": thread, "run_ids": [ABSENT]})

    await talk.post("bad status", "/runs/cancel", {"status": "asleep"})
    await talk.post("no run ids", "/runs/cancel", {"thread_id": thread})


@alone
async def by_status(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "plain", "input": {"question": "q"}, "after_seconds": 600}
    run = await talk.quietly("POST", f"/threads/{thread}/runs", body)
    await talk.post("pending", "/runs/cancel", {"status": "pending"})
    await talk.get("run", f"/threads/{thread}/runs/{run['run_id']}", keep=_status)
    await talk.post("nothing left", "/runs/cancel", {"status": "running"})


async def multitask_reject(talk: Talk) -> None:
    thread, run = await _start_run(talk)
    second = {"assistant_id": "slow", "input": {"count": 1}, "multitask_strategy": "reject"}
    for kind in ("", "/wait", "/stream"):
        await talk.post(f"rejected {kind}", f"/threads/{thread}/runs{kind}", second)

    await talk.get("runs", f"/threads/{thread}/runs", keep=len)
    await talk.post("cancel", f"/threads/{thread}/runs/{run}/cancel?wait=1")


async def multitask_enqueue(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "slow", "input": {"count": 3, "pause_s": 0.2}, "multitask_strategy": "enqueue"}
    with gate() as opening:
        held = {**body, "input": {"count": 3, "pause_s": 0}, "config": hold(opening)}
        first = await talk.quietly("POST", f"/threads/{thread}/runs", held)
        second = await talk.post("second", f"/threads/{thread}/runs", body)

        await talk.get("thread", f"/threads/{thread}", keep=_status)
        opening.touch()
        await talk.wait_for_end(thread, second["run_id"])

    await talk.get("first", f"/threads/{thread}/runs/{first['run_id']}", keep=_status)
    await talk.get("values", f"/threads/{thread}", keep=lambda body: body["values"])


async def multitask_interrupt(talk: Talk) -> None:
    thread, first = await _start_run(talk)
    body = {"assistant_id": "slow", "input": {"count": 0, "pause_s": 0}, "multitask_strategy": "interrupt"}
    await talk.post("second", f"/threads/{thread}/runs/wait", body, keep=sorted)
    await talk.get("first", f"/threads/{thread}/runs/{first}", keep=_status)
    await talk.get("thread", f"/threads/{thread}", keep=_status)


async def multitask_rollback(talk: Talk) -> None:
    thread, first = await _start_run(talk)
    body = {"assistant_id": "slow", "input": {"count": 1, "pause_s": 0}, "multitask_strategy": "rollback"}
    await talk.post("second", f"/threads/{thread}/runs/wait", body)
    await talk.get("first", f"/threads/{thread}/runs/{first}")
    await talk.get("join first", f"/threads/{thread}/runs/{first}/join")
    await talk.get("thread", f"/threads/{thread}", keep=_status)


async def delete_running(talk: Talk) -> None:
    thread, run = await _start_run(talk)
    await talk.delete("delete", f"/threads/{thread}/runs/{run}", keep=lambda _body: None)
