"""The routes of the organization and its workspaces."""

from uuid import UUID

from portside.identity import workspaces
from portside.identity.roles import ORGANIZATION_ROLES, WORKSPACE_ROLES
from portside.identity.services import Context, Routes
from portside.identity.types import Organization, Role, Workspace, WorkspacePatch, WorkspaceRequest
from portside.identity.workspaces import WorkspaceNeeded, WorkspaceNotFound, WorkspaceOccupied, WorkspaceTaken
from portside.kernel.errors import Forbidden
from portside.kernel.http.audit_actions import Action

routes = Routes("identity", works_on_full_disk=True)


@routes.get("/orgs/current", permission="organization:read")
async def get_organization(ctx: Context) -> Organization:
    """Return the organization."""
    return await workspaces.get_organization(ctx.db, ctx.actor)


@routes.patch("/orgs/current", permission="organization:manage", audit=Action("organization.update"))
async def update_organization(ctx: Context, body: WorkspacePatch) -> Organization:
    """Rename the organization."""
    return await workspaces.rename_organization(ctx.db, ctx.actor, body.display_name)


@routes.get("/orgs/current/roles", permission="organization:read")
async def list_roles(_ctx: Context) -> list[Role]:
    """List the roles of organizations and workspaces with their permissions."""
    return [*ORGANIZATION_ROLES.values(), *WORKSPACE_ROLES.values()]


@routes.get("/workspaces")
async def list_workspaces(ctx: Context) -> list[Workspace]:
    """List the workspaces that the caller may use."""
    return await workspaces.list_workspaces(ctx.db, ctx.actor)


@routes.post(
    "/workspaces",
    permission="organization:manage",
    raises=(WorkspaceTaken,),
    audit=Action("workspace.create", id_query="insert_workspace"),
)
async def create_workspace(ctx: Context, body: WorkspaceRequest) -> Workspace:
    """Create a workspace; the user who creates it becomes its admin."""
    return await workspaces.create_workspace(ctx.db, ctx.actor, body)


@routes.patch(
    "/workspaces/{workspace_id}",
    permission="organization:manage",
    raises=(WorkspaceNotFound,),
    audit=Action("workspace.update"),
)
async def update_workspace(ctx: Context, workspace_id: UUID, body: WorkspacePatch) -> Workspace:
    """Rename a workspace; its handle stays."""
    return await workspaces.rename_workspace(ctx.db, ctx.actor, workspace_id, body.display_name)


@routes.delete(
    "/workspaces/{workspace_id}",
    permission="organization:manage",
    status=204,
    raises=(WorkspaceNotFound, WorkspaceNeeded, WorkspaceOccupied, Forbidden),
    audit=Action("workspace.delete"),
)
async def delete_workspace(ctx: Context, workspace_id: UUID) -> None:
    """Delete a workspace without deployments, with its keys, traces, datasets, prompts and integrations."""
    await workspaces.delete_workspace(
        ctx.db, ctx.services.authenticator, ctx.actor, workspace_id, checks=ctx.services.deletion_checks
    )
