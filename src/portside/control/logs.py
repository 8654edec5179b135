"""The build and deploy logs of revisions: added by listeners, read in pages.

Kept bounded: the newest entries of each log stay. An offset is the id of the last entry read, so that pages neither
skip nor repeat while entries come and go.
"""

from datetime import UTC, datetime
from uuid import UUID

from portside.control.errors import RevisionNotFound
from portside.control.revisions import find_deployment, find_revision
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.logs import LogBatch, LogEntry, LogFilter, LogPage, LogType
from portside.kernel.codec import storable
from portside.kernel.db import Record
from portside.kernel.errors import Invalid

KEEP_ENTRIES = 20_000


async def add_logs(scope: Scope, deployment_id: UUID, revision_id: UUID, batch: LogBatch) -> None:
    """Add entries to a revision's log and drop the oldest beyond the bound. Raises RevisionNotFound."""
    async with scope.db.transaction() as tx:
        held = await tx.fetchval(
            sql.hold_revision, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
        )
        if held is None:
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
        await tx.execute(sql.trim_logs, revision_id=revision_id, type=batch.type, keep=KEEP_ENTRIES)


async def read_revision_logs(
    scope: Scope, deployment_id: UUID, revision_id: UUID, kind: LogType, wanted: LogFilter
) -> LogPage:
    """Read a page of a revision's log. Raises DeploymentNotFound and RevisionNotFound."""
    await find_revision(scope.db, scope, deployment_id, revision_id)
    return await _read(scope, (deployment_id, revision_id), kind, wanted)


async def read_deployment_logs(scope: Scope, deployment_id: UUID, kind: LogType, wanted: LogFilter) -> LogPage:
    """Read a page of the logs of all revisions of a deployment. Raises DeploymentNotFound."""
    await find_deployment(scope.db, scope, deployment_id)
    return await _read(scope, (deployment_id, None), kind, wanted)


async def _read(scope: Scope, whose: tuple[UUID, UUID | None], kind: LogType, wanted: LogFilter) -> LogPage:
    if wanted.run_id is not None:
        raise Invalid.field(["run_id"], "is not available yet", "not_supported")
    rows = await scope.db.fetch(
        sql.logs_oldest_first if wanted.order == "asc" else sql.logs_newest_first,
        deployment_id=whose[0],
        revision_id=whose[1],
        type=kind,
        offset=int(wanted.offset) if wanted.offset else None,
        level=wanted.level.upper() if wanted.level else None,
        text=wanted.query or None,
        start_time=_aware(wanted.start_time),
        end_time=_aware(wanted.end_time),
        limit=wanted.limit,
    )
    return LogPage([_entry(row) for row in rows], _next_offset(rows, wanted))


def _next_offset(rows: list[Record], wanted: LogFilter) -> str | None:
    """Say where to go on. Oldest first there may always be more to come; newest first a short page is the last."""
    if not rows or (wanted.order == "desc" and len(rows) < wanted.limit):
        return None
    return str(rows[-1]["id"])


def _aware(moment: datetime | None) -> datetime | None:
    """Read a time without a zone as UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _entry(row: Record) -> LogEntry:
    return LogEntry(str(row["id"]), round(row["at"].timestamp() * 1000), row["level"], row["message"])
