"""Measures the hosted API with many traces: ingest, usage, CSV export and reading. `python -m bench.traces [COUNT]`.

Traces of 50 workspaces with 20 projects each, over 30 days, are written into the database directly; what is measured
goes over HTTP. Ten million take some minutes and 12 GB of disk.
"""

import asyncio
import datetime as dt
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import httpx2

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from tests.servers import KEY, platform_server  # noqa: E402

from portside.kernel.db import Database  # noqa: E402
from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402
from portside.usage.days import DaysThatAreOver  # noqa: E402

COUNT = 10_000_000
WORKSPACES = 50
PROJECTS = 20
DAYS = 30
BATCH = 100
INGEST_S = 10.0
TIMES = 7
SLICE = 250_000
NAMES = """
insert into workspaces (id, organization_id, display_name, tenant_handle)
select md5('workspace ' || n)::uuid, (select id from organizations), 'workspace ' || n, 'workspace-' || n
from generate_series(1, $1) n
"""
PLACES = """
insert into projects (id, workspace_id, name)
select md5(w.id || ' project ' || n)::uuid, w.id, 'project ' || n
from workspaces w cross join generate_series(1, $1) n
"""
# One run of each trace, with what a small call of a model says.
RUNS = """
with made as (
insert into runs (
    workspace_id, id, trace_id, dotted_order, project_id, name, run_type, start_time, end_time, error, inputs, outputs,
    extra, patched, patch_order, is_awaited, received_at
)
select p.workspace_id, m.id, m.id, to_char(m.at, 'YYYYMMDD"T"HH24MISSUS"Z"') || m.id, p.id, 'call ' || n % 8, 'llm',
       m.at, m.at + make_interval(secs => n % 97 / 10.0), case when n % 50 = 0 then 'it failed' end,
       '{"question": "lorem ipsum dolor sit amet"}', '{"answer": "consectetur adipiscing elit"}',
       '{"metadata": {"usage_metadata": {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}}}',
       0, 0, false, m.at
from generate_series($1::int, $2::int) n
cross join lateral (
    select md5('run ' || n)::uuid as id, now() - make_interval(secs => n::float8 * $3 / $4) as at
) m
join (select row_number() over () as place, id, workspace_id from projects) p on p.place = 1 + n % $5
returning workspace_id, id, project_id, received_at
)
insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, received_at)
select workspace_id, id, project_id, (select id from api_keys limit 1), (select id from users limit 1), received_at
from made
"""


async def fill(url: str, count: int) -> float:
    """Write the traces; return how many a second that were."""
    connection = await asyncpg.connect(url)
    await connection.execute(NAMES, WORKSPACES)
    await connection.execute(PLACES, PROJECTS)
    projects = await connection.fetchval("select count(*) from projects")
    began = time.perf_counter()
    for first in range(1, count + 1, SLICE):
        last = min(first + SLICE - 1, count)
        await connection.execute(RUNS, first, last, DAYS * 86_400, count, projects)
        print(f"\r{last:,} of {count:,}", end="", flush=True)
    print()
    took = time.perf_counter() - began
    for table in ("runs", "traces", "projects"):
        await connection.execute(f"vacuum analyze {table}")
    await connection.close()
    return count / took


async def close_days(url: str) -> float:
    """Count every day that is over; return how many seconds that took."""
    db = await Database.connect(url, max_size=2)
    began = time.perf_counter()
    while (await DaysThatAreOver(db).activate()).again:
        pass
    await db.close()
    return time.perf_counter() - began


async def ingest(client: httpx2.AsyncClient) -> float:
    """Post batches of runs from four clients at once; return how many runs a second were taken."""
    posted, deadline = 0, time.perf_counter() + INGEST_S

    async def post() -> None:
        nonlocal posted
        while time.perf_counter() < deadline:
            moment = dt.datetime.now(dt.UTC).isoformat()
            runs = [
                {
                    "id": str(uuid4()), "name": "call", "run_type": "llm", "session_name": "ingested",
                    "inputs": {"question": "lorem ipsum"}, "outputs": {"answer": "dolor sit amet"},
                    "start_time": moment, "end_time": moment,
                } for _ in range(BATCH)
            ]  # fmt: skip
            answer = await client.post("/runs/batch", json={"post": runs})
            answer.raise_for_status()
            posted += BATCH

    began = time.perf_counter()
    await asyncio.gather(*(post() for _ in range(4)))
    return posted / (time.perf_counter() - began)


async def timed(ask: Callable[[], Awaitable[httpx2.Response]]) -> float:
    """Return the median of some askings, in milliseconds."""
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        (await ask()).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def read(client: httpx2.AsyncClient, project: UUID, workspaces: list[UUID]) -> dict[str, float]:
    """Return the medians of the questions that are asked of many traces, in milliseconds."""
    end = dt.datetime.now(dt.UTC)
    within = {"start_time": (end - dt.timedelta(days=DAYS)).isoformat(), "end_time": end.isoformat()}
    every, one = [str(workspace) for workspace in workspaces], {"X-Tenant-Id": str(workspaces[0])}
    path = "/orgs/current/billing/granular-usage"
    asked: dict[str, Callable[[], Awaitable[httpx2.Response]]] = {
        f"usage by {by}, {DAYS} days, all workspaces": (
            lambda by=by: client.get(path, params={**within, "workspace_ids": every, "group_by": by})
        )
        for by in ("workspace", "project", "user", "api_key")
    }
    asked |= {
        "CSV by project": lambda: client.get(
            f"{path}/export", params={**within, "workspace_ids": every, "group_by": "project"}
        ),
        "latest 50 runs of a project": lambda: client.post(
            "/runs/query", json={"session": [str(project)], "limit": 50}, headers=one
        ),
        "errors of a project, 7 days": lambda: client.post(
            "/runs/query", headers=one,
            json={
                "session": [str(project)], "error": True, "limit": 50,
                "start_time": (end - dt.timedelta(days=7)).isoformat(),
            },
        ),
        "figures of a project, 7 days": lambda: client.post(
            "/runs/stats", headers=one,
            json={"session": [str(project)], "start_time": (end - dt.timedelta(days=7)).isoformat()},
        ),
    }  # fmt: skip
    return {name: await timed(ask) for name, ask in asked.items()}


async def measure(url: str, address: str, count: int) -> dict[str, float]:
    """Fill, then measure."""
    figures = {"traces": float(count), "written_per_s": await fill(url, count)}
    connection = await asyncpg.connect(url)
    workspaces = [
        row[0] for row in await connection.fetch("select id from workspaces where tenant_handle like 'workspace-%'")
    ]
    project = await connection.fetchval("select id from projects where workspace_id = $1 limit 1", workspaces[0])
    async with httpx2.AsyncClient(base_url=address, headers={"X-Api-Key": KEY}, timeout=600) as client:
        figures |= {
            f"{name}, trace by trace (ms)": took for name, took in (await read(client, project, workspaces)).items()
        }
        figures["days_closed_in_s"] = await close_days(url)
        await connection.execute("vacuum analyze trace_days")
        figures |= {f"{name} (ms)": took for name, took in (await read(client, project, workspaces)).items()}
        figures["ingested_per_s"] = await ingest(client)
    figures["database_gb"] = await connection.fetchval("select pg_database_size(current_database())") / 1e9
    await connection.close()
    return figures


def main() -> None:
    """Measure with as many traces as the command says."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder) / "postgres")
        url = embedded.acquire()
        try:
            with platform_server(Path(folder) / "home", DATABASE_URL=url, RATE_LIMITS="false") as server:
                figures = asyncio.run(measure(url, server.url, count))
        finally:
            embedded.release()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
