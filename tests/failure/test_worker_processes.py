"""One server of several processes: they share the address and the work, and the end of one loses no run.

Graphs run in the processes themselves, each of which executes one run at a time, so that two runs are in two processes.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from portside.kernel.http.server import listen
from portside.kernel.worker_processes import count_usable_cores
from tests.failure.cluster import Client, Cluster, Entry, is_closed, list_steps, patiently, start_cluster, work
from tests.servers import PROJECTS, ServerProcess, free_port

# Longer than any test: a second signal ends the grace period.
SETTINGS = {
    "WORKERS": "2",
    "EXECUTORS": "0",
    "N_JOBS_PER_WORKER": "1",
    "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "600",
}


needs_cores = pytest.mark.skipif(count_usable_cores() < 2, reason="with one core the load adds no process")


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with start_cluster(1, module_database, tmp_path_factory.mktemp("workers"), **SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    await find_workers(servers)
    yield servers


async def find_workers(cluster: Cluster) -> set[int]:
    """Wait until both processes serve; return their ids."""
    [server] = cluster.servers

    async def look() -> set[int] | None:
        pids = set(cluster.find_executors(server))
        return pids if len(pids) == 2 and name_both(httpx2.get(f"{server.url}/metrics").text) else None

    return await patiently(look)


def name_both(metrics: str) -> bool:
    return all(f'lg_api_workers_max{{worker="{number}"}}' in metrics for number in "01")


async def read_metrics(server: ServerProcess) -> list[str]:
    """Return the metrics of both processes. An answer lacks those of a process that is too busy."""

    async def look() -> str | None:
        text = httpx2.get(f"{server.url}/metrics").text
        return text if name_both(text) else None

    text: str = await patiently(look)
    return text.splitlines()


@contextlib.asynccontextmanager
async def open_clients(url: str, count: int) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Clients with connections of their own."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=300)) for _ in range(count)]


async def two_runs(cluster: Cluster, client: Client, gate: Path) -> list[tuple[str, str, Entry]]:
    """Start a run in each process that is held in its second step; return thread, run, and that step's begin."""
    begun = []
    for _ in range(2):
        thread = await client.thread()
        run = await client.run(thread, gates={1: gate})
        begun.append((thread, run, await cluster.ledger.begun(run, 1)))

    assert len({entry.pid for _, _, entry in begun}) == 2
    return begun


async def test_processes_share_the_connections_that_are_kept(cluster: Cluster):
    [server] = cluster.servers
    async with contextlib.AsyncExitStack() as stack:

        async def have_both_answered() -> bool:
            """Keep one more connection, and look. A process that is busy gets fewer, but none gets all."""
            client = await stack.enter_async_context(httpx2.AsyncClient(base_url=server.url, timeout=300))
            assert (await client.get("/info")).status_code == 200
            lines = (await client.get("/metrics")).text.splitlines()
            answered = [line for line in lines if 'path="/info"' in line and "requests_total" in line]
            return {'worker="0"' in line for line in answered} == {True, False}

        await patiently(have_both_answered)


async def test_metrics_are_labelled_and_as_json_those_of_all(cluster: Cluster):
    [server] = cluster.servers

    async def read_without_runs() -> dict[str, Any] | None:
        # Those of other tests leave the figures a moment after they ended.
        found = httpx2.get(f"{server.url}/metrics?format=json").json()
        workers = found["workers"]
        is_whole = workers["max"] == 2 and workers["active"] == 0 and found["queue"]["n_pending"] == 0
        return found if is_whole else None

    as_json = await patiently(read_without_runs)
    lines = await read_metrics(server)
    slots = [line for line in lines if line.startswith("lg_api_workers_max")]
    assert sorted(slots) == [f'lg_api_workers_max{{worker="{number}"}} 1.0' for number in "01"]

    # Figures of the database are the same in both, and those of a family stand together.
    assert len([line for line in lines if line.startswith("lg_api_num_pending_runs ")]) == 1
    assert len([line for line in lines if line.startswith("# TYPE lg_api_workers_max ")]) == 1
    assert as_json["workers"] == {"max": 2, "active": 0, "available": 2}
    rows = as_json["api"]["http_requests_total"]
    assert len({tuple(sorted(row.items())) for row in rows}) == len(rows)


async def test_runs_of_one_process_are_joined_and_followed_through_the_other(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gate = tmp_path / "gate"
    async with Client(server) as client, open_clients(server.url, 6) as clients:
        thread = await client.thread()
        run = await client.run(thread, gates={1: gate}, stream_mode=["custom"], stream_resumable=True)
        await cluster.ledger.begun(run, 1)
        path = f"/threads/{thread}/runs/{run}"
        joins = [asyncio.create_task(one.get(f"{path}/join")) for one in clients]
        from_start = {"Last-Event-ID": "-1"}
        streams = [asyncio.create_task(one.get(f"{path}/stream", headers=from_start)) for one in clients]

        gate.touch()
        ends = [list_steps((await join).json(), run) for join in joins]
        assert ends == [[(0, 1), (1, 1), (2, 1)]] * 6
        begins = [[data["begin"] for data in customs((await stream).text) if "begin" in data] for stream in streams]
        assert begins == [[0, 1, 2]] * 6


async def test_a_run_that_is_awaited_in_one_process_is_followed_through_the_other(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gates = {step: tmp_path / f"gate {step}" for step in (0, 1)}
    async with open_clients(server.url, 7) as clients:
        # Stateless, with a client that waits: other processes are not told of it.
        body = work(gates=gates, stream_mode=["custom"], metadata={"awaited": str(tmp_path)})
        waiting = asyncio.create_task(clients[0].post("/runs/wait", json=body))

        async def look() -> Entry | None:
            rows = await cluster.fetch("select run_id from runs where metadata ->> 'awaited' = $1", str(tmp_path))
            return await cluster.ledger.begun(str(rows[0]["run_id"]), 0) if rows else None

        entry = await patiently(look)
        path = f"/threads/{entry.thread}/runs/{entry.run}"
        joins = [asyncio.create_task(one.get(f"{path}/join")) for one in clients[1:4]]

        opened = [
            await clients[4 + n].send(clients[4 + n].build_request("GET", f"{path}/stream"), stream=True)
            for n in range(3)
        ]

        # A join that came after the end would find nothing: a stateless run is deleted with its thread.
        await patiently(lambda: are_open(server, 1 + len(joins) + len(opened)))

        for gate in gates.values():
            gate.touch()

        texts = [(await stream.aread()).decode() for stream in opened]
        assert list_steps((await waiting).json(), entry.run) == [(0, 1), (1, 1), (2, 1)]
        assert [list_steps((await join).json(), entry.run) for join in joins] == [[(0, 1), (1, 1), (2, 1)]] * 3

        # They followed before the gate was opened, so they miss nothing behind it.
        assert [[data["end"] for data in customs(text) if "end" in data] for text in texts] == [[0, 1, 2]] * 3


async def are_open(server: ServerProcess, count: int) -> bool:
    """Whether the processes of a server together have so many clients that follow runs or wait for them."""
    async with httpx2.AsyncClient(timeout=300) as http:
        lines = (await http.get(f"{server.url}/metrics")).text.splitlines()

    return sum(float(line.split()[-1]) for line in lines if line.startswith("lg_api_streams_open{")) >= count


async def test_a_killed_process_is_replaced_and_its_run_goes_on(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gate = tmp_path / "gate"
    before = await find_workers(cluster)
    async with Client(server) as client:
        (_, lost, entry), (_, kept, _) = await two_runs(cluster, client, gate)
        os.kill(entry.pid, signal.SIGKILL)

        # The socket is that of both, so no connection is refused while one is missing.
        for _ in range(10):
            assert httpx2.get(f"{server.url}/ok", timeout=300).status_code == 200

        after = await find_workers(cluster)
        assert len(before & after) == 1
        assert entry.pid not in after
        gate.touch()
        assert await cluster.over(lost, kept) == ["success"] * 2

    assert (await cluster.run_row(lost))["attempt"] == 2
    assert (await cluster.run_row(kept))["attempt"] == 1
    assert "a worker process ended and is started again" in server.log.read_text()


async def test_a_stop_drains_every_process(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gate = tmp_path / "gate"
    async with Client(server) as client:
        begun = await two_runs(cluster, client, gate)

    stopping = asyncio.create_task(asyncio.to_thread(server.stop, signal.SIGTERM))
    await patiently(lambda: is_closed(server))

    # As a service manager does, which sends it to all processes: for them it is no second request.
    for _, _, entry in begun:
        os.kill(entry.pid, signal.SIGTERM)

    gate.touch()
    assert await stopping == 0
    rows = [await cluster.run_row(run) for _, run, _ in begun]
    assert [(row["status"], row["attempt"]) for row in rows] == [("success", 1)] * 2


async def test_a_second_signal_hands_the_runs_of_every_process_back(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gate = tmp_path / "gate"
    async with Client(server) as client:
        begun = await two_runs(cluster, client, gate)

    server.send(signal.SIGTERM)
    await patiently(lambda: is_closed(server))

    # The gate is closed: a server that waited for the runs would not stop.
    assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
    assert [(await cluster.run_row(run))["status"] for _, run, _ in begun] == ["pending"] * 2
    gate.touch()
    await cluster.start()
    assert await cluster.over(*(run for _, run, _ in begun)) == ["success"] * 2


async def test_processes_end_with_their_supervisor(cluster: Cluster, tmp_path: Path):
    [server] = cluster.servers
    gate = tmp_path / "gate"
    pids = await find_workers(cluster)

    async with Client(server) as client:
        begun = await two_runs(cluster, client, gate)

    server.kill()

    async def are_gone() -> bool:
        return not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)  # noqa: ASYNC240 - not a disk

    await patiently(are_gone)
    assert [(await cluster.run_row(run))["status"] for _, run, _ in begun] == ["pending"] * 2
    gate.touch()
    await cluster.start()
    assert await cluster.over(*(run for _, run, _ in begun)) == ["success"] * 2


async def test_connections_to_the_database_are_shared(cluster: Cluster):
    [server] = cluster.servers
    lines = await read_metrics(server)
    limits = {line for line in lines if line.startswith("lg_api_pg_pool_max")}
    assert limits == {
        f'lg_api_pg_pool_max{{pool="{pool}",worker="{number}"}} 10.0' for pool in ("api", "graphs") for number in "01"
    }


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_streams_beyond_the_slots_begin_in_the_order_of_their_admission(
    agent_databases, tmp_path: Path, workers: str
):
    gate = tmp_path / "gate"
    with start_cluster(1, await agent_databases(), tmp_path, **{**SETTINGS, "WORKERS": workers}) as cluster:
        if workers == "2":
            await find_workers(cluster)

        [server] = cluster.servers
        async with open_clients(server.url, 24) as clients:
            threads = [(await one.post("/threads", json={})).json()["thread_id"] for one in clients]
            body = work(steps=1, gates={0: gate}, stream_mode=["custom"])
            streams = [
                asyncio.create_task(one.post(f"/threads/{thread}/runs/stream", json=body))
                for one, thread in zip(clients, threads, strict=True)
            ]

            async def are_admitted() -> bool:
                return len(await cluster.fetch("select 1 from runs")) == len(streams)

            await patiently(are_admitted)
            waiting = await cluster.fetch("select run_id from runs where status = 'pending' order by created_at")
            gate.touch()
            steps = [[data for data in customs((await stream).text) if "end" in data] for stream in streams]

        # Nobody starves: every stream has all of its events.
        assert [len(events) for events in steps] == [1] * 24
        expected = [str(row["run_id"]) for row in waiting]
        begun = [entry.run for entry in cluster.ledger.entries() if entry.event == "begin" and entry.run in expected]
        assert sorted(begun) == sorted(expected)

        if workers == "1":
            # Two processes that claim at the same moment may begin in either order.
            assert begun == expected


async def test_every_process_of_a_replica_takes_over_and_stops(agent_databases, tmp_path: Path):
    private = listen("127.0.0.1", 0)
    public = listen("127.0.0.1", 0)
    read, write = os.pipe()
    passed = {"--fd": private.fileno(), "--public-fd": public.fileno(), "--handover-fd": read}
    options = [f"{name}={number}" for name, number in passed.items()]

    command = [
        sys.executable,
        "-m",
        "portside",
        "serve",
        "--config",
        str(PROJECTS / "engine" / "langgraph.json"),
        *options,
    ]

    database = {"DATABASE_URI": await agent_databases(), "LANGSMITH_TRACING": "false"}
    own, theirs = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (private, public))
    with (tmp_path / "log").open("wb") as output:
        replica = subprocess.Popen(  # noqa: ASYNC220 - it inherits sockets
            command,
            env={**os.environ, **SETTINGS, **database},
            pass_fds=tuple(passed.values()),
            stdout=output,
            stderr=output,
        )

    private.close()

    async def has_status(path: str, status: int) -> bool:
        async with httpx2.AsyncClient(timeout=300) as http:
            with contextlib.suppress(httpx2.TransportError):
                return (await http.get(f"{own}{path}")).status_code == status

        return False

    async def both_serve() -> bool:
        return name_both(httpx2.get(f"{own}/metrics", timeout=300).text)

    try:
        await patiently(lambda: has_status("/ok", 200))
        await patiently(both_serve)
        assert await has_status("/ok?serving=1", 500)
        os.write(write, b"1")
        os.close(write)
        await patiently(lambda: has_status("/ok?serving=1", 200))

        async def both_answer_there() -> bool:
            # Each connection goes to the process that has fewer.
            async with open_clients(theirs, 12) as clients:
                texts = [(await one.get("/info")).status_code for one in clients]
                assert texts == [200] * 12
                metrics = (await clients[0].get("/metrics")).text

            rows = [line for line in metrics.splitlines() if 'path="/info"' in line and "requests_total" in line]
            return len(rows) == 2

        await patiently(both_answer_there)
        replica.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(replica.wait, 120) == 0

        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{own}/ok")

        # Whoever has the socket takes the connections that come now.
        with socket.create_connection(public.getsockname()):
            accepted, _ = await asyncio.get_running_loop().sock_accept(public)
            accepted.close()
    finally:
        replica.kill()
        replica.wait()
        public.close()


# Little, because a process may get only some percent of a core beside other work; one that only renews leases uses
# less than half of it.
BY_LOAD = {**SETTINGS, "WORKERS": "auto", "WORKERS_CPU_PERCENT": "8", "WORKERS_IDLE_SECS": "2"}
# A search that costs the server much more than its client, which must not be what keeps the server from its work.
SEARCH = json.dumps({"metadata": {f"key {number}": number for number in range(5000)}}).encode()


@pytest.fixture
async def by_load(agent_databases, tmp_path: Path) -> AsyncIterator[Cluster]:
    with start_cluster(1, await agent_databases(), tmp_path, **BY_LOAD) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def send_load(clients: list[httpx2.AsyncClient]) -> AsyncIterator[None]:
    """Have each client send requests, one after the other, while the block runs; all of them must succeed."""
    is_over = False

    async def send(client: httpx2.AsyncClient) -> None:
        while not is_over:
            response = await client.post(
                "/threads/search", content=SEARCH, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == 200, response.text

    sending = [asyncio.create_task(send(client)) for client in clients]
    try:
        yield
    finally:
        is_over = True
        await asyncio.gather(*sending)


async def wait_for_second_process(cluster: Cluster, clients: list[httpx2.AsyncClient]) -> set[int]:
    """Send requests until a second process has answered some of the clients that had connections; return both ids."""
    [server] = cluster.servers

    async def is_shared() -> bool:
        text = await asyncio.to_thread(lambda: httpx2.get(f"{server.url}/metrics", timeout=300).text)
        rows = [line for line in text.splitlines() if 'path="/threads/search"' in line and "requests_total" in line]
        return len(rows) == 2

    async with send_load(clients):
        await patiently(is_shared)

    return set(cluster.find_executors(server))


def of_other(pids: set[int], first: int) -> int:
    [other] = pids - {first}
    return other


@needs_cores
@pytest.mark.thorough
async def test_load_adds_a_process_that_ends_after_it_with_its_streams(by_load: Cluster, tmp_path: Path):
    [server] = by_load.servers
    [first] = by_load.find_executors(server)
    gate = tmp_path / "gate"
    async with contextlib.AsyncExitStack() as stack:
        clients = await stack.enter_async_context(open_clients(server.url, 8))
        second = of_other(await wait_for_second_process(by_load, clients), first)

        # A run in each: those of the second process last longer than the load.
        async with send_load(clients[2:]):
            body = work(gates={1: gate}, stream_mode=["custom"], metadata={"streamed": str(tmp_path)})
            streams = [asyncio.create_task(one.post("/runs/stream", json=body)) for one in clients[:2]]

            async def are_begun() -> bool:
                return {entry.pid for entry in by_load.ledger.entries() if entry.step == 1} == {first, second}

            await patiently(are_begun)

        await patiently(lambda: server.has_logged("ending a worker process that the load does not need"))
        # Another client finds the server as ever, and the streams go on to their ends.
        assert httpx2.get(f"{server.url}/ok", timeout=300).status_code == 200
        assert second in by_load.find_executors(server)
        gate.touch()

        steps = [[data["end"] for data in customs((await stream).text) if "end" in data] for stream in streams]
        assert steps == [[0, 1, 2]] * 2

        # A client that comes again on a connection that it kept is answered, and asked to open another one.
        for client in clients:
            assert (await client.get("/ok")).status_code == 200

    async def is_alone() -> bool:
        return by_load.find_executors(server) == [first]

    await patiently(is_alone)
    rows = await by_load.fetch("select status, attempt from runs where metadata ->> 'streamed' = $1", str(tmp_path))
    assert {(row["status"], row["attempt"]) for row in rows} <= {("success", 1)}
    assert httpx2.get(f"{server.url}/ok", timeout=300).status_code == 200
    assert "started again" not in server.log.read_text()


@needs_cores
@pytest.mark.thorough
async def test_an_added_process_that_is_killed_returns_with_the_load_alone(by_load: Cluster, tmp_path: Path):
    [server] = by_load.servers
    [first] = by_load.find_executors(server)
    gate = tmp_path / "gate"
    async with open_clients(server.url, 8) as clients, Client(server) as client:
        second = of_other(await wait_for_second_process(by_load, clients), first)
        async with send_load(clients):
            begun = await two_runs(by_load, client, gate)

        os.kill(second, signal.SIGKILL)
        gate.touch()

        # The other process takes its run after the lease.
        assert await by_load.over(*(run for _, run, _ in begun)) == ["success"] * 2

        await patiently(lambda: server.has_logged("a worker process ended"))
        async with open_clients(server.url, 8) as others:
            assert of_other(await wait_for_second_process(by_load, others), first) != second


@needs_cores
@pytest.mark.thorough
async def test_a_stop_ends_a_process_that_retires(by_load: Cluster, tmp_path: Path):
    [server] = by_load.servers
    [first] = by_load.find_executors(server)
    async with open_clients(server.url, 8) as clients:
        second = of_other(await wait_for_second_process(by_load, clients), first)
        async with send_load(clients), Client(server) as client:
            await two_runs(by_load, client, tmp_path / "gate")

        await patiently(lambda: server.has_logged("ending a worker process that the load does not need"))
        server.send(signal.SIGTERM)
        await patiently(lambda: is_closed(server))

        # Its run is still held: only the second signal ends its time.
        assert second in by_load.find_executors(server)
        assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0


def test_a_project_that_does_not_load_is_reported_once(module_database: str, tmp_path: Path):
    (tmp_path / "graph.py").write_text("raise ValueError('this does not load')\n")
    config = tmp_path / "langgraph.json"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}}))
    ended = serve("--config", str(config), "--workers", "3", database=module_database)
    assert ended.returncode == 1
    assert ended.stderr.count("error: ") == 1, ended.stderr
    assert "this does not load" in ended.stderr


@pytest.mark.parametrize("option", [("--tier", "executor", "--core-api", "127.0.0.1:1"), ("--tier", "orchestrator")])
def test_executors_on_other_machines_need_one_process(option: tuple[str, ...], module_database: str):
    config = str(PROJECTS / "engine" / "langgraph.json")
    ended = serve("--config", config, "--workers", "2", *option, database=module_database)
    assert ended.returncode == 1
    assert "--workers cannot be combined" in ended.stderr


def serve(*arguments: str, database: str) -> subprocess.CompletedProcess[str]:
    """Run a server that does not start."""
    environment = {**os.environ, "DATABASE_URI": database, "LANGSMITH_TRACING": "false", "EXECUTORS": "0"}
    command = [sys.executable, "-m", "portside", "serve", "--port", str(free_port()), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def customs(text: str) -> list[dict[str, int]]:
    """Return the data of the custom events of a stream."""
    events = [
        dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
        for part in text.replace("\r", "").split("\n\n")
    ]

    return [json.loads(event["data"]) for event in events if event.get("event") == "custom"]
