import pytest

from portside.control.sql import sql
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from tests.api.control_server import PACKAGES


async def test_every_query_fits_the_schema(fresh_database) -> None:
    db = await Database.connect(await fresh_database())
    await migrate(db, PACKAGES)
    async with db.pool.acquire() as connection:
        for query in sql:
            await connection.prepare(query.sql)
    await db.close()


@pytest.mark.parametrize("status", ["CREATING", "QUEUED"])
async def test_the_database_enforces_one_revision_in_progress_and_one_waiting(fresh_database, status: str) -> None:
    import asyncpg

    db = await Database.connect(await fresh_database())
    await migrate(db, PACKAGES)
    await db.pool.execute("""
        insert into organizations (id, display_name) values (gen_random_uuid(), 'o');
        insert into workspaces (id, organization_id, display_name, tenant_handle)
            select gen_random_uuid(), id, 'w', 'w' from organizations;
        insert into api_keys (id, organization_id, workspace_id, description, short_key, key_hash, permissions)
            select gen_random_uuid(), organization_id, id, '', '', '', '{}' from workspaces;
        insert into deployments (id, workspace_id, name, source, repo_url, status, tracing_project_id, service_key_id,
                                 service_key_sealed)
            select gen_random_uuid(), workspace_id, 'd', 'git_hosting', '/x', 'READY', gen_random_uuid(), id, ''
            from api_keys;
    """)
    insert = """
        insert into revisions (id, deployment_id, number, status, source, repo_ref, graph_config_path, secrets_sealed)
        select gen_random_uuid(), id, $1, $2, 'git_hosting', 'main', 'x', '' from deployments
    """
    await db.pool.execute(insert, 1, status)
    with pytest.raises(asyncpg.UniqueViolationError):
        await db.pool.execute(insert, 2, status)
    await db.close()
