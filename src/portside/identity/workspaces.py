"""The organization and its workspaces. `members.py` has the members of both."""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from portside.identity.authentication import Authenticator
from portside.identity.roles import WORKSPACE_ADMIN, WORKSPACE_ROLES, check_outranks
from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor, Organization, Workspace, WorkspaceRequest
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Conflict, Forbidden, Invalid, NotFound
from portside.kernel.ids import uuid7

_NOT_IN_HANDLES = re.compile(r"[^a-z0-9]+")


class WorkspaceNotFound(NotFound):
    """The organization has no workspace with this id."""

    code = "workspace_not_found"


class WorkspaceTaken(Conflict):
    """A workspace with this id or handle already exists; choose another."""

    code = "workspace_taken"


class WorkspaceOccupied(Conflict):
    """The workspace has deployments; delete them first."""

    code = "workspace_occupied"


class WorkspaceNeeded(Conflict):
    """The first workspace cannot be deleted, because the platform's own listener belongs to it."""

    code = "workspace_needed"


class WorkspaceDeletionChecks(msgspec.Struct, frozen=True):
    """Checks by other packages before a workspace is deleted: each returns a text about what blocks it, or None."""

    checks: Sequence[Callable[[Session, UUID], Awaitable[str | None]]]


async def list_workspaces(db: Session, actor: Actor) -> list[Workspace]:
    """List the workspaces that the actor may use, oldest first."""
    rows = await db.fetch(
        sql.list_workspaces,
        organization_id=actor.organization_id,
        user_id=actor.user_id,
        may_use_all=_may_use_all(actor),
        only=sorted(actor.workspaces or ({actor.workspace} if actor.workspace else ())),
    )

    return [_to_workspace(row, actor) for row in rows]


def _may_use_all(actor: Actor) -> bool:
    if actor.role_permissions is not None:
        return EVERYTHING in actor.role_permissions
    return actor.is_of_organization and actor.workspaces is None


def _to_workspace(row: Record, actor: Actor) -> Workspace:
    name = row["role"] or (WORKSPACE_ADMIN if actor.user_id and _may_use_all(actor) else None)
    role = WORKSPACE_ROLES.get(name) if name else None
    return Workspace(
        id=row["id"],
        organization_id=row["organization_id"],
        display_name=row["display_name"],
        tenant_handle=row["tenant_handle"],
        created_at=row["created_at"],
        role_id=role.id if role else None,
        role_name=role.display_name if role else None,
        permissions=list(role.permissions) if role else actor.list_permissions(),
    )


async def create_workspace(db: Database, actor: Actor, body: WorkspaceRequest) -> Workspace:
    """Create a workspace; a user who creates one becomes its admin. Raises WorkspaceTaken and Invalid."""
    workspace_id = body.id or uuid7()
    handle = body.tenant_handle or _to_handle(body.display_name)
    async with db.transaction() as tx:
        inserted_id = await tx.fetchval(
            sql.insert_workspace,
            id=workspace_id,
            organization_id=actor.organization_id,
            display_name=body.display_name,
            tenant_handle=handle,
        )
        if inserted_id is None:
            raise WorkspaceTaken(f"A workspace with this id or the handle {handle} already exists; choose another.")

        if actor.user_id is not None:
            await tx.execute(
                sql.insert_workspace_members,
                workspace_ids=[workspace_id],
                user_id=actor.user_id,
                role=WORKSPACE_ADMIN,
            )

    workspaces = await list_workspaces(db, actor)
    return next(workspace for workspace in workspaces if workspace.id == workspace_id)


def _to_handle(name: str) -> str:
    handle = _NOT_IN_HANDLES.sub("-", name.lower()).strip("-")[:100].strip("-")
    if not handle:
        raise Invalid.field(["body", "tenant_handle"], "is required: no handle can be derived from the name")

    return handle


async def rename_workspace(db: Session, actor: Actor, workspace_id: UUID, name: str) -> Workspace:
    """Give a workspace another name. Raises WorkspaceNotFound."""
    ids = {"id": workspace_id, "organization_id": actor.organization_id, "user_id": actor.user_id}
    row = await db.fetchrow(sql.rename_workspace, **ids, display_name=name)
    if row is None:
        raise WorkspaceNotFound

    return _to_workspace(row, actor)


async def delete_workspace(
    db: Database,
    authenticator: Authenticator,
    actor: Actor,
    workspace_id: UUID,
    *,
    checks: WorkspaceDeletionChecks,
) -> None:
    """Close a workspace to everyone; a background task deletes its data.

    Raises Forbidden without all permissions of a workspace admin, WorkspaceNotFound, WorkspaceNeeded and
    WorkspaceOccupied.
    """
    check_outranks(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN])
    check_grant_in_workspaces(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN].permissions, [workspace_id])
    async with db.transaction() as tx:
        row = await tx.fetchrow(sql.lock_workspace, id=workspace_id, organization_id=actor.organization_id)
        if row is None:
            raise WorkspaceNotFound
        if row["is_first"]:
            raise WorkspaceNeeded

        for check in checks.checks:
            if (blocker := await check(tx, workspace_id)) is not None:
                raise WorkspaceOccupied(f"The workspace is in use; delete this first: {blocker}.")

        await tx.execute(sql.delete_workspace, id=workspace_id)

    authenticator.forget_workspace(workspace_id)


async def find_next_to_empty(db: Session, deleted_for: timedelta) -> UUID | None:
    """Return the id of a workspace that was deleted at least so long ago and still has data; None if there is none."""
    workspace_id: UUID | None = await db.fetchval(sql.next_to_empty, deleted_for_s=deleted_for.total_seconds())
    return workspace_id


async def mark_emptied(db: Session, workspace_id: UUID) -> None:
    """Record that a deleted workspace has no data any more."""
    await db.execute(sql.mark_emptied, id=workspace_id)


async def check_workspaces(db: Session, actor: Actor, ids: list[UUID], field: str = "workspaces") -> None:
    """Raise Invalid, for a field of the body, unless all are workspaces of the organization."""
    rows = await db.fetch(sql.workspaces_of_organization, organization_id=actor.organization_id, ids=ids)
    unknown_ids = set(ids) - {row["id"] for row in rows}
    if unknown_ids:
        raise Invalid.field(["body", field], f"the organization has no workspace {min(unknown_ids)}")


def check_grant_in_workspaces(actor: Actor, permissions: Collection[str], ids: Collection[UUID] | None) -> None:
    """Refuse grants in workspaces for which the user's permissions are unknown. Raises Forbidden.

    Except for organization admins, a user's permissions depend on the role in each workspace, and the actor has only
    those of the request's workspace. `ids` is None for all workspaces.
    """
    if actor.role_permissions is None or EVERYTHING in actor.role_permissions:
        return
    if all(permission.startswith("organization:") for permission in permissions):
        return

    if ids is None or not set(ids) <= {actor.workspace}:
        raise Forbidden(
            "Only organization admins can grant permissions in other workspaces than the request's; "
            "name one workspace, the same in workspaces and in X-Tenant-Id."
        )


async def get_organization(db: Session, actor: Actor) -> Organization:
    """Return the actor's organization."""
    row = await db.fetchrow(sql.get_organization, id=actor.organization_id)
    assert row is not None  # noqa: S101 - an actor has an organization
    return Organization(**dict(row))


async def rename_organization(db: Session, actor: Actor, name: str) -> Organization:
    """Give the organization another name."""
    row = await db.fetchrow(sql.rename_organization, id=actor.organization_id, display_name=name)
    assert row is not None  # noqa: S101 - an actor has an organization
    return Organization(**dict(row))
