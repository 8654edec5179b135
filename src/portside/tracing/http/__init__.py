"""The routes of tracing."""

from portside.kernel.http.routes import Route
from portside.tracing.http import (
    charts,
    feedback,
    info,
    ingest,
    prices,
    projects,
    public,
    reports,
    runs,
    unsupported,
    usage_limits,
)
from portside.tracing.services import Context

routes: list[Route[Context]] = [
    *info.routes,
    *ingest.routes,
    *projects.routes,
    *feedback.routes,
    *runs.routes,
    *public.routes,
    *usage_limits.routes,
    *reports.routes,
    *unsupported.routes,
    *charts.routes,
    *prices.routes,
]
