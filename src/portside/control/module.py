"""The manifest of the control plane."""

from collections.abc import Sequence

from portside.audit.entries import BackgroundDatabase
from portside.control import http
from portside.control.archives import UnusedArchives
from portside.control.deployments import empty_workspace
from portside.control.polling import PolledBranches
from portside.control.pushes import ExpiredPushDeliveries
from portside.control.revision_logs import OldRevisionLogs
from portside.control.scope import ScopeFactory
from portside.control.services import ControlServices
from portside.kernel.modules import Module
from portside.kernel.reconcile import Task


def _build_tasks(services: ControlServices) -> Sequence[Task]:
    db = services.db
    tasks: list[Task] = [
        UnusedArchives(db, services.archives),
        ExpiredPushDeliveries(db),
        OldRevisionLogs(db, services.revision_log_days),
    ]
    if services.repository_poll_s:
        tasks.append(_build_polling(services, services.repository_poll_s))

    return tasks


def _build_polling(services: ControlServices, period_s: float) -> PolledBranches:
    recorded = BackgroundDatabase(services.db, "revision.create", "insert_revision")
    scopes = ScopeFactory(recorded, services.box, services.authenticator, services.changes)
    return PolledBranches(scopes, period_s, services.outbound_rules, services.disk)


module = Module[ControlServices](
    package="portside.control",
    routes=http.routes,
    build_tasks=_build_tasks,
    empty_workspace=empty_workspace,
    has_migrations=True,
    has_rate_limits=False,
)
