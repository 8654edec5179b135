"""The members of the organization and of its workspaces.

An organization always keeps an admin. A removed member loses all keys and sessions at once.
"""

from uuid import UUID

from portside.identity.authentication import Authenticator
from portside.identity.passwords import hash_password
from portside.identity.roles import (
    ORGANIZATION_ADMIN,
    ORGANIZATION_ROLES,
    WORKSPACE_ROLES,
    check_outranks,
    find_role,
    get_permissions,
)
from portside.identity.sql import sql
from portside.identity.types import EVERYTHING, Actor, Member, MemberRequest, Role, WorkspaceMemberRequest, includes
from portside.identity.workspaces import check_grant_in_workspaces, check_workspaces
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Conflict, Forbidden, Invalid, NotFound
from portside.kernel.ids import uuid7


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
    return [_to_member(row, ORGANIZATION_ROLES) for row in rows]


async def list_workspace_members(db: Session, actor: Actor) -> list[Member]:
    """List the members of the workspace, oldest first. Organization admins have access without being members."""
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=None)
    return [_to_member(row, WORKSPACE_ROLES) for row in rows]


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
        inserted_id = await tx.fetchval(
            sql.insert_user,
            id=user_id,
            organization_id=actor.organization_id,
            email=body.email,
            full_name=body.full_name,
            password=password,
        )
        if inserted_id is None:
            raise _build_taken_error(body.email)

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

    return await _get_member(db, actor, user_id)


async def _check_address(tx: Transaction, actor: Actor, body: MemberRequest) -> None:
    """Refuse an address that another person has, or had while the password would be the actor's choice.

    Other members know a person by the address, and would trust and invite whoever has it. Raises MemberTaken and
    Forbidden.
    """
    holders = await tx.fetch(sql.holders_of_address, organization_id=actor.organization_id, email=body.email)
    if any(row["removed_at"] is None for row in holders):
        raise _build_taken_error(body.email)

    if holders and body.password is not None and not actor.may(EVERYTHING):
        raise Forbidden(
            f"A removed member had the address {body.email}; only an organization admin can add it again with a "
            "password. Leave the password out for somebody who signs in with OpenID Connect."
        )


def _build_taken_error(email: str) -> MemberTaken:
    return MemberTaken(f"A user with the email {email} already exists; change the role instead.")


async def set_role(
    db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID, *, role_name: str
) -> Member:
    """Give a member of the organization another role. Raises MemberNotFound, LastAdmin, Forbidden and Invalid."""
    role = find_role(ORGANIZATION_ROLES, role_name, "role_id")
    check_outranks(actor, role)
    async with db.transaction() as tx:
        await _lock_members(tx, actor, user_id, stays_admin=role.display_name == ORGANIZATION_ADMIN)
        updated_id = await tx.fetchval(
            sql.set_organization_role,
            organization_id=actor.organization_id,
            user_id=user_id,
            role=role.display_name,
        )

    if updated_id is None:
        raise MemberNotFound

    authenticator.forget_user(user_id)
    return await _get_member(db, actor, user_id)


async def remove_member(db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID) -> None:
    """Remove a user from the organization, with keys and sessions. Raises MemberNotFound, LastAdmin and Forbidden."""
    async with db.transaction() as tx:
        await _lock_members(tx, actor, user_id, stays_admin=False)
        await _check_outranks_in_workspaces(tx, actor, user_id)
        removed_id = await tx.fetchval(sql.remove_user, organization_id=actor.organization_id, user_id=user_id)

    if removed_id is None:
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
        missing = [permission for permission in role.permissions if not _may_in_workspace(actor, row, permission)]
        if missing:
            raise Forbidden(
                f"You cannot remove this member, who has the role {role.display_name} in the workspace "
                f"{row['workspace_name']}: you lack its permissions {', '.join(missing)} there. "
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

    workspace_id = await db.fetchval(
        sql.insert_workspace_members,
        workspace_ids=[actor.workspace_id],
        user_id=body.user_id,
        role=role.display_name,
    )
    if workspace_id is None:
        raise MemberTaken

    authenticator.forget_user(body.user_id)
    return await _get_workspace_member(db, actor, body.user_id)


async def set_workspace_role(
    db: Database, authenticator: Authenticator, actor: Actor, user_id: UUID, *, role_name: str
) -> Member:
    """Give a member of the workspace another role. Raises MemberNotFound, Forbidden and Invalid."""
    role = find_role(WORKSPACE_ROLES, role_name, "role_id")
    check_outranks(actor, role)

    member = {"workspace_id": actor.workspace_id, "user_id": user_id}
    async with db.transaction() as tx:
        await _lock_workspace_member(tx, actor, user_id)
        await tx.execute(sql.set_workspace_role, **member, role=role.display_name)

    authenticator.forget_user(user_id)
    return await _get_workspace_member(db, actor, user_id)


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


async def _get_member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=user_id)
    if not rows:
        raise MemberNotFound

    return _to_member(rows[0], ORGANIZATION_ROLES)


async def _get_workspace_member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=user_id)
    if not rows:
        raise MemberNotFound

    return _to_member(rows[0], WORKSPACE_ROLES)


def _to_member(row: Record, roles: dict[str, Role]) -> Member:
    return Member(
        id=row["id"],
        user_id=row["id"],
        email=row["email"],
        full_name=row["full_name"],
        role_id=roles[row["role"]].id,
        role_name=row["role"],
        created_at=row["created_at"],
    )
