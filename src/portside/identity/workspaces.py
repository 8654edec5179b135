"""Workspaces of an organization."""

from uuid import UUID

from portside.identity.sql import sql
from portside.identity.types import Workspace
from portside.kernel.db import Session


async def list_workspaces(db: Session, organization_id: UUID) -> list[Workspace]:
    """List an organization's workspaces, oldest first."""
    rows = await db.fetch(sql.list_workspaces, organization_id=organization_id)
    return [Workspace(**dict(row)) for row in rows]
