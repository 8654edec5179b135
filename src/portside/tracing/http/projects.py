"""The routes of projects, which the API calls sessions."""

from uuid import UUID

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing import project_lists, projects
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.project_lists import ProjectQuery, ProjectShowQuery
from portside.tracing.projects import (
    CreateQuery,
    ProjectExists,
    ProjectNotFound,
    ProjectPatch,
    ProjectRequest,
    ProjectsToDelete,
)
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted, TracerSession

routes = Routes("tracing")


@routes.get("/sessions", permission="projects:read", raises=(FilterInvalid, Invalid))
async def list_projects(ctx: Context, query: ProjectQuery) -> list[TracerSession]:
    """List the workspace's projects, newest first unless the query sorts them."""
    return await project_lists.list_projects(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/sessions",
    permission="projects:create",
    raises=(ProjectExists, Invalid),
    audit=Action("project.create", id_query="create_project"),
)
async def create_project(ctx: Context, query: CreateQuery, body: ProjectRequest) -> TracerSession:
    """Create a project; with `upsert`, change an existing one of the same name."""
    # The permission to create projects does not include the permission to change them.
    upserts = query.upsert and ctx.actor.may("projects:update")
    return await projects.create_project(ctx.db, ctx.actor.workspace_id, body, upsert=upserts)


@routes.get("/sessions/{session_id}", permission="projects:read", raises=(ProjectNotFound,))
async def get_project(ctx: Context, session_id: UUID, query: ProjectShowQuery) -> TracerSession:
    """Return one project, with statistics if requested."""
    return await project_lists.get_project_with_stats(ctx.db, ctx.actor.workspace_id, session_id, query)


@routes.patch(
    "/sessions/{session_id}",
    permission="projects:update",
    raises=(ProjectNotFound, ProjectExists, Invalid),
    audit=Action("project.update"),
)
async def update_project(ctx: Context, session_id: UUID, body: ProjectPatch) -> TracerSession:
    """Change a project; null leaves a field unchanged."""
    return await projects.update_project(ctx.db, ctx.actor.workspace_id, session_id, body)


@routes.delete(
    "/sessions/{session_id}",
    status=202,
    permission="projects:delete",
    raises=(ProjectNotFound,),
    audit=Action("project.delete"),
)
async def delete_project(ctx: Context, session_id: UUID) -> Accepted:
    """Delete a project and its runs; billing records stay."""
    await projects.get_project(ctx.db, ctx.actor.workspace_id, session_id)
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, [session_id])
    return Accepted()


@routes.delete(
    "/sessions",
    operation="projects_bulk_delete",
    status=202,
    permission="projects:delete",
    raises=(Invalid,),
    audit=Action("project.delete", id_fields=("session_ids",)),
)
async def delete_projects(ctx: Context, query: ProjectsToDelete) -> Accepted:
    """Delete several projects and their runs; unknown ids are ignored."""
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, query.session_ids)
    return Accepted()
