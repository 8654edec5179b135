"""Workspaces of the organization, and the members of both.

An organization always keeps an admin. A removed member loses all keys and sessions at once.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from portside.identity.authentication import Authenticator
from portside.identity.logins import hash_password
from portside.identity.roles import (
    ORGANIZATION_ADMIN,
    ORGANIZATION_ROLES,
    WORKSPACE_ADMIN,
    WORKSPACE_ROLES,
    Role,
    check_outranks,
    find_role,
    get_permissions,
)
from portside.identity.sql import sql
from portside.identity.types import (
    EVERYTHING,
    Actor,
    Member,
    MemberRequest,
    Organization,
    Workspace,
    WorkspaceMemberRequest,
    WorkspaceRequest,
    includes,
)
from portside.kernel.db import Database, Record, Session, Transaction
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
        permissions=list(role.permissions) if role else actor.effective_permissions(),
    )


async def create_workspace(db: Database, actor: Actor, body: WorkspaceRequest) -> Workspace:
    """Create a workspace; a user who creates one becomes its admin. Raises WorkspaceTaken and Invalid."""
    workspace_id = body.id or uuid7()
    handle = body.tenant_handle or _handle(body.display_name)
    async with db.transaction() as tx:
        inserted = await tx.fetchval(
            sql.insert_workspace,
            id=workspace_id,
            organization_id=actor.organization_id,
            display_name=body.display_name,
            tenant_handle=handle,
        )
        if inserted is None:
            raise WorkspaceTaken(f"A workspace with this id or the handle {handle} already exists; choose another.")

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
    checks: WorkspaceDeletionChecks,
) -> None:
    """Close a workspace to everyone; a background task deletes its data.

    Raises Forbidden without all permissions of a workspace admin, WorkspaceNotFound, WorkspaceNeeded and
    WorkspaceOccupied.
    """
    check_outranks(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN])
    check_grant_in_workspaces(actor, WORKSPACE_ROLES[WORKSPACE_ADMIN].permissions, [workspace_id])
    async with db.transaction() as tx:
        found = await tx.fetchrow(sql.lock_workspace, id=workspace_id, organization_id=actor.organization_id)
        if found is None:
            raise WorkspaceNotFound
        if found["is_first"]:
            raise WorkspaceNeeded

        for check in checks.checks:
            if (blocker := await check(tx, workspace_id)) is not None:
                raise WorkspaceOccupied(f"The workspace is in use; delete this first: {blocker}.")

        await tx.execute(sql.delete_workspace, id=workspace_id)

    authenticator.forget_workspace(workspace_id)


async def next_to_empty(db: Session, deleted_for: timedelta) -> UUID | None:
    """Return a workspace that was deleted at least so long ago and still has data."""
    found: UUID | None = await db.fetchval(sql.next_to_empty, deleted_for_s=deleted_for.total_seconds())
    return found


async def mark_emptied(db: Session, workspace_id: UUID) -> None:
    """Record that a deleted workspace has no data any more."""
    await db.execute(sql.mark_emptied, id=workspace_id)


async def check_workspaces(db: Session, actor: Actor, ids: list[UUID], field: str = "workspaces") -> None:
    """Raise Invalid, for a field of the body, unless all are workspaces of the organization."""
    rows = await db.fetch(sql.workspaces_of_organization, organization_id=actor.organization_id, ids=ids)
    unknown = set(ids) - {row["id"] for row in rows}
    if unknown:
        raise Invalid.field(["body", field], f"the organization has no workspace {min(unknown)}")


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


class MemberNotFound(NotFound):
    """There is no member with this id in the organization or workspace."""

    code = "member_not_found"


class MemberTaken(Conflict):
    """The user is already a member; change the role instead."""

    code = "member_taken"


class LastAdmin(Conflict):
    """The organization needs an admin; make another member an admin first."""

    code = "last_admin"


async def list_members(db: Session, actor: Actor) -> list[Member]:
    """List the members of the organization, oldest first."""
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=None)
    return _to_members(rows, ORGANIZATION_ROLES)


async def list_workspace_members(db: Session, actor: Actor) -> list[Member]:
    """List the members of the workspace, oldest first. Organization admins have access without being members."""
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=None)
    return _to_members(rows, WORKSPACE_ROLES)


async def add_member(db: Database, actor: Actor, body: MemberRequest) -> Member:
    """Add a user to the organization.

    Raises MemberTaken, Invalid, and Forbidden for a role above the actor's and for a password that would outlast it.
    """
    role = find_role(ORGANIZATION_ROLES, body.role_id, "role_id")
    workspace_role = find_role(WORKSPACE_ROLES, body.workspace_role, "workspace_role")
    check_outranks(actor, role)

    if body.password is not None and actor.key_expires_at is not None:
        raise Forbidden(
            "A key that expires cannot choose the password of a new member, which would outlast it; sign in, use "
            "another key, or leave the password out for somebody who signs in with OpenID Connect."
        )

    if body.workspaces:
        check_outranks(actor, workspace_role)
        check_grant_in_workspaces(actor, workspace_role.permissions, body.workspaces)

    await check_workspaces(db, actor, body.workspaces)
    user_id = uuid7()
    password = await hash_password(body.password) if body.password else None
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_organization, id=actor.organization_id)
        await _check_address(tx, actor, body)
        inserted = await tx.fetchval(
            sql.insert_user,
            id=user_id,
            organization_id=actor.organization_id,
            email=body.email,
            full_name=body.full_name,
            password=password,
        )
        if inserted is None:
            raise _address_taken(body.email)

        await tx.execute(
            sql.insert_organization_member,
            organization_id=actor.organization_id,
            user_id=user_id,
            role=role.display_name,
        )

        await tx.execute(
            sql.insert_workspace_members,
            workspace_ids=body.workspaces,
            user_id=user_id,
            role=workspace_role.display_name,
        )

    return await _member(db, actor, user_id)


async def _check_address(tx: Transaction, actor: Actor, body: MemberRequest) -> None:
    """Refuse an address that another person has, or had while the password would be the actor's choice.

    Other members know a person by the address, and would trust and invite whoever has it. Raises MemberTaken and
    Forbidden.
    """
    holders = await tx.fetch(sql.holders_of_address, organization_id=actor.organization_id, email=body.email)
    if any(row["removed_at"] is None for row in holders):
        raise _address_taken(body.email)

    if holders and body.password is not None and not actor.may(EVERYTHING):
        raise Forbidden(
            f"A removed member had the address {body.email}; only an organization admin can add it again with a "
            "password. Leave the password out for somebody who signs in with OpenID Connect."
        )


def _address_taken(email: str) -> MemberTaken:
    return MemberTaken(f"A user with the email {email} already exists; change the role instead.")


async def set_role(db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID, given: str) -> Member:
    """Give a member of the organization another role. Raises MemberNotFound, LastAdmin, Forbidden and Invalid."""
    role = find_role(ORGANIZATION_ROLES, given, "role_id")
    check_outranks(actor, role)
    async with db.transaction() as tx:
        await _lock_members(tx, actor, user_id, stays_admin=role.display_name == ORGANIZATION_ADMIN)
        changed = await tx.fetchval(
            sql.set_organization_role,
            organization_id=actor.organization_id,
            user_id=user_id,
            role=role.display_name,
        )

    if changed is None:
        raise MemberNotFound

    authenticator.forget_user(user_id)
    return await _member(db, actor, user_id)


async def remove_member(db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID) -> None:
    """Remove a user from the organization, with keys and sessions. Raises MemberNotFound, LastAdmin and Forbidden."""
    async with db.transaction() as tx:
        await _lock_members(tx, actor, user_id, stays_admin=False)
        await _check_outranks_in_workspaces(tx, actor, user_id)
        removed = await tx.fetchval(sql.remove_user, organization_id=actor.organization_id, user_id=user_id)

    if removed is None:
        raise MemberNotFound

    authenticator.forget_user(user_id)


async def _lock_members(tx: Transaction, actor: Actor, user_id: UUID, *, stays_admin: bool) -> None:
    """Lock the members, and check that a change leaves an admin. Raises LastAdmin and Forbidden."""
    await tx.fetchval(sql.lock_organization, id=actor.organization_id)
    rows = await tx.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=user_id)

    role = rows[0]["role"] if rows else None
    if role is not None:
        check_outranks(actor, ORGANIZATION_ROLES[role])

    if role != ORGANIZATION_ADMIN:
        return

    others = await tx.fetchval(
        sql.count_other_admins, organization_id=actor.organization_id, user_id=user_id, role=ORGANIZATION_ADMIN
    )
    if not stays_admin and not others:
        raise LastAdmin


async def _check_outranks_in_workspaces(tx: Transaction, actor: Actor, user_id: UUID) -> None:
    """Check that the actor has all permissions that a user has in any workspace. Raises Forbidden."""
    rows = await tx.fetch(
        sql.workspace_roles_of_member,
        organization_id=actor.organization_id,
        user_id=user_id,
        actor_id=actor.user_id,
    )

    for row in rows:
        role = WORKSPACE_ROLES[row["role"]]
        beyond = [permission for permission in role.permissions if not _may_in_workspace(actor, row, permission)]
        if beyond:
            raise Forbidden(
                f"You cannot remove this member, who has the role {role.display_name} in the workspace "
                f"{row['workspace_name']}: you lack its permissions {', '.join(beyond)} there. "
                "An organization admin can."
            )


def _may_in_workspace(actor: Actor, row: Record, permission: str) -> bool:
    """Whether the actor has a permission in the workspace of a row, which names the actor's role there."""
    if actor.role_permissions is None or EVERYTHING in actor.role_permissions:
        return actor.may(permission)

    return actor.key_has(permission) and includes(get_permissions(None, row["actor_role"]), permission)


async def add_workspace_member(
    db: Session, authenticator: Authenticator, actor: Actor, body: WorkspaceMemberRequest
) -> Member:
    """Add a user of the organization to the workspace. Raises MemberTaken, Forbidden and Invalid."""
    role = find_role(WORKSPACE_ROLES, body.role_id, "role_id")
    check_outranks(actor, role)

    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=body.user_id)
    if not rows:
        raise Invalid.field(["body", "user_id"], "is not a member of the organization")

    joined = await db.fetchval(
        sql.insert_workspace_members,
        workspace_ids=[actor.workspace_id],
        user_id=body.user_id,
        role=role.display_name,
    )
    if joined is None:
        raise MemberTaken

    authenticator.forget_user(body.user_id)
    return await _workspace_member(db, actor, body.user_id)


async def set_workspace_role(
    db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID, given: str
) -> Member:
    """Give a member of the workspace another role. Raises MemberNotFound, Forbidden and Invalid."""
    role = find_role(WORKSPACE_ROLES, given, "role_id")
    check_outranks(actor, role)

    member = {"workspace_id": actor.workspace_id, "user_id": user_id}
    async with db.transaction() as tx:
        await _lock_workspace_member(tx, actor, user_id)
        await tx.execute(sql.set_workspace_role, **member, role=role.display_name)

    authenticator.forget_user(user_id)
    return await _workspace_member(db, actor, user_id)


async def remove_workspace_member(db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID) -> None:
    """Remove a user from the workspace. Raises MemberNotFound and Forbidden."""
    async with db.transaction() as tx:
        await _lock_workspace_member(tx, actor, user_id)
        await tx.execute(sql.remove_workspace_member, workspace_id=actor.workspace_id, user_id=user_id)

    authenticator.forget_user(user_id)


async def _lock_workspace_member(tx: Transaction, actor: Actor, user_id: UUID) -> None:
    """Lock the members, and check that the actor may change this one. Raises MemberNotFound and Forbidden."""
    await tx.fetchval(sql.lock_organization, id=actor.organization_id)
    rows = await tx.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=user_id)
    if not rows:
        raise MemberNotFound

    check_outranks(actor, WORKSPACE_ROLES[rows[0]["role"]])


async def _member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=user_id)
    return _only(_to_members(rows, ORGANIZATION_ROLES))


async def _workspace_member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=user_id)
    return _only(_to_members(rows, WORKSPACE_ROLES))


def _only(found: list[Member]) -> Member:
    if not found:
        raise MemberNotFound
    return found[0]


def _to_members(rows: Sequence[Record], roles: dict[str, Role]) -> list[Member]:
    return [
        Member(
            id=row["id"],
            user_id=row["id"],
            email=row["email"],
            full_name=row["full_name"],
            role_id=roles[row["role"]].id,
            role_name=row["role"],
            created_at=row["created_at"],
        )
        for row in rows
    ]
