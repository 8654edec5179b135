"""A server that stops cuts the streams of runs that go on, and of no others.

A cut response lacks the mark that ends a chunked response, so that every client sees that it is incomplete, and joins
again: also through the front, and where a library decides about it.
"""

import asyncio
import itertools
import json
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client

from tests.conftest import eventually
from tests.failure.cluster import Client, Cluster, is_closed, is_up, patiently, start_cluster, work
from tests.fronted import Fronted, start_fronted
from tests.node_packages import SCRIPTS, install_packages
from tests.servers import KEY, ServerProcess

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:.*Last-Event-ID")]
GRACE = {"BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "600"}
MARK = b"0\r\n\r\n"
names = itertools.count()


@pytest.fixture(scope="module")
def servers(agent_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(2, agent_database, tmp_path_factory.mktemp("cut"), **GRACE) as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    servers.skip_logs()
    yield servers

    for server in filter(is_up, servers.servers):
        servers.resume(server)


@pytest.fixture(scope="module")
def front(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    with start_fronted(tmp_path_factory.mktemp("front") / "portside", platform_database) as opened:
        yield opened


async def raw(
    server: ServerProcess | Fronted,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    received: bytearray | None = None,
) -> bytes:
    """Send a request over a connection of its own, and return every byte until the server closes it.

    The bytes are in `received` as soon as they are here.
    """
    received = bytearray() if received is None else received
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = b"" if body is None else json.dumps(body).encode()
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(content)}\r\n".encode())
    writer.write(b"connection: close\r\ncontent-type: application/json\r\n\r\n" + content)

    while data := await reader.read(65536):
        received += data

    writer.close()
    return bytes(received)


async def stop_at_once(server: ServerProcess) -> None:
    """Stop a server with SIGTERM, and end its grace period with a second one."""
    server.send(signal.SIGTERM)
    await patiently(lambda: is_closed(server))
    server.send(signal.SIGTERM)
    assert await asyncio.to_thread(server.wait_until_stopped) == 0


async def test_only_streams_of_runs_that_go_on_are_cut(cluster: Cluster, tmp_path: Path):
    leaving, staying = cluster.servers
    short_gate = tmp_path / "short"

    gate = tmp_path / "gate"
    short = work(gates={1: short_gate}, stream_mode="custom")
    long = work(gates={1: gate}, stream_mode="custom")
    async with Client(leaving) as here, Client(staying) as there:
        quick, slow, away = [await here.thread() for _ in range(3)]
        short_runs = [asyncio.create_task(raw(leaving, "POST", f"/threads/{quick}/runs/stream", short))]
        cancelling = asyncio.create_task(
            raw(leaving, "POST", f"/threads/{slow}/runs/stream", long | {"on_disconnect": "cancel"})
        )
        run, quick_run, away_run = [await begun(cluster, thread) for thread in (slow, quick) for _ in range(1)] + [
            await there.run(away, gates={1: gate})
        ]

        await cluster.ledger.begun(away_run, 1)
        short_runs.append(asyncio.create_task(raw(leaving, "GET", f"/threads/{quick}/runs/{quick_run}/stream")))
        short_runs.append(asyncio.create_task(raw(leaving, "GET", f"/threads/{quick}/runs/{quick_run}/join")))

        goes_on = [
            ("GET", f"/threads/{slow}/runs/{run}/stream?cancel_on_disconnect=true", None),
            ("GET", f"/threads/{slow}/runs/{run}/join?cancel_on_disconnect=true", None),
            ("GET", f"/threads/{away}/runs/{away_run}/stream", None),
            ("GET", f"/threads/{away}/runs/{away_run}/join", None),
            ("GET", f"/threads/{slow}/stream", None),
            ("POST", f"/threads/{slow}/stream/events", {"channels": ["lifecycle"]}),
            # They wait for the run before them.
            ("POST", f"/threads/{slow}/runs/stream", work(steps=1)),
            ("POST", f"/threads/{slow}/runs/wait", work(steps=1)),
        ]

        cut = [cancelling, *(asyncio.create_task(raw(leaving, *request)) for request in goes_on)]
        # No test before has used this process.
        await eventually(lambda: all_open(here, len(short_runs) + len(cut)))
        stopping = asyncio.create_task(asyncio.to_thread(leaving.stop, signal.SIGTERM))

        await patiently(lambda: is_closed(leaving))
        short_gate.touch()
        complete = await asyncio.gather(*short_runs)
        assert not any(each.done() for each in cut), "no stream of a run that may end within the grace period is cut"
        leaving.send(signal.SIGTERM)

        received = await asyncio.gather(*cut)
        assert await stopping == 0
        gate.touch()
        await cluster.quiet()

        statuses = await cluster.fetch("select distinct status from runs")

    assert [each.endswith(MARK) for each in complete] == [True] * 3, complete

    for request, answer in zip([("POST", "cancelling"), *goes_on], received, strict=True):
        head, _, chunks = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), (request, answer)
        assert chunks == b"" or is_whole(chunks), (request, answer)

    assert [row["status"] for row in statuses] == ["success"]
    logged = cluster.logs()[0]
    assert "Traceback" not in logged, logged
    assert "without completing" not in logged
    assert "Exception in ASGI" not in logged


async def test_streams_of_a_killed_server_do_not_end_as_if_they_were_complete(
    cluster: Cluster, front: Fronted, tmp_path: Path
):
    killed, _ = cluster.servers
    deployed = await asyncio.to_thread(front.deploy, f"cut-{next(names)}", killed.url)

    agent = f"/agents/{deployed['name']}"
    gate = tmp_path / "gate"
    async with Client(killed) as client:
        thread = await client.thread()
        path = f"{agent}/threads/{thread}/runs"
        body = work(gates={1: gate}, stream_mode="custom")
        whole = await raw(front, "POST", f"{agent}/runs/stream", work(steps=1, stream_mode="custom"))
        seen = [bytearray() for _ in range(3)]
        streams = [asyncio.create_task(raw(front, "POST", f"{path}/stream", body, seen[0]))]
        run = await begun(cluster, thread)

        followed = (f"{path}/{run}/stream", f"{agent}/threads/{thread}/stream")
        for answer, address in zip(seen[1:], followed, strict=True):
            streams.append(asyncio.create_task(raw(front, "GET", address, None, answer)))

        # Before that the front has nothing of an answer that would be cut.
        await eventually(lambda: have_begun(seen, b'{"begin":1'))

    killed.kill()
    received = await asyncio.gather(*streams)
    gate.touch()
    await cluster.quiet()
    assert whole.endswith(MARK), whole
    assert b'{"begin":1' in received[0].replace(b" ", b"")

    for answer in received:
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert not answer.endswith(MARK), answer


async def have_begun(answers: list[bytearray], event: bytes) -> bool:
    """Whether each answer has its head, and the first one this event."""
    return all(b"\r\n\r\n" in answer for answer in answers) and event in answers[0].replace(b" ", b"")


def is_whole(chunks: bytes) -> bool:
    """Whether chunks end with a whole event, comment or newline, and without the mark that ends a response."""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        last = rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]

    return last == b"\n" or last.endswith(b"\r\n\r\n")


async def begun(cluster: Cluster, thread: str) -> str:
    """Wait until a run of a thread has begun its second step, and return its id."""

    async def look() -> str | None:
        found = (e.run for e in cluster.ledger.entries() if (e.thread, e.step, e.event) == (thread, 1, "begin"))
        return next(found, None)

    return await eventually(look)


async def open_streams(client: Client) -> int:
    for line in (await client.http.get("/metrics")).text.splitlines():
        name, _, value = line.partition(" ")
        if name == "lg_api_streams_open":
            return int(float(value))

    raise AssertionError("no gauge")


async def all_open(client: Client, count: int) -> bool:
    return await open_streams(client) >= count


async def python_run(url: str, thread: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with get_client(url=url, api_key=KEY) as client:
        options = {"input": body["input"], "durability": "sync", "stream_mode": "custom", "stream_resumable": True}
        async for part in client.runs.stream(thread, body["assistant_id"], **options):
            yield {"event": part.event, "data": part.data, "id": part.id}


async def python_thread(url: str, thread: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with get_client(url=url, api_key=KEY) as client:
        following = await client.threads.join_stream(thread, last_event_id="0", stream_mode=["run_modes"])
        options = {"input": body["input"], "durability": "sync", "stream_mode": "custom"}
        await client.runs.create(thread, body["assistant_id"], **options)

        async for part in following:
            yield {"event": part.event, "data": part.data, "id": part.id}
            if isinstance(part.data, dict) and part.data.get("status") == "run_done":
                return


async def javascript(what: str, url: str, thread: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    packages = install_packages()
    shutil.copy(SCRIPTS / "restart.mjs", packages / "restart.mjs")
    node = await asyncio.create_subprocess_exec(
        "node",
        "restart.mjs",
        url,
        KEY,
        what,
        thread,
        json.dumps(body),
        cwd=packages,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    try:
        async for line in node.stdout:
            yield json.loads(line)
        assert await node.wait() == 0, (await node.stderr.read()).decode()
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()


@pytest.mark.parametrize("client", ["python run", "python thread", "javascript run", "javascript thread"])
async def test_clients_get_every_event_once_over_a_stop(cluster: Cluster, front: Fronted, tmp_path: Path, client: str):
    """The front turns to the other server before this one stops, as at a switch of revisions."""
    leaving, staying = cluster.servers
    deployed = await asyncio.to_thread(front.deploy, f"cut-{next(names)}", leaving.url)
    url = f"{front.url}/agents/{deployed['name']}"
    gate = tmp_path / "gate"
    body = work(gates={1: gate})

    async with Client(leaving) as here:
        thread = await here.thread()

    language, what = client.split()
    if language == "python":
        events = python_run(url, thread, body) if what == "run" else python_thread(url, thread, body)
    else:
        events = javascript(what, url, thread, body)

    received = []
    # On a busy machine the other server might claim the run, and nobody would be cut.
    cluster.pause(staying)
    async with aclosing(events):
        async for event in events:
            received.append(event)

            if event["data"] == {"begin": 1, "attempt": 1}:
                cluster.resume(staying)
                await asyncio.to_thread(front.report, deployed["id"], staying.url)
                await stop_at_once(leaving)
                gate.touch()

    custom = [(event["data"], event["id"]) for event in received if event["event"] == "custom"]
    steps = [("begin", 0, 1), ("end", 0, 1), ("begin", 1, 1)] + [
        (name, step, 2) for step in (1, 2) for name in ("begin", "end")
    ]
    assert [data for data, _ in custom] == [{name: step, "attempt": attempt} for name, step, attempt in steps]
    assert len({event["id"] for event in received}) == len(received)
