"""The manifest of tracing."""

from collections.abc import Sequence

from portside.kernel.modules import Module
from portside.kernel.reconcile import Task
from portside.tracing import http
from portside.tracing.costs import RecomputedCosts
from portside.tracing.feedback_tokens import ExpiredFeedbackTokens
from portside.tracing.pieces import UnusedPieces
from portside.tracing.retention import ExpiredTraces, OrphanedData, empty_workspace
from portside.tracing.rollups import DailyRollups
from portside.tracing.services import TracingServices


def _build_tasks(services: TracingServices) -> Sequence[Task]:
    db = services.db
    return [
        ExpiredTraces(db, services.retention),
        OrphanedData(db, services.retention),
        ExpiredFeedbackTokens(db),
        UnusedPieces(db),
        DailyRollups(db),
        RecomputedCosts(db),
    ]


module = Module[TracingServices](
    package="portside.tracing",
    routes=http.routes,
    build_tasks=_build_tasks,
    empty_workspace=empty_workspace,
    has_migrations=True,
)
