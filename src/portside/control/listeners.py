"""Listeners: connect, create, list, change and delete them.

Clients create the listeners of clusters; process listeners register themselves. `placement.py` chooses the listener of
a deployment.
"""

from uuid import UUID

import msgspec

from portside.control.errors import ListenerExists, ListenerInUse, ListenerNotFound, OtherCompute
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import ComputeConfig, Listener, ListenerCreate, ListenerList, ListenerPatch
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.kernel.ids import uuid7
from portside.listener_api import Connect, Connected


async def connect_listener(scope: Scope, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id. Raises OtherCompute."""
    listener_id: UUID | None = await scope.db.fetchval(
        sql.connect_listener,
        id=uuid7(),
        workspace_id=scope.workspace_id,
        compute_type=body.compute_type,
        compute_id=body.compute_id,
        version=body.version,
        key_id=scope.actor.key_id,
    )
    if listener_id is None:
        raise OtherCompute

    return Connected(listener_id)


async def create_listener(scope: Scope, body: ListenerCreate) -> Listener:
    """Create a listener that will connect later. Raises ListenerExists."""
    listener_id: UUID | None = await scope.db.fetchval(
        sql.insert_listener,
        id=uuid7(),
        workspace_id=scope.workspace_id,
        compute_type=body.compute_type,
        compute_id=body.compute_id,
        compute_config=msgspec.to_builtins(body.compute_config),
        version=body.version,
    )
    if listener_id is None:
        raise ListenerExists(
            f"Listener for LangSmith workspace ID '{scope.workspace_id}' and compute ID '{body.compute_id}' "
            "already exists."
        )

    return await get_listener(scope, listener_id)


async def get_listener(scope: Scope, listener_id: UUID) -> Listener:
    """Return one listener. Raises ListenerNotFound."""
    rows = await _find(scope, listener_id=listener_id)
    if not rows:
        raise ListenerNotFound.of(listener_id)

    return _to_listener(rows[0])


async def list_listeners(scope: Scope, limit: int, offset: int) -> ListenerList:
    """List the workspace's listeners, newest first."""
    rows = await _find(scope, limit=limit, offset=offset)
    return ListenerList([_to_listener(row) for row in rows], offset + len(rows))


async def update_listener(scope: Scope, listener_id: UUID, body: ListenerPatch) -> Listener:
    """Change a listener; existing deployments keep their namespaces. Raises ListenerNotFound."""
    updated_id = await scope.db.fetchval(
        sql.update_listener,
        id=listener_id,
        workspace_id=scope.workspace_id,
        version=body.version,
        compute_config=None if body.compute_config is None else msgspec.to_builtins(body.compute_config),
    )
    if updated_id is None:
        raise ListenerNotFound.of(listener_id)

    return await get_listener(scope, listener_id)


async def delete_listener(scope: Scope, listener_id: UUID) -> None:
    """Delete a listener that has no deployments. Raises ListenerNotFound and ListenerInUse."""
    async with scope.db.transaction() as tx:
        if await tx.fetchval(sql.lock_listener, id=listener_id, workspace_id=scope.workspace_id) is None:
            raise ListenerNotFound.of(listener_id)
        if await tx.fetchval(sql.is_listener_used, id=listener_id):
            raise ListenerInUse

        await tx.execute(sql.delete_listener, id=listener_id)


async def _find(scope: Scope, *, listener_id: UUID | None = None, limit: int = 1, offset: int = 0) -> list[Record]:
    return await scope.db.fetch(
        sql.find_listeners,
        workspace_id=scope.workspace_id,
        id=listener_id,
        compute_type=None,
        limit=limit,
        offset=offset,
    )


def _to_listener(row: Record) -> Listener:
    return Listener(
        id=row["id"],
        compute_type=row["compute_type"],
        compute_id=row["compute_id"],
        compute_config=msgspec.convert(row["compute_config"], ComputeConfig),
        version=row["version"],
        last_seen_at=None if row["last_seen_at"] is None else iso(row["last_seen_at"]),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )
