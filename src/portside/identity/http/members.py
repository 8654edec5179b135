"""The routes of the members of the organization and of its workspaces."""

from uuid import UUID

from portside.identity import members
from portside.identity.members import LastAdmin, MemberNotFound, MemberTaken
from portside.identity.services import Context, Routes
from portside.identity.types import Member, MemberRequest, RoleChange, WorkspaceMemberRequest, WorkspaceRequired
from portside.kernel.errors import Forbidden
from portside.kernel.http.audit_actions import Action

routes = Routes("identity", works_on_full_disk=True)


@routes.get("/orgs/current/members", permission="organization:read")
async def list_members(ctx: Context) -> list[Member]:
    """List the members of the organization."""
    return await members.list_members(ctx.db, ctx.actor)


@routes.post(
    "/orgs/current/members",
    permission="organization:manage",
    raises=(MemberTaken, Forbidden),
    audit=Action("member.add", id_query="insert_user"),
)
async def add_member(ctx: Context, body: MemberRequest) -> Member:
    """Add a user to the organization and to workspaces."""
    return await members.add_member(ctx.db, ctx.actor, body)


@routes.patch(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    raises=(MemberNotFound, LastAdmin, Forbidden),
    audit=Action("member.update"),
)
async def update_member(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Change the role of a member of the organization."""
    return await members.set_role(ctx.db, ctx.services.authenticator, ctx.actor, user_id, role_name=body.role_id)


@routes.delete(
    "/orgs/current/members/{user_id}",
    permission="organization:manage",
    status=204,
    raises=(MemberNotFound, LastAdmin, Forbidden),
    audit=Action("member.remove"),
)
async def remove_member(ctx: Context, user_id: UUID) -> None:
    """Remove a user from the organization, with all keys and sessions."""
    await members.remove_member(ctx.db, ctx.services.authenticator, ctx.actor, user_id)


@routes.get("/workspaces/current/members", permission="workspaces:read", raises=(WorkspaceRequired,))
async def list_workspace_members(ctx: Context) -> list[Member]:
    """List the members of the workspace."""
    return await members.list_workspace_members(ctx.db, ctx.actor)


@routes.post(
    "/workspaces/current/members",
    permission="workspaces:manage",
    raises=(MemberTaken, Forbidden, WorkspaceRequired),
    audit=Action("workspace_member.add", id_fields=("user_id",)),
)
async def add_workspace_member(ctx: Context, body: WorkspaceMemberRequest) -> Member:
    """Add a user of the organization to the workspace."""
    return await members.add_workspace_member(ctx.db, ctx.services.authenticator, ctx.actor, body)


@routes.patch(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    raises=(MemberNotFound, Forbidden, WorkspaceRequired),
    audit=Action("workspace_member.update"),
)
async def update_workspace_member(ctx: Context, user_id: UUID, body: RoleChange) -> Member:
    """Change the role of a member of the workspace."""
    return await members.set_workspace_role(
        ctx.db, ctx.services.authenticator, ctx.actor, user_id, role_name=body.role_id
    )


@routes.delete(
    "/workspaces/current/members/{user_id}",
    permission="workspaces:manage",
    status=204,
    raises=(MemberNotFound, Forbidden, WorkspaceRequired),
    audit=Action("workspace_member.remove"),
)
async def remove_workspace_member(ctx: Context, user_id: UUID) -> None:
    """Remove a user from the workspace."""
    await members.remove_workspace_member(ctx.db, ctx.services.authenticator, ctx.actor, user_id)
