"""After many runs of every kind a server has no objects, memory or rows of a finished run.

LEAK_RUNS is the number of runs of each kind; without it the test is skipped, because it takes minutes (`make chaos`).
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from tests.failure.cluster import Client, Cluster, patiently, start_cluster, work
from tests.failure.rules import orphans

RUNS = int(os.environ.get("LEAK_RUNS") or 200)
AT_ONCE = 8
# What each run has one of, while it lasts.
OF_A_RUN = (
    "RunStream",
    "EventLog",
    "LogSubscription",
    "CheckpointBuffer",
    "Lease",
    "Task",
    "Future",
    "_FutureProxy",
    "ClaimedRun",
)
# What a server at rest has of these at most, for its chores and connections.
AT_REST = 60
# 32 MB wait for the reader, 16 MB are kept of the run, and some are in transit; the run writes 400 MB.
SLOW_READER_MB = 200.0
KEPT_MB = 4.0
KEPT_MB_OF_A_RUN = 0.004
Kind = Callable[[Client, int], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    settings = {"RESUMABLE_STREAM_TTL_SECONDS": "1", "LOG_LEVEL": "WARNING"}
    with start_cluster(1, module_database, tmp_path_factory.mktemp("leaks"), **settings) as cluster:
        yield cluster


async def wait_for_run(client: Client, _number: int) -> None:
    await client.http.post("/runs/wait", json=work(steps=2))


async def stream_run(client: Client, _number: int) -> None:
    await read(client, "/runs/stream", work(steps=2))


async def leave_early(client: Client, number: int) -> None:
    """The client goes after the first event; the run goes on, or goes with it."""
    body = work(steps=2, on_disconnect=("continue", "cancel")[number % 2])
    async with client.http.stream("POST", "/runs/stream", json=body) as response:
        async for _ in response.aiter_raw():
            break


async def resumable(client: Client, _number: int) -> None:
    thread = await client.thread()
    await read(client, f"/threads/{thread}/runs/stream", work(steps=2, stream_resumable=True))
    await client.http.delete(f"/threads/{thread}")


async def join_run(client: Client, _number: int) -> None:
    thread = await client.thread()
    run = await client.run(thread, steps=2)
    await client.http.get(f"/threads/{thread}/runs/{run}/join")
    await client.http.delete(f"/threads/{thread}")


async def cancel_run(client: Client, number: int) -> None:
    thread = await client.thread()
    run = await client.run(thread, steps=2, pause_s=0.05)
    action = ("interrupt", "rollback")[number % 2]
    await client.http.post(f"/threads/{thread}/runs/{run}/cancel?wait=1&action={action}")
    await client.http.delete(f"/threads/{thread}")


async def fail_run(client: Client, _number: int) -> None:
    thread = await client.thread()
    await client.http.post(f"/threads/{thread}/runs/wait", json=work(steps=2, fail_at=1))
    await client.http.delete(f"/threads/{thread}")


async def read(client: Client, path: str, body: dict[str, Any]) -> None:
    async with client.http.stream("POST", path, json=body) as response:
        async for _ in response.aiter_raw():
            pass


KINDS: list[Kind] = [wait_for_run, stream_run, leave_early, resumable, join_run, cancel_run, fail_run]


@pytest.mark.skipif("LEAK_RUNS" not in os.environ, reason="takes minutes: make chaos, or LEAK_RUNS=2000")
@pytest.mark.timeout(900 + 3 * RUNS)
async def test_runs_leave_nothing_behind(cluster: Cluster):
    async with Client(cluster.servers[0]) as client:
        await of_every_kind(client, RUNS // 4)
        await patiently(lambda: forgotten(cluster, client))
        before = await census(client)
        await of_every_kind(client, RUNS)
        await patiently(lambda: forgotten(cluster, client))

        after = await census(client)

    grown = {
        name: count - before["objects"].get(name, 0)
        for name, count in after["objects"].items()
        if count - before["objects"].get(name, 0) > RUNS * 0.9
    }

    assert grown == {}
    kept = after["memory_mb"] - before["memory_mb"]
    assert kept < KEPT_MB + KEPT_MB_OF_A_RUN * RUNS * len(KINDS), f"{kept:.1f} MB"
    assert await orphans(cluster) == []

    for table in ("runs", "threads", "checkpoints", "checkpoint_values", "checkpoint_writes"):
        assert (await cluster.fetch(f"select count(*) from {table}"))[0][0] == 0, table


@pytest.mark.timeout(900)
async def test_stalled_reader_costs_the_server_only_its_buffer(cluster: Cluster):
    """Nobody reads from a real socket while the run writes many times what its buffer may hold."""
    flood = {"assistant_id": "flood", "input": {"events": 100_000, "size": 4000}, "stream_mode": "custom"}
    port = int(cluster.servers[0].url.rpartition(":")[2])
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        before = await census(client)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            body = json.dumps({**flood, "on_disconnect": "continue"}).encode()

            reader.sendall(
                f"POST /threads/{thread}/runs/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )

            await patiently(lambda: has_succeeded(client, thread), 600)
            after = await census(client)
            tail = await asyncio.to_thread(read_to_the_end, reader)

        await client.http.delete(f"/threads/{thread}")

    assert b"SlowReader" in tail
    kept = after["memory_mb"] - before["memory_mb"]
    assert kept < SLOW_READER_MB, f"{kept:.0f} MB"


async def has_succeeded(client: Client, thread: str) -> bool:
    runs = (await client.http.get(f"/threads/{thread}/runs")).json()
    return [run["status"] for run in runs] == ["success"]


def read_to_the_end(reader: socket.socket) -> bytes:
    """Return the end of what waits on a socket; a stream ends with an empty chunk."""
    reader.settimeout(60)
    tail = b""

    # The end of the chunk before it belongs to the mark: an event whose id ends with 0 ends like the empty chunk alone.
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        read = reader.recv(1 << 20)
        assert read, tail
        tail = tail[-4096:] + read

    return tail


async def of_every_kind(client: Client, count: int) -> None:
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            for kind in KINDS:
                await kind(client, number)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def forgotten(cluster: Cluster, client: Client) -> bool:
    """Whether no thread is left, nobody uses a connection, and what each run has one of is there for no run."""
    busy = "datname = current_database() and application_name = 'portside' and state <> 'idle'"
    if (await cluster.fetch(f"select count(*) from pg_stat_activity where {busy}"))[0][0]:
        return False
    if (await cluster.fetch("select count(*) from threads"))[0][0]:
        return False

    objects = (await census(client))["objects"]
    return all(objects.get(name, 0) < AT_REST for name in OF_A_RUN)


async def census(client: Client) -> dict[str, Any]:
    response: httpx2.Response = await client.http.post("/runs/wait", json={"assistant_id": "census", "input": {}})
    found: dict[str, Any] = response.json()
    return found
