"""Servers that are asked to stop while they work: what can end ends, the rest is handed back and done elsewhere."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from tests.failure.cluster import Client, Cluster, cluster_of, is_up, patiently, steps_of, work
from tests.servers import ServerProcess

GRACE_S = 3.0
# As the guide tells it: how much longer than the grace a stop may take.
LEFT_WITHIN_S = 45.0


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    grace = {"BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": f"{GRACE_S:g}"}
    with cluster_of(2, module_database, tmp_path_factory.mktemp("stop"), **grace) as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    yield servers


async def stop(server: ServerProcess, number: signal.Signals = signal.SIGTERM) -> float:
    """Stop a server politely; return how long that took, in seconds."""
    began = time.monotonic()
    assert await asyncio.to_thread(server.stop, number) == 0
    return time.monotonic() - began


async def test_what_ends_within_the_grace_ends_and_the_rest_is_handed_back(cluster: Cluster, tmp_path: Path):
    leaving, staying = cluster.servers
    gate = tmp_path / "gate"
    async with Client(leaving) as client:
        short = [(thread := await client.thread(), await client.run(thread, pause_s=0.3)) for _ in range(4)]
        long = [(thread := await client.thread(), await client.run(thread, gates={1: gate})) for _ in range(4)]
        queued = [await client.run(thread) for thread, _ in long]
    for _, run in (*short, *long):
        await cluster.ledger.begun(run, 0)
    mine = {entry.run for entry in cluster.ledger.entries() if entry.pid == leaving.process.pid}
    stopping = asyncio.create_task(stop(leaving))
    took = await stopping
    assert GRACE_S <= took < GRACE_S + 15
    held = [run for _, run in long if run in mine]
    back = [await cluster.ledger.begun(run, 1, attempt=2) for run in held]
    assert all(cluster.by_pid(entry.pid) is staying for entry in back)
    gate.touch()
    everything = [run for _, run in (*short, *long)] + queued
    assert await cluster.over(*everything) == ["success"] * 12
    for thread, run in long:
        row = await cluster.thread_row(thread)
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        assert [step for step, _ in steps_of(row["values"], run)] == [0, 1, 2]
    for _, run in short:
        assert {entry.attempt for entry in cluster.ledger.entries(run)} == {1}


async def test_being_handed_back_costs_no_retry(cluster: Cluster, tmp_path: Path):
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


async def test_a_second_signal_ends_the_grace(fresh_database: Callable[[], Awaitable[str]], tmp_path: Path):
    gate = tmp_path / "gate"
    with cluster_of(1, await fresh_database(), tmp_path) as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            run = await client.run(await client.thread(), gates={1: gate})
        await alone.ledger.begun(run, 1)
        stopping = asyncio.create_task(stop(server))
        await patiently(lambda: is_closed(server), 10)
        assert not stopping.done()
        server.send(signal.SIGTERM)
        # Without it the grace would be 180 s; the answer is awaited no longer than a stop may take.
        await asyncio.wait_for(stopping, LEFT_WITHIN_S)
        row = await alone.run_row(run)
        assert (row["status"], row["worker_id"], row["losses"]) == ("pending", None, 0)


async def test_nodes_that_block_keep_neither_their_runs_nor_the_server(
    fresh_database: Callable[[], Awaitable[str]], tmp_path: Path
):
    """In a thread, and on the very loop of the graphs: nobody can stop them, so they are left to themselves."""
    with cluster_of(1, await fresh_database(), tmp_path, BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS="0") as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            for graph in ("blocking", "hogging"):
                run = await client.run(await client.thread(), gates={1: tmp_path / "never"}, graph=graph)
                await alone.ledger.begun(run, 1)
        await asyncio.wait_for(stop(server), LEFT_WITHIN_S)
        rows = await alone.fetch("select status, worker_id, losses from runs")
        assert [tuple(row) for row in rows] == [("pending", None, 0)] * 2


async def is_closed(server: ServerProcess) -> bool:
    """Whether a server accepts no more connections."""
    try:
        async with httpx2.AsyncClient() as http:
            await http.get(f"{server.url}/ok")
    except httpx2.TransportError:
        return True
    return False


async def test_a_stop_while_clients_listen_and_wait(cluster: Cluster, tmp_path: Path):
    """Streams of runs that end within the grace are whole; the others end when the server goes, and so do waits."""
    server, gate = cluster.servers[0], tmp_path / "gate"
    short, long = work(pause_s=0.4, stream_mode="custom"), work(gates={1: gate}, stream_mode="custom")
    before = {entry.run for entry in cluster.ledger.entries()}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        listening = [asyncio.create_task(listen(http, body)) for body in (short, short, long, long)]
        waiting = asyncio.create_task(http.post("/runs/wait", json=short))
        await patiently(lambda: have_begun(cluster, before, 5), 20)
        took = await stop(server)
        heard = await asyncio.wait_for(asyncio.gather(*listening), 10)
        answer = await asyncio.wait_for(waiting, 10)
    assert took < GRACE_S + 15
    assert answer.json()["at"] == 3
    assert [text.count('"end"') for text in heard] == [3, 3, 1, 1]
    gate.touch()
    await cluster.quiet()
    assert not is_up(server)


async def have_begun(cluster: Cluster, before: set[str], count: int) -> bool:
    return len({entry.run for entry in cluster.ledger.entries()} - before) >= count


async def listen(http: httpx2.AsyncClient, body: dict) -> str:
    """Follow a run to the end of its stream, or to where the server breaks off; return what was heard."""
    heard = b""
    try:
        async with http.stream("POST", "/runs/stream", json=body) as answer:
            async for chunk in answer.aiter_raw():
                heard += chunk
    except httpx2.TransportError:
        pass
    return heard.decode()
