"""What a new installation begins with: one organization, workspace, user and API key."""

from uuid import uuid4

from portside.identity.keys import Owner, check_given_key, create_key
from portside.identity.sql import sql
from portside.identity.types import KeyRequest
from portside.kernel.db import Database


async def set_up(db: Database, *, api_key: str | None = None) -> str | None:
    """Make the first organization, workspace, user and key, and return the key; None where they exist already.

    Raises UserMistake for a given key that no request could bring.
    """
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_first_start)
        if await tx.fetchrow(sql.first_workspace) is not None:
            return None
        if api_key is not None:
            check_given_key(api_key)
        organization_id, workspace_id, user_id = uuid4(), uuid4(), uuid4()
        await tx.execute(sql.insert_organization, id=organization_id, display_name="My organization")
        await tx.execute(
            sql.insert_workspace,
            id=workspace_id,
            organization_id=organization_id,
            display_name="Default",
            tenant_handle="default",
        )
        await tx.execute(sql.insert_user, id=user_id, organization_id=organization_id, email="admin@localhost")
        owner = Owner(organization_id, workspace_id, user_id)
        return (await create_key(tx, owner, KeyRequest("First key"), key=api_key)).key


async def is_set_up(db: Database) -> bool:
    """Whether the first start was made on this database."""
    return await db.fetchrow(sql.first_workspace) is not None


async def first_owner(db: Database) -> Owner:
    """Return where the platform's own service keys belong: the first workspace, no user."""
    row = await db.fetchrow(sql.first_workspace)
    assert row is not None  # noqa: S101 - set_up ran before
    return Owner(row["organization_id"], row["id"])
