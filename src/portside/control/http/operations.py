"""The routes of what runs: limits on replicas, and metrics."""

from uuid import UUID

from portside.control import operations
from portside.control.errors import BadCombination, BeingDeleted, DeploymentNotFound
from portside.control.http.internal import REPORT
from portside.control.services import Context, Routes, get_scope
from portside.control.types import DeploymentMetrics
from portside.kernel.http.audit_actions import Action
from portside.listener_api import MetricsReport, Scale

routes = Routes("operations")


@routes.get("/v2/deployments/{deployment_id}/scale", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment_scale(ctx: Context, deployment_id: UUID) -> Scale:
    """Return a deployment's limits on replicas, as far as they were set."""
    return await operations.get_scale(get_scope(ctx), deployment_id)


@routes.put(
    "/v2/deployments/{deployment_id}/scale",
    permission="deployments:update",
    works_on_full_disk=True,
    raises=(DeploymentNotFound, BeingDeleted, BadCombination),
    audit=Action("deployment.scale"),
)
async def update_deployment_scale(ctx: Context, deployment_id: UUID, body: Scale) -> Scale:
    """Set a deployment's limits on replicas, at once and without a new revision."""
    return await operations.update_scale(get_scope(ctx), deployment_id, body)


@routes.get("/v2/deployments/{deployment_id}/metrics", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment_metrics(ctx: Context, deployment_id: UUID) -> DeploymentMetrics:
    """Return the metrics that the listener reported last."""
    return await operations.get_metrics(get_scope(ctx), deployment_id)


@routes.put(
    "/internal/deployments/{deployment_id}/metrics",
    permission="listeners:work",
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound,),
    audit=REPORT,
)
async def put_deployment_metrics(ctx: Context, deployment_id: UUID, body: MetricsReport) -> None:
    """Report the metrics of a deployment."""
    await operations.store_metrics(get_scope(ctx), deployment_id, body)
