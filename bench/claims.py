"""Measures the cost of a claim in Postgres behind short and long backlogs. A part of `make bench`."""

import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from uuid import uuid4

from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.migrations import migrate

TIMES = 50
FILL = """
with made as (
    insert into threads (thread_id, active_runs)
    select gen_random_uuid(), $2 from generate_series(1, $1) returning thread_id
)
insert into runs (
    run_id, thread_id, assistant_id, status, is_blocked, is_delayed, kwargs, multitask_strategy, run_after,
    queue_position
)
select
    gen_random_uuid(), thread_id, gen_random_uuid(), 'pending', position > 1, $3,
    jsonb_build_object('input', repeat('x', 500)), 'enqueue',
    now() + case when $3 then interval '1 hour' else interval '0' end, now() + position * interval '1 microsecond'
from made cross join generate_series(1, $2) position
"""
# The part of `claim_runs` that finds claimable runs, and the whole function without the commit.
LOOK = """
explain (analyze, buffers, format json) select run_id from runs
where status = 'pending' and not is_blocked and not is_delayed and run_after <= now()
order by queue_position, number limit 10 for update skip locked
"""
CLAIM = "explain (analyze, format json) select * from claim_runs($1::uuid, interval '5 s', 1)"
# Threads, runs for each thread, and whether the runs are delayed.
BACKLOGS = {
    "3 runs": (3, 1, False),
    "20,000 runs of one thread": (1, 20_000, False),
    "20,000 runs of as many threads": (20_000, 1, False),
    "20,000 runs that are not due": (20_000, 1, True),
}


async def measure(db: Database, threads: int, runs: int, is_delayed: bool) -> dict[str, float]:  # noqa: FBT001
    await db.pool.execute("truncate threads cascade")
    await db.pool.execute(FILL, threads, runs, is_delayed)
    await db.pool.execute(FILL, 3, 1, False)
    await db.pool.execute("vacuum analyze runs")

    times = []
    async with db.pool.acquire() as connection:
        for _ in range(TIMES):
            undone = connection.transaction()
            await undone.start()
            times.append(json.loads(await connection.fetchval(CLAIM, uuid4()))[0]["Execution Time"])
            await undone.rollback()

        async with connection.transaction():
            await connection.execute("set local enable_seqscan = off")
            plan = json.loads(await connection.fetchval(LOOK))[0]

    return {
        "claim_ms": statistics.median(times),
        "look_ms": plan["Execution Time"],
        "pages": plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"],
    }


async def compare(url: str) -> dict[str, dict[str, float]]:
    db = await Database.connect(url, schema="portside")
    await migrate(db, ["portside.agent"], schema="portside")
    found = {name: await measure(db, *backlog) for name, backlog in BACKLOGS.items()}
    await db.close()
    return found


def measure_claims() -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        try:
            return asyncio.run(compare(embedded.acquire()))
        finally:
            embedded.release()
