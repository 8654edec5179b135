"""The routes of git integrations: accounts at git hosts, their repositories, and the push events that they send."""

from uuid import UUID

from portside.control import integrations, pushes
from portside.control.git_hosts import TokenRefused
from portside.control.integrations import IntegrationNameTaken, IntegrationNotFound, IntegrationUsed
from portside.control.pushes import MAX_PUSH_BYTES, PushNotSigned
from portside.control.scope import ScopeFactory
from portside.control.services import Context, Routes, get_scope
from portside.control.types import (
    GitRepository,
    Integration,
    IntegrationCreate,
    IntegrationPatch,
    PushResponse,
    PushWebhook,
)
from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.headers import get_base_url
from portside.kernel.http.routes import JSON_OBJECT, RouteOptions
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, HostUnreachable

routes = Routes("integrations")
_LISTS_INTEGRATIONS: RouteOptions = {"permission": "deployments:read"}
_LISTS_REPOSITORIES: RouteOptions = {
    "permission": "deployments:read",
    "raises": (IntegrationNotFound, TokenRefused, AddressNotAllowed, HostUnknown, HostUnreachable),
}
_INTEGRATION = "/v1/integrations/git_hosting/{integration_id}"


@routes.get("/v1/integrations/git_hosting/install", **_LISTS_INTEGRATIONS)
async def list_integrations(ctx: Context) -> list[Integration]:
    """List the git integrations that a deployment may name."""
    return await integrations.list_integrations(get_scope(ctx))


@routes.get("/v1/integrations/github/install", operation="github_integrations_list", **_LISTS_INTEGRATIONS)
async def list_integrations_as_github(ctx: Context) -> list[Integration]:
    """List the git integrations (an alias that clients use)."""
    return await integrations.list_integrations(get_scope(ctx))


@routes.get("/v1/integrations/forge/github/install", operation="forge_integrations_list", **_LISTS_INTEGRATIONS)
async def list_integrations_as_forge(ctx: Context) -> list[Integration]:
    """List the git integrations (an alias that clients use)."""
    return await integrations.list_integrations(get_scope(ctx))


@routes.get(f"{_INTEGRATION}/repos", **_LISTS_REPOSITORIES)
async def list_repositories(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@routes.get(
    "/v1/integrations/github/{integration_id}/repos", operation="github_repositories_list", **_LISTS_REPOSITORIES
)
async def list_repositories_as_github(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read (an alias that clients use)."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@routes.get(
    "/v1/integrations/forge/github/{integration_id}/repos", operation="forge_repositories_list", **_LISTS_REPOSITORIES
)
async def list_repositories_as_forge(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token can read (an alias that clients use)."""
    return await integrations.list_repositories(get_scope(ctx), integration_id, ctx.services.outbound_rules)


@routes.post(
    "/v1/integrations/git_hosting",
    permission="deployments:update",
    status=201,
    raises=(IntegrationNameTaken,),
    audit=Action("integration.create", id_query="insert_integration"),
)
async def create_integration(ctx: Context, body: IntegrationCreate) -> Integration:
    """Add an account at a git host; its token is not shown again."""
    return await integrations.create_integration(get_scope(ctx), body)


@routes.patch(
    _INTEGRATION, permission="deployments:update", raises=(IntegrationNotFound,), audit=Action("integration.update")
)
async def update_integration(ctx: Context, integration_id: UUID, body: IntegrationPatch) -> Integration:
    """Give an integration a new token."""
    return await integrations.update_integration(get_scope(ctx), integration_id, body)


@routes.delete(
    _INTEGRATION,
    permission="deployments:update",
    status=204,
    raises=(IntegrationNotFound, IntegrationUsed),
    audit=Action("integration.delete"),
)
async def delete_integration(ctx: Context, integration_id: UUID) -> None:
    """Delete an integration that no deployment uses."""
    await integrations.delete_integration(get_scope(ctx), integration_id)


@routes.post(
    f"{_INTEGRATION}/webhook",
    permission="deployments:update",
    status=201,
    raises=(IntegrationNotFound,),
    audit=Action("integration.create_webhook"),
)
async def create_webhook(ctx: Context, integration_id: UUID) -> PushWebhook:
    """Create an integration's webhook or replace its secret; the secret is shown once."""
    return await integrations.create_webhook(get_scope(ctx), integration_id, get_base_url(ctx.request))


@routes.post(
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
