"""Measurements with a raw asyncio client: an ordinary HTTP client would be the bottleneck."""

import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
TICK = os.sysconf("SC_CLK_TCK")
Request = Callable[["Connection"], Awaitable[bytes]]
Figures = dict[str, float]


class Connection:
    """One kept-alive HTTP connection. It opens again after a response that closes it, as those that move do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._is_closed = False

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)
        self._is_closed = False

    async def send(self, method: str, path: str, body: object = None) -> bytes:
        headers = await self.begin(method, path, body)
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))

        return b"".join([chunk async for chunk in self.chunks()])

    async def begin(self, method: str, path: str, body: object = None) -> dict[str, str]:
        """Send a request and read the head of the response."""
        if self._is_closed:
            self.writer.close()
            await self.open()

        raw = b"" if body is None else json.dumps(body).encode()
        host = f"127.0.0.1:{self.port}"
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(raw)}\r\n"
        self.writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + raw)

        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = (line.partition(": ") for line in answer.split("\r\n")[1:] if line)
        headers = {name.lower(): value for name, _, value in lines}
        self._is_closed = headers.get("connection") == "close"

        if " 200 " not in answer.split("\r\n", 1)[0]:
            raise RuntimeError(answer + (await self.reader.read(int(headers.get("content-length", 0)))).decode())

        return headers

    async def chunks(self):
        """Read a chunked body piece by piece."""
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()


class Load(NamedTuple):
    """The result of a load: requests per second, and the time of each request in seconds."""

    per_s: float
    times: list[float]


async def load(port: int, clients: int, request: Request, seconds: float = SECONDS) -> Load:
    """Send requests from concurrent clients, each as fast as it gets responses."""
    times: list[float] = []
    until = time.perf_counter() + seconds

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
    return Load(len(times) / (time.perf_counter() - began), times)


def runs_figures(clients: int, per_s: float, times: list[float], cpu_s: float) -> Figures:
    """Return the rate of runs, their latency, and the CPU time of each."""
    p50, p99 = percentiles(times)
    found = {"runs_per_s": per_s, "p50_ms": p50, "p99_ms": p99, "cpu_ms_per_run": cpu_s / len(times) * 1000}
    return {f"{name}_{clients}": figure for name, figure in found.items()}


def percentiles(times: list[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
    if len(times) < 2:
        return times[0] * 1000, times[0] * 1000
    return statistics.median(times) * 1000, statistics.quantiles(times, n=100)[98] * 1000


async def first_events(port: int, streams: int, body: object, mark: bytes) -> tuple[float, float]:
    """Open streams at once; return the time to the first event with this mark, as percentiles."""

    async def follow() -> float:
        connection = Connection(port)
        await connection.open()
        began = time.perf_counter()
        await connection.begin("POST", "/runs/stream", body)

        first = 0.0
        async for chunk in connection.chunks():
            if not first and mark in chunk:
                first = time.perf_counter() - began

        connection.writer.close()
        return first

    return percentiles(await asyncio.gather(*(follow() for _ in range(streams))))


async def events_per_s(port: int, streams: int, body: object, mark: bytes) -> float:
    """Read streams to their ends; return how many events per second arrived in total."""

    async def follow() -> int:
        connection = Connection(port)
        await connection.open()
        await connection.begin("POST", "/runs/stream", body)
        return sum([chunk.count(mark) async for chunk in connection.chunks()])

    began = time.perf_counter()
    counts = await asyncio.gather(*(follow() for _ in range(streams)))
    return sum(counts) / (time.perf_counter() - began)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its living children."""
    total = 0.0

    for one in family(pid):
        # A child may end meanwhile.
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICK

    return total


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit():
                parents[int(folder.name)] = find_parent(int(folder.name))

    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]

    return found


def find_parent(pid: int) -> int:
    """Return the process that started another one. Raises OSError if that has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
