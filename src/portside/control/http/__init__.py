"""The HTTP routes of the control plane. Those below `/internal` are for listeners."""

from portside.control.http import (
    agent_access,
    archives,
    deployments,
    integrations,
    internal,
    listeners,
    logs,
    operations,
    revisions,
)
from portside.control.services import Context
from portside.kernel.http.routes import Route

routes: list[Route[Context]] = [
    *deployments.routes,
    *agent_access.routes,
    *revisions.routes,
    *archives.routes,
    *logs.routes,
    *operations.routes,
    *listeners.routes,
    *integrations.routes,
    *internal.routes,
]
