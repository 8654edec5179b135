"""The guard of the platform's API: authenticates a request and checks its permission.

A request has an API key in `X-Api-Key`, a bearer token that is a session or an API key, or the session cookie of a
browser. `X-Tenant-Id` names the workspace if the caller may use several.

Browsers send the cookie with requests that other sites make them send. So a request that changes something with the
cookie must come from a page of this server; without evidence for that it is refused.
"""

import hmac
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from portside.identity.authentication import Authenticator, read_credential
from portside.identity.types import Actor, WorkspaceRequired
from portside.kernel.errors import Forbidden
from portside.kernel.http.cors import SAFE, is_same_origin
from portside.kernel.http.routes import Context, Route


class NotSameOrigin(Forbidden):
    """With a session cookie, only pages of this platform may change something; other programs send an API key."""

    code = "not_same_origin"


class AccessGuard:
    """Authenticates the requests for routes that are not public."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def __call__(self, ctx: Context[Any], route: Route[Any]) -> Actor:
        """Return the actor of a request.

        Raises Unauthorized without a valid key or session; NotSameOrigin; Forbidden if the actor lacks the route's
        permission, or may not use the workspace of X-Tenant-Id or the organization of X-Organization-Id.
        """
        headers = ctx.request.headers
        presented = read_credential(ctx.request)
        if presented.kind == "cookie" and ctx.request.method not in SAFE:
            check_same_origin(headers)

        actor = await self._authenticator.authenticate_request(presented, _parse_tenant(headers.get("x-tenant-id")))
        # Before the checks: the audit log names the actor of a refused request.
        ctx.actor = actor

        organization = headers.get("x-organization-id")
        if organization and not hmac.compare_digest(organization.lower().encode(), str(actor.organization_id).encode()):
            raise Forbidden("This key does not belong to the organization that X-Organization-Id names.")

        if route.permission and not actor.may(route.permission):
            # A user's permissions depend on the workspace, so without one it is unknown whether any is missing.
            if actor.workspace is None and not route.permission.startswith("organization:"):
                raise WorkspaceRequired
            raise Forbidden(f"This key lacks the permission {route.permission}.")

        return actor


def check_same_origin(headers: Mapping[str, str]) -> None:
    """Raise NotSameOrigin unless a browser sent the request from a page of this server."""
    if not is_same_origin(headers):
        raise NotSameOrigin


def _parse_tenant(header: str | None) -> UUID | None:
    try:
        return UUID(header) if header else None
    except ValueError:
        raise Forbidden("X-Tenant-Id must hold the id of a workspace.") from None
