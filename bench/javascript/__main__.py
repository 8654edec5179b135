"""What JavaScript graphs cost here, beside LangGraph JS's own development server: `python -m bench.javascript [RUNS]`.

Both serve the same two graphs, in turns. The other server keeps everything in memory; ours writes to Postgres. Prints
the start, the CPU and the time of a run, the first token, and the memory before and after RUNS runs (3,000).
"""

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bench.client import Connection, cpu_s, first_events, load, memory_mb
from tests.node_packages import JAVASCRIPT_PROJECT, install_packages, javascript_runtime
from tests.servers import free_port

from portside.kernel.embedded import EmbeddedPostgres

WINDOWS = 3
SECONDS = 3.0
START_TIMEOUT_S = 120.0
INPUT = {"messages": [{"role": "user", "content": "hi"}]}
RUN = {"assistant_id": "echo", "input": INPUT}
TOKENS = {"assistant_id": "fake_chat", "input": INPUT, "stream_mode": ["messages-tuple"]}


async def wait(connection: Connection) -> bytes:
    return await connection.send("POST", "/runs/wait", RUN)


class Column:
    """A server that is measured."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self.figures = dict[str, list[float]]()
        self.began = time.perf_counter()

        with Path(folder, f"{name.split(maxsplit=1)[0]}.log").open("wb") as log:
            command = [part.replace("PORT", str(self.port)) for part in command]
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log
            )

        while not self.is_up():
            assert time.perf_counter() - self.began < START_TIMEOUT_S, f"{name} does not answer"
            time.sleep(0.05)

        self.add("start, s", time.perf_counter() - self.began)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.name
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ok", timeout=5).status == 200
        except OSError:
            return False

    def add(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, []).append(value)


async def measure(columns: list[Column], runs: int) -> None:
    for column in columns:
        await load(column.port, 4, wait, SECONDS)
        column.add("memory, MB", memory_mb(column.process.pid))

    for _ in range(WINDOWS):
        for column in columns:
            for clients in (1, 16):
                before = cpu_s(column.process.pid)
                done = await load(column.port, clients, wait, SECONDS)
                spent = cpu_s(column.process.pid) - before
                column.add(f"CPU of a run, ms, {clients} clients", spent / len(done.times) * 1000)
                column.add(f"runs in a second, {clients} clients", done.per_s)

            column.add("first token, ms", (await first_events(column.port, 1, TOKENS, b'"o"'))[0])

    for column in columns:
        left = runs
        while left > 0:
            left -= len((await load(column.port, 8, wait, SECONDS)).times)

        column.add(f"memory after {runs} more runs, MB", memory_mb(column.process.pid))


def report(columns: list[Column]) -> None:
    for figure in columns[0].figures:
        print(
            f"{figure}: " + ", ".join(f"{each.name} {statistics.median(each.figures[figure]):.1f}" for each in columns)
        )


def project(folder: Path, packages: Path) -> Path:
    shutil.copytree(JAVASCRIPT_PROJECT, folder)
    graphs = {name: f"./parity.ts:{name}" for name in ("echo", "fake_chat")}
    (folder / "langgraph.json").write_text(json.dumps({"node_version": "20", "graphs": graphs, "env": {}}))
    (folder / "node_modules").symlink_to(packages / "node_modules")
    return folder


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    packages = install_packages(Path(__file__).parent)
    runtime = javascript_runtime()
    started: list[Column] = []
    with tempfile.TemporaryDirectory() as temporary:
        embedded = EmbeddedPostgres(Path(temporary, "home"))
        embedded.acquire()
        try:
            settings = {
                "DATABASE_URI": embedded.create_database("bench"),
                "EXECUTOR_JAVASCRIPT": str(runtime),
                "LANGSMITH_TRACING": "false",
                "LOG_LEVEL": "WARNING",
            }

            ours = [sys.executable, "-m", "portside", "serve", "--port", "PORT"]
            theirs = [
                str(packages / "node_modules" / ".bin" / "langgraphjs"),
                "dev",
                "--no-browser",
                "--host",
                "127.0.0.1",
                "--port",
                "PORT",
            ]

            wanted: list[Callable[[], Column]] = [
                lambda: Column("portside", ours, project(Path(temporary, "ours"), packages), settings),
                lambda: Column("langgraphjs dev", theirs, project(Path(temporary, "theirs"), packages), {}),
            ]

            started.extend(make() for make in wanted)
            asyncio.run(measure(started, runs))
            report(started)
        finally:
            for column in started:
                column.process.terminate()
                column.process.wait(60)

            embedded.release()


if __name__ == "__main__":
    main()
