"""What the front adds to a request, sent to an agent's own port, through the front, and through a bare Caddy.

The bare Caddy has one route, which passes everything to the agent. No configuration of the front can cost less.
Clients alternate between the three in short rounds, so that other work on the machine hits them alike.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.client import Connection, Figures, cpu_s, load, percentiles
from tests.servers import free_port

from portside.ingress.caddy import CaddyProcess, find_caddy
from portside.ingress.config import UPSTREAMS, build_configuration
from portside.ingress.front import write_upstreams
from portside.ingress.options import FrontOptions

ROUNDS = 10
ROUND_S = 0.5
NAME = "bench"


class Way(NamedTuple):
    """A way to the agent: the port and the prefix of the path, and the process in between."""

    port: int
    prefix: str = ""
    pid: int | None = None


async def measure_front(port: int) -> dict[str, Figures]:
    """Return a row for each number of clients: p50 of all ways, what the front adds, and CPU time for each request."""
    caddy = find_caddy(None)
    if caddy is None:
        return {}

    front_port = free_port()
    bare_port = free_port()
    front_config = build_configuration(FrontOptions(port=front_port), is_old=caddy.is_old)
    with tempfile.TemporaryDirectory() as folder:
        write_upstreams(Path(folder) / UPSTREAMS, {NAME: f"127.0.0.1:{port}"})
        async with (
            run_caddy(caddy.program, Path(folder), front_config) as front_pid,
            run_caddy(caddy.program, Path(folder) / "bare", bare(bare_port, port)) as bare_pid,
        ):
            ways = {
                "direct": Way(port),
                "bare": Way(bare_port, "", bare_pid),
                "front": Way(front_port, f"/agents/{NAME}", front_pid),
            }

            return {f"{clients} clients": await compare(ways, clients) for clients in (1, 16)}


@contextlib.asynccontextmanager
async def run_caddy(program: str, folder: Path, config: dict[str, Any]) -> AsyncIterator[int | None]:
    """Run a Caddy with a configuration; yield its process id."""
    process = CaddyProcess(program, folder, folder / "log")
    await process.start()
    try:
        await process.load(config)
        yield process.pid
    finally:
        await process.stop()


def bare(port: int, agent_port: int) -> dict[str, Any]:
    """Return the configuration of a Caddy that passes everything to the agent."""
    proxy = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"127.0.0.1:{agent_port}"}],
        "transport": {"protocol": "http", "keep_alive": {"max_idle_conns_per_host": 512}},
    }

    server = {
        "listen": [f"127.0.0.1:{port}"],
        "automatic_https": {"disable": True},
        "routes": [{"handle": [proxy]}],
    }

    admin = {"listen": "unix/admin.sock", "config": {"persist": False}}
    return {"admin": admin, "apps": {"http": {"servers": {"bare": server}}}}


async def compare(ways: dict[str, Way], clients: int) -> Figures:
    """Measure all ways in turn, and the CPU time of each Caddy for each request."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            before_s = cpu_s(way.pid) if way.pid else 0.0
            times[name] += (await load(way.port, clients, ask(way.prefix), ROUND_S)).times
            cpu[name] += cpu_s(way.pid) - before_s if way.pid else 0.0

    p50 = {name: percentiles(found)[0] for name, found in times.items()}
    cpu_us = {name: cpu[name] / len(times[name]) * 1e6 for name in ways}
    return {
        "direct p50": p50["direct"],
        "bare p50": p50["bare"],
        "front p50": p50["front"],
        "bare adds ms": p50["bare"] - p50["direct"],
        "front adds ms": p50["front"] - p50["direct"],
        "ratio": p50["front"] / p50["direct"],
        "bare CPU us": cpu_us["bare"],
        "front CPU us": cpu_us["front"],
        "CPU ratio": cpu_us["front"] / cpu_us["bare"],
    }


def ask(prefix: str):
    """Return a request for the smallest answer below a prefix."""

    async def request(connection: Connection) -> bytes:
        return await connection.send("GET", f"{prefix}/ok")

    return request
