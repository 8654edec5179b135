"""The manifest of usage."""

from collections.abc import Sequence

from portside.kernel.modules import Module
from portside.kernel.reconcile import Task
from portside.usage import http
from portside.usage.http import UsageServices
from portside.usage.totals import PastHours


def _build_tasks(services: UsageServices) -> Sequence[Task]:
    return [PastHours(services.db)]


module = Module[UsageServices](
    package="portside.usage",
    routes=list(http.routes),
    build_tasks=_build_tasks,
    has_migrations=True,
)
