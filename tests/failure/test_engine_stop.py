"""Servers that are stopped while they execute runs.

Runs may end within the grace period; the rest is handed back and resumed elsewhere. The process exits, whatever nodes
do.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from tests.failure.cluster import Client, Cluster, is_closed, is_up, list_steps, patiently, start_cluster, work
from tests.servers import ServerProcess

# Longer than any test: a second signal ends the grace period.
GRACE = {"BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "600"}


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with start_cluster(2, module_database, tmp_path_factory.mktemp("stop"), **GRACE) as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    yield servers


async def stop(server: ServerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    assert await asyncio.to_thread(server.stop, number) == 0


async def test_runs_end_within_the_grace_period_and_the_rest_is_handed_back(cluster: Cluster, tmp_path: Path):
    leaving, staying = cluster.servers
    short_gate = tmp_path / "short"
    gate = tmp_path / "gate"
    async with Client(leaving) as client:
        short = [(thread := await client.thread(), await client.run(thread, gates={1: short_gate})) for _ in range(4)]
        long = [(thread := await client.thread(), await client.run(thread, gates={1: gate})) for _ in range(4)]
        queued = [await client.run(thread) for thread, _ in long]

    for _, run in (*short, *long):
        await cluster.ledger.begun(run, 1)

    mine = {entry.run for entry in cluster.ledger.entries() if entry.pid == leaving.process.pid}
    stopping = asyncio.create_task(stop(leaving))
    await patiently(lambda: is_closed(leaving))
    short_gate.touch()
    assert await cluster.over(*(run for _, run in short)) == ["success"] * 4
    assert not stopping.done()
    leaving.send(signal.SIGTERM)

    await stopping
    held = [run for _, run in long if run in mine]
    back = [await cluster.ledger.begun(run, 1, attempt=2) for run in held]
    assert all(cluster.by_pid(entry.pid) is staying for entry in back)
    gate.touch()

    everything = [run for _, run in (*short, *long)] + queued
    assert await cluster.over(*everything) == ["success"] * 12

    for thread, run in long:
        row = await cluster.thread_row(thread)
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        assert [step for step, _ in list_steps(row["values"], run)] == [0, 1, 2]

    for _, run in short:
        assert {entry.attempt for entry in cluster.ledger.entries(run)} == {1}


async def test_hand_back_costs_no_retry(cluster: Cluster, tmp_path: Path):
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        run = await client.run(thread, gates={1: gate})

    for attempt in range(1, 6):
        held = await cluster.ledger.begun(run, 1, attempt)
        owner = cluster.by_pid(held.pid)
        await stop(owner, signal.SIGINT)

        if attempt < 5:
            await cluster.start(owner)

    gate.touch()
    assert await cluster.over(run) == ["success"]


async def test_second_signal_ends_the_grace_period(agent_databases: Callable[[], Awaitable[str]], tmp_path: Path):
    gate = tmp_path / "gate"
    with start_cluster(1, await agent_databases(), tmp_path, **GRACE) as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            run = await client.run(await client.thread(), gates={1: gate})

        await alone.ledger.begun(run, 1)
        stopping = asyncio.create_task(stop(server))
        await patiently(lambda: is_closed(server))
        assert not stopping.done()
        server.send(signal.SIGTERM)

        # The gate is closed, so a server that does not end the grace period does not stop.
        await stopping
        row = await alone.run_row(run)
        assert (row["status"], row["worker_id"], row["lost_attempts"]) == ("pending", None, 0)


async def test_blocking_nodes_delay_neither_the_stop_nor_their_runs(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path
):
    """In a thread, and on the graph loop itself: nothing can stop them, so the server exits without them."""
    with start_cluster(1, await agent_databases(), tmp_path, BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS="1") as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            for graph in ("blocking", "hogging"):
                run = await client.run(await client.thread(), gates={1: tmp_path / "never"}, graph=graph)
                await alone.ledger.begun(run, 1)

        await stop(server)
        rows = await alone.fetch("select status, worker_id, lost_attempts from runs")
        assert [tuple(row) for row in rows] == [("pending", None, 0)] * 2


async def test_stop_while_clients_stream_and_wait(cluster: Cluster, tmp_path: Path):
    """Streams of runs that end within the grace period are complete; the others end when the server exits."""
    server = cluster.servers[0]
    short_gate = tmp_path / "short"
    gate = tmp_path / "gate"

    short = work(gates={1: short_gate}, stream_mode="custom")
    long = work(gates={1: gate}, stream_mode="custom")
    before = {entry.run for entry in cluster.ledger.entries()}
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        streams = [asyncio.create_task(follow_run(http, body)) for body in (short, short, long, long)]
        waiting = asyncio.create_task(http.post("/runs/wait", json=short))
        await patiently(lambda: have_begun(cluster, before, 5))
        stopping = asyncio.create_task(stop(server))

        await patiently(lambda: is_closed(server))
        short_gate.touch()
        complete = await asyncio.gather(*streams[:2])
        response = await waiting
        assert not stopping.done()
        server.send(signal.SIGTERM)

        cut = await asyncio.gather(*streams[2:])
        await stopping

    assert response.json()["at"] == 3
    assert [text.count('"end"') for text in [*complete, *cut]] == [3, 3, 1, 1]
    gate.touch()
    await cluster.quiet()
    assert not is_up(server)


async def have_begun(cluster: Cluster, before: set[str], count: int) -> bool:
    """Whether that many new runs are in their second step."""
    return len({entry.run for entry in cluster.ledger.entries() if entry.step == 1} - before) >= count


async def follow_run(http: httpx2.AsyncClient, body: dict) -> str:
    """Follow a run until its stream ends or breaks, and return the text."""
    text = b""
    try:
        async with http.stream("POST", "/runs/stream", json=body) as response:
            async for chunk in response.aiter_raw():
                text += chunk
    except httpx2.TransportError:
        pass

    return text.decode()
