"""Measures an agent server beside the reference development server and the bare graph. Run it with `make bench`.

The reference keeps everything in memory; ours writes to Postgres. With `BENCH_REFERENCE=0` it is left out.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import asyncpg

ROOT = Path(__file__).parents[1]
PROJECT = Path(__file__).parent / "project"
sys.path[:0] = [str(ROOT), str(PROJECT)]

from bench.client import Connection, cpu_s, events_per_s, first_events, load, memory_mb  # noqa: E402
from bench.reference import reference_process  # noqa: E402
from tests.servers import ServerProcess, free_port  # noqa: E402

from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402

INPUT = {"messages": [{"role": "user", "content": "hi"}]}
RUN = {"assistant_id": "echo", "input": INPUT}
TOKENS = {"assistant_id": "tokens", "input": INPUT, "stream_mode": ["custom"]}
BURST = {"assistant_id": "burst", "input": {"count": 500}, "stream_mode": ["custom"]}
STREAMS = (1, 20, 200)
Figures = dict[str, float]


class Server(NamedTuple):
    """A server to measure, and the database it keeps its data in, if it has one."""

    port: int
    pid: int
    database: str | None = None


def main() -> None:
    columns = {"bare graph": {"cpu_ms_per_run_16": bare_graph_ms()}}
    with ours() as (server, cold_start_s):
        columns["portside"] = {"cold_start_s": cold_start_s, **asyncio.run(measure(server))}
    if os.environ.get("BENCH_REFERENCE") != "0":
        began = time.perf_counter()
        with reference_process(PROJECT) as running:
            cold_start_s = time.perf_counter() - began
            figures = asyncio.run(measure(Server(running.port, running.pid)))
        columns["reference"] = {"cold_start_s": cold_start_s, **figures}
    show(columns)
    keep(columns)


async def measure(server: Server) -> Figures:
    """Measure everything of one server."""
    found: Figures = {"memory_mb": memory_mb(server.pid)}
    await load(server.port, 4, wait, 2)
    for clients in (1, 16):
        found |= await runs(server, clients)
    for streams in STREAMS:
        p50, p99 = await first_events(server.port, streams, TOKENS, b"token 0 ")
        found |= {f"first_token_p50_ms_{streams}": p50, f"first_token_p99_ms_{streams}": p99}
    found["events_per_s_64"] = await events_per_s(server.port, 64, BURST, b"event: custom")
    thread = await make_thread(server.port)
    state, search = f"/threads/{thread}/state", {"metadata": {"bench": "yes"}}
    found["state_reads_per_s_16"] = (await load(server.port, 16, lambda c: c.send("GET", state))).per_s
    found["searches_per_s_16"] = (
        await load(server.port, 16, lambda c: c.send("POST", "/threads/search", search))
    ).per_s
    return found


async def wait(connection: Connection) -> bytes:
    return await connection.send("POST", "/runs/wait", RUN)


async def runs(server: Server, clients: int) -> Figures:
    """Stateless runs of the echo graph that clients wait for."""
    cpu, trips = cpu_s(server.pid), await transactions(server.database)
    done = await load(server.port, clients, wait)
    found = {
        f"runs_per_s_{clients}": done.per_s,
        f"p50_ms_{clients}": done.p50_ms,
        f"p99_ms_{clients}": done.p99_ms,
        f"cpu_ms_per_run_{clients}": (cpu_s(server.pid) - cpu) / done.count * 1000,
    }
    if server.database:
        found[f"transactions_per_run_{clients}"] = (await transactions(server.database) - trips) / done.count
    return found


async def transactions(database: str | None) -> int:
    """How many transactions Postgres has ended; each round trip of the server is one."""
    if database is None:
        return 0
    connection = await asyncpg.connect(database)
    try:
        await asyncio.sleep(1.5)  # Postgres tells its counters once a second
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


def bare_graph_ms() -> float:
    """CPU of one run of the graph with nothing around it."""
    import graphs

    async def run(count: int) -> None:
        for _ in range(count):
            await graphs.echo.ainvoke(INPUT)

    asyncio.run(run(100))
    began = time.process_time()
    asyncio.run(run(1000))
    return time.process_time() - began


@contextlib.contextmanager
def ours() -> Iterator[tuple[Server, float]]:
    """A server of ours on a Postgres of its own, and how long its second start took."""
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        url, port = embedded.acquire(), free_port()
        settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "LOG_LEVEL": "WARNING"}
        arguments = ["serve", "--config", str(PROJECT / "langgraph.json"), "--port", str(port)]
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


def show(columns: dict[str, Figures]) -> None:
    """Print the figures side by side, with what ours is to the reference."""
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    print(f"{'':<26}" + "".join(f"{column:>14}" for column in columns) + f"{'ratio':>10}")
    for name in names:
        cells = "".join(f"{columns[column].get(name, float('nan')):14.2f}" for column in columns)
        pair = [columns.get(column, {}).get(name) for column in ("portside", "reference")]
        ratio = f"{pair[0] / pair[1]:10.2f}" if all(pair) else ""
        print(f"{name:<26}{cells}{ratio}".replace("nan", "  -"))


def keep(columns: dict[str, Figures]) -> None:
    """Write the figures to a file named after the commit."""
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    (results / f"agent-server-{commit or 'unknown'}.json").write_text(json.dumps(columns, indent=2) + "\n")


if __name__ == "__main__":
    main()
