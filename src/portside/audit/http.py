"""The HTTP routes of the audit log. There is none that changes it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from starlette.responses import StreamingResponse

from portside.audit import log
from portside.audit.actions import Operation
from portside.audit.recording import Recorder
from portside.audit.types import (
    ActivityPage,
    ActivityQuery,
    AuditChain,
    AuditEntry,
    AuditExportQuery,
    AuditPage,
    AuditQuery,
)
from portside.identity.types import WorkspaceRequired
from portside.kernel.errors import Invalid
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.downloads import download
from portside.kernel.http.routes import RouteOptions

_EXPORT = Action("audit_log.export", is_read=True)
_JSON_LINES = "application/jsonl"
_EXPORTS: RouteOptions = {
    "raises": (Invalid,),
    "media_type": f"{_JSON_LINES}, text/csv",
    "returns": AuditEntry,
    "stays_open": True,
}
_EXPORTS_ORGANIZATION: RouteOptions = {**_EXPORTS, "permission": "organization:manage"}
_EXPORTS_WORKSPACE: RouteOptions = {**_EXPORTS, "permission": "workspaces:manage"}


@dataclass(frozen=True, kw_only=True)
class AuditServices(kernel_routes.BaseServices):
    """The services of the audit log. Entries are kept for `log_days`, or for ever if that is 0."""

    operations: Mapping[str, Operation]
    """The operations of all routes of the server, by the names of their actions."""
    recorder: Recorder
    log_days: int


Context = kernel_routes.Context[AuditServices]
routes = kernel_routes.Routes[Context]("audit log")


@routes.get("/audit-log", permission="organization:manage", raises=(Invalid,))
async def list_audit_log(ctx: Context, query: AuditQuery) -> AuditPage:
    """List entries of the organization's audit log, newest first."""
    return await log.list_entries(ctx.db, ctx.actor, query, whole_organization=True)


@routes.get("/audit-logs", permission="organization:manage", raises=(Invalid,))
async def list_audit_activities(ctx: Context, query: ActivityQuery) -> ActivityPage:
    """List entries of the organization's audit log as events of OCSF 1.7.0, newest first."""
    return await log.list_activities(ctx.db, ctx.actor, query, ctx.services.operations)


@routes.get("/workspaces/current/audit-log", permission="workspaces:manage", raises=(Invalid, WorkspaceRequired))
async def list_workspace_audit_log(ctx: Context, query: AuditQuery) -> AuditPage:
    """List entries of the audit log that belong to the workspace, newest first."""
    return await log.list_entries(ctx.db, ctx.actor, query, whole_organization=False)


@routes.get("/audit-log/export", **_EXPORTS_ORGANIZATION, audit=_EXPORT)
async def export_audit_log(ctx: Context, query: AuditExportQuery) -> StreamingResponse:
    """Return entries of the organization's audit log as JSON lines or CSV, newest first."""
    return await _download(log.export_entries(ctx.db, ctx.actor, query, whole_organization=True), query)


@routes.get("/workspaces/current/audit-log/export", **_EXPORTS_WORKSPACE, audit=_EXPORT)
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
