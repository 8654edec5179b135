"""Members of an organization and of its workspaces: added, given roles, removed.

An organization always keeps an admin. Whoever is removed loses every key and login at once.
"""

from collections.abc import Sequence
from uuid import UUID

from portside.identity.keyring import Keyring
from portside.identity.passwords import hash_password
from portside.identity.roles import (
    ORGANIZATION_ADMIN,
    ORGANIZATION_ROLES,
    WORKSPACE_ROLES,
    Role,
    check_reach,
    find_role,
)
from portside.identity.sql import sql
from portside.identity.types import Actor, Member, MemberRequest, WorkspaceMemberRequest
from portside.identity.workspaces import check_held_there, check_workspaces
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Conflict, Invalid, NotFound
from portside.kernel.ids import uuid7


class MemberNotFound(NotFound):
    """No member with this id exists where you look."""

    code = "member_not_found"


class MemberTaken(Conflict):
    """The user is a member already."""

    code = "member_taken"


class LastAdmin(Conflict):
    """An organization needs an admin; make another member one first."""

    code = "last_admin"


async def list_members(db: Session, actor: Actor) -> list[Member]:
    """List the members of the organization, in the order they came."""
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=None)
    return _show(rows, ORGANIZATION_ROLES)


async def list_workspace_members(db: Session, actor: Actor) -> list[Member]:
    """List the members of the workspace, in the order they came; admins of the organization may not be among them."""
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=None)
    return _show(rows, WORKSPACE_ROLES)


async def add_member(db: Database, actor: Actor, body: MemberRequest) -> Member:
    """Make a user of the organization. Raises MemberTaken, Forbidden for a role above the actor's, and Invalid."""
    role = find_role(ORGANIZATION_ROLES, body.role_id, "role_id")
    workspace_role = find_role(WORKSPACE_ROLES, body.workspace_role, "workspace_role")
    check_reach(actor, role)
    if body.workspaces:
        check_reach(actor, workspace_role)
        check_held_there(actor, workspace_role.permissions, body.workspaces)
    await check_workspaces(db, actor, body.workspaces)
    user_id, password = uuid7(), await hash_password(body.password) if body.password else None
    async with db.transaction() as tx:
        made = await tx.fetchval(
            sql.insert_user,
            id=user_id,
            organization_id=actor.organization_id,
            email=body.email,
            full_name=body.full_name,
            password=password,
        )
        if made is None:
            raise MemberTaken(f"There is a user with the email {body.email} already.")
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


async def set_role(db: Database, keyring: Keyring, actor: Actor, user_id: UUID, given: str) -> Member:
    """Give a member of the organization another role. Raises MemberNotFound, LastAdmin, Forbidden and Invalid."""
    role = find_role(ORGANIZATION_ROLES, given, "role_id")
    check_reach(actor, role)
    async with db.transaction() as tx:
        await _lock_but_last_admin(tx, actor, user_id, stays_admin=role.display_name == ORGANIZATION_ADMIN)
        changed = await tx.fetchval(
            sql.set_organization_role,
            organization_id=actor.organization_id,
            user_id=user_id,
            role=role.display_name,
        )
    if changed is None:
        raise MemberNotFound
    keyring.forget_user(user_id)
    return await _member(db, actor, user_id)


async def remove_member(db: Database, keyring: Keyring, actor: Actor, user_id: UUID) -> None:
    """Remove a user from the organization, with keys and logins. Raises MemberNotFound, LastAdmin and Forbidden."""
    async with db.transaction() as tx:
        await _lock_but_last_admin(tx, actor, user_id, stays_admin=False)
        removed = await tx.fetchval(sql.remove_user, organization_id=actor.organization_id, user_id=user_id)
    if removed is None:
        raise MemberNotFound
    keyring.forget_user(user_id)


async def _lock_but_last_admin(tx: Transaction, actor: Actor, user_id: UUID, *, stays_admin: bool) -> None:
    await tx.fetchval(sql.lock_organization, id=actor.organization_id)
    rows = await tx.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=user_id)
    role = rows[0]["role"] if rows else None
    if role is not None:
        check_reach(actor, ORGANIZATION_ROLES[role])
    if role != ORGANIZATION_ADMIN:
        return
    others = await tx.fetchval(
        sql.count_other_admins, organization_id=actor.organization_id, user_id=user_id, role=ORGANIZATION_ADMIN
    )
    if not stays_admin and not others:
        raise LastAdmin


async def add_workspace_member(db: Session, keyring: Keyring, actor: Actor, body: WorkspaceMemberRequest) -> Member:
    """Let a user of the organization into the workspace. Raises MemberTaken, Forbidden and Invalid."""
    role = find_role(WORKSPACE_ROLES, body.role_id, "role_id")
    check_reach(actor, role)
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=body.user_id)
    if not rows:
        raise Invalid.field(["body", "user_id"], "is no member of the organization")
    joined = await db.fetchval(
        sql.insert_workspace_members,
        workspace_ids=[actor.workspace_id],
        user_id=body.user_id,
        role=role.display_name,
    )
    if joined is None:
        raise MemberTaken
    keyring.forget_user(body.user_id)
    return await _workspace_member(db, actor, body.user_id)


async def set_workspace_role(db: Database, keyring: Keyring, actor: Actor, user_id: UUID, given: str) -> Member:
    """Give a member of the workspace another role. Raises MemberNotFound, Forbidden and Invalid."""
    role = find_role(WORKSPACE_ROLES, given, "role_id")
    check_reach(actor, role)
    place = {"workspace_id": actor.workspace_id, "user_id": user_id}
    async with db.transaction() as tx:
        await _lock_workspace_member(tx, actor, user_id)
        await tx.execute(sql.set_workspace_role, **place, role=role.display_name)
    keyring.forget_user(user_id)
    return await _workspace_member(db, actor, user_id)


async def remove_workspace_member(db: Database, keyring: Keyring, actor: Actor, user_id: UUID) -> None:
    """Take a user out of the workspace. Raises MemberNotFound and Forbidden."""
    async with db.transaction() as tx:
        await _lock_workspace_member(tx, actor, user_id)
        await tx.execute(sql.remove_workspace_member, workspace_id=actor.workspace_id, user_id=user_id)
    keyring.forget_user(user_id)


async def _lock_workspace_member(tx: Transaction, actor: Actor, user_id: UUID) -> None:
    """Look at a member who is to be changed. Raises MemberNotFound, and Forbidden for a role above the actor's."""
    await tx.fetchval(sql.lock_organization, id=actor.organization_id)
    rows = await tx.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=user_id)
    if not rows:
        raise MemberNotFound
    check_reach(actor, WORKSPACE_ROLES[rows[0]["role"]])


async def _member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_organization_members, organization_id=actor.organization_id, user_id=user_id)
    return _only(_show(rows, ORGANIZATION_ROLES))


async def _workspace_member(db: Session, actor: Actor, user_id: UUID) -> Member:
    rows = await db.fetch(sql.list_workspace_members, workspace_id=actor.workspace_id, user_id=user_id)
    return _only(_show(rows, WORKSPACE_ROLES))


def _only(found: list[Member]) -> Member:
    if not found:
        raise MemberNotFound
    return found[0]


def _show(rows: Sequence[Record], roles: dict[str, Role]) -> list[Member]:
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
