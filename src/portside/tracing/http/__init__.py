"""The routes of tracing: `routes` lists them all."""

from portside.kernel.http.routes import Route
from portside.tracing.http import charts, deliveries, feedback, instance, projects, public, quotas, runs

_MODULES = (deliveries, projects, feedback, runs, public, charts, quotas, instance)
routes: list[Route] = [route for module in _MODULES for route in module.routes]
