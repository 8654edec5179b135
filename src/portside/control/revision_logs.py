"""The build and deploy logs of revisions.

Logs are bounded: the newest entries of each log are kept. An offset is the id of the last entry read, so pages neither
skip nor repeat entries while others are added and trimmed.
"""

from datetime import UTC, datetime
from uuid import UUID

from portside.control.errors import RevisionNotFound
from portside.control.revisions import read_deployment, read_revision
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import LogEntry, LogFilter, LogPage
from portside.kernel.db import Database, Record
from portside.kernel.errors import Invalid
from portside.kernel.reconcile import Status, Task
from portside.kernel.user_json import storable
from portside.listener_api import LogBatch, LogType

MAX_LOG_ENTRIES = 20_000


async def add_logs(scope: Scope, deployment_id: UUID, revision_id: UUID, batch: LogBatch) -> None:
    """Add entries to a revision's log and delete the oldest beyond the limit. Raises RevisionNotFound."""
    async with scope.db.transaction() as tx:
        locked_id = await tx.fetchval(
            sql.lock_revision_for_logs, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
        )
        if locked_id is None:
            raise RevisionNotFound.of(revision_id)

        await tx.execute(
            sql.insert_logs,
            deployment_id=deployment_id,
            revision_id=revision_id,
            type=batch.type,
            moments=[datetime.fromtimestamp(entry.timestamp / 1000, UTC) for entry in batch.entries],
            levels=[storable(entry.level, 20).upper() for entry in batch.entries],
            messages=[storable(entry.message, MAX_TEXT_BYTES) for entry in batch.entries],
        )

        await tx.execute(sql.trim_logs, revision_id=revision_id, type=batch.type, keep=MAX_LOG_ENTRIES)


class OldRevisionLogs(Task):
    """Deletes the logs of replaced revisions a number of days after their last entry; 0 keeps them."""

    every_s = 600.0
    deletes = True
    revisions_at_once = 20

    def __init__(self, db: Database, days: int) -> None:
        super().__init__()
        self._db = db
        self._days = days

    async def activate(self) -> Status:
        """Delete the logs of one batch of revisions."""
        if not self._days:
            return Status()

        lines = await self._db.execute(sql.delete_old_logs, days=self._days, batch=self.revisions_at_once)
        return Status({"lines": lines}, again=lines > 0)


async def read_revision_logs(
    scope: Scope, deployment_id: UUID, revision_id: UUID, query: LogFilter, *, kind: LogType
) -> LogPage:
    """Read a page of a revision's log. Raises DeploymentNotFound and RevisionNotFound."""
    await read_revision(scope.db, scope, deployment_id, revision_id)
    return await _read_logs(scope, deployment_id, query, revision_id=revision_id, kind=kind)


async def read_deployment_logs(scope: Scope, deployment_id: UUID, query: LogFilter, *, kind: LogType) -> LogPage:
    """Read a page of the logs of all revisions of a deployment. Raises DeploymentNotFound."""
    await read_deployment(scope.db, scope, deployment_id)
    return await _read_logs(scope, deployment_id, query, revision_id=None, kind=kind)


async def _read_logs(
    scope: Scope, deployment_id: UUID, query: LogFilter, *, revision_id: UUID | None, kind: LogType
) -> LogPage:
    """Read a page of the log of one revision, or without a revision of all."""
    if query.run_id is not None:
        raise Invalid.field(["run_id"], "is not supported: revision logs are not linked to runs", "not_supported")

    rows = await scope.db.fetch(
        sql.logs_oldest_first if query.order == "asc" else sql.logs_newest_first,
        deployment_id=deployment_id,
        revision_id=revision_id,
        type=kind,
        offset=int(query.offset) if query.offset else None,
        level=query.level.upper() if query.level else None,
        text=query.query or None,
        start_time=_to_aware(query.start_time),
        end_time=_to_aware(query.end_time),
        limit=query.limit,
    )

    return LogPage(logs=[_to_entry(row) for row in rows], next_offset=_get_next_offset(rows, query))


def _get_next_offset(rows: list[Record], query: LogFilter) -> str | None:
    """Return the next page's offset. Ascending, more entries may come later; descending, a short page is the last."""
    if not rows or (query.order == "desc" and len(rows) < query.limit):
        return None
    return str(rows[-1]["id"])


def _to_aware(moment: datetime | None) -> datetime | None:
    """Read a time without a zone as UTC."""
    if moment is None or moment.tzinfo is not None:
        return moment

    return moment.replace(tzinfo=UTC)


def _to_entry(row: Record) -> LogEntry:
    return LogEntry(
        id=str(row["id"]),
        timestamp=round(row["at"].timestamp() * 1000),
        level=row["level"],
        message=row["message"],
    )
