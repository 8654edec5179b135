"""Streams: every mode, interrupts, subgraphs, errors, rejoining, the thread's stream."""

from bench.parity.talk import Event, Talk, gate, hold

ABSENT = "01a1fbd3-88f4-74ad-8000-000000000000"
HI = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}
MODES = ("values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug")


async def echo_modes(talk: Talk) -> None:
    async def streamed(step: str, modes: object, **options: object) -> None:
        path = f"/threads/{await talk.thread()}/runs/stream"
        await talk.stream(step, path, {**HI, "stream_mode": modes}, **options)

    await talk.stream("default", f"/threads/{await talk.thread()}/runs/stream", HI)

    for mode in MODES:
        await streamed(mode, mode)

    await streamed("no modes", [])
    await streamed("events", "events", keep=_event_names)
    await streamed("several", ["values", "updates", "messages-tuple"])
    await streamed("all", [*MODES])


def _event_names(events: list[Event]) -> list[Event]:
    kept = [
        Event(e.name, {k: e.data.get(k) for k in ("event", "name", "tags")}, e.id) for e in events if e.name == "events"
    ]
    return [*(event for event in events if event.name != "events"), *kept]


async def chat_modes(talk: Talk) -> None:
    chat = {"assistant_id": "fake_chat", "input": {"messages": [{"role": "user", "content": "go"}]}}
    for mode in ("values", "messages", "messages-tuple"):
        await talk.stream(mode, "/runs/stream", {**chat, "stream_mode": mode})

    await talk.stream("both message modes", "/runs/stream", {**chat, "stream_mode": ["messages", "messages-tuple"]})
    await talk.stream("events", "/runs/stream", {**chat, "stream_mode": "events"}, keep=_event_names)


async def custom(talk: Talk) -> None:
    await talk.stream(
        "custom", "/runs/stream", {"assistant_id": "writer", "input": {"said": ""}, "stream_mode": "custom"}
    )
    more = {"assistant_id": "writer", "input": {"said": ""}, "stream_mode": ["custom", "updates"]}

    await talk.stream("with updates", "/runs/stream", more)


async def approval(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "approval", "stream_mode": ["values", "updates", "tasks", "checkpoints"]}
    await talk.stream("ask", f"/threads/{thread}/runs/stream", {**body, "input": {"text": "a"}})
    await talk.stream("resume", f"/threads/{thread}/runs/stream", {**body, "command": {"resume": "yes"}})


async def static_interrupt(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "twostep", "stream_mode": ["values", "updates"]}
    await talk.stream(
        "stop", f"/threads/{thread}/runs/stream", {**body, "input": {"foo": ["in"]}, "interrupt_before": ["b"]}
    )
    await talk.stream("go on", f"/threads/{thread}/runs/stream", {**body, "input": None})


async def subgraphs(talk: Talk) -> None:
    async def streamed(step: str, graph: str, modes: list[str], *, inside: bool) -> None:
        body = {"assistant_id": graph, "input": {"foo": ["in"]}, "stream_mode": modes, "stream_subgraphs": inside}
        await talk.stream(step, f"/threads/{await talk.thread()}/runs/stream", body)

    for modes in (["values", "updates"], ["tasks"], ["checkpoints"], ["debug"], ["messages-tuple"]):
        await streamed(f"{' '.join(modes)} inside", "parent", modes, inside=True)
        await streamed(f"{' '.join(modes)} outside", "parent", modes, inside=False)

    await streamed("interrupt inside", "nested_approval", ["values", "updates"], inside=True)


async def failure(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "boom", "input": {"n": 0}, "stream_mode": ["values", "updates", "tasks"]}
    await talk.stream("boom", f"/threads/{thread}/runs/stream", body)
    await talk.stream(
        "recursion", "/runs/stream", {"assistant_id": "slow", "input": {"pause_s": 0}, "config": {"recursion_limit": 2}}
    )
    await talk.stream("wrong input", "/runs/stream", {"assistant_id": "twostep", "input": "text"})


async def resumable(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}/runs"
    body = {**HI, "stream_resumable": True, "stream_mode": ["values", "updates"]}
    events = await talk.stream("first", f"{path}/stream", body)
    run = events[0].data["run_id"]
    back = f"{path}/{run}/stream"

    await talk.stream("replay all", back, headers={"Last-Event-ID": "-1"})
    await talk.stream("replay 0", back, headers={"Last-Event-ID": "0"})
    await talk.stream("after second", back, headers={"Last-Event-ID": events[1].id or ""})
    await talk.stream("after last", back, headers={"Last-Event-ID": events[-1].id or ""})
    await talk.stream("no header", back)
    await talk.stream("garbage", back, headers={"Last-Event-ID": "garbage"})
    await talk.stream("one mode", f"{back}?stream_mode=updates", headers={"Last-Event-ID": "-1"})

    await talk.stream("two modes", f"{back}?stream_mode=updates&stream_mode=values", headers={"Last-Event-ID": "-1"})
    await talk.stream("json modes", f"{back}?stream_mode=%5B%22values%22%5D", headers={"Last-Event-ID": "-1"})
    await talk.get("unknown mode", f"{back}?stream_mode=shoes", keep=lambda _body: None)


async def not_resumable(talk: Talk) -> None:
    thread = await talk.thread()
    events = await talk.stream("first", f"/threads/{thread}/runs/stream", HI)
    back = f"/threads/{thread}/runs/{events[0].data['run_id']}/stream"
    await talk.stream("afterwards", back)
    await talk.stream("afterwards, replay", back, headers={"Last-Event-ID": "-1"})
    await talk.stream("absent run", f"/threads/{thread}/runs/{ABSENT}/stream")
    await talk.stream("absent thread", f"/threads/{ABSENT}/runs/{ABSENT}/stream")

    await talk.stream("bad run", f"/threads/{thread}/runs/abc/stream")


async def join_before_start(talk: Talk) -> None:
    thread = await talk.thread()
    with gate() as opening:
        held = {"assistant_id": "slow", "input": {"count": 2, "pause_s": 0}, "config": hold(opening)}
        await talk.quietly("POST", f"/threads/{thread}/runs", held)
        run = await talk.quietly("POST", f"/threads/{thread}/runs", {**HI, "stream_mode": "updates"})
        await talk.stream("join", f"/threads/{thread}/runs/{run['run_id']}/stream", opened=opening.touch)


async def join_running(talk: Talk) -> None:
    thread = await talk.thread()
    with gate() as opening:
        body = {
            "assistant_id": "slow",
            "input": {"count": 4, "pause_s": 0},
            "stream_mode": "updates",
            "config": hold(opening),
        }
        run = await talk.quietly("POST", f"/threads/{thread}/runs", body)
        await talk.until(f"/threads/{thread}/state", lambda state: bool(state.get("values", {}).get("ticks")))

        path = f"/threads/{thread}/runs/{run['run_id']}/stream"
        await talk.stream("join", path, opened=opening.touch, keep=lambda events: events[-2:])


async def cancelled(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "slow", "input": {"count": 2000}, "stream_mode": "updates"}
    path = f"/threads/{thread}/runs/stream"
    async with talk.streaming("start", path, body, enough=lambda events: len(events) == 2) as events:
        run = events[0].data["run_id"]
        await talk.post("cancel", f"/threads/{thread}/runs/{run}/cancel?wait=1")

    await talk.stream("join", f"/threads/{thread}/runs/{run}/stream")
    await talk.get("run", f"/threads/{thread}/runs/{run}", keep=lambda body: body["status"])


async def disconnected(talk: Talk) -> None:
    thread = await talk.thread()
    body = {"assistant_id": "slow", "input": {"count": 2000}, "stream_mode": "updates", "on_disconnect": "cancel"}
    async with talk.streaming(
        "start", f"/threads/{thread}/runs/stream", body, enough=lambda events: len(events) == 2
    ) as events:
        run = events[0].data["run_id"]

    await talk.wait_for_end(thread, run)
    await talk.get("run", f"/threads/{thread}/runs/{run}", keep=lambda body: body["status"])

    body = {"assistant_id": "slow", "input": {"count": 3}, "stream_mode": "updates"}
    async with talk.streaming(
        "continue", f"/threads/{thread}/runs/stream", body, enough=lambda events: len(events) == 1
    ) as events:
        run = events[0].data["run_id"]

    await talk.wait_for_end(thread, run)
    await talk.get("goes on", f"/threads/{thread}/runs/{run}", keep=lambda body: body["status"])


async def unknown_mode(talk: Talk) -> None:
    await talk.stream("unknown", "/runs/stream", {**HI, "stream_mode": "shoes"})
    await talk.stream("one unknown", "/runs/stream", {**HI, "stream_mode": ["values", "shoes"]})


def _names(events: list[Event]) -> list[Event]:
    return [Event(event.name, None, event.id) for event in events]


async def stateless(talk: Talk) -> None:
    await talk.stream("keep", "/runs/stream", {**HI, "on_completion": "keep"})
    for mode in ("checkpoints", "debug"):
        await talk.stream(mode, "/runs/stream", {**HI, "stream_mode": mode}, keep=_names)


def _runs_done(count: int):
    def enough(events: list[Event]) -> bool:
        return sum(isinstance(e.data, dict) and e.data.get("status") == "run_done" for e in events) == count

    return enough


async def of_a_thread(talk: Talk) -> None:
    thread = await talk.thread()
    path = f"/threads/{thread}"
    for word in ("one", "two"):
        body = {"assistant_id": "twostep", "input": {"foo": [word]}, "stream_mode": "updates", "stream_resumable": True}
        await talk.quietly("POST", f"{path}/runs/wait", body)

    first = {"Last-Event-ID": "-"}
    await talk.stream("everything", f"{path}/stream", headers=first, enough=_runs_done(2))
    await talk.stream("from 0", f"{path}/stream", headers={"Last-Event-ID": "0"}, enough=_runs_done(2))
    lifecycle = f"{path}/stream?stream_modes=lifecycle"

    await talk.stream("lifecycle", lifecycle, headers=first, enough=_runs_done(2))
    await talk.get("unknown mode", f"{path}/stream?stream_modes=shoes")
    await talk.get("minus one", f"{path}/stream", headers={"Last-Event-ID": "-1"})
    await talk.get("bad id", "/threads/abc/stream")
