"""Followers on one server of runs that another server executes.

They get every event in order, without gap or duplicate. Without notifications this is slower, never wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import asyncpg
import httpx2
import pytest

from portside.agent.streams.events import LARGEST_CLOCK_ERROR_S
from tests.api.pair import Pair, start_pair
from tests.api.streaming import Sent, Stream, new_id, open_stream
from tests.conftest import eventually

HI = {"messages": [{"role": "user", "content": "hi"}]}
WAYS = {"notifications": {}, "no notifications": {"STREAM_BUS": "none"}}


class Two(NamedTuple):
    """A client of each of two servers."""

    worker: httpx2.AsyncClient
    front: httpx2.AsyncClient


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, module_database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_pair(module_database, tmp_path_factory.mktemp("pair"), **WAYS[request.param]) as running:
        yield running


@pytest.fixture
async def two(pair: Pair) -> AsyncIterator[Two]:
    limits = httpx2.Limits(max_connections=200)
    async with (
        httpx2.AsyncClient(base_url=pair.worker.url, timeout=300, limits=limits) as worker,
        httpx2.AsyncClient(base_url=pair.front.url, timeout=300, limits=limits) as front,
    ):
        yield Two(worker, front)


def places(events: list[Sent]) -> list[tuple[int, ...]]:
    return [tuple(map(int, (event.event_id or "").split("-"))) for event in events]


def names(events: list[Sent]) -> list[str]:
    """Return the names without the ids of subgraphs, which are new each time."""
    return [event.name.partition(":")[0] for event in events]


def is_done(event: Sent) -> bool:
    return event.name == "metadata" and event.data.get("status") == "run_done"


async def new_thread(http: httpx2.AsyncClient) -> str:
    return (await http.post("/threads", json={})).json()["thread_id"]


async def run_on(http: httpx2.AsyncClient, thread_id: str | None, **body) -> tuple[list[Sent], httpx2.Headers]:
    path = f"/threads/{thread_id}/runs/stream" if thread_id else "/runs/stream"
    async with open_stream(http, "POST", path, json=body) as stream:
        return await stream.all(), stream.headers


@pytest.mark.parametrize("is_resumable", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"assistant_id": "echo", "input": HI, "stream_mode": ["values", "updates"]},
        {"assistant_id": "chat", "input": HI, "stream_mode": ["messages-tuple", "messages"]},
        {"assistant_id": "parent", "input": {"foo": []}, "stream_mode": ["values", "custom"], "stream_subgraphs": True},
        {"assistant_id": "boom", "input": {"foo": []}},
    ],
)
async def test_remote_stream_equals_local_stream(two, body, is_resumable):
    body = {**body, "stream_resumable": is_resumable}
    here, _ = await run_on(two.worker, await new_thread(two.worker), **body)
    elsewhere, _ = await run_on(two.front, await new_thread(two.front), **body)
    assert names(elsewhere) == names(here)
    assert elsewhere[0].data["attempt"] == 1

    if is_resumable:
        assert places(elsewhere) == sorted(set(places(elsewhere)))

    stateless, _ = await run_on(two.front, None, **body)
    assert names(stateless) == names(here)


async def test_wait_for_a_run_of_another_server(two):
    """That a notification wakes the waiting client is in tests/failure/test_streams_lost.py."""
    thread_id = await new_thread(two.front)
    for _ in range(5):
        response = await two.front.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "echo", "input": HI})
        assert response.json()["messages"][-1]["content"] == "echo: hi"


async def test_join_run_of_another_server(two, tmp_path, module_database):
    thread_id = await new_thread(two.worker)
    path = tmp_path / "gate"
    body = {"assistant_id": "gate", "input": {"path": str(path), "done": []}, "stream_mode": ["updates"]}
    run = (await two.worker.post(f"/threads/{thread_id}/runs", json=body)).json()

    await eventually(lambda: _has_passed_first_node(two.worker, thread_id))
    # Events that may be newer by the clock of another server are sent, so the first one has to be older for certain.
    await asyncio.sleep(2 * LARGEST_CLOCK_ERROR_S)
    async with open_stream(two.front, "GET", f"/threads/{thread_id}/runs/{run['run_id']}/stream") as stream:
        # The worker has learned of the follower: if it were paused now, the end of the run could not outrun the events.
        await eventually(lambda: has_events_in_log(module_database, thread_id))
        path.touch()
        events = await stream.all()

    # Only what is new: the node before the gate was over already.
    assert [list(event.data) for event in events] == [["wait"], ["after"]]


async def has_events_in_log(database: str, thread_id: str) -> bool:
    """Whether events of a thread are written for other servers."""
    db = await asyncpg.connect(database)
    try:
        query = "select exists (select from portside.stream_chunks where thread_id = $1::uuid)"
        return bool(await db.fetchval(query, thread_id))
    finally:
        await db.close()


async def _has_passed_first_node(http: httpx2.AsyncClient, thread_id: str) -> bool:
    state = (await http.get(f"/threads/{thread_id}/state")).json()
    return bool(state["values"].get("done"))


async def test_resume_on_another_server(two):
    thread_id = await new_thread(two.worker)
    events, headers = await run_on(
        two.worker, thread_id, assistant_id="parent", input={"foo": []}, stream_resumable=True
    )

    path = headers["location"]
    for mark, expected in (("-1", events), (events[1].event_id, events[2:]), ("garbage", [])):
        async with open_stream(two.front, "GET", path, headers={"Last-Event-ID": mark}) as stream:
            assert [event.raw for event in await stream.all()] == [event.raw for event in expected]


async def test_thread_stream_over_runs_of_several_servers(two):
    thread_id = await new_thread(two.front)
    query = "stream_modes=run_modes&stream_modes=state_update"
    async with open_stream(two.front, "GET", f"/threads/{thread_id}/stream?{query}") as stream:
        for http in (two.worker, two.front, two.worker):
            await http.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "echo", "input": HI})

        events = [event for _ in range(3) for event in await stream.until(is_done)]
        response = await two.front.post(f"/threads/{thread_id}/state", json={"values": {"messages": []}})
        assert response.status_code == 200, response.text
        events.append(await stream.next())

    assert [event.name for event in events] == [*["metadata", "values", "values", "metadata"] * 3, "state_update"]
    assert places(events) == sorted(set(places(events)))


async def test_state_update_reaches_other_servers(two):
    thread_id = await new_thread(two.front)
    async with open_stream(two.front, "GET", f"/threads/{thread_id}/stream?stream_modes=state_update") as stream:
        await two.worker.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "echo", "input": HI})
        await two.worker.post(f"/threads/{thread_id}/state", json={"values": {"messages": []}})
        assert (await stream.next()).name == "state_update"


async def test_event_protocol_over_two_servers(two):
    thread_id = new_id()
    begin = {"id": 1, "method": "run.start", "params": {"assistant_id": "approval", "input": {"text": "a"}}}
    asked = {"channels": ["values", "lifecycle", "input"]}
    async with open_stream(two.front, "POST", f"/threads/{thread_id}/stream/events", json=asked) as stream:
        assert (await two.front.post(f"/threads/{thread_id}/commands", json=begin)).json()["type"] == "success"
        first = await stream.until(lambda event: event.data["params"]["data"].get("event") == "interrupted")
        question = next(event for event in first if event.name == "input.requested")
        answer = {"interrupt_id": question.data["params"]["data"]["interrupt_id"], "response": "yes"}
        command = {"id": 2, "method": "input.respond", "params": {"namespace": [], **answer}}
        reply = (await two.worker.post(f"/threads/{thread_id}/commands", json=command)).json()
        assert reply["type"] == "success"

        second = await stream.until(lambda event: event.data["params"]["data"].get("event") == "completed")

    events = [*first, *second]
    assert [event.data["seq"] for event in events] == sorted({event.data["seq"] for event in events})
    assert [event.name for event in events if event.name in ("lifecycle", "input.requested")] == [
        "lifecycle",
        "input.requested",
        "lifecycle",
        "lifecycle",
        "lifecycle",
    ]

    # A client that reconnects to another server continues with the same numbers.
    last = first[-1].data["seq"]
    again = {**asked, "since": last}
    async with open_stream(two.worker, "POST", f"/threads/{thread_id}/stream/events", json=again) as stream:
        rest = await stream.until(lambda event: event.data["params"]["data"].get("event") == "completed")

    assert [event.data["seq"] for event in rest] == [event.data["seq"] for event in second]
    assert [event.data["event_id"] for event in rest] == [event.data["event_id"] for event in second]


async def test_cancelled_pending_protocol_run_emits_failed(two, tmp_path):
    thread_id = await new_thread(two.worker)
    path = tmp_path / "gate"
    body = {"assistant_id": "gate", "input": {"path": str(path), "done": []}}
    before = (await two.worker.post(f"/threads/{thread_id}/runs", json=body)).json()

    begin = {"id": 1, "method": "run.start", "params": {"assistant_id": "echo", "input": HI}}
    async with open_stream(
        two.front, "POST", f"/threads/{thread_id}/stream/events", json={"channels": ["lifecycle"]}
    ) as stream:
        reply = (await two.front.post(f"/threads/{thread_id}/commands", json=begin)).json()
        await two.worker.post(f"/threads/{thread_id}/runs/{reply['result']['run_id']}/cancel")
        events = await stream.until(lambda event: event.data["params"]["data"]["event"] == "failed")
        assert events[-1].data["params"]["data"]["graph_name"] == "echo"
        assert "cancel" in events[-1].data["params"]["data"]["error"]
        path.touch()

        rest = await stream.until(lambda event: event.data["params"]["data"]["event"] == "completed")

    assert rest[-1].data["params"]["data"]["graph_name"] == "gate"
    assert before["run_id"] in rest[-1].data["event_id"]


@pytest.mark.parametrize("way", ["delete", "prune", "assistant"])
async def test_deleted_thread_ends_followers_of_all_servers(two, way, module_database):
    thread_id = await new_thread(two.front)
    assistant_id = (await two.worker.post("/assistants", json={"graph_id": "echo"})).json()["assistant_id"]
    async with (
        open_stream(two.front, "GET", f"/threads/{thread_id}/stream") as stream,
        open_stream(two.worker, "GET", f"/threads/{thread_id}/stream") as other,
    ):
        # Events of the thread tell both servers that it exists.
        body = {"assistant_id": assistant_id, "input": HI, "stream_resumable": True}
        await two.worker.post(f"/threads/{thread_id}/runs/wait", json=body)
        await stream.until(is_done)
        await other.until(is_done)

        if way == "delete":
            assert (await two.worker.delete(f"/threads/{thread_id}")).status_code == 204
        elif way == "assistant":
            path = f"/assistants/{assistant_id}?delete_threads=true"
            assert (await two.worker.delete(path)).status_code == 204
        else:
            response = await two.worker.post("/threads/prune", json={"thread_ids": [thread_id], "strategy": "delete"})
            assert response.status_code == 200, response.text

        assert await stream.next() is None
        assert await other.next() is None

    # Nobody needs the events any more, so they do not wait for the end of their two minutes.
    db = await asyncpg.connect(module_database)
    count = "select count(*) = 0 from portside.stream_chunks where thread_id = $1::uuid"
    await eventually(lambda: db.fetchval(count, thread_id), 60)
    await db.close()


async def test_fifty_followers_of_ten_thousand_events(two):
    thread_id = await new_thread(two.front)
    body = {"assistant_id": "count", "input": {"upto": 10_000}, "stream_mode": ["custom"], "stream_resumable": True}

    async def read(stream: Stream) -> list[Sent]:
        return [event for event in await stream.all() if event.name == "custom"]

    async with open_stream(two.front, "POST", f"/threads/{thread_id}/runs/stream", json=body) as first:
        path = first.headers["location"]

        async def follow() -> list[Sent]:
            async with open_stream(two.front, "GET", path, headers={"Last-Event-ID": "-1"}) as stream:
                return await read(stream)

        everything = await asyncio.gather(read(first), *(follow() for _ in range(49)))

    for events in everything:
        assert [event.data for event in events] == list(range(10_000))
        assert places(events) == sorted(places(events))
