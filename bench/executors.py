"""What executors cost: windows of a server without them, one with processes and one with others by gRPC, in turns.

    python -m bench.executors [EXECUTORS]

Prints the CPU of a run (server and executors), the time of a run and of the first token, and how many runs of 100 ms of
CPU end in a second.
"""

import asyncio
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.agent_server import PROJECT, wait
from bench.client import Connection, cpu_s, first_events, load
from bench.workload import TOKENS
from tests.servers import ServerProcess, free_port, start_orchestrated

from portside.kernel.embedded import EmbeddedPostgres

CONFIG = str(PROJECT / "langgraph.json")
WINDOWS = 3
SECONDS = 3.0
HEAVY = {"assistant_id": "heavy", "input": {"ms": 100}}


async def heavy(connection: Connection) -> bytes:
    return await connection.send("POST", "/runs/wait", HEAVY)


async def measure(servers: dict[str, list[ServerProcess]], ports: dict[str, int]) -> None:
    found: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
    for name in servers:
        await load(ports[name], 4, wait, 2.0)

    for _ in range(WINDOWS):
        for name, programs in servers.items():
            pids = [program.process.pid for program in programs]
            figures = found[name]
            for clients in (1, 16):
                before = sum(map(cpu_s, pids))
                done = await load(ports[name], clients, wait, SECONDS)
                spent = (sum(map(cpu_s, pids)) - before) / len(done.times) * 1000
                figures.setdefault(f"CPU of a run, ms, {clients} clients", []).append(spent)
                figures.setdefault(f"run, ms, {clients} clients", []).append(statistics.median(done.times) * 1000)

            p50, _ = await first_events(ports[name], 1, TOKENS, b"token 0 ")
            figures.setdefault("first token, ms", []).append(p50)
            figures.setdefault("runs of 100 ms CPU in a second", []).append(
                (await load(ports[name], 8, heavy, SECONDS)).per_s
            )

    for figure in next(iter(found.values())):
        print(figure + ": " + ", ".join(f"{name} {statistics.median(found[name][figure]):.2f}" for name in found))


def main() -> None:
    count = sys.argv[1] if len(sys.argv) > 1 else "2"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        embedded = EmbeddedPostgres(Path(folder))
        embedded.acquire()

        servers: dict[str, list[ServerProcess]] = {}
        ports: dict[str, int] = {}
        try:
            for executors in ("0", count):
                name = f"{executors} executors"
                port = free_port()
                url = embedded.create_database(f"bench_{executors}")
                settings = {"DATABASE_URI": url, "EXECUTORS": executors, "LANGSMITH_TRACING": "false"}
                arguments = ["serve", "--config", CONFIG, "--port", str(port)]
                server = ServerProcess(
                    arguments, f"http://127.0.0.1:{port}", settings, Path(folder) / f"log{executors}"
                )

                server.start()
                stack.callback(server.stop)
                servers[name], ports[name] = [server], port

            (far := Path(folder, "far")).mkdir()
            tiers = stack.enter_context(
                start_orchestrated(embedded.create_database("bench_core_api"), far, config=CONFIG, EXECUTORS=count)
            )
            name = f"{count} executors by gRPC"
            servers[name] = [tiers.orchestrator, *tiers.executors]
            ports[name] = int(tiers.orchestrator.url.rsplit(":", 1)[1])

            asyncio.run(measure(servers, ports))
        finally:
            stack.close()
            embedded.release()


if __name__ == "__main__":
    main()
