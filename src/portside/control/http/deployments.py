"""The routes of deployments."""

from uuid import UUID

from portside.audit.actions import READ_SECRET_IF_SHOWN
from portside.control import deployments
from portside.control.deployments import refuse_push_token
from portside.control.errors import (
    BadCombination,
    BeingDeleted,
    DeploymentNotFound,
    Immutable,
    NameTaken,
    NoRegistry,
    SourceNotAvailable,
)
from portside.control.service_keys import rotate_key
from portside.control.services import Context, Routes, get_scope
from portside.control.types import (
    DeletedDeployments,
    DeleteManyQuery,
    DeleteQuery,
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentPatch,
    DeploymentQuery,
    PushTokenRequest,
)
from portside.kernel.http.audit_actions import Action

routes = Routes("deployments")
_NO_TOKEN_OPTIONS = PushTokenRequest()


@routes.get("/v2/deployments", permission="deployments:read", audit=READ_SECRET_IF_SHOWN)
async def list_deployments(ctx: Context, query: DeploymentQuery) -> DeploymentList:
    """List deployments, newest first."""
    return await deployments.list_deployments(get_scope(ctx), query)


@routes.post(
    "/v2/deployments",
    permission="deployments:create",
    status=201,
    raises=(BadCombination, SourceNotAvailable, NameTaken),
    audit=Action("deployment.create", id_query="insert_deployment", related_id_query="insert_revision"),
)
async def create_deployment(ctx: Context, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision."""
    return await deployments.create_deployment(get_scope(ctx), body)


@routes.get(
    "/v2/deployments/{deployment_id}",
    permission="deployments:read",
    raises=(DeploymentNotFound,),
    audit=READ_SECRET_IF_SHOWN,
)
async def get_deployment(ctx: Context, deployment_id: UUID) -> Deployment:
    """Return a deployment."""
    return await deployments.get_deployment(get_scope(ctx), deployment_id)


@routes.patch(
    "/v2/deployments/{deployment_id}",
    permission="deployments:update",
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
    audit=Action("deployment.update", related_id_query="insert_revision"),
)
async def update_deployment(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; some changes create a revision."""
    return await deployments.update_deployment(get_scope(ctx), deployment_id, body)


@routes.delete(
    "/v2/deployments/{deployment_id}",
    permission="deployments:delete",
    status=204,
    raises=(DeploymentNotFound,),
    audit=Action("deployment.delete"),
)
async def delete_deployment(ctx: Context, deployment_id: UUID, query: DeleteQuery) -> None:
    """Delete a deployment; it can still be read until its compute is gone."""
    await deployments.delete_deployment(
        get_scope(ctx), deployment_id, delete_tracing_project=query.delete_tracing_project
    )


@routes.delete(
    "/v2/deployments",
    operation="deployments_bulk_delete",
    permission="deployments:delete",
    raises=(DeploymentNotFound,),
    audit=Action("deployment.delete", id_fields=("deployment_ids",)),
)
async def delete_deployments(ctx: Context, query: DeleteManyQuery) -> DeletedDeployments:
    """Delete several deployments, all of them or none."""
    return await deployments.delete_deployments(get_scope(ctx), query.deployment_ids)


@routes.post(
    "/v2/deployments/{deployment_id}/service-key/rotate",
    permission="deployments:update",
    status=204,
    raises=(DeploymentNotFound, BeingDeleted),
    audit=Action("deployment.rotate_key"),
)
async def rotate_deployment_key(ctx: Context, deployment_id: UUID) -> None:
    """Give a deployment a new service key; the old one works for another hour."""
    await rotate_key(get_scope(ctx), deployment_id)


@routes.post(
    "/v2/deployments/{deployment_id}/push-token",
    permission="deployments:update",
    raises=(DeploymentNotFound, BadCombination, NoRegistry),
    audit=Action("push_token.create"),
)
async def create_push_token(ctx: Context, deployment_id: UUID, body: PushTokenRequest = _NO_TOKEN_OPTIONS) -> None:  # noqa: ARG001
    """Refuse a token for pushing images: this platform has no registry."""
    await refuse_push_token(get_scope(ctx), deployment_id)
