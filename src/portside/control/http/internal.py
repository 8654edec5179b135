"""The routes that listeners call; a data plane talks to the control plane only through them."""

from uuid import UUID

from portside.audit.actions import READ_SECRET
from portside.control import desired_state, listeners, revisions
from portside.control.errors import (
    BeingDeleted,
    DeploymentNotFound,
    IllegalTransition,
    ListenerNotFound,
    NotBeingDeleted,
    OtherCompute,
    RevisionNotFound,
)
from portside.control.operations import remove_gauges
from portside.control.revision_logs import add_logs
from portside.control.services import Context, Routes, get_scope
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.listener_api import (
    Connect,
    Connected,
    DeploymentReport,
    Desired,
    DesiredQuery,
    DesiredRevision,
    LogBatch,
    RevisionReport,
)

routes = Routes("dataplane")
REPORT = Unrecorded("a report of a listener about its compute")
_LISTENER_PERMISSION = "listeners:work"
_INTERNAL_REVISION = "/internal/deployments/{deployment_id}/revisions/{revision_id}"


@routes.post(
    "/internal/listeners/connect",
    permission=_LISTENER_PERMISSION,
    raises=(OtherCompute,),
    works_on_full_disk=True,
    audit=REPORT,
)
async def connect_listener(ctx: Context, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id."""
    return await listeners.connect_listener(get_scope(ctx), body)


@routes.get(
    "/internal/listeners/{listener_id}/desired",
    permission=_LISTENER_PERMISSION,
    raises=(ListenerNotFound,),
    audit=READ_SECRET,
)
async def get_desired_state(ctx: Context, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return the desired state as soon as it differs from the listener's."""
    return await desired_state.wait_for_desired(get_scope(ctx), ctx.services.address, listener_id, query)


@routes.get(_INTERNAL_REVISION, permission=_LISTENER_PERMISSION, raises=(RevisionNotFound,))
async def get_desired_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> DesiredRevision:
    """Return a revision as a listener builds it, also one that was replaced."""
    return await desired_state.get_desired_revision(get_scope(ctx), deployment_id, revision_id)


@routes.put(
    "/internal/deployments/{deployment_id}/status",
    permission=_LISTENER_PERMISSION,
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound, BeingDeleted),
    audit=REPORT,
)
async def report_deployment(ctx: Context, deployment_id: UUID, body: DeploymentReport) -> None:
    """Report the status of a deployment."""
    await desired_state.report_deployment(get_scope(ctx), deployment_id, body)


@routes.put(
    f"{_INTERNAL_REVISION}/status",
    permission=_LISTENER_PERMISSION,
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound, RevisionNotFound, IllegalTransition),
    audit=REPORT,
)
async def report_revision(ctx: Context, deployment_id: UUID, revision_id: UUID, body: RevisionReport) -> None:
    """Report the status of a revision."""
    await revisions.report_revision(get_scope(ctx), deployment_id, revision_id, body)


@routes.post(
    f"{_INTERNAL_REVISION}/logs",
    permission=_LISTENER_PERMISSION,
    status=204,
    raises=(RevisionNotFound,),
    audit=REPORT,
)
async def add_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, body: LogBatch) -> None:
    """Add entries to a revision's log."""
    await add_logs(get_scope(ctx), deployment_id, revision_id, body)


@routes.delete(
    "/internal/deployments/{deployment_id}",
    permission=_LISTENER_PERMISSION,
    status=204,
    raises=(DeploymentNotFound, NotBeingDeleted),
    audit=Action("deployment.destroy"),
)
async def drop_deployment(ctx: Context, deployment_id: UUID) -> None:
    """Report that a deployment's compute is gone; this deletes its rows."""
    await desired_state.drop_deployment(get_scope(ctx), deployment_id)
    remove_gauges(deployment_id)
