"""The routes of the control plane: `routes` lists them all, the listeners' internal ones with them."""

from portside.control.http import dataplane, deployments, logs, placement
from portside.kernel.http.routes import Route

routes: list[Route] = [*deployments.routes, *logs.routes, *placement.routes, *dataplane.routes]
