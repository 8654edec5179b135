"""The door of the platform's API: who sends this request, and may they.

The schemes are alternatives (spec: Authentication): an API key in `X-Api-Key`, or a bearer token, which is a login or
an API key. `X-Tenant-Id` names the workspace, where the caller may enter several.
"""

import hmac
from uuid import UUID

from portside.identity.keyring import Keyring
from portside.identity.keys import PERSONAL, SERVICE
from portside.identity.types import Actor, WorkspaceRequired
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Route

_BEARER = "bearer "


async def guard(ctx: Context, route: Route) -> Actor:
    """Return the actor behind a request.

    Raises Unauthorized without a good key or login; Forbidden when the route's permission is missing, or when
    X-Tenant-Id or X-Organization-Id names what the caller may not enter.
    """
    headers = ctx.request.headers
    keyring, tenant = ctx.get(Keyring), _tenant(headers.get("x-tenant-id"))
    token = bearer_of(headers.get("authorization"))
    key = headers.get("x-api-key")
    if key or token is None:
        actor = await keyring.authenticate(key, tenant)
    elif token.startswith((PERSONAL, SERVICE)):
        actor = await keyring.authenticate(token, tenant)
    else:
        actor = await keyring.authenticate_login(token, tenant)
    organization = headers.get("x-organization-id")
    if organization and not hmac.compare_digest(organization.lower().encode(), str(actor.organization_id).encode()):
        raise Forbidden("This key does not belong to the organization that X-Organization-Id names.")
    if route.permission and not actor.may(route.permission):
        # A user's roles are those of a workspace: which one must be known before anything can be missing.
        if actor.workspace is None and not route.permission.startswith("organization:"):
            raise WorkspaceRequired
        raise Forbidden(f"This key lacks the permission {route.permission}.")
    return actor


def bearer_of(authorization: str | None) -> str | None:
    """Return the token of an Authorization header, None where it holds none."""
    if authorization is None or not authorization.lower().startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip() or None


def _tenant(given: str | None) -> UUID | None:
    try:
        return UUID(given) if given else None
    except ValueError:
        raise Forbidden("X-Tenant-Id must hold the id of a workspace.") from None
