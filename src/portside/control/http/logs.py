"""The routes of build and deploy logs.

Logs have two forms that clients know: the older one calls a deployment a project and takes its filter in a body.
"""

from uuid import UUID

from portside.control.errors import DeploymentNotFound, RevisionNotFound
from portside.control.revision_logs import read_deployment_logs, read_revision_logs
from portside.control.services import Context, Routes, get_scope
from portside.control.types import LogFilter, LogPage, LogQuery
from portside.kernel.http.routes import RouteOptions

routes = Routes("logs")
_READS_REVISION_LOG: RouteOptions = {
    "permission": "deployments:read",
    "read_only": True,
    "raises": (DeploymentNotFound, RevisionNotFound),
}


@routes.get("/v2/deployments/{deployment_id}/revisions/{revision_id}/logs", **_READS_REVISION_LOG)
async def get_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, query: LogQuery) -> LogPage:
    """Read a revision's build or deploy log."""
    return await read_revision_logs(get_scope(ctx), deployment_id, revision_id, query, kind=query.type)


@routes.post("/v1/projects/{project_id}/revisions/{revision_id}/build_logs", **_READS_REVISION_LOG)
async def read_build_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's build log."""
    return await read_revision_logs(get_scope(ctx), project_id, revision_id, body, kind="build")


@routes.post("/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs", **_READS_REVISION_LOG)
async def read_deploy_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's deploy log."""
    return await read_revision_logs(get_scope(ctx), project_id, revision_id, body, kind="deploy")


@routes.post(
    "/v1/projects/{project_id}/deploy_logs", permission="deployments:read", read_only=True, raises=(DeploymentNotFound,)
)
async def read_all_deploy_logs(ctx: Context, project_id: UUID, body: LogFilter) -> LogPage:
    """Read the deploy logs of all revisions of a deployment."""
    return await read_deployment_logs(get_scope(ctx), project_id, body, kind="deploy")
