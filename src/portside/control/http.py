"""The HTTP routes of the control plane: deployments, logs, listeners, git integrations, and the API of listeners.

The routes below `/internal` are for listeners; a data plane talks to the control plane only through them. Logs have two
forms that clients know: the older one calls a deployment a project and takes its filter in a body.
"""

from uuid import UUID

import msgspec
from starlette.responses import FileResponse

from portside.audit.actions import READ_SECRET, READ_SECRET_IF_SHOWN
from portside.control import deployments, desired_state, integrations, listeners, operations, pushes, revisions
from portside.control.agent_access import CallRefused, identify_caller, issue_token, list_public_keys
from portside.control.archive_store import MAX_ARCHIVE_BYTES, NotGzip, UploadUnderWay
from portside.control.archives import (
    ArchiveNotFound,
    UploadNotExpected,
    UploadTooSlow,
    create_upload_address,
    find_archive,
    receive_archive,
)
from portside.control.deployments import refuse_push_token
from portside.control.errors import (
    BadCombination,
    BeingDeleted,
    DeploymentNotFound,
    IllegalTransition,
    Immutable,
    ListenerExists,
    ListenerInUse,
    ListenerNotFound,
    NameTaken,
    NeverBuilt,
    NoRegistry,
    NotBeingDeleted,
    OtherCompute,
    RedeployRefused,
    RevisionNotFound,
    SourceNotAvailable,
)
from portside.control.git_hosts import TokenRefused
from portside.control.integrations import IntegrationNameTaken, IntegrationNotFound, IntegrationUsed
from portside.control.operations import remove_gauges
from portside.control.pushes import MAX_PUSH_BYTES, PushNotSigned
from portside.control.revision_logs import add_logs, read_deployment_logs, read_revision_logs
from portside.control.scope import ScopeFactory
from portside.control.service_keys import rotate_key
from portside.control.services import Context, Routes, get_scope
from portside.control.types import (
    DeletedDeployments,
    DeleteManyQuery,
    DeleteQuery,
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentMetrics,
    DeploymentPatch,
    DeploymentQuery,
    GitRepository,
    Integration,
    IntegrationCreate,
    IntegrationPatch,
    Limit,
    Listener,
    ListenerCreate,
    ListenerList,
    ListenerPatch,
    LogFilter,
    LogPage,
    LogQuery,
    Offset,
    PushResponse,
    PushTokenRequest,
    PushWebhook,
    Revision,
    RevisionHistory,
    RevisionList,
    RevisionQuery,
    UploadAddress,
    UploadQuery,
    UploadRequest,
)
from portside.identity.sessions import NotAUser
from portside.identity.types import Identity, LoggedIn, WorkspaceRequired
from portside.kernel.caller_tokens import PublicKeys
from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.kernel.http.headers import get_base_url
from portside.kernel.http.routes import JSON_OBJECT, Route, RouteOptions
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, HostUnreachable
from portside.listener_api import (
    Connect,
    Connected,
    DeploymentReport,
    Desired,
    DesiredQuery,
    DesiredRevision,
    LogBatch,
    MetricsReport,
    RevisionReport,
    Scale,
)

_deployments = Routes("deployments")
_NO_TOKEN_OPTIONS = PushTokenRequest()
_REVISION = "/v2/deployments/{deployment_id}/revisions/{revision_id}"

_archives = Routes("archives")
_NO_UPLOAD_OPTIONS = UploadRequest()

_logs = Routes("logs")
_READS_REVISION_LOG: RouteOptions = {
    "permission": "deployments:read",
    "read_only": True,
    "raises": (DeploymentNotFound, RevisionNotFound),
}

_operations = Routes("operations")
_placement = Routes("placement")

_integrations = Routes("integrations")
_LISTS_INTEGRATIONS: RouteOptions = {"permission": "deployments:read"}
_LISTS_REPOSITORIES: RouteOptions = {
    "permission": "deployments:read",
    "raises": (IntegrationNotFound, TokenRefused, AddressNotAllowed, HostUnknown, HostUnreachable),
}
_INTEGRATION = "/v1/integrations/git_hosting/{integration_id}"

_dataplane = Routes("dataplane")
_REPORT = Unrecorded("a report of a listener about its compute")
_LISTENER_PERMISSION = "listeners:work"
_INTERNAL_REVISION = "/internal/deployments/{deployment_id}/revisions/{revision_id}"


class PageQuery(msgspec.Struct):
    """A page of a list."""

    limit: Limit = 20
    offset: Offset = 0


@_deployments.get("/v2/deployments", permission="deployments:read", audit=READ_SECRET_IF_SHOWN)
async def list_deployments(ctx: Context, query: DeploymentQuery) -> DeploymentList:
    """List deployments, newest first."""
    return await deployments.list_deployments(get_scope(ctx), query)


@_deployments.post(
    "/v2/deployments",
    permission="deployments:create",
    status=201,
    raises=(BadCombination, SourceNotAvailable, NameTaken),
    audit=Action("deployment.create", id_query="insert_deployment", related_id_query="insert_revision"),
)
async def create_deployment(ctx: Context, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision."""
    return await deployments.create_deployment(get_scope(ctx), body)


@_deployments.get(
    "/v2/deployments/{deployment_id}",
    permission="deployments:read",
    raises=(DeploymentNotFound,),
    audit=READ_SECRET_IF_SHOWN,
)
async def get_deployment(ctx: Context, deployment_id: UUID) -> Deployment:
    """Return a deployment."""
    return await deployments.get_deployment(get_scope(ctx), deployment_id)


@_deployments.patch(
    "/v2/deployments/{deployment_id}",
    permission="deployments:update",
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
    audit=Action("deployment.update", related_id_query="insert_revision"),
)
async def update_deployment(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; some changes create a revision."""
    return await deployments.update_deployment(get_scope(ctx), deployment_id, body)


@_deployments.delete(
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


@_deployments.delete(
    "/v2/deployments",
    operation="deployments_bulk_delete",
    permission="deployments:delete",
    raises=(DeploymentNotFound,),
    audit=Action("deployment.delete", id_fields=("deployment_ids",)),
)
async def delete_deployments(ctx: Context, query: DeleteManyQuery) -> DeletedDeployments:
    """Delete several deployments, all of them or none."""
    return await deployments.delete_deployments(get_scope(ctx), query.deployment_ids)


@_deployments.post(
    "/v2/deployments/{deployment_id}/service-key/rotate",
    permission="deployments:update",
    status=204,
    raises=(DeploymentNotFound, BeingDeleted),
    audit=Action("deployment.rotate_key"),
)
async def rotate_deployment_key(ctx: Context, deployment_id: UUID) -> None:
    """Give a deployment a new service key; the old one works for another hour."""
    await rotate_key(get_scope(ctx), deployment_id)


@_deployments.get("/v2/deployments/{deployment_id}/auth", raises=(DeploymentNotFound, CallRefused, WorkspaceRequired))
async def get_deployment_caller(ctx: Context, deployment_id: UUID) -> Identity:
    """Return the identity of the key or login if it may call the deployment's agent; agent servers ask this."""
    return await identify_caller(get_scope(ctx), deployment_id)


@_deployments.post(
    "/v2/deployments/{deployment_id}/token",
    raises=(DeploymentNotFound, CallRefused, NotAUser, WorkspaceRequired),
    audit=Unrecorded("proves the caller's own session to an agent, and changes nothing"),
)
async def create_agent_token(ctx: Context, deployment_id: UUID) -> LoggedIn:
    """Return a token that lets the caller, a member, call the deployment's agent for a minute, and nothing else."""
    return await issue_token(get_scope(ctx), deployment_id)


@_deployments.get("/v2/deployments/{deployment_id}/jwks.json", public=True)
async def get_public_keys(ctx: Context, deployment_id: UUID) -> PublicKeys:
    """Return the public keys that verify tokens for the deployment's agent."""
    return list_public_keys(ctx.services.box, deployment_id)


@_deployments.get(
    "/v2/deployments/{deployment_id}/revisions", permission="deployments:read", raises=(DeploymentNotFound,)
)
async def list_revisions(ctx: Context, deployment_id: UUID, query: RevisionQuery) -> RevisionList:
    """List a deployment's revisions, newest first."""
    return await revisions.list_revisions(get_scope(ctx), deployment_id, query)


@_deployments.post(
    "/v2/deployments/{deployment_id}/revisions",
    permission="deployments:update",
    status=201,
    raises=(BadCombination, SourceNotAvailable, Immutable, DeploymentNotFound, BeingDeleted),
    audit=Action("revision.create", id_query="insert_revision"),
)
async def create_revision(ctx: Context, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment and create a revision, even if the change alone would create none."""
    return await deployments.create_revision(get_scope(ctx), deployment_id, body)


@_deployments.get(
    _REVISION,
    permission="deployments:read",
    raises=(DeploymentNotFound, RevisionNotFound),
)
async def get_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return a revision; poll its status until it is deployed or failed."""
    return await revisions.get_revision(get_scope(ctx), deployment_id, revision_id)


@_deployments.get(f"{_REVISION}/history", permission="deployments:read", raises=(DeploymentNotFound, RevisionNotFound))
async def get_revision_history(ctx: Context, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return the status history of a revision, with reasons and times."""
    return await revisions.get_history(get_scope(ctx), deployment_id, revision_id)


@_deployments.post(
    f"{_REVISION}/redeploy",
    permission="deployments:update",
    raises=(RedeployRefused, NeverBuilt, DeploymentNotFound, RevisionNotFound),
    audit=Action("revision.redeploy", related_id_query="insert_revision"),
)
async def redeploy_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Deployment:
    """Deploy a revision again from its build; this creates a new revision."""
    return await deployments.redeploy_revision(get_scope(ctx), deployment_id, revision_id)


@_deployments.post(
    f"{_REVISION}/interrupt",
    permission="deployments:update",
    works_on_full_disk=True,
    raises=(DeploymentNotFound, RevisionNotFound, IllegalTransition),
    audit=Action("revision.interrupt"),
)
async def interrupt_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision in progress, or take it out of the queue."""
    return await revisions.interrupt_revision(get_scope(ctx), deployment_id, revision_id)


@_deployments.post(
    "/v2/deployments/{deployment_id}/push-token",
    permission="deployments:update",
    raises=(DeploymentNotFound, BadCombination, NoRegistry),
    audit=Action("push_token.create"),
)
async def create_push_token(ctx: Context, deployment_id: UUID, body: PushTokenRequest = _NO_TOKEN_OPTIONS) -> None:  # noqa: ARG001
    """Refuse a token for pushing images: this platform has no registry."""
    await refuse_push_token(get_scope(ctx), deployment_id)


@_archives.post(
    "/v2/deployments/{deployment_id}/upload-url",
    permission="deployments:update",
    raises=(DeploymentNotFound, BeingDeleted),
    audit=Action("upload_url.create"),
)
async def create_upload_url(
    ctx: Context, deployment_id: UUID, body: UploadRequest = _NO_UPLOAD_OPTIONS
) -> UploadAddress:
    """Return an upload address for the archive of a deployment's next revision."""
    return await create_upload_address(get_scope(ctx), deployment_id, get_base_url(ctx.request), body)


@_archives.put(
    "/v2/uploads/{archive_id}",
    public=True,
    status=204,
    raises=(UploadNotExpected, UploadUnderWay, UploadTooSlow, NotGzip, BodyTooLarge),
    max_body_bytes=MAX_ARCHIVE_BYTES,
    audit=Action("archive.upload"),
)
async def upload_archive(ctx: Context, archive_id: UUID, query: UploadQuery) -> None:
    """Upload an archive to an address from `upload-url`; its token replaces an API key."""
    await receive_archive(ctx.db, ctx.services.archives, archive_id, token=query.token, chunks=ctx.request.stream())


@_archives.get(
    "/internal/deployments/{deployment_id}/revisions/{revision_id}/archive",
    permission="listeners:work",
    raises=(DeploymentNotFound, RevisionNotFound, ArchiveNotFound),
    media_type="application/gzip",
)
async def get_archive(ctx: Context, deployment_id: UUID, revision_id: UUID) -> FileResponse:
    """Return the archive of a revision."""
    file = await find_archive(get_scope(ctx), ctx.services.archives, deployment_id, revision_id)
    return FileResponse(file, media_type="application/gzip")


@_logs.get("/v2/deployments/{deployment_id}/revisions/{revision_id}/logs", **_READS_REVISION_LOG)
async def get_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, query: LogQuery) -> LogPage:
    """Read a revision's build or deploy log."""
    return await read_revision_logs(get_scope(ctx), deployment_id, revision_id, query, kind=query.type)


@_logs.post("/v1/projects/{project_id}/revisions/{revision_id}/build_logs", **_READS_REVISION_LOG)
async def read_build_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's build log."""
    return await read_revision_logs(get_scope(ctx), project_id, revision_id, body, kind="build")


@_logs.post("/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs", **_READS_REVISION_LOG)
async def read_deploy_logs(ctx: Context, project_id: UUID, revision_id: UUID, body: LogFilter) -> LogPage:
    """Read a revision's deploy log."""
    return await read_revision_logs(get_scope(ctx), project_id, revision_id, body, kind="deploy")


@_logs.post(
    "/v1/projects/{project_id}/deploy_logs", permission="deployments:read", read_only=True, raises=(DeploymentNotFound,)
)
async def read_all_deploy_logs(ctx: Context, project_id: UUID, body: LogFilter) -> LogPage:
    """Read the deploy logs of all revisions of a deployment."""
    return await read_deployment_logs(get_scope(ctx), project_id, body, kind="deploy")


@_operations.get("/v2/deployments/{deployment_id}/scale", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment_scale(ctx: Context, deployment_id: UUID) -> Scale:
    """Return a deployment's limits on replicas, as far as they were set."""
    return await operations.get_scale(get_scope(ctx), deployment_id)


@_operations.put(
    "/v2/deployments/{deployment_id}/scale",
    permission="deployments:update",
    works_on_full_disk=True,
    raises=(DeploymentNotFound, BeingDeleted, BadCombination),
    audit=Action("deployment.scale"),
)
async def update_deployment_scale(ctx: Context, deployment_id: UUID, body: Scale) -> Scale:
    """Set a deployment's limits on replicas, at once and without a new revision."""
    return await operations.update_scale(get_scope(ctx), deployment_id, body)


@_operations.get("/v2/deployments/{deployment_id}/metrics", permission="deployments:read", raises=(DeploymentNotFound,))
async def get_deployment_metrics(ctx: Context, deployment_id: UUID) -> DeploymentMetrics:
    """Return the metrics that the listener reported last."""
    return await operations.get_metrics(get_scope(ctx), deployment_id)


@_operations.put(
    "/internal/deployments/{deployment_id}/metrics",
    permission="listeners:work",
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound,),
    audit=_REPORT,
)
async def put_deployment_metrics(ctx: Context, deployment_id: UUID, body: MetricsReport) -> None:
    """Report the metrics of a deployment."""
    await operations.store_metrics(get_scope(ctx), deployment_id, body)


@_placement.get("/v2/listeners", permission="deployments:read")
async def list_listeners(ctx: Context, query: PageQuery) -> ListenerList:
    """List the workspace's listeners."""
    return await listeners.list_listeners(get_scope(ctx), query.limit, query.offset)


@_placement.post(
    "/v2/listeners",
    permission="deployments:create",
    status=201,
    raises=(ListenerExists,),
    audit=Action("listener.create", id_query="insert_listener"),
)
async def create_listener(ctx: Context, body: ListenerCreate) -> Listener:
    """Create a listener for a cluster; it connects later under its compute id."""
    return await listeners.create_listener(get_scope(ctx), body)


@_placement.get("/v2/listeners/{listener_id}", permission="deployments:read", raises=(ListenerNotFound,))
async def get_listener(ctx: Context, listener_id: UUID) -> Listener:
    """Return a listener."""
    return await listeners.get_listener(get_scope(ctx), listener_id)


@_placement.patch(
    "/v2/listeners/{listener_id}",
    permission="deployments:update",
    raises=(ListenerNotFound,),
    audit=Action("listener.update"),
)
async def update_listener(ctx: Context, listener_id: UUID, body: ListenerPatch) -> Listener:
    """Change a listener's version or namespaces."""
    return await listeners.update_listener(get_scope(ctx), listener_id, body)


@_placement.delete(
    "/v2/listeners/{listener_id}",
    permission="deployments:delete",
    status=204,
    raises=(ListenerNotFound, ListenerInUse),
    audit=Action("listener.delete"),
)
async def delete_listener(ctx: Context, listener_id: UUID) -> None:
    """Delete a listener that has no deployments."""
    await listeners.delete_listener(get_scope(ctx), listener_id)


@_integrations.get("/v1/integrations/git_hosting/install", **_LISTS_INTEGRATIONS)
async def list_integrations(ctx: Context) -> list[Integration]:
    """List the git integrations that a deployment may name."""
    return await integrations.list_integrations(get_scope(ctx))


@_integrations.get("/v1/integrations/github/install", operation="github_integrations_list", **_LISTS_INTEGRATIONS)
async def list_integrations_as_github(ctx: Context) -> list[Integration]:
    """List the git integrations (an alias that clients use)."""
    return await integrations.list_integrations(get_scope(ctx))


@_integrations.get("/v1/integrations/forge/github/install", operation="forge_integrations_list", **_LISTS_INTEGRATIONS)
async def list_integrations_as_forge(ctx: Context) -> list[Integration]:
    """List the git integrations (an alias that clients use)."""
    return await integrations.list_integrations(get_scope(ctx))


@_integrations.get(f"{_INTEGRATION}/repos", **_LISTS_REPOSITORIES)
async def list_repositories(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@_integrations.get(
    "/v1/integrations/github/{integration_id}/repos", operation="github_repositories_list", **_LISTS_REPOSITORIES
)
async def list_repositories_as_github(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read (an alias that clients use)."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@_integrations.get(
    "/v1/integrations/forge/github/{integration_id}/repos", operation="forge_repositories_list", **_LISTS_REPOSITORIES
)
async def list_repositories_as_forge(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read (an alias that clients use)."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@_integrations.post(
    "/v1/integrations/git_hosting",
    permission="deployments:update",
    status=201,
    raises=(IntegrationNameTaken,),
    audit=Action("integration.create", id_query="insert_integration"),
)
async def create_integration(ctx: Context, body: IntegrationCreate) -> Integration:
    """Add an account at a git host; its token is not shown again."""
    return await integrations.create_integration(get_scope(ctx), body)


@_integrations.patch(
    _INTEGRATION, permission="deployments:update", raises=(IntegrationNotFound,), audit=Action("integration.update")
)
async def update_integration(ctx: Context, integration_id: UUID, body: IntegrationPatch) -> Integration:
    """Give an integration a new token."""
    return await integrations.update_integration(get_scope(ctx), integration_id, body)


@_integrations.delete(
    _INTEGRATION,
    permission="deployments:update",
    status=204,
    raises=(IntegrationNotFound, IntegrationUsed),
    audit=Action("integration.delete"),
)
async def delete_integration(ctx: Context, integration_id: UUID) -> None:
    """Delete an integration that no deployment uses."""
    await integrations.delete_integration(get_scope(ctx), integration_id)


@_integrations.post(
    f"{_INTEGRATION}/webhook",
    permission="deployments:update",
    status=201,
    raises=(IntegrationNotFound,),
    audit=Action("integration.create_webhook"),
)
async def create_webhook(ctx: Context, integration_id: UUID) -> PushWebhook:
    """Create an integration's webhook or replace its secret; the secret is shown once."""
    return await integrations.create_webhook(get_scope(ctx), integration_id, get_base_url(ctx.request))


@_integrations.post(
    "/v1/webhooks/{integration_id}",
    public=True,
    raises=(PushNotSigned, Invalid, BodyTooLarge),
    consumes=JSON_OBJECT,
    max_body_bytes=MAX_PUSH_BYTES,
    audit=Action("integration.push", related_id_query="insert_revision"),
)
async def receive_push(ctx: Context, integration_id: UUID) -> PushResponse:
    """Receive a push event of GitHub, GitLab or Gitea; its signature replaces an API key."""
    services = ctx.services
    scopes = ScopeFactory(
        db=services.db, box=services.box, authenticator=services.authenticator, changes=services.changes
    )
    return await pushes.receive_push(scopes, integration_id, ctx.request.headers, await ctx.request.body())


@_dataplane.post(
    "/internal/listeners/connect",
    permission=_LISTENER_PERMISSION,
    raises=(OtherCompute,),
    works_on_full_disk=True,
    audit=_REPORT,
)
async def connect_listener(ctx: Context, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id."""
    return await listeners.connect_listener(get_scope(ctx), body)


@_dataplane.get(
    "/internal/listeners/{listener_id}/desired",
    permission=_LISTENER_PERMISSION,
    raises=(ListenerNotFound,),
    audit=READ_SECRET,
)
async def get_desired_state(ctx: Context, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return the desired state as soon as it differs from the listener's."""
    return await desired_state.wait_for_desired(get_scope(ctx), ctx.services.address, listener_id, query)


@_dataplane.get(_INTERNAL_REVISION, permission=_LISTENER_PERMISSION, raises=(RevisionNotFound,))
async def get_desired_revision(ctx: Context, deployment_id: UUID, revision_id: UUID) -> DesiredRevision:
    """Return a revision as a listener builds it, also one that was replaced."""
    return await desired_state.get_desired_revision(get_scope(ctx), deployment_id, revision_id)


@_dataplane.put(
    "/internal/deployments/{deployment_id}/status",
    permission=_LISTENER_PERMISSION,
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound, BeingDeleted),
    audit=_REPORT,
)
async def report_deployment(ctx: Context, deployment_id: UUID, body: DeploymentReport) -> None:
    """Report the status of a deployment."""
    await desired_state.report_deployment(get_scope(ctx), deployment_id, body)


@_dataplane.put(
    f"{_INTERNAL_REVISION}/status",
    permission=_LISTENER_PERMISSION,
    works_on_full_disk=True,
    status=204,
    raises=(DeploymentNotFound, RevisionNotFound, IllegalTransition),
    audit=_REPORT,
)
async def report_revision(ctx: Context, deployment_id: UUID, revision_id: UUID, body: RevisionReport) -> None:
    """Report the status of a revision."""
    await revisions.report_revision(get_scope(ctx), deployment_id, revision_id, body)


@_dataplane.post(
    f"{_INTERNAL_REVISION}/logs",
    permission=_LISTENER_PERMISSION,
    status=204,
    raises=(RevisionNotFound,),
    audit=_REPORT,
)
async def add_revision_logs(ctx: Context, deployment_id: UUID, revision_id: UUID, body: LogBatch) -> None:
    """Add entries to a revision's log."""
    await add_logs(get_scope(ctx), deployment_id, revision_id, body)


@_dataplane.delete(
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


routes: list[Route[Context]] = [
    *_deployments,
    *_archives,
    *_logs,
    *_operations,
    *_placement,
    *_integrations,
    *_dataplane,
]
