"""The routes of tracing: `routes` lists them all."""

from portside.kernel.http.routes import Route
from portside.tracing.http import charts, deliveries, feedback, projects, public, runs

routes: list[Route] = [
    *deliveries.routes,
    *projects.routes,
    *feedback.routes,
    *runs.routes,
    *public.routes,
    *charts.routes,
]
