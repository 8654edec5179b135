"""The manifest of alerts."""

from collections.abc import Sequence

from portside.alerts import http
from portside.alerts.alerts import AlertWatch, OldAlerts
from portside.alerts.channels import AlertDeliveries
from portside.alerts.http import AlertServices
from portside.kernel.modules import Module
from portside.kernel.reconcile import Task


def _build_tasks(services: AlertServices) -> Sequence[Task]:
    db = services.db
    deliveries = AlertDeliveries(services.channels)
    return [
        deliveries,
        AlertWatch(db, services.measurements, deliveries, every_s=services.check_s),
        OldAlerts(db),
    ]


module = Module[AlertServices](
    package="portside.alerts",
    routes=list(http.routes),
    build_tasks=_build_tasks,
    has_migrations=True,
)
