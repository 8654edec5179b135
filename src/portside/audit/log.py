"""Reads the audit log: pages, exports, the check of its hashes, and the removal of old entries.

A caller who manages the organization reads all its entries; one who manages a workspace reads those of the workspace.
"""

import base64
import csv
import io
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.audit.actions import ACTIVITIES, Operation
from portside.audit.entries import record_operation
from portside.audit.sql import sql
from portside.audit.types import (
    ActivityPage,
    ActivityQuery,
    ApiActivity,
    AuditChain,
    AuditEntry,
    AuditExportQuery,
    AuditFilter,
    AuditPage,
    AuditQuery,
)
from portside.identity.types import Actor
from portside.kernel.clock import iso, now, read_utc
from portside.kernel.codec import dump_api
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid
from portside.kernel.escaping import escape_formula
from portside.kernel.reconcile import Status, Task

_PAGE = 1000
_EXPIRED_AT_ONCE = 5000


async def list_entries(db: Session, actor: Actor, query: AuditQuery, *, whole_organization: bool) -> AuditPage:
    """Return a page of the entries of the whole organization, or of the actor's workspace. Raises Invalid."""
    conditions = _build_conditions(actor, query, whole_organization=whole_organization)
    rows = await db.fetch(sql.find_entries, **conditions, cursor=query.cursor, limit=query.limit + 1)
    entries = [AuditEntry(**row) for row in rows[: query.limit]]
    return AuditPage(entries, entries[-1].seq if len(rows) > query.limit else None)


async def list_activities(
    db: Session, actor: Actor, query: ActivityQuery, operations: Mapping[str, Operation]
) -> ActivityPage:
    """Return a page of the entries of the organization as events of OCSF. Raises Invalid.

    `operations` are those of the server's routes, by the names of their actions.
    """
    entry_filter = AuditFilter(workspace_id=query.workspace_id, start_time=query.start_time)
    conditions = _build_conditions(actor, entry_filter, whole_organization=True)

    # The period of this API includes its end.
    until = _to_utc(query.end_time, "end_time")
    conditions["until"] = None if until is None else until + timedelta(microseconds=1)

    if query.operations is not None:
        names = set(query.operations)
        conditions["actions"] = [action for action, operation in operations.items() if operation.name in names]

    before_seq = None if query.cursor is None else _parse_cursor(query.cursor)
    rows = await db.fetch(sql.find_entries, **conditions, cursor=before_seq, limit=query.limit + 1)
    entries = [AuditEntry(**row) for row in rows[: query.limit]]
    next_cursor = _to_cursor(entries[-1].seq) if len(rows) > query.limit else None

    return ActivityPage([_to_activity(entry, operations) for entry in entries], next_cursor)


def _to_cursor(seq: int) -> str:
    return base64.b64encode(dump_api({"seq": seq})).decode()


def _parse_cursor(cursor: str) -> int:
    try:
        return msgspec.json.decode(base64.b64decode(cursor, validate=True), type=_Cursor).seq
    except (ValueError, msgspec.MsgspecError) as exc:
        raise Invalid.field(["query", "cursor"], "is not a cursor of this API") from exc


class _Cursor(msgspec.Struct):
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


def _to_activity(entry: AuditEntry, operations: Mapping[str, Operation]) -> ApiActivity:
    operation = operations.get(entry.action) or Operation.for_action(entry.action)
    has_succeeded = entry.outcome == "ok"
    enrichments = {
        "request_method": operation.method,
        "request_path": operation.path,
        "client_host": entry.address,
        "client_port": None,
        "x_forwarded_for": None,
        "response_status_code": entry.status,
        "resource_ids": entry.object_ids,
    }

    original = {
        "id": entry.id,
        "operation_name": operation.name,
        "operation_succeeded": has_succeeded,
        "request_time": entry.at,
        "api_key_id": entry.key_id,
        "user_id": entry.user_id,
        "ls_user_id": entry.user_id,
        "organization_id": entry.organization_id,
        "workspace_id": entry.workspace_id,
        "enrichments": enrichments,
    }

    object_ids = [object_id for object_id in map(_parse_uuid, entry.object_ids) if object_id is not None]
    return ApiActivity(
        type_uid=600_300 + operation.activity_id,
        activity_id=operation.activity_id,
        activity_name=ACTIVITIES[operation.activity_id],
        status_id=1 if has_succeeded else 2,
        status="Success" if has_succeeded else "Failure",
        time=int(entry.at.timestamp() * 1000),
        metadata={"uid": entry.id, "product": {"name": "Portside", "vendor_name": "Portside"}},
        api={"operation": operation.name},
        http_request={"http_method": operation.method, "url": {"path": operation.path}},
        http_response={"code": entry.status},
        actor={"user": {"uid": entry.user_id, "credential_uid": entry.key_id}},
        src_endpoint={"ip": entry.address, "port": None, "intermediate_ips": None},
        resources=[{"uid": object_id} for object_id in object_ids],
        unmapped={"original_audit_log": original},
    )


def _parse_uuid(text: str) -> UUID | None:
    """Return the id in a text; None for any other text, such as the name of a prompt."""
    try:
        return UUID(text)
    except ValueError:
        return None


def export_entries(
    db: Session, actor: Actor, query: AuditExportQuery, *, whole_organization: bool
) -> AsyncIterator[bytes]:
    """Return an iterator over the lines of all entries of the organization or of the actor's workspace, newest first.

    Raises Invalid before the first line.
    """
    conditions = _build_conditions(actor, query, whole_organization=whole_organization)
    return _export_lines(db, conditions, as_csv=query.format == "csv")


async def _export_lines(db: Session, conditions: dict[str, Any], *, as_csv: bool) -> AsyncIterator[bytes]:
    if as_csv:
        yield _to_csv_line(AuditEntry.__struct_fields__)

    cursor = None
    while rows := await db.fetch(sql.find_entries, **conditions, cursor=cursor, limit=_PAGE):
        cursor = rows[-1]["seq"]
        entries = [AuditEntry(**row) for row in rows]
        to_line = _to_csv if as_csv else _to_json_line
        yield b"".join(map(to_line, entries))


def _to_json_line(entry: AuditEntry) -> bytes:
    return dump_api(entry) + b"\n"


def _to_csv(entry: AuditEntry) -> bytes:
    return _to_csv_line([_to_cell(value) for value in msgspec.structs.astuple(entry)])


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return escape_formula(" ".join(value))

    return iso(value) if isinstance(value, datetime) else escape_formula(str(value))


def _to_csv_line(cells: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()


def _build_conditions(actor: Actor, query: AuditFilter, *, whole_organization: bool) -> dict[str, Any]:
    return {
        "organization_id": actor.organization_id,
        "whole_organization": whole_organization,
        "workspace_id": None if whole_organization else actor.workspace_id,
        "only_workspace": query.workspace_id,
        "since": _to_utc(query.start_time, "start_time"),
        "until": _to_utc(query.end_time, "end_time"),
        "action": query.action,
        "actions": None,
        "outcome": query.outcome,
        "object": query.object,
        "actor": query.actor,
    }


def _to_utc(moment: datetime | None, field: str) -> datetime | None:
    return None if moment is None else read_utc(moment, ["query", field])


async def verify_entries(db: Session) -> AuditChain:
    """Compute the hashes of all entries again."""
    chain = AuditChain(entries=0, first_seq=None, last_seq=None, last_hash=None, broken_at=None)
    while rows := await db.fetch(sql.verify_entries, after=chain.last_seq or 0, limit=_PAGE):
        # Each page begins with the last entry of the page before it, whose hash the second one continues.
        new_rows = rows if chain.last_seq is None else rows[1:]
        if not new_rows:
            break

        chain.first_seq = chain.first_seq or new_rows[0]["seq"]
        chain.entries += len(new_rows)
        chain.last_seq = new_rows[-1]["seq"]
        chain.last_hash = new_rows[-1]["hash"]
        broken_seqs = (row["seq"] for row in new_rows if not row["is_intact"])
        chain.broken_at = chain.broken_at or next(broken_seqs, None)

    return chain


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
            count = await tx.fetchval(sql.expire_entries, before=before, most=_EXPIRED_AT_ONCE)
            if count:
                await record_operation(tx, "audit_log.expire", name=f"{count} entries before {iso(before)}")

        return Status({"deleted": count}, again=count == _EXPIRED_AT_ONCE)
