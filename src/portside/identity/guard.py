"""The door of the platform's API: who sends this request, in which workspace, and may they.

The three schemes of the contract: X-Api-Key; a bearer token, which is such a key; and X-Tenant-Id, the workspace that
a key of the organization acts in.
"""

from portside.identity.keys import Keyring
from portside.identity.types import Actor
from portside.identity.workspaces import WorkspaceNotNamed, act_in
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Route

# What is asked of the organization as a whole, and how to find out which workspaces it has.
_OF_THE_ORGANIZATION = ("/orgs/", "/workspaces", "/auth")
_BEARER = "bearer "


async def guard(ctx: Context, route: Route) -> Actor:
    """Return the actor behind a request.

    Raises Unauthorized without a good key; Forbidden when the route's permission is missing, when X-Tenant-Id names a
    workspace that is not the key's, and when a key of the organization names none.
    """
    headers = ctx.request.headers
    actor = await ctx.get(Keyring).authenticate(headers.get("x-api-key") or _bearer(headers.get("authorization")))
    tenant = headers.get("x-tenant-id")
    if actor.is_org_scoped and not tenant and not route.path.startswith(_OF_THE_ORGANIZATION):
        raise WorkspaceNotNamed
    actor = await act_in(ctx.db, actor, tenant)
    if route.permission and not actor.may(route.permission):
        raise Forbidden(f"This key lacks the permission {route.permission}.")
    return actor


def _bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header of the bearer scheme."""
    if header is None or not header.lower().startswith(_BEARER):
        return None
    return header[len(_BEARER) :].strip()
