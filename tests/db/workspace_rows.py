"""The rows that each row of the control plane needs, for tests of its statements without its services."""

from portside.kernel.db import Database


async def add_workspace(db: Database) -> None:
    """Make an organization with one workspace, and a key of the workspace."""
    await db.pool.execute("""
        insert into organizations (id, display_name) values (gen_random_uuid(), 'o');
        insert into workspaces (id, organization_id, display_name, tenant_handle)
            select gen_random_uuid(), id, 'w', 'w' from organizations;
        insert into api_keys (id, organization_id, workspace_id, description, short_key, key_hash, permissions)
            select gen_random_uuid(), organization_id, id, '', '', '', '{}' from workspaces;
    """)
