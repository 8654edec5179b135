"""The bare graph: the cost of the same runs without a server. It runs in a process of its own."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "project")]

import graphs  # noqa: E402
import uvloop  # noqa: E402
from bench.client import SECONDS, Figures, percentiles, runs_figures  # noqa: E402
from bench.workload import INPUT, STREAMS  # noqa: E402


async def measure() -> Figures:
    """Return the figures that need no server, under the same names."""
    await load(1, echo, seconds=1)
    found: Figures = {}

    for clients in (1, 16):
        cpu_s = time.process_time()
        times, per_s = await load(clients, echo)
        cpu_s = time.process_time() - cpu_s
        alone = runs_figures(clients, per_s, times, cpu_s)

        # The graph keeps nothing, so a run on a thread costs it the same.
        found |= alone | {f"thread_{name}": figure for name, figure in alone.items()}

    for streams in STREAMS:
        p50, p99 = percentiles(await asyncio.gather(*(first_token() for _ in range(streams))))
        found |= {f"first_token_p50_ms_{streams}": p50, f"first_token_p99_ms_{streams}": p99}

    began = time.perf_counter()
    counts = await asyncio.gather(*(burst() for _ in range(64)))
    found["events_per_s_64"] = sum(counts) / (time.perf_counter() - began)

    return found


async def load(
    clients: int, work: Callable[[], Awaitable[object]], seconds: float = SECONDS
) -> tuple[list[float], float]:
    times: list[float] = []
    began = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() < began + seconds:
            start = time.perf_counter()
            await work()
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(clients)))
    return times, len(times) / (time.perf_counter() - began)


async def echo() -> object:
    return await graphs.echo.ainvoke(INPUT)


async def first_token() -> float:
    began = time.perf_counter()
    first = 0.0
    async for _ in graphs.tokens.astream(INPUT, stream_mode="custom"):
        first = first or time.perf_counter() - began

    return first


async def burst() -> int:
    return sum([1 async for _ in graphs.burst.astream({"count": 500}, stream_mode="custom")])


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure())))
