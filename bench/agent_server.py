"""`measure` measures an agent server over HTTP, ours or the reference; `ours` starts one of ours."""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import asyncpg

ROOT = Path(__file__).parents[1]
PROJECT = Path(__file__).parent / "project"
sys.path[:0] = [str(ROOT)]

from bench.client import (  # noqa: E402
    Connection,
    Figures,
    Request,
    cpu_s,
    events_per_s,
    find_parent,
    first_events,
    load,
    memory_mb,
    runs_figures,
)
from bench.workload import (  # noqa: E402
    BACKLOG,
    BATCH,
    BURST,
    LATER,
    RUN,
    RUNS_PER_THREAD,
    STREAMS,
    THREADS_PER_CLIENT,
    TOKENS,
)
from tests.servers import ServerProcess, free_port  # noqa: E402

from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402


class Server(NamedTuple):
    """A server to measure, and its database, if it has one."""

    port: int
    pid: int
    database: str | None = None


async def measure(server: Server) -> Figures:
    """Return all figures of one server."""
    found: Figures = {"memory_mb": memory_mb(server.pid)}
    await load(server.port, 4, wait, 2)

    for clients in (1, 16):
        found |= await runs(server, clients)
        found |= await thread_runs(server, clients)

    for streams in STREAMS:
        p50, p99 = await first_events(server.port, streams, TOKENS, b"token 0 ")
        found |= {f"first_token_p50_ms_{streams}": p50, f"first_token_p99_ms_{streams}": p99}

    found["events_per_s_64"] = await events_per_s(server.port, 64, BURST, b"event: custom")
    thread = await make_thread(server.port)
    state = f"/threads/{thread}/state"
    search = {"metadata": {"bench": "yes"}}
    found["state_reads_per_s_16"] = (await load(server.port, 16, lambda c: c.send("GET", state))).per_s
    found["searches_per_s_16"] = (
        await load(server.port, 16, lambda c: c.send("POST", "/threads/search", search))
    ).per_s

    await create_backlog(server.port)
    behind = await runs(server, 16)
    return found | {f"{name}_behind_{BACKLOG}": behind[name] for name in ("runs_per_s_16", "p50_ms_16")}


async def wait(connection: Connection) -> bytes:
    return await connection.send("POST", "/runs/wait", RUN)


async def runs(server: Server, clients: int, request: Request = wait, prefix: str = "") -> Figures:
    """Return the figures of runs that clients wait for: stateless runs of the echo graph, or those of `request`."""
    postmaster = await find_postmaster(server.database) if server.database else None
    trips = await transactions(server.database)
    cpu = cpu_s(server.pid)

    database_cpu = cpu_s(postmaster) if postmaster else 0.0
    done = await load(server.port, clients, request)
    found = runs_figures(clients, done.per_s, done.times, cpu_s(server.pid) - cpu)
    if postmaster:
        found[f"postgres_cpu_ms_per_run_{clients}"] = (cpu_s(postmaster) - database_cpu) / len(done.times) * 1000
        trips = await transactions(server.database) - trips
        found[f"round_trips_per_run_{clients}"] = trips / len(done.times)

    return {f"{prefix}{name}": figure for name, figure in found.items()}


async def thread_runs(server: Server, clients: int) -> Figures:
    """Return the figures of runs on threads; each client goes on to another thread of its own after ten runs."""
    connection = Connection(server.port)
    await connection.open()
    made = [json.loads(await connection.send("POST", "/threads", {})) for _ in range(clients * THREADS_PER_CLIENT)]
    connection.writer.close()

    of_client: dict[Connection, Iterator[str]] = {}
    left = iter([each["thread_id"] for each in made])

    async def run(client: Connection) -> bytes:
        if client not in of_client:
            own = list(islice(left, THREADS_PER_CLIENT))
            of_client[client] = cycle([thread for thread in own for _ in range(RUNS_PER_THREAD)])

        return await client.send("POST", f"/threads/{next(of_client[client])}/runs/wait", RUN)

    return await runs(server, clients, run, "thread_")


async def find_postmaster(database: str) -> int:
    """Return the id of the main process of Postgres, whose children serve the connections."""
    connection = await asyncpg.connect(database)
    try:
        return find_parent(connection.get_server_pid())
    finally:
        await connection.close()


async def create_backlog(port: int) -> None:
    """Create delayed runs; they must not slow down the runs after them."""
    connection = Connection(port)
    await connection.open()
    for _ in range(BACKLOG // BATCH):
        await connection.send("POST", "/runs/batch", [LATER] * BATCH)

    connection.writer.close()


async def transactions(database: str | None) -> int:
    """Return how many transactions Postgres has committed; each round trip of the server is one."""
    if database is None:
        return 0

    connection = await asyncpg.connect(database)
    try:
        await asyncio.sleep(1.5)  # Postgres publishes its counters once a second
        return await connection.fetchval("select xact_commit from pg_stat_database where datname = current_database()")
    finally:
        await connection.close()


async def make_thread(port: int) -> str:
    connection = Connection(port)
    await connection.open()
    made = json.loads(await connection.send("POST", "/threads", {"metadata": {"bench": "yes"}}))
    await connection.send("POST", f"/threads/{made['thread_id']}/runs/wait", RUN)
    connection.writer.close()

    return made["thread_id"]


@contextlib.contextmanager
def ours(project: Path = PROJECT, **more: str) -> Iterator[tuple[Server, float]]:
    """Start our server on a Postgres of its own, with more settings if given.

    Yield it, and how many seconds its second start took.
    """
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        url = embedded.acquire()
        port = free_port()
        settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "LOG_LEVEL": "WARNING", **more}
        arguments = ["serve", "--config", str(project / "langgraph.json"), "--port", str(port)]

        server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, Path(folder) / "log")
        try:
            server.start()
            server.stop()
            began = time.perf_counter()
            server.start()
            yield Server(port, server.process.pid, url), time.perf_counter() - began
        except (RuntimeError, OSError):
            print(server.log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            server.stop(signal.SIGINT)
            embedded.release()
