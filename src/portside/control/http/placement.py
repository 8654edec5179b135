"""The routes of what a deployment names: listeners to run on, and git integrations to come from."""

import msgspec

from portside.control.http.scoping import scope_of
from portside.control.integrations import Integration, list_integrations
from portside.control.listeners import list_listeners
from portside.control.types.dataplane import ListenerList
from portside.control.types.deployments import Limit, Offset
from portside.kernel.http.routes import Context, Routes

routes = Routes("placement")


class PageQuery(msgspec.Struct):
    """Which page of a list to return."""

    limit: Limit = 20
    offset: Offset = 0


@routes.get("/v2/listeners", permission="deployments:read")
async def show_listeners(ctx: Context, query: PageQuery) -> ListenerList:
    """List the workspace's listeners."""
    return await list_listeners(scope_of(ctx), query.limit, query.offset)


@routes.get("/v1/integrations/git_hosting/install", permission="deployments:read")
async def show_integrations(_ctx: Context) -> list[Integration]:
    """List the git integrations that a deployment may name."""
    return list_integrations()


@routes.get("/v1/integrations/github/install", permission="deployments:read")
async def show_integrations_as_github(_ctx: Context) -> list[Integration]:
    """List the git integrations, at the address that clients know."""
    return list_integrations()
