"""Traces for `bench.traces`: many of them, made inside the database with the same counts that ingest would leave.

What is here is written in slices, each a transaction, so that a load that was cut off goes on where it was. Indexes but
those of the keys are made when everything is there.
"""

import time

import asyncpg

WORKSPACES = 50
PROJECTS = 20
DAYS = 30
SLICE = 250_000
NAMES = """
insert into workspaces (id, organization_id, display_name, tenant_handle)
select md5('workspace ' || n)::uuid, (select id from organizations), 'workspace ' || n, 'workspace-' || n
from generate_series(1, $1) n
on conflict do nothing
"""
PLACES = """
insert into projects (id, workspace_id, name)
select md5(w.id || ' project ' || n)::uuid, w.id, 'project ' || n
from workspaces w cross join generate_series(1, $1) n
where w.tenant_handle like 'workspace-%'
on conflict do nothing
"""
PROGRESS = """
create table if not exists bench_loaded (runs int not null, since timestamptz not null);
insert into bench_loaded select 0, now() where not exists (select from bench_loaded)
"""
# One run of each trace, with what a small call of a model says, and the ids that the clients make: time first.
RUNS = """
with made as (
insert into runs (
    workspace_id, id, trace_id, dotted_order, project_id, name, run_type, start_time, end_time, error, inputs, outputs,
    extra, patched, patch_order, is_awaited, received_at
)
select p.workspace_id, m.id, m.id, to_char(m.at at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || m.id, p.id,
       'call ' || n % 8, 'llm',
       m.at, m.at + make_interval(secs => n % 97 / 10.0), case when n % 50 = 0 then 'it failed' end,
       '{"question": "lorem ipsum dolor sit amet"}', '{"answer": "consectetur adipiscing elit"}',
       '{"metadata": {"usage_metadata": {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}}}',
       0, 0, false, m.at
from generate_series($1::int, $2::int) n
cross join lateral (select l.since - make_interval(secs => (1 - n::float8 / $4) * $3) as at from bench_loaded l) t
cross join lateral (
    select t.at, overlay(
        md5('run ' || n) placing lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') || '7' from 1
    )::uuid as id
) m
join (
    select row_number() over (order by id) as place, id, workspace_id from projects where name like 'project %'
) p on p.place = 1 + n % $5
returning workspace_id, id, project_id, received_at
),
counted as (
    insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, received_at)
    select workspace_id, id, project_id, (select id from api_keys limit 1), (select id from users limit 1), received_at
    from made
)
update bench_loaded set runs = $2
"""
INDEXES = """
select format('%I', indexrelid::regclass::text) as name, pg_get_indexdef(indexrelid) as definition
from pg_index
where indrelid in ('runs'::regclass, 'traces'::regclass) and not indisprimary
"""


async def fill(url: str, count: int) -> None:
    """Write traces until there are as many; tell how many a second that were."""
    connection = await asyncpg.connect(url)
    await connection.execute(NAMES, WORKSPACES)
    await connection.execute(PLACES, PROJECTS)
    await connection.execute(PROGRESS)

    # No trigger: nothing has been counted that these runs could change.
    await connection.execute("set session_replication_role = replica")
    loaded = await connection.fetchval("select runs from bench_loaded")
    if loaded < count:
        await connection.execute("create table if not exists bench_indexes (name text, definition text)")
        async with connection.transaction():
            await connection.execute(f"insert into bench_indexes {INDEXES}")
            for row in await connection.fetch("select name from bench_indexes"):
                await connection.execute(f"drop index if exists {row['name']}")

        began = time.perf_counter()
        for first in range(loaded + 1, count + 1, SLICE):
            last = min(first + SLICE - 1, count)
            await connection.execute(RUNS, first, last, DAYS * 86_400, count, WORKSPACES * PROJECTS)
            print(f"{last:,} of {count:,}, {(last - loaded) / (time.perf_counter() - began):,.0f} a second", flush=True)

    await _index(connection)
    await connection.close()


async def _index(connection: asyncpg.Connection) -> None:
    """Make the indexes that were left out."""
    if not await connection.fetchval("select to_regclass('bench_indexes')"):
        return

    began = time.perf_counter()
    async with connection.transaction():
        await connection.execute("set local maintenance_work_mem = '1GB'")
        for row in await connection.fetch("select distinct definition from bench_indexes"):
            await connection.execute(row["definition"])

        await connection.execute("drop table bench_indexes")

    for table in ("runs", "traces", "projects"):
        await connection.execute(f"vacuum analyze {table}")

    print(f"indexed in {time.perf_counter() - began:,.0f} s", flush=True)
