"""What many executors on other machines cost their orchestrator: real servers of tier executor, with real processes.

    python -m bench.core_api [EXECUTORS]

Prints for a few executors, then for all of them: connections to Postgres, memory and CPU of the orchestrator without
work, and with runs of an echo graph from 32 clients: runs in a second, and the orchestrator's CPU of each.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import httpx2
from bench.agent_server import PROJECT, wait
from bench.client import cpu_s, load, memory_mb
from tests.servers import ServerProcess, executor_server, start_orchestrated

from portside.kernel.embedded import EmbeddedPostgres

CONFIG = str(PROJECT / "langgraph.json")
OF_A_SERVER = 5
SECONDS = 5.0


async def measure(orchestrator: ServerProcess, url: str, executors: int) -> None:
    """Print the figures with as many executors as there are now."""
    async with httpx2.AsyncClient(base_url=orchestrator.url) as client:
        began = time.monotonic()

        async def slots() -> int:
            return (await client.get("/metrics", params={"format": "json"})).json()["workers"]["max"]

        while await slots() < executors * 10:  # noqa: ASYNC110 - other processes connect
            await asyncio.sleep(0.2)

    print(f"{executors} executors, connected after {time.monotonic() - began:.1f} s more")
    connection = await asyncpg.connect(url)
    pid = orchestrator.process.pid
    before = cpu_s(pid)

    await asyncio.sleep(SECONDS)
    print(f"  without work: {(cpu_s(pid) - before) / SECONDS * 100:.1f} % of a core, {memory_mb(pid):.0f} MB")
    port = int(orchestrator.url.rsplit(":", 1)[1])
    await load(port, 32, wait, 2.0)

    before = cpu_s(pid)
    done = await load(port, 32, wait, SECONDS)
    spent = (cpu_s(pid) - before) / len(done.times) * 1000
    count = await connection.fetchval("select count(*) from pg_stat_activity where datname = current_database()")

    print(f"  {done.per_s:.0f} runs/s, {spent:.2f} ms of CPU of the orchestrator for each, {memory_mb(pid):.0f} MB")
    print(f"  connections to Postgres: {count - 1}")
    await connection.close()


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        embedded = EmbeddedPostgres(Path(folder))
        embedded.acquire()
        try:
            url = embedded.create_database("bench_core_api")
            settings = {"EXECUTORS": str(OF_A_SERVER), "N_JOBS_PER_WORKER": str(OF_A_SERVER * 10)}
            tiers = stack.enter_context(start_orchestrated(url, Path(folder), config=CONFIG, **settings))
            asyncio.run(measure(tiers.orchestrator, url, OF_A_SERVER))

            core_api = f"127.0.0.1:{tiers.orchestrator.environment['CORE_API_PORT']}"
            shared = {**settings, "CORE_API_KEY": tiers.orchestrator.environment["CORE_API_KEY"]}
            for number in range(1, most // OF_A_SERVER):
                server = executor_server(CONFIG, core_api, Path(folder, f"more{number}.log"), **shared)
                server.start()
                stack.callback(server.stop)

            asyncio.run(measure(tiers.orchestrator, url, most))
        finally:
            stack.close()
            embedded.release()


if __name__ == "__main__":
    main()
