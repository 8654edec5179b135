"""The routes of what an operator sets and sees of a deployment; our own, beside the contract."""

from uuid import UUID

from portside.control import metrics, scaling
from portside.control.errors import BadCombination, BeingDeleted, DeploymentNotFound
from portside.control.http.scoping import scope_of
from portside.control.types.operations import DeploymentMetrics, Measures, Scale
from portside.kernel.http.routes import Context, Routes

routes = Routes("operations")


@routes.get("/v2/deployments/{deployment_id}/scale", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_scale(ctx: Context, deployment_id: UUID) -> Scale:
    """Return how many replicas a deployment may have, where that was set."""
    return await scaling.get_scale(scope_of(ctx), deployment_id)


@routes.put(
    "/v2/deployments/{deployment_id}/scale",
    permission="deployments:update",
    raises=(DeploymentNotFound, BeingDeleted, BadCombination),
)
async def set_scale(ctx: Context, deployment_id: UUID, body: Scale) -> Scale:
    """Set how many replicas a deployment may have, from now on and without a new revision."""
    return await scaling.set_scale(scope_of(ctx), deployment_id, body)


@routes.get("/v2/deployments/{deployment_id}/metrics", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment_metrics(ctx: Context, deployment_id: UUID) -> DeploymentMetrics:
    """Return what a deployment uses and has to do, as its listener told last."""
    return await metrics.get_metrics(scope_of(ctx), deployment_id)


@routes.put(
    "/internal/deployments/{deployment_id}/metrics",
    permission="listeners:work",
    status=204,
    raises=(DeploymentNotFound,),
)
async def put_deployment_metrics(ctx: Context, deployment_id: UUID, body: Measures) -> None:
    """Say what a deployment uses."""
    await metrics.put_metrics(scope_of(ctx), deployment_id, body)
