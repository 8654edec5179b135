"""The manifest of the audit log."""

from collections.abc import Sequence

from portside.audit import http
from portside.audit.http import AuditServices
from portside.audit.log import ExpiredEntries
from portside.audit.recording import SuppressedRefusals
from portside.kernel.modules import Module
from portside.kernel.reconcile import Task


def _build_tasks(services: AuditServices) -> Sequence[Task]:
    return [SuppressedRefusals(services.recorder), ExpiredEntries(services.db, services.log_days)]


module = Module[AuditServices](
    package="portside.audit",
    routes=list(http.routes),
    build_tasks=_build_tasks,
    has_migrations=True,
)
