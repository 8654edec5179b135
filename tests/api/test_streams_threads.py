"""The stream of a thread, over its runs and its changes (`ThreadsClient.join_stream` of langgraph_sdk)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.api.streaming import Sent, Stream, new_id, open_stream
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="streams") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


async def echo(http: httpx2.AsyncClient, thread_id: str, **body) -> str:
    """Run on a thread to the end; return the run's id."""
    body = {"assistant_id": "echo", "input": HI, "if_not_exists": "create", **body}
    response = await http.post(f"/threads/{thread_id}/runs/wait", json=body)
    assert response.status_code == 200, response.text
    return response.headers["content-location"].rpartition("/")[2]


def is_done(event: Sent) -> bool:
    return event.name == "metadata" and event.data.get("status") == "run_done"


async def both_runs(stream: Stream) -> list[Sent]:
    return [*await stream.until(is_done), *await stream.until(is_done)]


async def test_a_thread_is_followed_before_it_exists_and_over_its_runs(http):
    thread_id = new_id()
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream") as stream:
        assert stream.status == 200
        first = await echo(http, thread_id)
        second = await echo(http, thread_id)
        events = await both_runs(stream)

    assert [event.name for event in events] == ["metadata", "values", "values", "metadata"] * 2
    assert events[0].data == {"run_id": first, "attempt": 1}
    assert events[3].data == {"status": "run_done", "run_id": first}
    assert events[7].data == {"status": "run_done", "run_id": second}
    places = [tuple(map(int, event.event_id.split("-"))) for event in events]
    assert places == sorted(set(places))


async def test_follower_resumes_at_last_event_id(http):
    thread_id = new_id()
    await echo(http, thread_id)
    await echo(http, thread_id)

    for beginning in ("-", "0"):
        async with open_stream(
            http, "GET", f"/threads/{thread_id}/stream", headers={"Last-Event-ID": beginning}
        ) as stream:
            everything = await both_runs(stream)

    middle = everything[3].event_id
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream", headers={"Last-Event-ID": middle}) as stream:
        rest = await stream.until(is_done)

    assert [event.raw for event in rest] == [event.raw for event in everything[4:]]
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream") as stream:
        third = await echo(http, thread_id)
        new = await stream.until(is_done)

    assert new[0].data["run_id"] == new[-1].data["run_id"] == third


@pytest.mark.parametrize("place", ["-1", "garbage"])
async def test_invalid_last_event_id_is_refused(http, place):
    response = await http.get(f"/threads/{new_id()}/stream", headers={"Last-Event-ID": place})
    assert response.status_code == 422
    assert "Invalid last-event-id" in response.text


@pytest.mark.parametrize("name", ["stream_modes", "stream_mode"])
async def test_stream_mode_parameter_has_two_names(http, name):
    thread_id = new_id()
    response = await http.get(f"/threads/{thread_id}/stream", params={name: "bogus"})
    assert response.status_code == 422
    assert "Invalid stream mode: bogus" in response.text

    async with open_stream(http, "GET", f"/threads/{thread_id}/stream", params={name: "lifecycle"}) as stream:
        await echo(http, thread_id)
        events = await stream.until(is_done)

    assert [event.name for event in events] == ["metadata", "metadata"]


async def test_a_change_of_the_state_shows_up(http):
    thread_id = new_id()
    await echo(http, thread_id)

    modes = {"stream_modes": ["state_update", "lifecycle"]}
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream", params=modes) as stream:
        response = await http.post(f"/threads/{thread_id}/state", json={"values": HI})
        await echo(http, thread_id)
        events = await stream.until(is_done)

    assert [event.name for event in events] == ["state_update", "metadata", "metadata"]
    assert events[0].data["checkpoint_id"] == response.json()["checkpoint_id"]
    assert [message["content"] for message in events[0].data["values"]["messages"]] == ["hi", "echo: hi", "hi"]


async def test_idle_stream_has_heartbeats_and_ends_with_its_thread(http):
    thread_id = (await http.post("/threads", json={})).json()["thread_id"]
    async with http.stream("GET", f"/threads/{thread_id}/stream") as response:
        chunks = response.aiter_raw()
        received = await asyncio.wait_for(anext(chunks), 60)
        await http.delete(f"/threads/{thread_id}")

        # On a busy machine there may be more heartbeats before the end.
        received += b"".join([chunk async for chunk in chunks])

    assert received
    assert received.replace(b": heartbeat\r\n\r\n", b"") == b""


async def test_followers_of_a_thread_whose_history_is_pruned_stay(http):
    thread_id = new_id()
    await echo(http, thread_id)
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream") as stream:
        body = {"thread_ids": [thread_id], "strategy": "keep_latest"}
        assert (await http.post("/threads/prune", json=body)).json() == {"pruned_count": 1}
        await echo(http, thread_id)
        events = await stream.until(is_done)

    assert [event.name for event in events] == ["metadata", "values", "values", "metadata"]


async def test_the_events_of_a_run_of_the_protocol_do_not_leak(http):
    thread_id = new_id()
    async with open_stream(http, "GET", f"/threads/{thread_id}/stream") as stream:
        start = {"id": 1, "method": "run.start", "params": {"assistant_id": "echo", "input": HI}}
        await http.post(f"/threads/{thread_id}/commands", json=start)
        events = await stream.until(is_done)

    assert [event.name for event in events] == ["metadata", "values", "values", "metadata"]


async def test_the_sdk_follows_a_thread(server, http):
    thread_id = new_id()
    async with get_client(url=server.url, api_key="") as client:
        await echo(http, thread_id)
        names = []
        parts = await client.threads.join_stream(thread_id, last_event_id="0", stream_mode=["run_modes"])
        async for part in parts:
            names.append(part.event)
            if len(names) == 4:
                break

    assert names == ["metadata", "values", "values", "metadata"]


async def test_stopping_server_cuts_thread_streams(module_database, tmp_path):
    with agent_server(module_database, tmp_path, project="streams") as leaving:
        http = httpx2.AsyncClient(base_url=leaving.url, timeout=300)
        path = f"/threads/{new_id()}/stream"
        async with http, open_stream(http, "GET", f"{path}?stream_modes=lifecycle") as stream:
            # Where the SDKs join again.
            assert stream.headers["location"] == f"{path}?stream_modes=lifecycle"
            leaving.send(signal.SIGTERM)
            with pytest.raises(httpx2.RemoteProtocolError, match="incomplete"):
                await stream.all()
