"""The routes that say who may call the agent of a deployment; agent servers and consoles ask them."""

from uuid import UUID

from portside.control.agent_access import CallRefused, identify_caller, issue_token, list_public_keys
from portside.control.errors import DeploymentNotFound
from portside.control.services import Context, Routes, get_scope
from portside.identity.sessions import NotAUser
from portside.identity.types import Identity, LoggedIn, WorkspaceRequired
from portside.kernel.caller_tokens import PublicKeys
from portside.kernel.http.audit_actions import Unrecorded

routes = Routes("deployments")


@routes.get("/v2/deployments/{deployment_id}/auth", raises=(DeploymentNotFound, CallRefused, WorkspaceRequired))
async def get_deployment_caller(ctx: Context, deployment_id: UUID) -> Identity:
    """Return the identity of the key or login if it may call the deployment's agent; agent servers ask this."""
    return await identify_caller(get_scope(ctx), deployment_id)


@routes.post(
    "/v2/deployments/{deployment_id}/token",
    raises=(DeploymentNotFound, CallRefused, NotAUser, WorkspaceRequired),
    audit=Unrecorded("proves the caller's own session to an agent, and changes nothing"),
)
async def create_agent_token(ctx: Context, deployment_id: UUID) -> LoggedIn:
    """Return a token that lets the caller, a member, call the deployment's agent for a minute, and nothing else."""
    return await issue_token(get_scope(ctx), deployment_id)


@routes.get("/v2/deployments/{deployment_id}/jwks.json", public=True)
async def get_public_keys(ctx: Context, deployment_id: UUID) -> PublicKeys:
    """Return the public keys that verify tokens for the deployment's agent."""
    return list_public_keys(ctx.services.box, deployment_id)
