"""The routes of deployments and their revisions (contract: section 2)."""

from uuid import UUID

from portside.control import deployments, revisions
from portside.control.errors import (
    BadCombination,
    BeingDeleted,
    DeploymentLeaving,
    DeploymentNotFound,
    IllegalMove,
    Immutable,
    NameTaken,
    NeverBuilt,
    RevisionNotFound,
    SourceNotAvailable,
)
from portside.control.http.scoping import scope_of
from portside.control.push_tokens import NoRegistry, PushTokenRequest, refuse_push_token
from portside.control.types.deployments import (
    DeletedDeployments,
    DeleteManyQuery,
    DeleteQuery,
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentPatch,
    DeploymentQuery,
    Revision,
    RevisionHistory,
    RevisionList,
    RevisionQuery,
)
from portside.kernel.http.routes import Context, Routes

routes = Routes("deployments")
NO_WISHES = PushTokenRequest()
_REVISION = "/v2/deployments/{deployment_id}/revisions/{revision_id}"


@routes.get("/v2/deployments", permission="deployments:read")
async def list_deployments(ctx: Context, query: DeploymentQuery) -> DeploymentList:
    """List deployments, newest first."""
    return await deployments.list_deployments(scope_of(ctx), query)


@routes.post(
    "/v2/deployments",
    permission="deployments:create",
    status=201,
    raises=(BadCombination, SourceNotAvailable, NameTaken),
)
async def create_deployment(ctx: Context, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision."""
    return await deployments.create_deployment(scope_of(ctx), body)


@routes.delete("/v2/deployments", permission="deployments:delete", raises=(DeploymentNotFound,))
async def delete_deployments(ctx: Context, query: DeleteManyQuery) -> DeletedDeployments:
    """Delete several deployments, all of them or none."""
    return await deployments.delete_deployments(scope_of(ctx), query.deployment_ids)


@routes.get("/v2/deployments/{deployment_id}", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment(ctx: Context, deployment_id: UUID) -> Deployment:
    """Return a deployment."""
    return await deployments.get_deployment(scope_of(ctx), deployment_id)


@routes.patch(
    "/v2/deployments/{deployment_id}",
    permission="deployments:update",
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
)
async def patch_deployment(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; some changes make a new revision."""
    return await deployments.patch_deployment(scope_of(ctx), deployment_id, body)


@routes.delete(
    "/v2/deployments/{deployment_id}", permission="deployments:delete", status=204, raises=(DeploymentNotFound,)
)
async def delete_deployment(ctx: Context, deployment_id: UUID, query: DeleteQuery) -> None:
    """Delete a deployment; it can still be read until its compute is gone."""
    await deployments.delete_deployment(
        scope_of(ctx), deployment_id, delete_tracing_project=query.delete_tracing_project
    )


@routes.get("/v2/deployments/{deployment_id}/revisions", permission="deployments:read", raises=(DeploymentNotFound,))
async def list_revisions(ctx: Context, deployment_id: UUID, query: RevisionQuery) -> RevisionList:
    """List a deployment's revisions, newest first."""
    return await revisions.list_revisions(scope_of(ctx), deployment_id, query)


@routes.post(
    "/v2/deployments/{deployment_id}/revisions",
    permission="deployments:update",
    status=201,
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
)
async def create_revision(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment and make a revision, also where the change alone would make none."""
    return await deployments.add_revision(scope_of(ctx), deployment_id, body)


@routes.get(
    _REVISION,
    permission="deployments:read",
    raises=(DeploymentNotFound, RevisionNotFound),
)
async def get_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return a revision; poll its status until it is deployed or failed."""
    return await revisions.get_revision(scope_of(ctx), deployment_id, revision_id)


@routes.get(f"{_REVISION}/history", permission="deployments:read", raises=(DeploymentNotFound, RevisionNotFound))
async def get_history(ctx: Context, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return every state that a revision was in, with reasons and times."""
    return await revisions.show_history(scope_of(ctx), deployment_id, revision_id)


@routes.post(
    f"{_REVISION}/redeploy",
    permission="deployments:update",
    raises=(DeploymentLeaving, NeverBuilt, DeploymentNotFound, RevisionNotFound),
)
async def redeploy_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Deployment:
    """Deploy a revision again, from its build; this makes a new revision."""
    return await deployments.redeploy(scope_of(ctx), deployment_id, revision_id)


@routes.post(
    f"{_REVISION}/interrupt",
    permission="deployments:update",
    raises=(DeploymentNotFound, RevisionNotFound, IllegalMove),
)
async def interrupt_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision that is on its way, or take it out of the queue."""
    return await revisions.interrupt_revision(scope_of(ctx), deployment_id, revision_id)


@routes.post(
    "/v2/deployments/{deployment_id}/push-token",
    permission="deployments:update",
    raises=(DeploymentNotFound, BadCombination, NoRegistry),
)
async def make_push_token(ctx: Context, deployment_id: UUID, body: PushTokenRequest = NO_WISHES) -> None:  # noqa: ARG001
    """Say why no token can be had to push an image with."""
    await refuse_push_token(scope_of(ctx), deployment_id)
