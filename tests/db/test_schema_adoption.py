"""Adoption of databases of the last development version; `schemas/*.sql` are the schemas before the baselines.

An adopted database equals a new one and keeps its data; an older one is refused.
"""

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from portside.agent.app import SCHEMA
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate, migrations_of
from portside.platform.app import PACKAGES

PROGRAMS = {"agent": (["portside.agent"], SCHEMA), "platform": (PACKAGES, "public")}
# The names of not-null constraints are left out: they keep the former names of their columns.
CATALOG = {
    "relations": "select relname, relkind::text, relpersistence::text, reloptions from pg_class "
    "where relnamespace = current_schema()::regnamespace",
    "columns": """
        select c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
            a.attgenerated::text, a.attstorage::text, a.attcollation::regcollation::text,
            pg_get_expr(d.adbin, d.adrelid)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = current_schema()::regnamespace and a.attnum > 0 and not a.attisdropped
            and c.relkind in ('r', 'v', 'S')""",
    "indexes": "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index "
    "join pg_class on pg_class.oid = indexrelid where relnamespace = current_schema()::regnamespace",
    "constraints": "select conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) from pg_constraint "
    "where connamespace = current_schema()::regnamespace and contype <> 'n'",
    "functions": """
        select oid::regprocedure::text, pg_get_functiondef(oid) from pg_proc
        where pronamespace = current_schema()::regnamespace and prokind = 'f'
            and not exists (select from pg_depend where objid = pg_proc.oid and deptype = 'e')""",
    "triggers": "select tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal",
    "views": "select viewname, definition from pg_views where schemaname = current_schema()",
    "statistics": "select stxname, pg_get_statisticsobjdef(oid) from pg_statistic_ext",
    "migrations": "select package, number, name, checksum from applied_migrations",
    "functions that were applied": "select package, revision, checksum, objects from applied_functions",
}
NOW = dt.datetime(2026, 11, 2, 12, tzinfo=dt.UTC)
Adopt = Callable[[], Awaitable[Database]]


@pytest.fixture
async def old(request: pytest.FixtureRequest, fresh_database) -> AsyncIterator[tuple[str, asyncpg.Connection, Adopt]]:
    """The program, a connection to its old database, and a function that adopts and opens it."""
    program = request.param
    packages, schema = PROGRAMS[program]
    url = await fresh_database()
    connection = await asyncpg.connect(url)

    await connection.execute(f'set check_function_bodies = off; set search_path = "{schema}", public')
    dump = (Path(__file__).parent / "schemas" / f"{program}_before_baselines.sql").read_text()
    await connection.execute(dump)
    opened = []

    async def adopt() -> Database:
        opened.append(await Database.connect(url, schema=schema))
        # All but the baselines of packages that the old program had.
        had = [package for package in packages if files(package).joinpath("migrations", "adopt.sql").is_file()]
        newer = sum(len(migrations_of(package)) for package in packages) - len(had)
        assert await migrate(opened[0], packages, schema=schema) == newer

        return opened[0]

    yield program, connection, adopt

    for db in opened:
        await db.close()

    await connection.close()


async def catalog(db: Database) -> dict[str, Any]:
    return {kind: {row[0]: tuple(row) for row in await db.pool.fetch(query)} for kind, query in CATALOG.items()}


@pytest.mark.parametrize("old", PROGRAMS, indirect=True)
async def test_an_adopted_schema_equals_a_new_one(old, fresh_database) -> None:
    program, _, adopt = old
    packages, schema = PROGRAMS[program]
    adopted = await catalog(await adopt())
    url = await fresh_database()
    connection = await asyncpg.connect(url)

    await connection.execute("create extension vector schema public; create extension pg_trgm schema public")
    await connection.close()
    new = await Database.connect(url, schema=schema)
    await migrate(new, packages, schema=schema)

    if program == "agent":
        await new.pool.execute("select make_store_vectors()")

    expected = await catalog(new)
    await new.close()

    for kind, entries in expected.items():
        assert entries, kind
        assert adopted[kind] == entries


@pytest.mark.parametrize("old", PROGRAMS, indirect=True)
async def test_an_adopted_database_is_migrated_once(old) -> None:
    program, _, adopt = old
    packages, schema = PROGRAMS[program]
    db = await adopt()
    before = await db.pool.fetch("select * from applied_functions order by package")
    assert await migrate(db, packages, schema=schema) == 0
    assert await db.pool.fetch("select * from applied_functions order by package") == before


@pytest.mark.parametrize(
    ("old", "package", "newest"),
    [("agent", "agent", "0049_cron_runs.sql"), ("platform", "tracing", "0011_runs_of_projects.sql")],
    indirect=["old"],
)
async def test_a_database_before_the_last_development_migration_is_refused(old, package: str, newest: str) -> None:
    _, connection, adopt = old
    await connection.execute("delete from applied_migrations where name = $1", newest)
    with pytest.raises(UserMistake, match=rf"migration of {package} is .* from {newest}.*at commit e09ae15 once"):
        await adopt()

    assert await connection.fetchval("select count(*) from applied_migrations where room = $1", package) > 1


@pytest.mark.parametrize("old", ["agent"], indirect=True)
async def test_adopted_agent_data_is_kept(old) -> None:
    _, connection, adopt = old
    thread_id, run_id, ended_id, process_id = (uuid4() for _ in range(4))
    await connection.execute("insert into thread_lifetime default values")

    await connection.execute(
        "insert into threads (thread_id, metadata, status, active_runs, resting_status) "
        "values ($1, $2, 'busy', 1, 'error')",
        thread_id,
        '{"graph_id": "g", "user": "ada"}',
    )

    await connection.executemany(
        "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, turn_at, losses, asked_by, "
        "key_scope, request_key, key_place, request_digest, created_at) "
        "values ($1, $2, $3, $4, 'enqueue', $5, 2, 'ada', $2, $4, 7, 'digest', $5)",
        [(run_id, thread_id, uuid4(), "pending", NOW), (ended_id, thread_id, uuid4(), "success", NOW)],
    )

    await connection.execute(
        "with p as (insert into stream_processes values ($1, now()) returning process_id) "
        "insert into stream_interests select $2, process_id from p",
        process_id,
        thread_id,
    )

    item = "insert into store_items (namespace, key, value) values (array['a'], 'k', '{}') returning id"
    await connection.execute(f"with i as ({item}) insert into store_vectors select id, 3, 1, '[1,2]' from i")
    db = await adopt()
    run = await db.pool.fetchrow("select * from runs where run_id = $1", run_id)
    kept = ("queue_position", "lost_attempts", "caller", "request_key", "key_index", "number")
    assert [run[name] for name in kept] == [NOW, 2, "ada", "pending", 7, 1]
    assert await db.pool.fetchval("select idle_status from threads") == "error"

    assert await db.pool.fetchval("select thread_id from stream_subscriptions") == thread_id
    assert await db.pool.fetchval("select may_contain_unbound from encryption") is True
    assert await db.pool.fetchval("select vector_index from store_vectors") == 3
    found = "select total from find_threads(null, '{\"user\": \"ada\"}', null, 'busy', 'updated_at desc', 10, 0)"
    assert await db.pool.fetchval(found) == 1
    claim = "select run_id from claim_runs($1, interval '1 minute', 10)"
    assert [row["run_id"] for row in await db.pool.fetch(claim, process_id)] == [run_id]

    ended = "select end_run($1, $2, $3, 1, 'success', 'idle', '{}', '{}', null)"
    assert await db.pool.fetchval(ended, run_id, thread_id, process_id) == "ended"
    assert await db.pool.fetchval("select status from threads") == "idle"
    await db.pool.execute("delete from threads")
    assert await db.pool.fetchval("select count(*) from runs") == 0


@pytest.mark.parametrize("old", ["platform"], indirect=True)
async def test_adopted_platform_data_is_kept(old) -> None:
    _, connection, adopt = old
    one = UUID(int=1)
    await connection.execute(
        f"""
        insert into organizations (id, display_name) values ('{one}', 'o');
        insert into workspaces (id, organization_id, display_name, tenant_handle) values ('{one}', '{one}', 'w', 'w');
        insert into api_keys (id, organization_id, workspace_id, description, short_key, key_hash, permissions)
            values ('{one}', '{one}', '{one}', 'd', 's', 'h', array[]::text[]);
        insert into listeners (id, workspace_id, compute_type, compute_id) values ('{one}', '{one}', 'local', 'c');
        insert into deployments (id, workspace_id, name, source, status, held_by, asked_url, tracing_project_id,
            service_key_id, service_key_sealed)
            values ('{one}', '{one}', 'demo', 'github', 'READY', '{one}', 'https://demo', '{one}', '{one}', 'x');
        insert into revisions (id, deployment_id, number, status, source, secrets_sealed)
            values ('{one}', '{one}', 1, 'QUEUED', 'github', 'x');
        insert into deployment_metrics values ('{one}', now(), '{{"cpu": 1}}');
        insert into branch_polls (deployment_id, looked_at, seen_ref, seen_commit)
            values ('{one}', now(), 'main', 'abc');
        insert into projects (id, workspace_id, name) values ('{one}', '{one}', 'p');
        insert into figured_days values (true, '2026-11-02 00:00Z');
        insert into runs (workspace_id, id, project_id, name, run_type, extra, patched, patch_order, is_awaited,
            start_time) values ('{one}', '{one}', '{one}', 'r', 'llm',
                '{{"metadata": {{"usage_metadata": {{"input_tokens": 3}}}}}}', 0, 0, false, '2020-01-01 00:00Z');
        insert into counted_days values (true, '2026-11-02 00:00Z');
        """
    )

    db = await adopt()
    deployment = await db.pool.fetchrow("select assigned_listener_id, requested_url from deployments")
    assert tuple(deployment) == (one, "https://demo")
    assert await db.pool.fetchval("select used_by from api_keys") == "deployment demo"
    assert await db.pool.fetchval("select metrics from deployment_metrics") == {"cpu": 1}
    assert tuple(await db.pool.fetchrow("select last_ref, last_commit from branch_polls")) == ("main", "abc")
    await db.pool.execute("update revisions set status = 'CREATING'")

    transitions = await db.pool.fetch("select status from revision_transitions order by id")
    assert [row["status"] for row in transitions] == ["QUEUED", "CREATING"]
    assert await db.pool.fetchval("select until from daily_run_stats_progress where is_only") is not None
    assert await db.pool.fetchval("select until from counted_days where is_only") is not None
    assert await db.pool.fetchval("select prompt_tokens from readable_runs") == 3
    await db.pool.execute("delete from stale_days; update runs set error = 'e'")
    assert await db.pool.fetchval("select count(*) from stale_days") == 1, "the trigger marks the day"


@pytest.mark.parametrize("old", ["platform"], indirect=True)
async def test_costs_that_clients_reported_before_are_kept(old) -> None:
    _, connection, adopt = old
    one = UUID(int=1)
    usage = '{"metadata": {"usage_metadata": {"input_tokens": 3, "total_cost": 0.5}}}'

    await connection.execute(
        f"""
        insert into organizations (id, display_name) values ('{one}', 'o');
        insert into workspaces (id, organization_id, display_name, tenant_handle) values ('{one}', '{one}', 'w', 'w');
        insert into projects (id, workspace_id, name) values ('{one}', '{one}', 'p');
        insert into runs (workspace_id, id, project_id, name, run_type, extra, patched, patch_order, is_awaited)
            values ('{one}', '{one}', '{one}', 'r', 'llm', '{usage}', 0, 0, false);
        """
    )

    db = await adopt()
    run = await db.pool.fetchrow("select prompt_tokens, total_cost from readable_runs")
    assert (run["prompt_tokens"], str(run["total_cost"])) == (3, "0.5")
    await db.pool.execute("update runs set end_time = now(), extra = extra")
    assert str(await db.pool.fetchval("select total_cost from runs")) == "0.5", "the trigger has taken over"
