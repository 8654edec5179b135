"""The door of the platform's API: who sends this request, and may they."""

import hmac

from portside.identity.keys import Keyring
from portside.identity.types import Actor
from portside.kernel.errors import Forbidden
from portside.kernel.http.routes import Context, Route


async def guard(ctx: Context, route: Route) -> Actor:
    """Return the actor behind X-Api-Key.

    Raises Unauthorized without a good key; Forbidden when the route's permission is missing, or when X-Tenant-Id names
    a workspace that is not the key's.
    """
    headers = ctx.request.headers
    actor = await ctx.get(Keyring).authenticate(headers.get("x-api-key"))
    tenant = headers.get("x-tenant-id")
    if tenant and not hmac.compare_digest(tenant.lower().encode(), str(actor.workspace_id).encode()):
        raise Forbidden("This key does not belong to the workspace that X-Tenant-Id names.")
    if route.permission and not actor.may(route.permission):
        raise Forbidden(f"This key lacks the permission {route.permission}.")
    return actor
