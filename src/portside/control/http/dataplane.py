"""The routes that listeners work with; internal, and the only way in which a data plane talks to the control plane."""

from uuid import UUID

from portside.control import deployments, listeners, revisions
from portside.control.desired import wait_for_desired
from portside.control.errors import (
    BeingDeleted,
    DeploymentNotFound,
    IllegalMove,
    ListenerNotFound,
    NotBeingDeleted,
    OtherCompute,
    RevisionNotFound,
)
from portside.control.http.scoping import scope_of
from portside.control.logs import add_logs
from portside.control.metrics import forget_metrics
from portside.control.scope import PlatformAddress
from portside.control.types.dataplane import (
    Connect,
    Connected,
    DeploymentReport,
    Desired,
    DesiredQuery,
    RevisionReport,
)
from portside.control.types.logs import LogBatch
from portside.kernel.http.routes import Context, Routes

routes = Routes("dataplane")
PERMISSION = "listeners:work"
_REVISION = "/internal/deployments/{deployment_id}/revisions/{revision_id}"


@routes.post("/internal/listeners/connect", permission=PERMISSION, raises=(OtherCompute,))
async def connect_listener(ctx: Context, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id."""
    return await listeners.connect(scope_of(ctx), body)


@routes.get("/internal/listeners/{listener_id}/desired", permission=PERMISSION, raises=(ListenerNotFound,))
async def get_desired(ctx: Context, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return what the listener has to bring about, once it is not what the listener knows."""
    return await wait_for_desired(scope_of(ctx), ctx.get(PlatformAddress), listener_id, query)


@routes.put(
    "/internal/deployments/{deployment_id}/status",
    permission=PERMISSION,
    status=204,
    raises=(DeploymentNotFound, BeingDeleted),
)
async def report_deployment(ctx: Context, deployment_id: UUID, body: DeploymentReport) -> None:
    """Say how a deployment fares."""
    await deployments.report_deployment(scope_of(ctx), deployment_id, body)


@routes.put(
    f"{_REVISION}/status",
    permission=PERMISSION,
    status=204,
    raises=(DeploymentNotFound, RevisionNotFound, IllegalMove),
)
async def report_revision(ctx: Context, deployment_id: UUID, revision_id: UUID, body: RevisionReport) -> None:
    """Say how far a revision has come."""
    await revisions.report_revision(scope_of(ctx), deployment_id, revision_id, body)


@routes.post(f"{_REVISION}/logs", permission=PERMISSION, status=204, raises=(RevisionNotFound,))
async def add_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, body: LogBatch) -> None:
    """Add entries to a revision's log."""
    await add_logs(scope_of(ctx), deployment_id, revision_id, body)


@routes.delete(
    "/internal/deployments/{deployment_id}",
    permission=PERMISSION,
    status=204,
    raises=(DeploymentNotFound, NotBeingDeleted),
)
async def drop_deployment(ctx: Context, deployment_id: UUID) -> None:
    """Say that a deployment's compute is gone; its rows go too."""
    await deployments.drop_deployment(scope_of(ctx), deployment_id)
    forget_metrics(deployment_id)
