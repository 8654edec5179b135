"""The HTTP routes of the audit log. There is none that changes it."""

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from portside.audit import log
from portside.audit.types import (
    ActivityPage,
    ActivityQuery,
    AuditChain,
    AuditEntry,
    AuditExportQuery,
    AuditPage,
    AuditQuery,
)
from portside.identity.services import Context, Routes
from portside.identity.types import WorkspaceRequired
from portside.kernel.errors import Invalid
from portside.kernel.http.downloads import download
from portside.kernel.http.routes import RouteOptions

routes = Routes("audit log")
_JSON_LINES = "application/jsonl"
_EXPORT: RouteOptions = {
    "raises": (Invalid,),
    "media_type": f"{_JSON_LINES}, text/csv",
    "returns": AuditEntry,
    "stays_open": True,
}
_EXPORT_OF_ORGANIZATION: RouteOptions = {**_EXPORT, "permission": "organization:manage"}
_EXPORT_OF_WORKSPACE: RouteOptions = {**_EXPORT, "permission": "workspaces:manage"}


@routes.get("/audit-log", permission="organization:manage", raises=(Invalid,))
async def list_audit_log(ctx: Context, query: AuditQuery) -> AuditPage:
    """List entries of the organization's audit log, newest first."""
    return await log.list_entries(ctx.db, ctx.actor, query, whole_organization=True)


@routes.get("/audit-logs", permission="organization:manage", raises=(Invalid,))
async def list_activities(ctx: Context, query: ActivityQuery) -> ActivityPage:
    """List entries of the organization's audit log as events of OCSF 1.7.0, newest first."""
    return await log.list_activities(ctx.db, ctx.actor, query)


@routes.get("/workspaces/current/audit-log", permission="workspaces:manage", raises=(Invalid, WorkspaceRequired))
async def list_workspace_audit_log(ctx: Context, query: AuditQuery) -> AuditPage:
    """List entries of the audit log that belong to the workspace, newest first."""
    return await log.list_entries(ctx.db, ctx.actor, query, whole_organization=False)


@routes.get("/audit-log/export", **_EXPORT_OF_ORGANIZATION)
async def export_audit_log(ctx: Context, query: AuditExportQuery) -> StreamingResponse:
    """Return entries of the organization's audit log as JSON lines or CSV, newest first."""
    return await _download(log.export_entries(ctx.db, ctx.actor, query, whole_organization=True), query)


@routes.get("/workspaces/current/audit-log/export", **_EXPORT_OF_WORKSPACE)
async def export_workspace_audit_log(ctx: Context, query: AuditExportQuery) -> StreamingResponse:
    """Return entries of the audit log that belong to the workspace as JSON lines or CSV, newest first."""
    return await _download(log.export_entries(ctx.db, ctx.actor, query, whole_organization=False), query)


async def _download(lines: AsyncIterator[bytes], query: AuditExportQuery) -> StreamingResponse:
    media_type = "text/csv" if query.format == "csv" else _JSON_LINES
    return await download(lines, f"audit-log.{query.format}", media_type)


@routes.get("/audit-log/verification", permission="organization:manage", stays_open=True)
async def verify_audit_log(ctx: Context) -> AuditChain:
    """Compute the hashes of all entries again, and return the first entry that does not fit."""
    return await log.verify_entries(ctx.db)
