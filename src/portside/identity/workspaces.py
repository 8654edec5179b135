"""Workspaces of an organization, and which of them a caller may enter."""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from portside.identity.keyring import Keyring
from portside.identity.roles import WORKSPACE_ADMIN, WORKSPACE_ROLES, check_reach
from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor, Organization, Workspace, WorkspaceRequest
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Conflict, Forbidden, Invalid, NotFound
from portside.kernel.ids import uuid7

_NOT_IN_HANDLES = re.compile(r"[^a-z0-9]+")


class WorkspaceNotFound(NotFound):
    """No workspace with this id exists in the organization."""

    code = "workspace_not_found"


class WorkspaceTaken(Conflict):
    """A workspace with this id or handle exists already."""

    code = "workspace_taken"


class WorkspaceOccupied(Conflict):
    """Something is deployed in the workspace; delete that first."""

    code = "workspace_occupied"


class WorkspaceNeeded(Conflict):
    """The first workspace cannot be deleted, because the platform's own listener belongs to it."""

    code = "workspace_needed"


class Occupants(msgspec.Struct, frozen=True):
    """What other rooms say of a workspace that is to be deleted: each in words what is there, or None."""

    asked: Sequence[Callable[[Session, UUID], Awaitable[str | None]]]


async def list_workspaces(db: Session, actor: Actor) -> list[Workspace]:
    """List the workspaces that the actor may enter, oldest first."""
    rows = await db.fetch(
        sql.list_workspaces,
        organization_id=actor.organization_id,
        user_id=actor.user_id,
        enters_all=_enters_all(actor),
        only=sorted(actor.workspaces or ({actor.workspace} if actor.workspace else ())),
    )
    return [_show(row, actor) for row in rows]


def _enters_all(actor: Actor) -> bool:
    if actor.role_permissions is not None:
        return EVERYTHING in actor.role_permissions
    return actor.is_of_organization and actor.workspaces is None


def _show(row: Record, actor: Actor) -> Workspace:
    name = row["role"] or (WORKSPACE_ADMIN if actor.user_id and _enters_all(actor) else None)
    role = WORKSPACE_ROLES.get(name) if name else None
    return Workspace(
        id=row["id"],
        organization_id=row["organization_id"],
        display_name=row["display_name"],
        tenant_handle=row["tenant_handle"],
        created_at=row["created_at"],
        role_id=role.id if role else None,
        role_name=role.display_name if role else None,
        permissions=list(role.permissions) if role else actor.effective_permissions(),
    )


async def create_workspace(db: Database, actor: Actor, body: WorkspaceRequest) -> Workspace:
    """Make a workspace; a user who makes one is its admin. Raises WorkspaceTaken and Invalid."""
    workspace_id, handle = body.id or uuid7(), body.tenant_handle or _handle(body.display_name)
    async with db.transaction() as tx:
        inserted = await tx.fetchval(
            sql.insert_workspace,
            id=workspace_id,
            organization_id=actor.organization_id,
            display_name=body.display_name,
            tenant_handle=handle,
        )
        if inserted is None:
            raise WorkspaceTaken(f"A workspace with this id or the handle {handle} exists already.")
        if actor.user_id is not None:
            await tx.execute(
                sql.insert_workspace_members,
                workspace_ids=[workspace_id],
                user_id=actor.user_id,
                role=WORKSPACE_ADMIN,
            )
    return next(found for found in await list_workspaces(db, actor) if found.id == workspace_id)


def _handle(name: str) -> str:
    handle = _NOT_IN_HANDLES.sub("-", name.lower()).strip("-")[:100].strip("-")
    if not handle:
        raise Invalid.field(["body", "tenant_handle"], "must be given, as none follows from the name")
    return handle


async def rename_workspace(db: Session, actor: Actor, workspace_id: UUID, name: str) -> Workspace:
    """Give a workspace another name. Raises WorkspaceNotFound."""
    place = {"id": workspace_id, "organization_id": actor.organization_id, "user_id": actor.user_id}
    row = await db.fetchrow(sql.rename_workspace, **place, display_name=name)
    if row is None:
        raise WorkspaceNotFound
    return _show(row, actor)


async def delete_workspace(
    db: Database, keyring: Keyring, actor: Actor, workspace_id: UUID, occupants: Occupants
) -> None:
    """Let nobody into a workspace any more; what belongs to it is removed in the background.

    Raises Forbidden to who may not do all that there is to do there, WorkspaceNotFound, WorkspaceNeeded and
    WorkspaceOccupied.
    """
    check_reach(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN])
    check_held_there(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN].permissions, [workspace_id])
    async with db.transaction() as tx:
        found = await tx.fetchrow(sql.lock_workspace, id=workspace_id, organization_id=actor.organization_id)
        if found is None:
            raise WorkspaceNotFound
        if found["is_first"]:
            raise WorkspaceNeeded
        for is_there in occupants.asked:
            if (what := await is_there(tx, workspace_id)) is not None:
                raise WorkspaceOccupied(f"The workspace is in use; delete this first: {what}.")
        await tx.execute(sql.delete_workspace, id=workspace_id)
    keyring.forget_workspace(workspace_id)


async def next_to_empty(db: Session, settled_after: timedelta) -> UUID | None:
    """Return a workspace that was deleted long enough ago and still has something in it."""
    found: UUID | None = await db.fetchval(sql.next_to_empty, settled_s=settled_after.total_seconds())
    return found


async def tell_empty(db: Session, workspace_id: UUID) -> None:
    """Write down that nothing belongs to a deleted workspace any more."""
    await db.execute(sql.tell_empty, id=workspace_id)


async def check_workspaces(db: Session, actor: Actor, ids: list[UUID]) -> None:
    """Raise Invalid unless all are workspaces of the organization."""
    rows = await db.fetch(sql.workspaces_of_organization, organization_id=actor.organization_id, ids=ids)
    unknown = set(ids) - {row["id"] for row in rows}
    if unknown:
        raise Invalid.field(["body", "workspaces"], f"the organization has no workspace {min(unknown)}")


def check_held_there(actor: Actor, permissions: Collection[str], ids: Collection[UUID] | None) -> None:
    """Raise Forbidden where a user would hand out permissions in workspaces in which they are not known to hold them.

    Other than an admin of the organization, a user has in each workspace what their role there permits. `ids` are None
    for all workspaces.
    """
    if actor.role_permissions is None or EVERYTHING in actor.role_permissions:
        return
    if all(permission.startswith("organization:") for permission in permissions):
        return
    if ids is None or not set(ids) <= {actor.workspace}:
        raise Forbidden(
            "Only an admin of the organization can give permissions in workspaces other than the one of the request; "
            "name that one alone in workspaces and in X-Tenant-Id."
        )


async def show_organization(db: Session, actor: Actor) -> Organization:
    """Return the actor's organization."""
    row = await db.fetchrow(sql.get_organization, id=actor.organization_id)
    assert row is not None  # noqa: S101 - whoever has an actor has an organization
    return Organization(**dict(row))


async def rename_organization(db: Session, actor: Actor, name: str) -> Organization:
    """Give the organization another name."""
    row = await db.fetchrow(sql.rename_organization, id=actor.organization_id, display_name=name)
    assert row is not None  # noqa: S101 - whoever has an actor has an organization
    return Organization(**dict(row))
