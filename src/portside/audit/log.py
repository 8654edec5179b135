"""Reads the audit log: pages, exports, the check of its hashes, and the removal of old entries.

Who manages the organization reads all of its entries, and who manages a workspace those of that workspace.
"""

import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from portside.audit.recording import record_operation
from portside.audit.sql import sql
from portside.audit.types import AuditChain, AuditEntry, AuditExportQuery, AuditFilter, AuditPage, AuditQuery
from portside.identity.types import Actor
from portside.kernel.clock import in_utc, iso, now
from portside.kernel.codec import dump_api
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid
from portside.kernel.escaping import escape_formula
from portside.kernel.reconcile import Status, Task

_PAGE = 1000
_EXPIRED_AT_ONCE = 5000


async def find_entries(db: Session, actor: Actor, query: AuditQuery, *, whole: bool) -> AuditPage:
    """Return a page of the entries of the organization, if `whole`, or of the actor's workspace. Raises Invalid."""
    selected = _selected(actor, query, whole=whole)
    rows = await db.fetch(sql.find_entries, **selected, cursor=query.cursor, limit=query.limit + 1)
    entries = [AuditEntry(**row) for row in rows[: query.limit]]
    return AuditPage(entries, entries[-1].seq if len(rows) > query.limit else None)


def export_entries(db: Session, actor: Actor, query: AuditExportQuery, *, whole: bool) -> AsyncIterator[bytes]:
    """Return an iterator over the lines of all entries of the organization or of the actor's workspace, newest first.

    Raises Invalid before the first line.
    """
    return _lines(db, _selected(actor, query, whole=whole), as_csv=query.format == "csv")


async def _lines(db: Session, selected: dict[str, Any], *, as_csv: bool) -> AsyncIterator[bytes]:
    if as_csv:
        yield _csv_line(AuditEntry.__struct_fields__)
    cursor = None
    while rows := await db.fetch(sql.find_entries, **selected, cursor=cursor, limit=_PAGE):
        cursor = rows[-1]["seq"]
        entries = [AuditEntry(**row) for row in rows]
        yield b"".join(_csv_of(entry) if as_csv else dump_api(entry) + b"\n" for entry in entries)


def _csv_of(entry: AuditEntry) -> bytes:
    return _csv_line([_cell(value) for value in msgspec.structs.astuple(entry)])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return escape_formula(" ".join(value))
    return iso(value) if isinstance(value, datetime) else escape_formula(str(value))


def _csv_line(cells: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()


def _selected(actor: Actor, query: AuditFilter, *, whole: bool) -> dict[str, Any]:
    return {
        "organization_id": actor.organization_id,
        "whole_organization": whole,
        "workspace_id": None if whole else actor.workspace_id,
        "only_workspace": query.workspace_id,
        "since": _moment(query.start_time, "start_time"),
        "until": _moment(query.end_time, "end_time"),
        "action": query.action,
        "outcome": query.outcome,
        "object": query.object,
        "actor": query.actor,
    }


def _moment(given: datetime | None, field: str) -> datetime | None:
    try:
        return None if given is None else in_utc(given)
    except OverflowError as exc:
        raise Invalid.field(["query", field], "is not in the years 1 to 9999") from exc


async def verify_entries(db: Session) -> AuditChain:
    """Compute the hashes of all entries again."""
    found = AuditChain(0, None, None, None, None)
    while rows := await db.fetch(sql.verify_entries, after=found.last_seq or 0, limit=_PAGE):
        # Each page begins with the last entry of the page before it, whose hash the second one continues.
        fresh = rows if found.last_seq is None else rows[1:]
        if not fresh:
            break
        found.first_seq = found.first_seq or fresh[0]["seq"]
        found.entries += len(fresh)
        found.last_seq, found.last_hash = fresh[-1]["seq"], fresh[-1]["hash"]
        broken = (row["seq"] for row in fresh if not row["is_intact"])
        found.broken_at = found.broken_at or next(broken, None)
    return found


class ExpiredEntries(Task):
    """Deletes entries of the audit log that are older than the retention; the log says how many."""

    every_s = 3600.0
    deletes = True

    def __init__(self, db: Database, days: int) -> None:
        super().__init__()
        self._db = db
        self._days = days

    async def activate(self) -> Status:
        """Delete one batch."""
        if not self._days:
            return Status()
        async with self._db.transaction() as tx:
            before = now() - timedelta(days=self._days)
            deleted = await tx.fetchval(sql.expire_entries, before=before, most=_EXPIRED_AT_ONCE)
            if deleted:
                await record_operation(tx, "audit_log.expire", name=f"{deleted} entries before {iso(before)}")
        return Status({"deleted": deleted}, again=deleted == _EXPIRED_AT_ONCE)
