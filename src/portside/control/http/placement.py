"""The routes of the listeners that deployments run on."""

from uuid import UUID

import msgspec

from portside.control import listeners
from portside.control.errors import ListenerExists, ListenerInUse, ListenerNotFound
from portside.control.http.scoping import scope_of
from portside.control.types.dataplane import Listener, ListenerCreate, ListenerList, ListenerPatch
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
    return await listeners.list_listeners(scope_of(ctx), query.limit, query.offset)


@routes.post("/v2/listeners", permission="deployments:create", status=201, raises=(ListenerExists,))
async def create_listener(ctx: Context, body: ListenerCreate) -> Listener:
    """Make a listener for a cluster, which connects under its compute id later."""
    return await listeners.create_listener(scope_of(ctx), body)


@routes.get("/v2/listeners/{listener_id}", permission="deployments:read", raises=(ListenerNotFound,))
async def get_listener(ctx: Context, listener_id: UUID) -> Listener:
    """Return a listener."""
    return await listeners.get_listener(scope_of(ctx), listener_id)


@routes.patch("/v2/listeners/{listener_id}", permission="deployments:update", raises=(ListenerNotFound,))
async def patch_listener(ctx: Context, listener_id: UUID, body: ListenerPatch) -> Listener:
    """Change a listener's version or namespaces."""
    return await listeners.patch_listener(scope_of(ctx), listener_id, body)


@routes.delete(
    "/v2/listeners/{listener_id}",
    permission="deployments:delete",
    status=204,
    raises=(ListenerNotFound, ListenerInUse),
)
async def delete_listener(ctx: Context, listener_id: UUID) -> None:
    """Forget a listener that has no deployments."""
    await listeners.delete_listener(scope_of(ctx), listener_id)
