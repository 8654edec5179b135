"""The routes of logs, in the two forms that clients know (contract: section 2).

The older form calls a deployment a project and takes its filter in a body.
"""

from uuid import UUID

from portside.control.errors import DeploymentNotFound, RevisionNotFound
from portside.control.http.scoping import scope_of
from portside.control.logs import read_deployment_logs, read_revision_logs
from portside.control.types.logs import LogFilter, LogPage, LogQuery
from portside.kernel.http.routes import Context, Routes

routes = Routes("logs")
_OF_REVISION = {"permission": "deployments:read", "raises": (DeploymentNotFound, RevisionNotFound)}


@routes.get("/v2/deployments/{deployment_id}/revisions/{revision_id}/logs", **_OF_REVISION)
async def get_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, query: LogQuery) -> LogPage:
    """Read a revision's build or deploy log."""
    return await read_revision_logs(scope_of(ctx), deployment_id, revision_id, query.type, query)


@routes.post("/v1/projects/{project_id}/revisions/{revision_id}/build_logs", **_OF_REVISION)
async def read_build_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's build log."""
    return await read_revision_logs(scope_of(ctx), project_id, revision_id, "build", body)


@routes.post("/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs", **_OF_REVISION)
async def read_deploy_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's deploy log."""
    return await read_revision_logs(scope_of(ctx), project_id, revision_id, "deploy", body)


@routes.post("/v1/projects/{project_id}/deploy_logs", permission="deployments:read", raises=(DeploymentNotFound,))
async def read_all_deploy_logs(ctx: Context, project_id: UUID, body: LogFilter) -> LogPage:
    """Read the deploy logs of all revisions of a deployment."""
    return await read_deployment_logs(scope_of(ctx), project_id, "deploy", body)
