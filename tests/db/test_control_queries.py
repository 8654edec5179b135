"""The queries of deployments fit the schema, which enforces at most one running and one waiting revision."""

import pytest

from portside.control.revision_logs import OldRevisionLogs
from portside.control.sql import sql
from portside.kernel.db import Database
from tests.api import control_server
from tests.db.workspace_rows import add_workspace

PACKAGES = control_server.PACKAGES


async def test_every_query_fits_the_schema(db: Database) -> None:
    async with db.pool.acquire() as connection:
        for query in sql:
            await connection.prepare(query.sql)


async def add_deployment(db: Database) -> None:
    await add_workspace(db)
    await db.pool.execute("""
        insert into deployments (id, workspace_id, name, source, repo_url, status, tracing_project_id, service_key_id,
                                 service_key_sealed)
            select gen_random_uuid(), workspace_id, 'd', 'git_hosting', '/x', 'READY', gen_random_uuid(), id, ''
            from api_keys;
    """)


REVISION = """
    insert into revisions (id, deployment_id, number, status, source, repo_ref, graph_config_path, secrets_sealed,
                           created_at)
    select gen_random_uuid(), id, $1, $2, 'git_hosting', 'main', 'x', '', now() - make_interval(days => $3)
    from deployments returning id
"""


async def test_logs_of_old_replaced_revisions_end(db: Database) -> None:
    """Those of the serving and of the newest revision stay, however old they are, and so do those with new entries."""
    await add_deployment(db)

    replaced, served_until_now, active, recent, newest = [
        await db.pool.fetchval(REVISION, number, "DEPLOYED", days)
        for number, days in ((1, 200), (2, 190), (3, 150), (4, 10), (5, 100))
    ]

    await db.pool.execute("update deployments set active_revision_id = $1, latest_revision_id = $2", active, newest)
    lines = (
        "insert into revision_logs (deployment_id, revision_id, type, at, level, message)"
        " select id, $1, $2, now() - make_interval(days => $3), 'INFO', 'line' from deployments, generate_series(1, 30)"
    )

    for revision in (replaced, served_until_now, active, recent, newest):
        await db.pool.execute(lines, revision, "build", 100)

    await db.pool.execute(lines, served_until_now, "deploy", 1)
    assert (await OldRevisionLogs(db, 0).activate()).did == {}
    done = await OldRevisionLogs(db, 90).activate()
    assert (done.did, done.again) == ({"lines": 30}, True)
    assert (await OldRevisionLogs(db, 90).activate()).did == {"lines": 0}
    left = await db.pool.fetch("select distinct revision_id from revision_logs")
    assert {row["revision_id"] for row in left} == {served_until_now, active, recent, newest}


@pytest.mark.parametrize("status", ["CREATING", "QUEUED"])
async def test_the_database_enforces_one_revision_in_progress_and_one_waiting(db: Database, status: str) -> None:
    import asyncpg

    await add_deployment(db)
    await db.pool.execute(REVISION, 1, status, 0)

    with pytest.raises(asyncpg.UniqueViolationError):
        await db.pool.execute(REVISION, 2, status, 0)
