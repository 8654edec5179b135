"""The routes of the revisions of a deployment."""

from uuid import UUID

from portside.control import deployments, revisions
from portside.control.errors import (
    BadCombination,
    BeingDeleted,
    DeploymentNotFound,
    IllegalTransition,
    Immutable,
    NeverBuilt,
    RedeployRefused,
    RevisionNotFound,
    SourceNotAvailable,
)
from portside.control.services import Context, Routes, get_scope
from portside.control.types import Deployment, DeploymentPatch, Revision, RevisionHistory, RevisionList, RevisionQuery
from portside.kernel.http.audit_actions import Action

routes = Routes("deployments")
_REVISION = "/v2/deployments/{deployment_id}/revisions/{revision_id}"


@routes.get("/v2/deployments/{deployment_id}/revisions", permission="deployments:read", raises=(DeploymentNotFound,))
async def list_revisions(ctx: Context, deployment_id: UUID, query: RevisionQuery) -> RevisionList:
    """List a deployment's revisions, newest first."""
    return await revisions.list_revisions(get_scope(ctx), deployment_id, query)


@routes.post(
    "/v2/deployments/{deployment_id}/revisions",
    permission="deployments:update",
    status=201,
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
    audit=Action("revision.create", id_query="insert_revision"),
)
async def create_revision(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment and create a revision, even if the change alone would create none."""
    return await deployments.create_revision(get_scope(ctx), deployment_id, body)


@routes.get(
    _REVISION,
    permission="deployments:read",
    raises=(DeploymentNotFound, RevisionNotFound),
)
async def get_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return a revision; poll its status until it is deployed or failed."""
    return await revisions.get_revision(get_scope(ctx), deployment_id, revision_id)


@routes.get(f"{_REVISION}/history", permission="deployments:read", raises=(DeploymentNotFound, RevisionNotFound))
async def get_revision_history(ctx: Context, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return the status history of a revision, with reasons and times."""
    return await revisions.get_history(get_scope(ctx), deployment_id, revision_id)


@routes.post(
    f"{_REVISION}/redeploy",
    permission="deployments:update",
    raises=(RedeployRefused, NeverBuilt, DeploymentNotFound, RevisionNotFound),
    audit=Action("revision.redeploy", related_id_query="insert_revision"),
)
async def redeploy_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Deployment:
    """Deploy a revision again from its build; this creates a new revision."""
    return await deployments.redeploy_revision(get_scope(ctx), deployment_id, revision_id)


@routes.post(
    f"{_REVISION}/interrupt",
    permission="deployments:update",
    works_on_full_disk=True,
    raises=(DeploymentNotFound, RevisionNotFound, IllegalTransition),
    audit=Action("revision.interrupt"),
)
async def interrupt_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision in progress, or take it out of the queue."""
    return await revisions.interrupt_revision(get_scope(ctx), deployment_id, revision_id)
