"""What a server with executors answers while they fail: windows without and with faults, in turns.

    python -m bench.crashes [WINDOWS]

Prints the 50th and 99th percentile of reads of a thread while executors are killed, crash by a segfault or hold the
interpreter's lock, beside those of the same reads without faults; harmless runs go on in both. Then the time from a
kill -9 of the only executor until the next run has ended, without and with a spare.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bench.client import Connection, family, load, percentiles
from tests.servers import PROJECTS, ServerProcess, free_port

from portside.kernel.embedded import EmbeddedPostgres

SECONDS = 8.0
CLIENTS = 4
EVERY_S = 2.0
KILLS = 5
Fault = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A server whose graphs can harm their executors."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.port = int(server.url.rsplit(":", 1)[1])

    @property
    def executors(self) -> list[int]:
        assert self.server.process is not None
        return family(self.server.process.pid)[1:]

    async def send(self, method: str, path: str, body: object = None) -> Any:
        connection = Connection(self.port)
        await connection.open()
        answer = await connection.send(method, path, body)
        connection.writer.close()
        return json.loads(answer) if answer else None

    def build_run(self, do: str, *, once: bool = True) -> dict[str, Any]:
        """Return the body of a run that harms its executor, at its first attempt alone."""
        ledger = self.folder / f"{do}-{time.monotonic_ns()}"
        return {"assistant_id": "crashes", "input": {"do": do, "ledger": str(ledger), "times": int(once)}}

    async def execute(self) -> None:
        """Have a harmless run executed."""
        await self.send("POST", "/runs/wait", self.build_run("nothing"))


async def nothing(_bench: Bench) -> None:
    """No fault."""


async def kill(bench: Bench) -> None:
    if found := bench.executors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[0], signal.SIGKILL)


async def segfault(bench: Bench) -> None:
    await bench.send("POST", "/runs", bench.build_run("segfault"))


async def hold_the_lock(bench: Bench) -> None:
    await bench.send("POST", "/runs", bench.build_run("hold the GIL"))


FAULTS: dict[str, Fault] = {
    "without faults": nothing,
    "killed": kill,
    "segfault": segfault,
    "hold the lock": hold_the_lock,
}


@contextmanager
def server_with(embedded: EmbeddedPostgres, folder: Path, **settings: str) -> Iterator[Bench]:
    name = "_".join(settings.values())
    port = free_port()
    (own := folder / name).mkdir()
    settings |= {"DATABASE_URI": embedded.create_database(f"bench_{name}"), "LANGSMITH_TRACING": "false"}
    settings |= {"EXECUTOR_HEARTBEAT_SECS": "2", "EXECUTOR_START_SECS": "600"}
    arguments = ["serve", "--config", str(PROJECTS / "crashes" / "langgraph.json"), "--port", str(port)]
    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, own / "log")

    server.start()
    try:
        yield Bench(server, own)
    finally:
        server.stop()


@asynccontextmanager
async def repeat(work: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Do something again and again while the block runs."""

    async def repeat() -> None:
        while True:
            await work()
            await asyncio.sleep(every_s)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answers_under_faults(bench: Bench, windows: int) -> None:
    thread = (await bench.send("POST", "/threads", {}))["thread_id"]

    async def read(connection: Connection) -> bytes:
        return await connection.send("GET", f"/threads/{thread}")

    times: dict[str, list[float]] = {name: [] for name in FAULTS}
    await load(bench.port, CLIENTS, read, 2.0)

    for _ in range(windows):
        for name, fault in FAULTS.items():
            async with repeat(bench.execute, 0.1), repeat(lambda fault=fault: fault(bench), EVERY_S):
                times[name] += (await load(bench.port, CLIENTS, read, SECONDS)).times

            # Let executors start again before the next window.
            for _ in range(3):
                await bench.execute()

    quiet = percentiles(times["without faults"])[1]
    for name, found in times.items():
        p50, p99 = percentiles(found)
        print(f"reads of a thread, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms ({p99 / quiet:.2f} times), {len(found)}")


async def recovery(bench: Bench, name: str) -> None:
    """Kill the executor that executes, and time the next run."""
    found = []
    for _ in range(KILLS):
        await bench.execute()
        await asyncio.sleep(8)

        # The first child is the oldest: a spare is younger.
        os.kill(min(bench.executors, key=read_start_time), signal.SIGKILL)
        began = time.perf_counter()
        await bench.execute()
        found.append(time.perf_counter() - began)

    print(
        f"from kill -9 to the end of the next run, {name}: median {statistics.median(found):.2f} s, "
        f"{min(found):.2f} to {max(found):.2f} s"
    )


def read_start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def main() -> None:
    windows = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        embedded.acquire()
        try:
            with server_with(embedded, Path(folder), EXECUTORS="2") as bench:
                asyncio.run(answers_under_faults(bench, windows))

            for spares, name in (("0", "without a spare"), ("1", "with a spare")):
                with server_with(embedded, Path(folder), EXECUTORS="1", EXECUTOR_SPARES=spares) as bench:
                    asyncio.run(recovery(bench, name))
        finally:
            embedded.release()


if __name__ == "__main__":
    main()
