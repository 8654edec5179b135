"""What of the control plane is in a workspace: what keeps it from being deleted, and what goes along."""

from uuid import UUID

from portside.control.sql import sql
from portside.kernel.db import Session


async def occupied_by(db: Session, workspace_id: UUID) -> str | None:
    """Say which deployments are there, in words; also those that are being deleted. None where there are none."""
    rows = await db.fetch(sql.deployments_of_workspace, workspace_id=workspace_id)
    return f"deployments: {', '.join(row['name'] for row in rows)}" if rows else None


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Remove integrations and listeners of a workspace without deployments."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)
