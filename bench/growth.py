"""Measures reads and runs while the database grows: `python -m bench.growth [THREADS …]`, or 100000 and 1000000.

The rows are made inside the database: threads with a state of two messages, and ten checkpoints each. Only the latest
checkpoint of a thread has values. Requests come from 16 clients, and 200 streams open at once. Printed are the CPU
times of the server and of Postgres for one request, which other load on the machine changes less than rates, and the
sizes of the tables.
"""

import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path

import asyncpg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.agent_server import Server, find_postmaster, make_thread, ours, wait  # noqa: E402
from bench.client import Connection, cpu_s, first_events, load  # noqa: E402
from bench.workload import RUN, TOKENS  # noqa: E402

SIZES = (100_000, 1_000_000)
CHECKPOINTS = 10
SLICE = 50_000
CLIENTS = 16
STREAMS = 200
USERS = 5_000
THREAD = "('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))"
TABLES = ("threads", "checkpoints", "checkpoint_values", "checkpoint_writes", "runs")

# The first run of the program made the thread $3, which is copied.
FILLS = (
    f"""
    insert into threads (thread_id, metadata, status, created_at, updated_at, state_updated_at, "values", interrupts)
    select {THREAD}::uuid, t.metadata - 'bench' || jsonb_build_object('user_id', 'user-' || n % {USERS}), 'idle',
        now() - make_interval(secs => n), now() - make_interval(secs => (n * 7919::bigint) % 604800),
        now() - make_interval(secs => (n * 7919::bigint) % 604800), t."values", '{{}}'
    from threads t, generate_series($1::int, $2::int) n where t.thread_id = $3::uuid
    """,
    f"""
    insert into checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions
    )
    select {THREAD}, c.checkpoint_ns,
        case when place = {CHECKPOINTS} then c.checkpoint_id else '00' || place || substr(c.checkpoint_id, 4) end, null,
        case when place = {CHECKPOINTS} then c.metadata - 'run_id' else '{{}}' end, c.kind,
        case when place = {CHECKPOINTS} then c.body else '' end,
        case when place = {CHECKPOINTS} then c.channels else '{{}}' end,
        case when place = {CHECKPOINTS} then c.versions else '{{}}' end
    from (select * from checkpoints where thread_id = $3::text order by checkpoint_id desc limit 1) c,
        generate_series($1::int, $2::int) n, generate_series(1, {CHECKPOINTS}) place
    """,
    f"""
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data)
    select {THREAD}, v.checkpoint_ns, v.channel, v.version, v.kind, v.data
    from (select * from checkpoints where thread_id = $3::text order by checkpoint_id desc limit 1) c,
        generate_series($1::int, $2::int) n,
        lateral (
            select v.* from unnest(c.channels, c.versions) as e (channel, version)
            join checkpoint_values v using (channel, version) where v.thread_id = c.thread_id
        ) v
    """,
)


async def fill(url: str, template: str, first: int, last: int) -> float:
    """Make the threads with these numbers; return the seconds that it took."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "portside"})
    await connection.execute("set synchronous_commit = off")
    began = time.perf_counter()

    for start in range(first, last + 1, SLICE):
        for statement in FILLS:
            await connection.execute(statement, start, min(start + SLICE - 1, last), template, timeout=900)

    for table in TABLES:
        await connection.execute(f"vacuum analyze {table}", timeout=900)

    await connection.close()
    return time.perf_counter() - began


async def table_sizes(url: str) -> str:
    connection = await asyncpg.connect(url, server_settings={"search_path": "portside"})
    sizes = [
        await connection.fetchrow(
            "select pg_table_size($1::regclass) / 1e6, pg_indexes_size($1::regclass) / 1e6", f"portside.{table}"
        )
        for table in TABLES
    ]

    await connection.close()
    shown = (f"{table} {rows:,.0f} + {indexes:,.0f}" for table, (rows, indexes) in zip(TABLES, sizes, strict=True))
    return "MB of rows + indexes: " + ", ".join(shown)


def requests(last: int, threads: list[str]) -> dict[str, Callable[[Connection], Awaitable[bytes]]]:
    """Return the measured requests by name. Runs use `threads`; `last` is the number of the last other thread."""

    # Each client runs on a thread of its own, because runs on one thread wait for each other.
    next_thread = cycle(threads)
    thread_of: defaultdict[Connection, str] = defaultdict(lambda: next(next_thread))

    def some() -> str:
        return f"01900000-0000-7000-8000-{random.randint(1, last):012x}" if last else random.choice(threads)

    def search(body: Callable[[], object]) -> Callable[[Connection], Awaitable[bytes]]:
        return lambda c: c.send("POST", "/threads/search", body())

    users = min(USERS, max(last, 1))
    return {
        # A yardstick of how busy the machine is: this does not depend on the database's size.
        "GET /ok": lambda c: c.send("GET", "/ok"),
        "stateless run": wait,
        "run on a thread": lambda c: c.send("POST", f"/threads/{thread_of[c]}/runs/wait", RUN),
        "a thread": lambda c: c.send("GET", f"/threads/{some()}"),
        "a state": lambda c: c.send("GET", f"/threads/{some()}/state"),
        "the same state": lambda c: c.send("GET", f"/threads/{threads[0]}/state"),
        "search of few": search(lambda: {"metadata": {"bench": "yes"}}),
        "search of a user": search(lambda: {"metadata": {"user_id": f"user-{random.randrange(users)}"}}),
        "search of all": search(dict),
        "search by status": search(lambda: {"status": "interrupted"}),
        "count of all": lambda c: c.send("POST", "/threads/count", {}),
    }


async def measure(server: Server, postgres: int, last: int) -> None:
    """Print the CPU of server and Postgres for each request."""
    threads = [await make_thread(server.port) for _ in range(CLIENTS)]
    for name, request in requests(last, threads).items():
        await load(server.port, CLIENTS, request, 1)
        before = cpu_s(server.pid), cpu_s(postgres)
        done = await load(server.port, CLIENTS, request)
        show(name, server, postgres, before, len(done.times))

    before = cpu_s(server.pid), cpu_s(postgres)
    p50, p99 = await first_events(server.port, STREAMS, TOKENS, b"token 0 ")
    show(f"{STREAMS} streams at once", server, postgres, before, STREAMS)
    print(f"  first token p50 {p50:,.0f} ms, p99 {p99:,.0f} ms", flush=True)


def show(name: str, server: Server, postgres: int, before: tuple[float, float], count: int) -> None:
    """Print the CPU time for one of `count` requests."""
    here, there = (cpu_s(pid) - then for pid, then in zip((server.pid, postgres), before, strict=True))
    print(f"  {name:24} server {here / count * 1000:8.3f} ms  Postgres {there / count * 1000:8.3f} ms", flush=True)


async def grow(server: Server, sizes: list[int]) -> None:
    """Measure an empty database, and one of each size."""
    postgres = await find_postmaster(str(server.database))
    template = await make_thread(server.port)
    print("no other threads", flush=True)
    await measure(server, postgres, 0)

    done = 0
    for size in sizes:
        seconds = await fill(str(server.database), template, done + 1, size)
        done = size
        print(f"{size:,} threads, {size * CHECKPOINTS:,} checkpoints, after {seconds:,.0f} s", flush=True)
        print(f"  {await table_sizes(str(server.database))}", flush=True)
        await measure(server, postgres, size)


if __name__ == "__main__":
    with ours() as (measured, _):
        asyncio.run(grow(measured, sorted(int(size) for size in sys.argv[1:]) or list(SIZES)))
