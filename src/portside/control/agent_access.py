"""Who may call a deployment's agent with the platform's keys, logins and tokens.

The agent server asks about each key here and keeps the response for seconds, so a change of the setting needs no new
revision and no restart. A member may exchange a key or login for a token of one minute, which opens that agent alone
and which the agent verifies without asking (`kernel/caller_tokens.py`).
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from portside.control.errors import DeploymentNotFound
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import AgentAccess
from portside.identity.roles import CALL_AGENTS, ORGANIZATION_ROLES, WORKSPACE_ROLES, find_role
from portside.identity.sessions import NotAUser
from portside.identity.types import Actor, Identity, LoggedIn
from portside.kernel.caller_tokens import LIFETIME_S, CallerClaims, PublicKeys, TokenIssuer
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Record
from portside.kernel.errors import Forbidden, Invalid

_ROLES = {**ORGANIZATION_ROLES, **WORKSPACE_ROLES}


class CallRefused(Forbidden):
    """The deployment's `agent_access` does not let this key or login call its agent."""

    code = "call_refused"
    # Agent servers read it, to tell this refusal from that of a key of another workspace.
    error = "call_refused"


def to_columns(access: AgentAccess | None) -> dict[str, Any]:
    """Return the values of the columns for a setting; None keeps what is there. Raises Invalid."""
    if access is None:
        return {"agent_access": None, "agent_roles": None}
    if (access.allow == "roles") != bool(access.roles):
        raise Invalid.field(["body", "agent_access", "roles"], 'must name roles if allow is "roles", and only then')

    roles = {find_role(_ROLES, role, "agent_access.roles").display_name for role in access.roles}
    return {"agent_access": access.allow, "agent_roles": sorted(roles)}


def to_access(row: Record | Mapping[str, Any]) -> AgentAccess:
    """Return the setting in a deployment's row as the API shows it."""
    return AgentAccess(row["agent_access"], list(row["agent_roles"]))


async def identify_caller(scope: Scope, deployment_id: UUID) -> Identity:
    """Return the identity of a caller of an agent. Raises DeploymentNotFound and CallRefused."""
    row = await scope.db.fetchrow(sql.access_of_deployment, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)

    _check_call(scope.actor, to_access(row))
    return Identity.of(scope.actor)


def _check_call(actor: Actor, access: AgentAccess) -> None:
    """Raise CallRefused unless the actor may call the agent."""
    if access.allow == "none":
        raise CallRefused("This agent accepts no keys of the platform; only its own authentication decides.")
    if access.allow == "permission" and not actor.may(CALL_AGENTS):
        raise CallRefused(f"Calls of this agent require the permission {CALL_AGENTS}.")

    # The role counts, whatever it permits. But a key that its owner limited to other purposes opens no agent.
    if access.allow == "roles" and not (actor.roles & set(access.roles) and actor.key_has(CALL_AGENTS)):
        raise CallRefused(f"Only members with one of these roles may call this agent: {', '.join(access.roles)}.")


async def issue_token(scope: Scope, deployment_id: UUID) -> LoggedIn:
    """Return a token that lets the actor call one agent for a minute.

    Raises NotAUser for a service key, DeploymentNotFound and CallRefused.
    """
    caller = await identify_caller(scope, deployment_id)
    if caller.user_id is None:
        raise NotAUser

    now = int(time.time())
    claims = CallerClaims(
        aud=str(deployment_id),
        sub=str(caller.user_id),
        iat=now,
        exp=now + LIFETIME_S,
        email=caller.user_email,
        roles=caller.roles,
        permissions=caller.permissions,
    )

    return LoggedIn(TokenIssuer(scope.box.keys).sign(claims), datetime.fromtimestamp(claims.exp, UTC))


def list_public_keys(box: SecretBox, deployment_id: UUID) -> PublicKeys:
    """Return the keys that verify the tokens for an agent. They are the same whether the deployment exists or not."""
    return TokenIssuer(box.keys).public_keys(str(deployment_id))
