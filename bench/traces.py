"""Measures the hosted API with many traces: ingest, usage, CSV export and reading. `python -m bench.traces [COUNT]`.

Traces of 50 workspaces with 20 projects each, over 30 days, are made inside the database (`bench.trace_data`); what is
measured goes over HTTP, at last also the ingest of further runs. Ten million traces take some minutes and 20 GB of
disk. With `BENCH_FOLDER` they stay there: an interrupted load continues, and the next run reuses them.

Beside the time of a client stands the CPU that the platform and Postgres took for one request, which other load on the
machine changes less. The targets are the figures of plain SQL, without a server, by which the engine was chosen.
"""

import asyncio
import contextlib
import datetime as dt
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx2

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.trace_data import DAYS, fill  # noqa: E402
from tests.servers import KEY, ServerProcess, platform_server  # noqa: E402

from portside.kernel.db import Database  # noqa: E402
from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402
from portside.kernel.ids import uuid7  # noqa: E402
from portside.kernel.migrations import migrate  # noqa: E402
from portside.tracing.retention import ExpiredTraces, TraceRetention  # noqa: E402
from portside.tracing.rollups import DailyRollups  # noqa: E402
from portside.usage.totals import PastHours  # noqa: E402

COUNT = 10_000_000
BATCH = 100
CLIENTS = 4
BATCHES = 60
EXPIRED_BATCHES = 20
TIMES = 7
# Milliseconds and runs a second, by the beginning of what is measured.
TARGETS = {
    "usage": 58.0,
    "CSV": 58.0,
    "latest 50": 1.3,
    "figures of a project": 6.0,
    "figures of a workspace": 320.0,
    "posted": 48_800.0,
    "traces deleted": 5_000.0,
}
Ask = Callable[[], Awaitable[httpx2.Response]]


class Clock:
    """Tells how much CPU the platform and the processes of its Postgres have used, in seconds."""

    def __init__(self, platform: int, data: Path) -> None:
        self._platform = platform
        self._postmaster = int((data / "postmaster.pid").read_text().split()[0])

    def read(self) -> tuple[float, float]:
        """Return both."""
        postgres = [process for process, parent in _parents() if self._postmaster in {process, parent}]
        return _on_cpu(self._platform), sum(_on_cpu(process) for process in postgres)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield the id of each process with that of its parent."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue

        # The process may have ended meanwhile.
        with contextlib.suppress(OSError):
            yield int(folder.name), int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])


def _on_cpu(process: int) -> float:
    """Return how many seconds the threads of a process have been on a CPU; 0 of one that is gone."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    return 0.0


class Figure:
    """One measured value, with the CPU that the platform and Postgres took for it, in milliseconds."""

    def __init__(self, name: str, value: float, cpu: tuple[float, float]) -> None:
        self.name = name
        self.value = value
        self.cpu = cpu

    def show(self) -> None:
        """Print it in a line, beside its target."""
        target = next((f"{value:>10,.1f}" for start, value in TARGETS.items() if self.name.startswith(start)), "")
        cpu = "".join(f"{part:>10,.2f}" for part in self.cpu)
        print(f"{self.name:<58}{self.value:>12,.1f}{cpu}{target}", flush=True)


async def count_past_days(url: str) -> None:
    """Count hours and days, of usage and of figures; print the seconds and the CPU of the connection that each took."""
    db = await Database.connect(url, max_size=1)
    # A folder may be of an older version.
    await migrate(db, ["portside.identity", "portside.tracing", "portside.usage"])

    backend = await db.pool.fetchval("select pg_backend_pid()")
    for name, chore in (("hours and days of usage", PastHours(db)), ("days of figures", DailyRollups(db))):
        began = time.perf_counter()
        before = _on_cpu(backend)
        while (await chore.activate()).again:
            pass

        spent = (_on_cpu(backend) - before) * 1000
        Figure(f"{name} counted in s", time.perf_counter() - began, (0.0, spent)).show()

    await db.pool.execute("vacuum analyze trace_hours, trace_days, project_days, daily_run_stats")
    await db.close()


async def expire(url: str) -> None:
    """Delete the oldest traces; print how many a second were, and the CPU of each, with that of the vacuum after it."""
    db = await Database.connect(url, max_size=1)
    backend = await db.pool.fetchval("select pg_backend_pid()")
    chore = ExpiredTraces(db, TraceRetention(longlived_days=DAYS - 1))
    count = 0
    began = time.perf_counter()
    before = _on_cpu(backend)

    for _ in range(EXPIRED_BATCHES):
        count += (await chore.activate()).did["longlived_traces"]

    took = time.perf_counter() - began
    deleted = _on_cpu(backend)
    await db.pool.execute("vacuum runs, traces, stale_days")

    spent = {"deleted a second": deleted - before, "deleted a second, of vacuum": _on_cpu(backend) - deleted}
    for name, cpu in spent.items():
        Figure(f"traces {name}; ms for each", count / took, (0.0, cpu * 1000 / max(count, 1))).show()

    await db.close()


async def ingest(client: httpx2.AsyncClient, clock: Clock) -> list[Figure]:
    """Post runs from several clients at once, then patch each; return how many a second were taken."""
    moment = dt.datetime.now(dt.UTC).isoformat()
    begun = [[_begun(moment) for _ in range(BATCH)] for _ in range(BATCHES * CLIENTS)]
    ends = {"outputs": {"answer": "dolor sit amet"}, "end_time": moment}
    ended = [
        [{**{key: run[key] for key in ("id", "trace_id", "dotted_order")}, **ends} for run in runs] for runs in begun
    ]

    figures = []
    for name, key, batches in (("posted", "post", begun), ("patched", "patch", ended)):
        bodies = [json.dumps({key: batch}).encode() for batch in batches]

        async def send(bodies: list[bytes]) -> None:
            for body in bodies:
                answer = await client.post("/runs/batch", content=body, headers={"Content-Type": "application/json"})
                answer.raise_for_status()

        before = clock.read()
        began = time.perf_counter()
        await asyncio.gather(*(send(bodies[number::CLIENTS]) for number in range(CLIENTS)))
        count = BATCH * len(bodies)
        took = time.perf_counter() - began
        cpu = _spent(before, clock.read(), count)

        figures.append(
            Figure(f"{name} a second, {CLIENTS} clients, batches of {BATCH}; ms for each", count / took, cpu)
        )

    return figures


def _begun(moment: str) -> dict[str, object]:
    run_id = str(uuid7())
    return {
        "id": run_id,
        "trace_id": run_id,
        "dotted_order": f"20261121T000000000000Z{run_id}",
        "name": "call",
        "run_type": "llm",
        "session_name": "ingested",
        "inputs": {"question": "lorem ipsum"},
        "start_time": moment,
        "extra": {"metadata": {"usage_metadata": {"input_tokens": 10, "output_tokens": 20}}},
    }


def _spent(before: tuple[float, float], after: tuple[float, float], times: int) -> tuple[float, float]:
    return (after[0] - before[0]) * 1000 / times, (after[1] - before[1]) * 1000 / times


async def time_request(name: str, ask: Ask, clock: Clock) -> Figure:
    """Return the median time of a request that is sent several times, and the CPU of each."""
    (await ask()).raise_for_status()
    times = []
    before = clock.read()

    for _ in range(TIMES):
        began = time.perf_counter()
        (await ask()).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)

    return Figure(name, statistics.median(times), _spent(before, clock.read(), TIMES))


def questions(client: httpx2.AsyncClient, project: UUID, workspaces: list[UUID]) -> dict[str, Ask]:
    """Return the requests that are measured."""
    end = dt.datetime.now(dt.UTC)
    within = {"start_time": (end - dt.timedelta(days=DAYS)).isoformat(), "end_time": end.isoformat()}
    week = {"start_time": (end - dt.timedelta(days=7)).isoformat()}
    every = [str(workspace) for workspace in workspaces]
    one = {"X-Tenant-Id": str(workspaces[0])}
    usage = "/orgs/current/billing/granular-usage"

    def count(path: str, by: str) -> Ask:
        return lambda: client.get(path, params={**within, "workspace_ids": every, "group_by": by})

    def post(path: str, **body: object) -> Ask:
        return lambda: client.post(path, json=body, headers=one)

    own = {"session": [str(project)]}
    return {
        **{
            f"usage by {by}, {DAYS} days, all workspaces": count(usage, by)
            for by in ("workspace", "project", "user", "api_key")
        },
        "CSV by project": count(f"{usage}/export", "project"),
        "latest 50 runs of a project": post("/runs/query", **own, limit=50, select=["name"]),
        "latest 50 runs of a project, with all they hold": post("/runs/query", **own, limit=50),
        "latest 50 runs of a workspace": post("/runs/query", is_root=True, limit=50, select=["name"]),
        "errors of a project, 7 days": post("/runs/query", **own, **week, error=True, limit=50),
        "runs of a project by latency and name": post(
            "/runs/query", **own, limit=50, filter='and(gt(latency, 9.5), eq(name, "call 1"))'
        ),
        "runs of a project by metadata that none has": post(
            "/runs/query", **own, limit=50, filter='eq(metadata_key, "nobody")'
        ),
        "figures of a project, 7 days": post("/runs/stats", **own, **week),
        f"figures of a workspace, {DAYS} days": post("/runs/stats"),
        "figures of a project by name of runs, 7 days": post(
            "/runs/stats", **own, **week, group_by={"attribute": "name"}
        ),
        "list of 20 projects with their figures": lambda: client.get(
            "/sessions", params={"include_stats": True}, headers=one
        ),
    }


async def measure(url: str, address: str, clock: Clock) -> list[Figure]:
    """Send all measured requests, then ingest runs."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select id from workspaces where tenant_handle like 'workspace-%' order by id")
    workspaces = [row[0] for row in rows]
    project = await connection.fetchval("select id from projects where workspace_id = $1 limit 1", workspaces[0])
    figures: list[Figure] = []

    def keep(figure: Figure) -> None:
        figures.append(figure)
        figure.show()

    async with httpx2.AsyncClient(base_url=address, headers={"X-Api-Key": KEY}, timeout=600) as client:
        asked = questions(client, project, workspaces)
        for name, ask in asked.items():
            keep(await time_request(name, ask, clock))

        for figure in await ingest(client, clock):
            keep(figure)

    size = await connection.fetchval("select pg_database_size(current_database())")
    keep(Figure("GB of the database", size / 1e9, (0.0, 0.0)))
    await connection.close()

    return figures


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """The folder `BENCH_FOLDER`, which keeps what is filled for the next run, or one that is removed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BENCH_FOLDER") or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


@contextlib.contextmanager
def platform_database(folder: Path) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """The Postgres of a platform that does not run and whose tables exist, and its address."""
    embedded = EmbeddedPostgres(folder / "postgres")
    url = embedded.acquire()
    try:
        # A server counts each past hour only once, so none may run while traces of past hours are written.
        if not (folder / "home").exists():
            with start_platform(folder, url):
                pass

        yield embedded, url
    finally:
        embedded.release()


def start_platform(folder: Path, url: str) -> contextlib.AbstractContextManager[ServerProcess]:
    """The platform of a folder, without rate limits."""
    return platform_server(folder / "home", DATABASE_URL=url, RATE_LIMITS="false")


def main() -> None:
    """Measure with as many traces as the command says."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with open_folder() as folder, platform_database(folder) as (embedded, url):
        asyncio.run(fill(url, count))
        print(f"{'':<58}{'ms or /s':>12}{'CPU ms':>10}{'Postgres':>10}{'target':>10}")
        asyncio.run(count_past_days(url))

        with start_platform(folder, url) as server:
            process = server.process
            assert process is not None
            asyncio.run(measure(url, server.url, Clock(process.pid, embedded.data)))

        asyncio.run(expire(url))


if __name__ == "__main__":
    main()
