"""The routes of listeners, as people see them; `internal` has those that listeners call."""

from uuid import UUID

import msgspec

from portside.control import listeners
from portside.control.errors import ListenerExists, ListenerInUse, ListenerNotFound
from portside.control.services import Context, Routes, get_scope
from portside.control.types import Limit, Listener, ListenerCreate, ListenerList, ListenerPatch, Offset
from portside.kernel.http.audit_actions import Action

routes = Routes("placement")


class PageQuery(msgspec.Struct):
    """A page of a list."""

    limit: Limit = 20
    offset: Offset = 0


@routes.get("/v2/listeners", permission="deployments:read")
async def list_listeners(ctx: Context, query: PageQuery) -> ListenerList:
    """List the workspace's listeners."""
    return await listeners.list_listeners(get_scope(ctx), query.limit, query.offset)


@routes.post(
    "/v2/listeners",
    permission="deployments:create",
    status=201,
    raises=(ListenerExists,),
    audit=Action("listener.create", id_query="insert_listener"),
)
async def create_listener(ctx: Context, body: ListenerCreate) -> Listener:
    """Create a listener for a cluster; it connects later under its compute id."""
    return await listeners.create_listener(get_scope(ctx), body)


@routes.get("/v2/listeners/{listener_id}", permission="deployments:read", raises=(ListenerNotFound,))
async def get_listener(ctx: Context, listener_id: UUID) -> Listener:
    """Return a listener."""
    return await listeners.get_listener(get_scope(ctx), listener_id)


@routes.patch(
    "/v2/listeners/{listener_id}",
    permission="deployments:update",
    raises=(ListenerNotFound,),
    audit=Action("listener.update"),
)
async def update_listener(ctx: Context, listener_id: UUID, body: ListenerPatch) -> Listener:
    """Change a listener's version or namespaces."""
    return await listeners.update_listener(get_scope(ctx), listener_id, body)


@routes.delete(
    "/v2/listeners/{listener_id}",
    permission="deployments:delete",
    status=204,
    raises=(ListenerNotFound, ListenerInUse),
    audit=Action("listener.delete"),
)
async def delete_listener(ctx: Context, listener_id: UUID) -> None:
    """Delete a listener that has no deployments."""
    await listeners.delete_listener(get_scope(ctx), listener_id)
