"""The event streaming protocol, frame by frame: commands, subscriptions and their events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.streaming import Sent, new_id, open_stream
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
ALL = ["values", "updates", "messages", "tools", "custom", "lifecycle", "input", "tasks", "checkpoints"]
OVER = {"completed", "failed", "interrupted"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="streams") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


async def command(http: httpx2.AsyncClient, thread_id: str, method: str, **params) -> dict[str, Any]:
    response = await http.post(f"/threads/{thread_id}/commands", json={"id": 7, "method": method, "params": params})
    assert response.status_code == 200, response.text
    reply = response.json()
    assert reply["id"] == 7
    return reply


async def start(http: httpx2.AsyncClient, thread_id: str, assistant_id: str, given: Any) -> dict[str, Any]:
    return await command(http, thread_id, "run.start", assistant_id=assistant_id, input=given)


def is_over(event: Sent) -> bool:
    params = event.data["params"]
    return event.name == "lifecycle" and params["namespace"] == [] and params["data"]["event"] in OVER


def is_completed(event: Sent) -> bool:
    return event.name == "lifecycle" and event.data["params"]["data"]["event"] == "completed"


async def follow(http: httpx2.AsyncClient, thread_id: str, **wanted) -> list[Sent]:
    body = {"channels": ALL, **wanted}
    async with open_stream(http, "POST", f"/threads/{thread_id}/stream/events", json=body) as stream:
        return await stream.until(is_over)


def list_events(events: list[Sent]) -> list[tuple[str, Any]]:
    return [(event.name, event.data["params"]["data"]) for event in events]


async def test_the_transcript_of_a_question(http):
    thread_id = new_id()
    reply = await start(http, thread_id, "approval", {"text": "a"})
    run_id = reply["result"]["run_id"]
    assert list(reply) == ["type", "id", "result", "meta"]
    assert reply["meta"] == {"applied_through_seq": 0}

    channels = ["values", "input", "lifecycle"]
    async with open_stream(http, "POST", f"/threads/{thread_id}/stream/events", json={"channels": channels}) as stream:
        events = await stream.until(is_over)
        asked = events[-2].data["params"]["data"]
        assert list_events(events) == [
            ("lifecycle", {"event": "running", "graph_name": "approval"}),
            ("values", {"text": "a"}),
            ("values", {"text": "a!"}),
            ("input.requested", asked),
            ("lifecycle", {"event": "interrupted", "graph_name": "approval"}),
        ]

        assert asked["payload"] == {"question": "approve?", "text": "a!"}
        assert events[0].raw.startswith(
            b'event: lifecycle\r\ndata: {"type":"event","event_id":"synth:'
            + run_id.encode()
            + b':lc||running","seq":1,'
            b'"method":"lifecycle","params":{"namespace":[],"timestamp":'
        )

        assert events[0].raw.endswith(b'"data":{"event":"running","graph_name":"approval"}}}\r\nid: 1\r\n\r\n')
        assert events[3].data["event_id"] == f"synth:{run_id}:input||{asked['interrupt_id']}"
        answer = {"namespace": [], "interrupt_id": asked["interrupt_id"], "response": "yes"}
        assert (await command(http, thread_id, "input.respond", **answer))["result"] == {}
        events += await stream.until(is_over)
        again = await command(http, thread_id, "input.respond", **answer)

    assert list_events(events[5:]) == [
        ("lifecycle", {"event": "running", "graph_name": "approval"}),
        ("values", {"text": "a!"}),
        ("values", {"text": "a!", "decision": "yes"}),
        ("values", {"text": "done:yes", "decision": "yes"}),
        ("lifecycle", {"event": "completed", "graph_name": "approval"}),
    ]

    assert [event.event_id for event in events] == [str(event.data["seq"]) for event in events]
    numbers = [event.data["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert len({event.data["event_id"] for event in events}) == len(events)
    assert (again["type"], again["error"]) == ("error", "no_such_interrupt")
    assert again["message"] == f"Unknown or already-consumed interrupt: {asked['interrupt_id']}"


@pytest.mark.needs("langgraph", "1.2.0")
async def test_every_channel_of_a_run(http):
    thread_id = new_id()
    await start(http, thread_id, "agent", HI)
    events = list_events(await follow(http, thread_id))

    assert {name for name, _ in events} == {
        "lifecycle",
        "values",
        "updates",
        "tools",
        "tasks",
        "checkpoints",
    }

    assert [data["node"] for name, data in events if name == "updates"] == ["call", "tools"]
    assert [data["event"] for name, data in events if name == "tools"] == ["tool-started", "tool-finished"]
    assert {"id", "step", "source"} <= set(next(data for name, data in events if name == "checkpoints"))


async def test_namespaces_and_depth(http):
    thread_id = new_id()
    await start(http, thread_id, "parent", {"foo": ["in"]})
    everything = await follow(http, thread_id)
    places = {tuple(event.data["params"]["namespace"]) for event in everything}
    inner = next(place for place in places if place)
    lifecycle = [list_events([event])[0][1]["event"] for event in everything if event.name == "lifecycle"]
    assert lifecycle == ["running", "started", "completed", "completed"]

    assert {tuple(event.data["params"]["namespace"]) for event in await follow(http, thread_id, depth=0)} == {()}
    for namespace in (["child"], list(inner)):
        wanted = {"channels": ALL, "namespaces": [namespace]}
        async with open_stream(http, "POST", f"/threads/{thread_id}/stream/events", json=wanted) as stream:
            below = await stream.until(is_completed)

        assert {tuple(event.data["params"]["namespace"]) for event in below} == {inner}

    custom = {"channels": ["custom:progress", "lifecycle"]}
    async with open_stream(http, "POST", f"/threads/{thread_id}/stream/events", json=custom) as stream:
        written = [event for event in await stream.until(is_over) if event.name == "custom"]

    assert list_events(written) == [("custom", {"name": "progress", "payload": {"step": 2}})]
    assert ("custom", "plain") in list_events(everything)


async def test_since_resumes_and_sequence_continues_over_runs(http):
    thread_id = new_id()
    await start(http, thread_id, "echo", HI)
    first = await follow(http, thread_id)
    reply = await start(http, thread_id, "echo", HI)
    assert reply["meta"]["applied_through_seq"] == first[-1].data["seq"]
    second = await follow(http, thread_id, since=first[-1].data["seq"])
    assert second[0].data["seq"] == first[-1].data["seq"] + 1

    assert second[0].data["event_id"] != first[0].data["event_id"]
    path = f"/threads/{thread_id}/stream/events"
    sent = {"Last-Event-ID": second[-2].event_id or ""}
    async with open_stream(http, "POST", path, json={"channels": ALL}, headers=sent) as stream:
        assert (await stream.next()).raw == second[-1].raw


async def test_unknown_since_replays_all_kept_events(http):
    thread_id = new_id()
    await start(http, thread_id, "echo", HI)
    await follow(http, thread_id)
    events = await follow(http, thread_id, since=5000)
    assert list_events(events)[0][1]["event"] == "running"
    reply = await start(http, thread_id, "echo", HI)
    assert reply["meta"]["applied_through_seq"] == 5000


async def test_forged_since_leaves_numbers_for_the_thread(http):
    thread_id = new_id()
    await start(http, thread_id, "echo", HI)
    await follow(http, thread_id)
    await follow(http, thread_id, since=2**53 - 1)

    reply = await start(http, thread_id, "echo", HI)
    assert reply["meta"]["applied_through_seq"] == 2**52


async def test_run_of_the_resource_api_emits_its_stream_modes(http):
    thread_id = new_id()
    body = {
        "assistant_id": "chat",
        "input": HI,
        "if_not_exists": "create",
        "stream_mode": ["values", "updates", "messages-tuple", "custom"],
    }

    assert (await http.post(f"/threads/{thread_id}/runs/wait", json=body)).status_code == 200
    events = list_events(await follow(http, thread_id))
    assert [name for name, _ in events][:2] == ["lifecycle", "values"]
    assert events[-1] == ("lifecycle", {"event": "completed", "graph_name": "chat"})
    deltas = [data["delta"]["text"] for name, data in events if data.get("event") == "content-block-delta"]
    assert "".join(deltas) == "one two three"
    assert [data["node"] for name, data in events if name == "updates"] == ["talk"]


async def test_the_tree_of_a_run_under_way(http, tmp_path):
    thread_id = new_id()
    gate = tmp_path / "gate"
    idle = await command(http, thread_id, "agent.getTree")
    assert (idle["type"], idle["error"]) == ("error", "no_such_run")
    run_id = (await start(http, thread_id, "gate", {"path": str(gate)}))["result"]["run_id"]

    async with open_stream(http, "POST", f"/threads/{thread_id}/stream/events", json={"channels": ALL}) as stream:
        await stream.until(lambda event: event.name == "updates")
        tree = (await command(http, thread_id, "agent.getTree"))["result"]["tree"]
        assert tree == {"namespace": [], "status": "running", "graph_name": "gate"}
        gate.touch()
        await stream.until(is_over)

    assert (await command(http, thread_id, "agent.getTree"))["error"] == "no_such_run"
    ended = await command(http, thread_id, "agent.getTree", run_id=run_id)
    assert ended["result"]["tree"]["status"] == "completed"


async def test_the_state_is_read_listed_and_forked(http):
    thread_id = new_id()
    await start(http, thread_id, "approval", {"text": "a"})
    events = await follow(http, thread_id)
    state = (await command(http, thread_id, "state.get", namespace=[], keys=["text"]))["result"]
    assert state["values"] == {"text": "a!"}
    listed = (await command(http, thread_id, "state.listCheckpoints"))["result"]["checkpoints"]
    assert listed[0]["id"] == state["checkpoint"]["id"]

    assert [item["step"] for item in listed] == [1, 0, -1]
    older = (await command(http, thread_id, "state.listCheckpoints", limit=1, before=listed[0]["id"]))["result"]
    assert [item["id"] for item in older["checkpoints"]] == [listed[1]["id"]]
    forked = (await command(http, thread_id, "state.fork", checkpoint_id=listed[1]["id"]))["result"]
    assert forked["thread_id"] == thread_id
    run = (await http.get(f"/threads/{thread_id}/runs/{forked['run_id']}")).json()
    assert run["kwargs"]["config"]["configurable"]["checkpoint_id"] == listed[1]["id"]
    again = await follow(http, thread_id, since=events[-1].data["seq"])
    assert [name for name, _ in list_events(again)][-2:] == ["input.requested", "lifecycle"]

    for method, params, code in [
        ("state.fork", {"checkpoint_id": new_id()}, "no_such_checkpoint"),
        ("state.get", {"namespace": ["nowhere:1"]}, "no_such_namespace"),
        ("input.inject", {}, "unknown_command"),
        ("subscription.unsubscribe", {"subscription_id": "x"}, "no_such_subscription"),
        ("input.respond", {}, "invalid_argument"),
    ]:
        assert (await command(http, thread_id, method, **params)).get("error") == code, method


async def test_several_answers_and_a_jump(http):
    thread_id = new_id()
    await start(http, thread_id, "approval", {"text": "a"})
    asked = list_events(await follow(http, thread_id, channels=["input", "lifecycle"]))[-2][1]["interrupt_id"]
    answers = [{"namespace": [], "interrupt_id": asked, "response": "no"}]
    reply = await command(http, thread_id, "input.respond", responses=answers, update={"text": "changed"})
    events = await follow(http, thread_id, since=reply["meta"]["applied_through_seq"])
    assert [data for name, data in list_events(events) if name == "values"][-1]["decision"] == "no"

    # Of two answers that arrive together, one starts a run.
    runs = (await http.get(f"/threads/{thread_id}/runs")).json()
    assert [run["multitask_strategy"] for run in runs] == ["reject", "enqueue"]


async def test_how_commands_fail(http):
    thread_id = new_id()
    missing = await command(http, thread_id, "run.start")
    assert missing == {
        "type": "error",
        "id": 7,
        "error": "invalid_argument",
        "message": "run.start requires an assistant_id.",
    }

    unknown = await command(http, thread_id, "run.start", assistant_id="nobody")
    assert unknown["error"] == "unknown_error"
    assert unknown["message"].startswith(("422: ", "404: "))

    path = f"/threads/{thread_id}/commands"
    for body, named in (
        ({"method": "run.start"}, None),
        ({"id": "1", "method": "run.start"}, "1"),
        ({"id": 1}, 1),
        ([], None),
        ({"id": True, "method": "x"}, None),
    ):
        response = await http.post(path, json=body)
        assert response.status_code == 400
        assert response.json() == {
            "type": "error",
            "id": named,
            "error": "invalid_argument",
            "message": "Protocol commands must include an integer id and string method.",
        }

    broken = await http.post(path, content=b"{")
    assert (broken.status_code, broken.json()) == (400, {"detail": "Invalid JSON body"})


async def test_invalid_stream_requests_are_refused(http):
    path = f"/threads/{new_id()}/stream/events"
    empty = await http.post(path, json={"channels": []})
    assert (empty.status_code, empty.json()["detail"]) == (400, "channels is required and must be a non-empty array")
    bogus = await http.post(path, json={"channels": ["values", "bogus"]})
    assert bogus.status_code == 400
    assert bogus.json()["detail"].startswith("channels contains unsupported entries: bogus. Allowed: values, updates")

    for since in (-1, 2**53, 2**63):
        assert (await http.post(path, json={"channels": ALL, "since": since})).status_code == 400

    assert (await http.post(path, content=b"{")).status_code == 400


def connection(server: ServerProcess, path: str) -> connect:
    return connect(f"{server.url.replace('http', 'ws', 1)}/{path}", open_timeout=100)


def follower(server: ServerProcess, thread_id: str) -> connect:
    return connection(server, f"threads/{thread_id}/stream/events")


async def receive(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(await asyncio.wait_for(socket.recv(), 60))


async def ask(socket: ClientConnection, number: int, method: str, **params) -> list[dict[str, Any]]:
    """Send a command; return the events before its answer, and the answer."""
    await socket.send(json.dumps({"id": number, "method": method, "params": params}))
    frames = [await receive(socket)]
    while frames[-1]["type"] == "event":
        frames.append(await receive(socket))

    return frames


async def say(socket: ClientConnection, number: int, method: str, **params) -> dict[str, Any]:
    """Send a command; return its answer, leaving out the events before it."""
    return (await ask(socket, number, method, **params))[-1]


def send_together(socket: ClientConnection, commands: list[dict[str, Any]]) -> None:
    """Send commands in one write: this process may be paused between two, and the server waits only a moment."""
    for command in commands:
        socket.protocol.send_text(json.dumps(command).encode())

    socket.transport.write(b"".join(socket.protocol.data_to_send()))


async def test_commands_and_events_over_one_websocket(server):
    async with follower(server, new_id()) as socket:
        await socket.send("garbage")
        assert await receive(socket) == {
            "type": "error",
            "id": None,
            "error": "invalid_argument",
            "message": "Invalid JSON body",
        }

        await socket.send(json.dumps({"channels": ["values"]}))
        assert (await receive(socket))["id"] is None
        subscribed = await say(socket, 1, "subscription.subscribe", channels=["values", "lifecycle"])
        assert subscribed["result"]["replayed_events"] == 0

        # The run may be over before its start is answered.
        *events, started = await ask(socket, 2, "run.start", assistant_id="echo", input=HI)
        assert started["type"] == "success"

        while not events or events[-1]["params"]["data"].get("event") != "completed":
            events.append(await receive(socket))

        assert {event["method"] for event in events} <= {"values", "lifecycle"}
        again = await say(socket, 3, "subscription.subscribe", channels=["lifecycle"])
        assert again["result"]["replayed_events"] == 2
        assert [(await receive(socket))["params"]["data"]["event"] for _ in range(2)] == ["running", "completed"]

        for subscription in (subscribed, again):
            left = await say(
                socket, 4, "subscription.unsubscribe", subscription_id=subscription["result"]["subscription_id"]
            )
            assert left["type"] == "success"

        assert (await say(socket, 5, "run.start", assistant_id="echo", input=HI))["type"] == "success"
        assert (await say(socket, 6, "nonsense"))["error"] == "unknown_command"


async def test_subscriptions_that_are_sent_together_share_one_sequence(server):
    async with follower(server, new_id()) as socket:
        await say(socket, 1, "run.start", assistant_id="echo", input=HI)
        watched = await say(socket, 2, "subscription.subscribe", channels=["lifecycle"])
        seen = [await receive(socket) for _ in range(2)]
        assert [event["params"]["data"]["event"] for event in seen] == ["running", "completed"]

        # The run is over. What a client sends together must not hear of its end before it has heard of the rest.
        send_together(
            socket,
            [
                {"id": number, "method": "subscription.subscribe", "params": {"channels": channels}}
                for number, channels in ((3, ["lifecycle"]), (4, ["values"]), (5, ["lifecycle", "values"]))
            ],
        )

        answers = [await receive(socket) for _ in range(3)]
        assert [answer["id"] for answer in answers] == [3, 4, 5]
        replayed = [answer["result"]["replayed_events"] for answer in answers]
        assert replayed == [2, 2, 4]
        events = [await receive(socket) for _ in range(4)]
        numbers = [event["seq"] for event in events]
        assert numbers == sorted(set(numbers))

        assert [event["method"] for event in events] == ["lifecycle", "values", "values", "lifecycle"]

        # Later events come once, in order, although several subscriptions want them.
        left = watched["result"]["subscription_id"]
        await say(socket, 6, "subscription.unsubscribe", subscription_id=left)
        *early, _ = await ask(socket, 7, "run.start", assistant_id="echo", input=HI)
        later = [*early, *[await receive(socket) for _ in range(4 - len(early))]]
        numbers += [event["seq"] for event in later]
        assert numbers == sorted(set(numbers))
        assert later[-1]["params"]["data"]["event"] == "completed"


async def test_a_connection_is_refused_before_it_is_made(server):
    for path, status in [("threads/abc/stream/events", 422), (f"threads/{new_id()}/elsewhere", 404)]:
        with pytest.raises(InvalidStatus) as refused:
            async with connection(server, path):
                pass

        assert refused.value.response.status_code == status


async def test_a_frame_that_is_too_large_ends_the_connection(server):
    async with follower(server, new_id()) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.send("x" * 26_000_000)
            await receive(socket)

    assert closed.value.rcvd.code == 1009


async def test_a_thread_that_is_deleted_ends_the_connection(server, http):
    thread_id = (await http.post("/threads", json={})).json()["thread_id"]
    async with follower(server, thread_id) as socket:
        await say(socket, 1, "subscription.subscribe", channels=["values"])
        await http.delete(f"/threads/{thread_id}")
        with pytest.raises(ConnectionClosed) as closed:
            await receive(socket)

    assert closed.value.rcvd.code == 1000


async def test_stopping_server_closes_with_try_again(module_database, tmp_path):
    with agent_server(module_database, tmp_path, project="streams") as leaving:
        async with follower(leaving, new_id()) as socket:
            await say(socket, 1, "subscription.subscribe", channels=["values"])
            await asyncio.to_thread(leaving.stop)
            with pytest.raises(ConnectionClosed) as closed:
                await receive(socket)

    assert closed.value.rcvd.code == 1012
