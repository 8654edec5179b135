"""The routes of git integrations: ours to add and change them, and the addresses at which clients look for them."""

from uuid import UUID

from portside.control import integrations
from portside.control.git_hosts import TokenRefused
from portside.control.http.scoping import reached_at, scope_of
from portside.control.integrations import IntegrationNameTaken, IntegrationNotFound, IntegrationUsed
from portside.control.types.integrations import (
    GitRepository,
    Integration,
    IntegrationCreate,
    IntegrationPatch,
    PushWebhook,
)
from portside.kernel.http.routes import Context, Routes
from portside.kernel.outbound import AddressNotAllowed, HostUnreachable, OutboundRules

routes = Routes("integrations")
_LIST = {"permission": "deployments:read"}
_REPOSITORIES = {
    "permission": "deployments:read",
    "raises": (IntegrationNotFound, TokenRefused, AddressNotAllowed, HostUnreachable),
}
_ONE = "/v1/integrations/git_hosting/{integration_id}"


@routes.get("/v1/integrations/git_hosting/install", **_LIST)
async def show_integrations(ctx: Context) -> list[Integration]:
    """List the git integrations that a deployment may name."""
    return await integrations.list_integrations(scope_of(ctx))


@routes.get("/v1/integrations/github/install", **_LIST)
async def show_integrations_as_github(ctx: Context) -> list[Integration]:
    """List the git integrations, at the address that clients know."""
    return await integrations.list_integrations(scope_of(ctx))


@routes.get("/v1/integrations/forge/github/install", **_LIST)
async def show_integrations_as_forge(ctx: Context) -> list[Integration]:
    """List the git integrations, at the other address that clients know."""
    return await integrations.list_integrations(scope_of(ctx))


@routes.get(f"{_ONE}/repos", **_REPOSITORIES)
async def show_repositories(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token reaches."""
    return await integrations.list_repositories(scope_of(ctx), integration_id, ctx.get(OutboundRules))


@routes.get("/v1/integrations/github/{integration_id}/repos", **_REPOSITORIES)
async def show_repositories_as_github(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token reaches, at the address that clients know."""
    return await integrations.list_repositories(scope_of(ctx), integration_id, ctx.get(OutboundRules))


@routes.get("/v1/integrations/forge/github/{integration_id}/repos", **_REPOSITORIES)
async def show_repositories_as_forge(ctx: Context, integration_id: UUID) -> list[GitRepository]:
    """List the repositories that an integration's token reaches, at the other address that clients know."""
    return await integrations.list_repositories(scope_of(ctx), integration_id, ctx.get(OutboundRules))


@routes.post(
    "/v1/integrations/git_hosting", permission="deployments:update", status=201, raises=(IntegrationNameTaken,)
)
async def add_integration(ctx: Context, body: IntegrationCreate) -> Integration:
    """Add an account at a git host; its token is not shown again."""
    return await integrations.add_integration(scope_of(ctx), body)


@routes.patch(_ONE, permission="deployments:update", raises=(IntegrationNotFound,))
async def change_integration(ctx: Context, integration_id: UUID, body: IntegrationPatch) -> Integration:
    """Give an integration a new token."""
    return await integrations.change_integration(scope_of(ctx), integration_id, body)


@routes.delete(_ONE, permission="deployments:update", status=204, raises=(IntegrationNotFound, IntegrationUsed))
async def remove_integration(ctx: Context, integration_id: UUID) -> None:
    """Remove an integration that no deployment comes from."""
    await integrations.remove_integration(scope_of(ctx), integration_id)


@routes.post(f"{_ONE}/webhook", permission="deployments:update", status=201, raises=(IntegrationNotFound,))
async def make_webhook(ctx: Context, integration_id: UUID) -> PushWebhook:
    """Make an integration's webhook, or a new secret for it: its address and secret, shown once."""
    return await integrations.make_webhook(scope_of(ctx), integration_id, reached_at(ctx))
