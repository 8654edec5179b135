"""Workspaces of an organization, and acting in one of them with a key of the organization."""

from uuid import UUID

import msgspec

from portside.identity.sql import sql
from portside.identity.types import Actor, Workspace
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden


class WorkspaceNotNamed(Forbidden):
    """An org-scoped API key requires workspace specification: send a workspace's id in X-Tenant-Id."""

    code = "workspace_not_named"


class ForeignWorkspace(Forbidden):
    """The key does not belong to the workspace that X-Tenant-Id names."""

    code = "foreign_workspace"


async def list_workspaces(db: Session, organization_id: UUID) -> list[Workspace]:
    """List an organization's workspaces, oldest first."""
    rows = await db.fetch(sql.list_workspaces, organization_id=organization_id)
    return [Workspace(**dict(row)) for row in rows]


async def act_in(db: Session, actor: Actor, tenant: str | None) -> Actor:
    """Return the actor in the workspace that a request names, be it none. Raises ForeignWorkspace."""
    if not tenant or tenant.lower() == str(actor.workspace_id):
        return actor
    row = None
    if actor.is_org_scoped and (workspace_id := _uuid(tenant)) is not None:
        row = await db.fetchrow(sql.find_workspace, id=workspace_id, organization_id=actor.organization_id)
    if row is None:
        raise ForeignWorkspace
    return msgspec.structs.replace(
        actor, workspace_id=row["id"], workspace_name=row["display_name"], tenant_handle=row["tenant_handle"]
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
