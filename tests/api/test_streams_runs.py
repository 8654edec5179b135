"""A run's stream, byte by byte, and joining it at any time (`RunsClient.stream` and `join_stream` of langgraph_sdk)."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.api.streaming import Sent, open_stream
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
EVENT_ID = re.compile(r"^\d{13}-\d+$")


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="streams") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


async def new_thread(http: httpx2.AsyncClient) -> str:
    return (await http.post("/threads", json={})).json()["thread_id"]


async def run(http: httpx2.AsyncClient, **body) -> tuple[list[Sent], httpx2.Headers]:
    thread_id = body.pop("thread_id", None) or await new_thread(http)
    async with open_stream(http, "POST", f"/threads/{thread_id}/runs/stream", json=body) as stream:
        return await stream.all(), stream.headers


def list_names_and_data(events: list[Sent]) -> list[tuple]:
    return [(event.name, event.data) for event in events]


async def test_the_bytes_of_a_resumable_run(http):
    events, headers = await run(http, assistant_id="echo", input=HI, stream_resumable=True)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    path = f"/threads/[0-9a-f-]+/runs/{events[0].data['run_id']}"
    assert re.fullmatch(path, headers["content-location"])
    assert re.fullmatch(f"{path}/stream", headers["location"])

    assert [event.name for event in events] == ["metadata", "values", "values"]
    assert list(events[0].data) == ["run_id", "attempt"]
    assert events[0].raw.startswith(b'event: metadata\r\ndata: {"run_id":"')
    assert all(EVENT_ID.match(event.event_id or "") for event in events)
    order = [tuple(map(int, event.event_id.split("-"))) for event in events]
    assert order == sorted(set(order))


async def test_a_run_that_is_not_resumable_has_no_ids(http):
    events, _ = await run(http, assistant_id="echo", input=HI)
    assert {event.event_id for event in events} == {None}


@pytest.mark.needs("langgraph", "1.2.12")
async def test_an_interrupt_in_values_and_updates(http):
    thread_id = await new_thread(http)
    modes = {"assistant_id": "approval", "stream_mode": ["values", "updates"], "thread_id": thread_id}
    events, _ = await run(http, input={"text": "a"}, **modes)
    asked = events[-1].data["__interrupt__"]
    assert asked == [{"value": {"question": "approve?", "text": "a!"}, "id": asked[0]["id"], "response_schema": None}]

    assert list_names_and_data(events[1:]) == [
        ("values", {"text": "a"}),
        ("updates", {"draft": {"text": "a!"}}),
        ("values", {"text": "a!"}),
        ("updates", {"__interrupt__": asked}),
        ("values", {"text": "a!", "__interrupt__": asked}),
    ]

    assert list(asked[0]) == ["value", "id", "response_schema"]
    events, _ = await run(http, command={"resume": "yes"}, **modes)
    assert list_names_and_data(events[1:]) == [
        ("values", {"text": "a!"}),
        ("updates", {"ask": {"decision": "yes"}}),
        ("values", {"text": "a!", "decision": "yes"}),
        ("updates", {"fin": {"text": "done:yes"}}),
        ("values", {"text": "done:yes", "decision": "yes"}),
    ]


async def test_a_static_interrupt_is_an_empty_one(http):
    events, _ = await run(
        http, assistant_id="approval", input={"text": "a"}, stream_mode=["updates"], interrupt_before=["ask"]
    )
    assert list_names_and_data(events[1:]) == [
        ("updates", {"draft": {"text": "a!"}}),
        ("updates", {"__interrupt__": []}),
    ]


async def test_subgraphs_are_named_behind_the_mode(http):
    events, _ = await run(
        http, assistant_id="parent", input={"foo": ["in"]}, stream_mode=["values", "updates"], stream_subgraphs=True
    )
    names = [re.sub(r"child:[0-9a-f-]{36}$", "child:_", event.name) for event in events[1:]]

    assert names == [
        "values",
        "updates",
        "values",
        "values|child:_",
        "updates|child:_",
        "values|child:_",
        "updates|child:_",
        "values|child:_",
        "updates",
        "values",
    ]


async def test_pieces_of_a_message_carry_a_namespace_and_whole_ones_do_not(http):
    pieces, _ = await run(http, assistant_id="chat", input=HI, stream_mode="messages-tuple")
    assert {event.name for event in pieces[1:]} == {"messages"}
    whole, _ = await run(http, assistant_id="chat", input=HI, stream_mode="messages", stream_subgraphs=True)
    assert [event.name for event in whole[1:]] == ["messages/metadata"] + ["messages/partial"] * (len(whole) - 2)
    assert whole[-1].data[0]["content"] == "one two three"


@pytest.mark.needs("langgraph", "1.2.20")
async def test_an_error_is_the_last_event(http):
    events, _ = await run(http, assistant_id="boom", input={"foo": []}, stream_mode=["values", "updates", "tasks"])
    assert events[-1].raw == b'event: error\r\ndata: {"error":"ValueError","message":"kaboom"}\r\n\r\n'
    failed = [event.data for event in events if event.name == "tasks" and event.data["name"] == "bad"][-1]
    assert failed["error"] == {"error": "ValueError", "message": "kaboom"}


async def start_gated_run(http: httpx2.AsyncClient, tmp_path: Path, **body) -> tuple[str, Path]:
    """Start a run that waits at a gate; return its path and the gate."""
    gate = tmp_path / "gate"
    thread_id = await new_thread(http)
    body = {"assistant_id": "gate", "input": {"path": str(gate)}, "stream_mode": ["values", "updates"], **body}
    made = (await http.post(f"/threads/{thread_id}/runs", json=body)).json()
    return f"/threads/{thread_id}/runs/{made['run_id']}", gate


async def test_late_join_gets_new_events(http, tmp_path):
    path, gate = await start_gated_run(http, tmp_path, stream_resumable=True)
    # From the start, to know where the run is; the second joins when it waits at the gate.
    async with open_stream(http, "GET", f"{path}/stream", headers={"Last-Event-ID": "-1"}) as first:
        before = await first.until(lambda event: event.name == "updates")
        async with open_stream(http, "GET", f"{path}/stream") as late:
            assert late.headers["location"] == f"{path}/stream"
            await first.next()
            gate.touch()
            rest = await first.all()
            joined = await late.all()

    assert [event.name for event in before] == ["metadata", "values", "updates"]
    assert list_names_and_data(joined)[-len(rest) :] == list_names_and_data(rest)

    assert "metadata" not in {event.name for event in joined}
    everything = [event.raw for event in (*before, *rest)]
    for place in ("-1", "0"):
        async with open_stream(http, "GET", f"{path}/stream", headers={"Last-Event-ID": place}) as again:
            replay = [event.raw for event in await again.all()]
        assert [raw for raw in replay if raw in everything] == everything


async def test_client_resumes_at_last_event_id(http, tmp_path):
    events, headers = await run(http, assistant_id="echo", input=HI, stream_resumable=True)
    path = headers["location"]

    async def after(place: str | None, **query) -> list[bytes]:
        sent = {} if place is None else {"Last-Event-ID": place}
        async with open_stream(http, "GET", path, headers=sent, params=query) as stream:
            return [event.raw for event in await stream.all()]

    everything = [event.raw for event in events]
    assert await after(events[0].event_id) == everything[1:]
    assert await after(events[-1].event_id) == []
    millis = events[0].event_id.partition("-")[0]
    assert await after(str(int(millis) - 1)) == everything
    assert await after("garbage") == []
    assert await after(None) == []

    assert await after("-1", stream_mode="values") == everything[1:]
    assert await after("-1", stream_mode='["values","updates"]') == everything[1:]
    assert await after("-1", stream_mode=["custom", "updates"]) == []


async def test_invalid_last_event_id_ends_a_join(http, tmp_path):
    path, gate = await start_gated_run(http, tmp_path, stream_resumable=True)
    async with open_stream(http, "GET", f"{path}/stream", headers={"Last-Event-ID": "garbage"}) as stream:
        assert await stream.all() == []

    gate.touch()


async def test_an_unknown_mode_is_refused(http):
    _, headers = await run(http, assistant_id="echo", input=HI)
    response = await http.get(headers["location"], params={"stream_mode": "bogus"})
    assert response.status_code == 422
    assert "bogus" in response.text


async def test_a_filter_lets_subgraphs_and_the_error_through(http):
    _, headers = await run(
        http,
        assistant_id="parent",
        input={"foo": ["in"]},
        stream_mode=["values", "updates"],
        stream_subgraphs=True,
        stream_resumable=True,
    )

    query = {"params": {"stream_mode": "updates"}, "headers": {"Last-Event-ID": "-1"}}
    async with open_stream(http, "GET", headers["location"], **query) as stream:
        modes = [event.name.partition("|") for event in await stream.all()]

    assert {mode for mode, _, _ in modes} == {"updates"}
    assert any(namespace for _, _, namespace in modes)


async def test_a_slow_reader_does_not_hold_the_run_up(http):
    """The run writes more than the connection and the reader's buffer hold while nobody reads."""
    thread_id = await new_thread(http)
    body = {"assistant_id": "flood", "input": {"pieces": 60}, "stream_mode": ["custom"]}
    async with http.stream("POST", f"/threads/{thread_id}/runs/stream", json=body) as response:
        done = await http.get(f"{response.headers['content-location']}/join")
        assert done.json() == {"pieces": 60, "done": True}

        tail = b""
        async for chunk in response.aiter_raw():
            tail = (tail + chunk)[-400:]

    assert b'event: error\r\ndata: {"error":"SlowReader"' in tail


async def test_the_sdk_joins(server, tmp_path):
    async with get_client(url=server.url, api_key="") as client:
        thread = await client.threads.create()
        run = await client.runs.create(thread["thread_id"], "echo", input=HI, stream_resumable=True)
        parts = [part async for part in client.runs.join_stream(thread["thread_id"], run["run_id"], last_event_id="-1")]

    assert [part.event for part in parts][:3] == ["metadata", "values", "values"]
