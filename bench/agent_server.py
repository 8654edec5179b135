"""Measures an agent server beside the bare graph. Run it with `make bench`."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "projects" / "graphs")]

from tests.servers import PROJECTS, ServerProcess, free_port  # noqa: E402

from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402

SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
TICK = os.sysconf("SC_CLK_TCK")
INPUT = {"messages": [{"role": "user", "content": "hi"}]}
Request = Callable[["Connection"], Awaitable[bytes]]


class Connection:
    """One kept-alive HTTP connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, method: str, path: str, body: object = None) -> bytes:
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.writer.write(head.encode() + raw)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise RuntimeError(answer)
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return await self.reader.readexactly(int(length.split(b":")[1]))


async def load(port: int, clients: int, request: Request) -> tuple[float, list[float]]:
    """Send requests for some seconds; return how many a second, and each one's time."""
    times: list[float] = []
    until = time.perf_counter() + SECONDS

    async def client() -> None:
        connection = Connection(port)
        await connection.open()
        while time.perf_counter() < until:
            began = time.perf_counter()
            await request(connection)
            times.append(time.perf_counter() - began)
        connection.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(times) / (time.perf_counter() - began), times


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


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


def measure(server: ServerProcess, port: int) -> dict[str, float]:
    found: dict[str, float] = {}
    run = {"assistant_id": "echo", "input": INPUT}

    async def wait(connection: Connection) -> bytes:
        return await connection.send("POST", "/runs/wait", run)

    asyncio.run(load(port, 4, wait))
    pid = server.process.pid
    for clients in (1, 16):
        before = cpu_s(pid)
        rate, times = asyncio.run(load(port, clients, wait))
        found[f"runs_per_s_{clients}"] = rate
        found[f"p50_ms_{clients}"] = statistics.median(times) * 1000
        found[f"p99_ms_{clients}"] = statistics.quantiles(times, n=100)[98] * 1000
        found[f"cpu_ms_per_run_{clients}"] = (cpu_s(pid) - before) / len(times) * 1000

    async def make_thread() -> str:
        connection = Connection(port)
        await connection.open()
        thread = json.loads(await connection.send("POST", "/threads", {}))["thread_id"]
        await connection.send("POST", f"/threads/{thread}/runs/wait", run)
        connection.writer.close()
        return thread

    thread = asyncio.run(make_thread())
    rate, _ = asyncio.run(load(port, 16, lambda connection: connection.send("GET", f"/threads/{thread}/state")))
    found["state_reads_per_s_16"] = rate
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        url, port = embedded.acquire(), free_port()
        settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "LOG_LEVEL": "WARNING"}
        arguments = ["serve", "--config", str(PROJECTS / "graphs" / "langgraph.json"), "--port", str(port)]
        server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, Path(folder) / "log")
        try:
            server.start()
            server.stop()
            began = time.perf_counter()
            server.start()
            found = {"cold_start_s": time.perf_counter() - began, **measure(server, port)}
        finally:
            server.stop(signal.SIGINT)
            embedded.release()
    found["bare_graph_cpu_ms"] = bare_graph_ms()
    found["cpu_ratio_to_bare_graph"] = found["cpu_ms_per_run_16"] / found["bare_graph_cpu_ms"]
    for name, value in found.items():
        print(f"{name:<26} {value:10.2f}")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    name = commit.stdout.strip() or "unknown"
    (results / f"agent-server-{name}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
