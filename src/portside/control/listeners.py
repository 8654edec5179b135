"""Listeners: the places that introduced themselves to run deployments."""

from uuid import UUID

from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.dataplane import ComputeConfig, Connect, Connected, Listener, ListenerList
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.kernel.ids import uuid7


async def connect(scope: Scope, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id."""
    listener_id: UUID = await scope.db.fetchval(
        sql.connect_listener,
        id=uuid7(),
        workspace_id=scope.workspace_id,
        compute_type=body.compute_type,
        compute_id=body.compute_id,
        version=body.version,
    )
    return Connected(listener_id)


async def list_listeners(scope: Scope, limit: int, offset: int) -> ListenerList:
    """List the workspace's listeners, newest first."""
    rows = await scope.db.fetch(sql.list_listeners, workspace_id=scope.workspace_id, limit=limit, offset=offset)
    return ListenerList([_show(row) for row in rows], offset + len(rows))


def _show(row: Record) -> Listener:
    return Listener(
        id=row["id"],
        compute_type=row["compute_type"],
        compute_id=row["compute_id"],
        compute_config=ComputeConfig(),
        version=row["version"],
        last_seen_at=iso(row["last_seen_at"]),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )
