"""The first start of an installation: creates the first organization, workspace, user and API key."""

from uuid import UUID, uuid4

from portside.identity.keys import Owner, check_key_format, create_key
from portside.identity.roles import ORGANIZATION_ADMIN, WORKSPACE_ADMIN
from portside.identity.sql import sql
from portside.identity.types import KeyRequest
from portside.kernel.db import Database, Session


async def set_up(db: Database, *, api_key: str | None = None) -> str | None:
    """Create the first organization, workspace, user and key, and return the key; None if they exist already.

    Raises UserMistake for a given key that is not a valid header value.
    """
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_first_start)
        if await tx.fetchrow(sql.first_workspace) is not None:
            return None

        if api_key is not None:
            check_key_format(api_key)

        organization_id = uuid4()
        workspace_id = uuid4()
        user_id = uuid4()
        await tx.execute(sql.insert_organization, id=organization_id, display_name="My organization")

        await tx.fetchval(
            sql.insert_workspace,
            id=workspace_id,
            organization_id=organization_id,
            display_name="Default",
            tenant_handle="default",
        )

        await add_admin(tx, organization_id, workspace_id, user_id)
        owner = Owner(organization_id, workspace_id, user_id)
        key = await create_key(tx, owner, KeyRequest("First key"), key=api_key)
        return key.key


async def add_admin(tx: Session, organization_id: UUID, workspace_id: UUID, user_id: UUID) -> None:
    """Create the first user, with all permissions."""
    await tx.execute(
        sql.insert_user,
        id=user_id,
        organization_id=organization_id,
        email="admin@localhost",
        full_name=None,
        password=None,
    )

    await tx.execute(
        sql.insert_organization_member, organization_id=organization_id, user_id=user_id, role=ORGANIZATION_ADMIN
    )
    await tx.execute(sql.insert_workspace_members, workspace_ids=[workspace_id], user_id=user_id, role=WORKSPACE_ADMIN)


async def is_set_up(db: Database) -> bool:
    """Whether this database has gone through its first start."""
    return await db.fetchrow(sql.first_workspace) is not None


async def get_first_owner(db: Database) -> Owner:
    """Return the owner of the platform's own service keys: the first workspace."""
    row = await db.fetchrow(sql.first_workspace)
    assert row is not None  # noqa: S101 - set_up ran before
    return Owner(row["organization_id"], row["id"])


async def get_first_workspace(db: Database) -> UUID:
    """Return the workspace whose deployments the platform's own listener runs."""
    workspace_id = (await get_first_owner(db)).workspace_id
    assert workspace_id is not None  # noqa: S101 - `get_first_owner` sets it
    return workspace_id
