"""A home on a small disk: new work is refused before Postgres runs out of space, and goes on once there is room.

Refusals are 503 with `Retry-After` and a text. What was acknowledged stays, what reads or deletes goes on, runs wait in
the queue, and Postgres never stops.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langsmith import Client

from portside.kernel.disk import DATABASE_NOTICE, WATCHED_FOLDER, make_watched_folder
from portside.kernel.embedded import EmbeddedPostgres
from tests.conftest import eventually
from tests.platforms import Repository, open_platform, run
from tests.servers import KEY, ServerProcess, agent_server, platform_server
from tests.small_disk import SmallDisk, needs_small_disk, small_disk

pytestmark = [needs_small_disk, pytest.mark.timeout(600)]
# Postgres keeps the space of deleted rows until it vacuums, so there is room for what all tests of the module write.
DISK_MB = 1200
# About 150 MB, so that a second of writing does not use it up.
RESERVE = {"DISK_RESERVE_PERCENT": "13"}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", DISK_MB) as disk:
        yield disk


@pytest.fixture(scope="module")
def server(disk: SmallDisk) -> Iterator[ServerProcess]:
    """A platform without a listener whose home is on the small disk."""
    with platform_server(disk.path / "home", PORTSIDE_OWN_LISTENER="false", RATE_LIMITS="false", **RESERVE) as server:
        yield server


@pytest.fixture(scope="module")
def agent(disk: SmallDisk, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """An agent server on the platform's Postgres, which watches the same disk."""
    url = EmbeddedPostgres(disk.path / "home").create_database("agent_of_test")
    folder = tmp_path_factory.mktemp("agent")
    with agent_server(url, folder, DISK_FOLDER=str(make_watched_folder(disk.path / "home")), **RESERVE) as running:
        yield running


@contextlib.asynccontextmanager
async def open_client(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, headers={"X-Api-Key": KEY}, timeout=600) as client:
        yield client


def check_refusal(response: httpx2.Response) -> None:
    assert response.status_code == 503, (response.status_code, response.text)
    assert int(response.headers["retry-after"]) > 0
    assert "disk is nearly full" in response.json()["detail"]


@contextlib.asynccontextmanager
async def full(disk: SmallDisk, *clients: httpx2.AsyncClient) -> AsyncIterator[None]:
    """Take the space down to the middle of the reserve; at the end give it back, and wait until servers notice."""
    disk.fill_up_to(75_000_000)
    try:
        for client in clients:
            await eventually(lambda client=client: is_low(client))
        yield
    finally:
        disk.empty()
        for client in clients:
            await eventually(lambda client=client: has_room(client))


async def read_problem(client: httpx2.AsyncClient) -> str | None:
    response = await client.get("/ok")
    assert response.status_code == 200, response.text
    problem: str | None = response.json().get("problems", {}).get("disk")
    return problem


async def is_low(client: httpx2.AsyncClient) -> bool:
    return await read_problem(client) is not None


async def has_room(client: httpx2.AsyncClient) -> bool:
    return await read_problem(client) is None


async def test_platform_refuses_new_data_and_serves_the_rest(disk: SmallDisk, server: ServerProcess):
    async with open_client(server) as client:
        await eventually(lambda: has_room(client))
        project = (await client.post("/sessions", json={"name": f"p-{uuid4()}"})).raise_for_status().json()
        async with full(disk, client):
            for method, path, body in (
                ("POST", "/runs/batch", {"post": []}),
                ("POST", "/sessions", {"name": "q"}),
                ("POST", "/datasets", {"name": "d"}),
                ("POST", "/v2/deployments", {"name": "n"}),
            ):
                check_refusal(await client.request(method, path, json=body))

            # A body is taken before it is refused, or a client that still sends it would see a broken connection.
            check_refusal(await client.post("/runs/multipart", content=b"x" * 20_000_000))
            assert (await client.get(f"/sessions/{project['id']}")).status_code == 200
            assert (await client.post("/runs/query", json={"session": [project["id"]]})).status_code == 200
            assert (await client.post("/api-key", json={"description": "made on a full disk"})).status_code == 200
            report = (await client.get("/system/disk")).raise_for_status().json()
            assert "disk is nearly full" in report["shortage"]
            assert (await client.delete(f"/sessions/{project['id']}")).is_success

        assert (await client.post("/sessions", json={"name": f"p-{uuid4()}"})).is_success


async def test_runs_wait_and_new_ones_are_refused(disk: SmallDisk, server: ServerProcess, agent: ServerProcess):
    async with open_client(agent) as client:
        # Another test may have waited for the platform alone to see that there is room.
        await eventually(lambda: has_room(client))
        thread = (await client.post("/threads", json={})).raise_for_status().json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"messages": []}, "after_seconds": 2}
        async with full(disk, client):
            check_refusal(await client.post("/threads", json={}))
            check_refusal(await client.post(f"/threads/{thread}/runs", json=body))
            check_refusal(await client.post("/runs/stream", json=body))
            check_refusal(await client.put("/store/items", json={"namespace": ["a"], "key": "k", "value": {}}))
            assert (await client.post("/threads/search", json={})).status_code == 200
            assert (await client.get(f"/threads/{thread}/state")).status_code == 200

        await client.post(f"/threads/{thread}/runs/wait", json=body)
        assert (await client.delete(f"/threads/{thread}")).is_success


@pytest.mark.thorough
async def test_filled_by_traces_loses_nothing_that_was_acknowledged(disk: SmallDisk, server: ServerProcess):
    """Clients fill the disk with traces, and retry what was refused: every trace arrives, once."""
    async with open_client(server) as client:
        name = f"filled-{uuid4()}"
        disk.fill_up_to(220_000_000)
        sent = list[str]()
        refused = 0

        async def send() -> None:
            nonlocal refused

            for _ in range(12):
                run = str(uuid4())
                body = json.dumps({"post": [trace(run, name)]})
                while (response := await client.post("/runs/batch", content=body)).status_code == 503:
                    refused += 1
                    assert int(response.headers["retry-after"]) > 0
                    await asyncio.sleep(0.2)

                assert response.status_code == 202, response.text
                sent.append(run)

        senders = asyncio.gather(*(send() for _ in range(8)))
        await eventually(lambda: asyncio.sleep(0, refused > 20 or senders.done()))
        if senders.done():
            await senders
        assert refused > 20, "the disk was filled before all traces were sent"
        assert EmbeddedPostgres(disk.path / "home")._responds()
        disk.empty()
        await senders

        project = (await client.get("/sessions", params={"name": name})).raise_for_status().json()[0]
        usage = (await client.get(f"/sessions/{project['id']}", params={"include_stats": True})).json()
        assert usage["run_count"] == len(sent) == 96
        await client.delete(f"/sessions/{project['id']}")

    log = server.log.read_text()
    assert "died" not in log
    assert "new data is refused until there is room" in log
    assert "request failed" not in log, "a line for each refused request would fill what is left of the disk"


def trace(run: str, project: str) -> dict[str, Any]:
    # Random, because Postgres compresses values.
    text = os.urandom(960_000).hex()
    return {
        "id": run,
        "trace_id": run,
        "dotted_order": f"20300101T000000000000Z{run}",
        "name": "n",
        "run_type": "chain",
        "start_time": "2030-01-01T00:00:00Z",
        "end_time": "2030-01-01T00:00:01Z",
        "session_name": project,
        "inputs": {"text": text},
        "outputs": {},
    }


@pytest.mark.thorough
async def test_stock_client_keeps_its_traces_until_there_is_room(disk: SmallDisk, server: ServerProcess):
    """The client of LangSmith sends a refused batch again, after the pause that the refusal asks for."""
    name = f"stock-{uuid4()}"
    async with open_client(server) as http:
        requests = 'path="/runs/multipart",status="503"'

        async def is_refused() -> bool:
            return requests in (await http.get("/metrics")).text

        async with full(disk, http):
            client = Client(api_url=server.url, api_key=KEY)
            for number in range(20):
                run = uuid4()
                client.create_run(
                    f"run {number}",
                    {"number": number},
                    "chain",
                    project_name=name,
                    outputs={"ok": True},
                    id=run,
                    trace_id=run,
                    dotted_order=f"20300101T000000000000Z{run}",
                )

            await eventually(is_refused)

        await asyncio.to_thread(client.flush)
        await asyncio.to_thread(client.close)

        async def have_all_arrived() -> bool:
            found = (await http.get("/sessions", params={"name": name, "include_stats": True})).json()
            return bool(found) and found[0].get("run_count") == 20

        await eventually(have_all_arrived)


GRAPH = """
import operator, os
from typing import Annotated, TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    steps: int
    last: str

def step(state):
    return {"steps": state.get("steps", 0) + 1, "last": os.urandom(1_500_000).hex()}

graph = (
    StateGraph(State).add_node("step", step).add_edge(START, "step")
    .add_conditional_edges("step", lambda state: END if state["steps"] >= 25 else "step").compile()
)
"""


@pytest.mark.thorough
async def test_filled_by_checkpoints_and_events_of_a_run(disk: SmallDisk, server: ServerProcess, tmp_path: Path):
    """The run returns to the queue before the disk is full, and goes on from its last checkpoint to its end."""
    (tmp_path / "agent.py").write_text(GRAPH)
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}')

    url = await asyncio.to_thread(EmbeddedPostgres(disk.path / "home").create_database, "agent_that_fills")
    settings = {"DISK_FOLDER": str(disk.path / "home"), **RESERVE}
    with agent_server(url, tmp_path, project=str(tmp_path), **settings) as agent:
        async with open_client(agent) as client:
            thread = (await client.post("/threads", json={})).raise_for_status().json()["thread_id"]
            disk.fill_up_to(180_000_000)
            body = {
                "assistant_id": "agent",
                "input": {},
                "config": {"recursion_limit": 100},
                "durability": "sync",
                "stream_mode": ["values"],
                "stream_resumable": True,
            }

            run = (await client.post(f"/threads/{thread}/runs", json=body)).raise_for_status().json()["run_id"]

            async def has(status: str) -> bool:
                found = (await client.get(f"/threads/{thread}/runs/{run}")).raise_for_status().json()
                return bool(found["status"] == status)

            try:
                await eventually(lambda: agent.has_logged("runs return to the queue: the disk is nearly full"))
                await eventually(lambda: has("pending"))
                assert EmbeddedPostgres(disk.path / "home")._responds()
                check_refusal(await client.post("/threads", json={}))
            finally:
                disk.empty()

            await eventually(lambda: has("success"))
            state = (await client.get(f"/threads/{thread}/state")).json()
            assert state["values"]["steps"] == 25
            await client.delete(f"/threads/{thread}")

    assert "died" not in server.log.read_text()


TALKER = """
import asyncio, os
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    said: int

async def talk(state):
    write = get_stream_writer()
    for number in range(400):
        write({"number": number, "text": os.urandom(250_000).hex()})
        await asyncio.sleep(0.01)
    return {"said": 400}

graph = StateGraph(State).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile()
"""


@pytest.mark.thorough
async def test_filled_by_the_event_log_of_a_run(disk: SmallDisk, server: ServerProcess, tmp_path: Path):
    """A run without checkpoints writes events to Postgres for its resumable stream, until the disk is nearly full."""
    (tmp_path / "agent.py").write_text(TALKER)
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}')

    url = await asyncio.to_thread(EmbeddedPostgres(disk.path / "home").create_database, "agent_that_talks")
    settings = {"DISK_FOLDER": str(make_watched_folder(disk.path / "home")), **RESERVE}
    with agent_server(url, tmp_path, project=str(tmp_path), **settings) as agent:
        async with open_client(agent) as client:
            thread = (await client.post("/threads", json={})).raise_for_status().json()["thread_id"]
            disk.fill_up_to(180_000_000)
            body = {
                "assistant_id": "agent",
                "input": {},
                "durability": "exit",
                "stream_mode": ["custom"],
                "stream_resumable": True,
            }

            run = (await client.post(f"/threads/{thread}/runs", json=body)).raise_for_status().json()["run_id"]

            async def has(status: str) -> bool:
                found = (await client.get(f"/threads/{thread}/runs/{run}")).raise_for_status().json()
                return bool(found["status"] == status)

            try:
                await eventually(lambda: is_low(client))
                check_refusal(await client.post("/threads", json={}))
                assert (await client.get(f"/threads/{thread}")).status_code == 200
                assert EmbeddedPostgres(disk.path / "home")._responds()
            finally:
                disk.empty()

            await eventually(lambda: has("success"))
            assert (await client.get(f"/threads/{thread}/state")).json()["values"] == {"said": 400}

            # A client that comes late gets the newest 48 MB of events, without a gap.
            async with client.stream(
                "GET", f"/threads/{thread}/runs/{run}/stream", headers={"Last-Event-ID": "-1"}
            ) as stream:
                numbers = [
                    json.loads(line[6:])["number"]
                    async for line in stream.aiter_lines()
                    if line.startswith('data: {"number"')
                ]

            assert len(numbers) > 50
            assert numbers == list(range(400 - len(numbers), 400))
            await client.delete(f"/threads/{thread}")

    assert "died" not in server.log.read_text()


@pytest.mark.thorough
async def test_notice_of_a_full_database_is_read_by_every_server(
    disk: SmallDisk, server: ServerProcess, agent: ServerProcess
):
    async with open_client(server) as platform, open_client(agent) as client:
        notice = disk.path / "home" / WATCHED_FOLDER / DATABASE_NOTICE
        # The platform removes a notice that is no longer true, so the test writes it until both have seen it.

        async def are_low() -> bool:
            notice.write_text("its databases take 99 MB of 100 MB")
            return await is_low(platform) and await is_low(client)

        await eventually(are_low)
        await eventually(lambda: has_room(client))
        await eventually(lambda: has_room(platform))


PRINTER = """
import time
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    printed: int

def shout(state):
    text = ("line {version} " + "x" * 200 + "\\n") * 5_000
    for _ in range(500):
        print(text, end="")
        time.sleep(0.02)
    return {{"printed": 500}}

graph = StateGraph(State).add_node("shout", shout).add_edge(START, "shout").add_edge("shout", END).compile()
"""


@pytest.mark.thorough
async def test_output_of_an_agent_takes_a_bounded_part_of_the_disk(
    disk: SmallDisk, platform_databases: Callable[[], Awaitable[str]], tmp_path: Path
):
    """An agent prints 525 MB in seconds on a disk that has less room: nothing is refused, and the log goes on."""
    repository = Repository(tmp_path / "repository")
    repository.commit("one", agent=PRINTER)
    folder = disk.path / "printing"
    folder.mkdir()

    async with open_platform(folder, await platform_databases(), **RESERVE) as platform:
        deployment = await platform.deploy(repository)
        revision = await platform.ended(deployment)
        assert revision["status"] == "DEPLOYED", revision
        url = await platform.url(deployment)

        disk.fill_up_to(400_000_000)
        try:
            async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:
                assert (await run(client, url))["printed"] == 500
                assert (await client.post(f"{url}/threads", json={})).is_success

            async def is_shown() -> bool:
                return "line one xxx" in await platform.logs(deployment, revision["id"], "deploy")

            await eventually(is_shown)
            assert "disk is nearly full" not in platform.server.log.read_text()
            written = sum(file.stat().st_size for file in platform.home.rglob("*.log*"))
            assert written < 120_000_000
        finally:
            disk.empty()
