"""Through the front no request fails and no stream is cut: at switches of revisions, and over a long time.

PORTSIDE_FRONT_SWITCHES says through how many switches requests are sent.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.fronted import HEADERS, Fronted, start_fronted
from tests.platforms import Platform, Repository, run
from tests.servers import ServerProcess, agent_server

pytestmark = pytest.mark.timeout(1800)
SWITCHES = int(os.environ.get("PORTSIDE_FRONT_SWITCHES", "20"))
TICKS = 20
PAUSE_S = 0.1
SLOTS = 250
AGENT = """
import asyncio
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    seen: int
    ticks: int
    pause_s: float

async def answer(state):
    for number in range(state.get("ticks", 0)):
        get_stream_writer()(number)
        await asyncio.sleep(state["pause_s"])
    return {{"seen": state.get("seen", 0) + 1, "ticks": 0}}

# {version}
graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()
"""


async def stream_numbers(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any], on_begin: Callable[[], None] = lambda: None
) -> list[int]:
    """Stream a run to its end, and return the numbers that it wrote. Calls `on_begin` when the response begins."""
    found = []
    event = ""
    async with http.stream("POST", path, json=body | {"stream_mode": ["custom", "values"]}) as response:
        assert response.status_code == 200, await response.aread()
        on_begin()

        async for line in response.aiter_lines():
            name, _, data = line.partition(": ")
            event = data if name == "event" else event
            if name == "data" and event == "custom":
                found.append(json.loads(data))

            assert event != "error", line

    return found


class Clients:
    """Clients of one agent that go on until they are told to leave. What fails is collected."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._done = False
        self.failures: list[str] = []
        self.counts: dict[str, int] = {}
        visits = (self._wait, self._stream, self._use_thread)
        self._tasks = [asyncio.create_task(self._go_on(visit, keeps)) for visit in visits for keeps in (True, False)]

    async def _go_on(self, visit: Any, keeps: bool) -> None:  # noqa: FBT001 - one of two clients
        limits = httpx2.Limits(max_keepalive_connections=None if keeps else 0)
        options: Any = {"timeout": 300, "limits": limits, "headers": self._headers, "base_url": self._url}
        async with httpx2.AsyncClient(**options) as http:
            while not self._done:
                try:
                    await visit(http)
                    self.counts[visit.__name__] = self.counts.get(visit.__name__, 0) + 1
                except (httpx2.HTTPError, httpx2.StreamError, AssertionError) as exc:
                    self.failures.append(f"{visit.__name__}: {exc!r}")

                await asyncio.sleep(0.02)

    async def _wait(self, http: httpx2.AsyncClient) -> None:
        assert (await run(http, self._url))["seen"] == 1

    async def _stream(self, http: httpx2.AsyncClient) -> None:
        body = {"assistant_id": "agent", "input": {"ticks": TICKS, "pause_s": PAUSE_S}}
        assert await stream_numbers(http, "/runs/stream", body) == list(range(TICKS))

    async def _use_thread(self, http: httpx2.AsyncClient) -> None:
        thread = (await http.post("/threads", json={})).raise_for_status().json()["thread_id"]
        for seen in (1, 2):
            assert (await run(http, self._url, thread))["seen"] == seen

        state = (await http.get(f"/threads/{thread}/state")).raise_for_status().json()
        assert state["values"]["seen"] == 2
        (await http.delete(f"/threads/{thread}")).raise_for_status()

    async def leave(self) -> None:
        """Stop after the visits under way."""
        self._done = True
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("switches", [2, pytest.param(SWITCHES, marks=pytest.mark.thorough)])
async def test_switches_lose_no_request_and_cut_no_stream(platform: Platform, tmp_path: Path, switches: int):
    repository = Repository(tmp_path / "ticking")
    repository.commit("one", agent=AGENT)
    deployment = await platform.deploy(repository)
    first = await platform.ended(deployment)
    assert first["status"] == "DEPLOYED", first
    url = await platform.url(deployment)
    assert url == f"{platform.server.url}/agents/my-agent"

    clients = Clients(url, platform.headers)

    for _ in range(switches):
        await platform.call("POST", f"/v2/deployments/{deployment}/revisions/{first['id']}/redeploy")
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"

    await clients.leave()
    assert clients.failures == []
    assert len(clients.counts) == 3


@pytest.fixture(scope="module")
def agent(agent_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    slots = {"N_JOBS_PER_WORKER": str(SLOTS)}
    with agent_server(agent_database, tmp_path_factory.mktemp("agent"), project="streams", **slots) as server:
        yield server


@pytest.fixture(scope="module")
def front(agent: ServerProcess, platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    """A platform whose front serves the agent as the deployment `real`."""
    with start_fronted(tmp_path_factory.mktemp("front") / "portside", platform_database) as opened:
        opened.deploy("real", agent.url)
        yield opened


@pytest.fixture
async def http(front: Fronted) -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=None)
    url = f"{front.url}/agents/real"
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=300, limits=limits) as client:
        yield client


@pytest.mark.parametrize(("streams", "seconds"), [(50, 10), pytest.param(200, 600, marks=pytest.mark.thorough)])
async def test_streams_stay_open(front: Fronted, http: httpx2.AsyncClient, streams: int, seconds: int):
    body = {"assistant_id": "clock", "input": {"upto": seconds, "pause_s": 1}}
    begun = [asyncio.Event() for _ in range(streams)]
    opened = [asyncio.create_task(stream_numbers(http, "/runs/stream", body, on_begin=event.set)) for event in begun]

    async def are_begun() -> bool:
        return all(event.is_set() for event in begun) or any(stream.done() for stream in opened)

    # A connection that has not sent a request for some seconds may be closed, which a busy machine brings about.
    await eventually(are_begun)

    # Deployments that come, move and go, and one that gets a host name: that is another configuration of Caddy.
    made = await asyncio.to_thread(front.deploy, f"beside-{streams}", custom_url=f"https://beside{streams}.example.com")
    await asyncio.to_thread(front.report, made["id"], "http://127.0.0.1:9")
    await asyncio.to_thread(front.call, "DELETE", f"/v2/deployments/{made['id']}")
    assert await asyncio.gather(*opened) == [list(range(seconds))] * streams


async def test_run_is_cancelled_when_its_client_leaves(http: httpx2.AsyncClient):
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    body = {
        "assistant_id": "clock",
        "input": {"upto": 600, "pause_s": 1},
        "on_disconnect": "cancel",
        "stream_mode": "custom",
    }

    async with http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as response:
        run_id = response.headers["content-location"].rsplit("/", 1)[1]
        async for line in response.aiter_lines():
            if line == "data: 0":
                break

    async def is_cancelled() -> bool:
        found = (await http.get(f"/threads/{thread}/runs/{run_id}")).json()
        return bool(found["status"] == "interrupted")

    assert await eventually(is_cancelled)


async def test_largest_body_passes(http: httpx2.AsyncClient):
    largest = 25_000_000
    request = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": ""}]}}
    empty = len(json.dumps(request))
    request["input"] = {"messages": [{"role": "user", "content": "x" * (largest - empty)}]}
    raw = json.dumps(request)
    assert len(raw) == largest
    json_type = {"Content-Type": "application/json"}
    response = await http.post("/runs/wait", content=raw, headers=json_type)
    assert response.status_code == 200, response.text[:500]

    assert len(response.json()["messages"][-1]["content"]) > largest - empty
    refused = await http.post("/runs/wait", content=raw + " ", headers=json_type)
    assert refused.status_code == 413
