"""Projects, which the API calls sessions (contract: hosted API, section f.4)."""

from uuid import UUID

from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing import project_lists, projects
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.project_lists import ProjectQuery, ShownQuery
from portside.tracing.projects import (
    CreateQuery,
    ProjectExists,
    ProjectNotFound,
    ProjectPatch,
    ProjectRequest,
    ProjectsToDelete,
)
from portside.tracing.types import Accepted, TracerSession

routes = Routes("tracing")


@routes.get("/sessions", permission="projects:read", raises=(FilterInvalid, Invalid))
async def list_sessions(ctx: Context, query: ProjectQuery) -> list[TracerSession]:
    """List the workspace's projects, newest first unless the query sorts them."""
    return await project_lists.list_projects(ctx.db, ctx.actor.workspace_id, query)


@routes.post("/sessions", permission="projects:create", raises=(ProjectExists, Invalid))
async def create_session(ctx: Context, query: CreateQuery, body: ProjectRequest) -> TracerSession:
    """Make a project; with `upsert` change the one that has its name."""
    # Whoever may make projects need not be one who may change them.
    upserts = query.upsert and ctx.actor.may("projects:update")
    return await projects.create_project(ctx.db, ctx.actor.workspace_id, body, upsert=upserts)


@routes.delete("/sessions", status=202, permission="projects:delete", raises=(Invalid,))
async def delete_sessions(ctx: Context, query: ProjectsToDelete) -> Accepted:
    """Delete several projects and their runs; those that are not there are passed over."""
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, query.session_ids)
    return Accepted()


@routes.get("/sessions/{session_id}", permission="projects:read", raises=(ProjectNotFound,))
async def show_session(ctx: Context, session_id: UUID, query: ShownQuery) -> TracerSession:
    """Return one project, with its figures where they are asked for."""
    return await project_lists.show_project(ctx.db, ctx.actor.workspace_id, session_id, query)


@routes.patch("/sessions/{session_id}", permission="projects:update", raises=(ProjectNotFound, ProjectExists, Invalid))
async def update_session(ctx: Context, session_id: UUID, body: ProjectPatch) -> TracerSession:
    """Change a project; null means unchanged."""
    return await projects.update_project(ctx.db, ctx.actor.workspace_id, session_id, body)


@routes.delete("/sessions/{session_id}", status=202, permission="projects:delete", raises=(ProjectNotFound,))
async def delete_session(ctx: Context, session_id: UUID) -> Accepted:
    """Delete a project and its runs; what was billed stays."""
    await projects.show_project(ctx.db, ctx.actor.workspace_id, session_id)
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, [session_id])
    return Accepted()
