"""The routes of the control plane: `routes` lists them all, the listeners' internal ones with them."""

from portside.control.http import archives, dataplane, deployments, integrations, logs, operations, placement, pushes
from portside.kernel.http.routes import Route

routes: list[Route] = [
    *deployments.routes,
    *archives.routes,
    *logs.routes,
    *operations.routes,
    *placement.routes,
    *integrations.routes,
    *pushes.routes,
    *dataplane.routes,
]
