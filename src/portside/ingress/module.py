"""The manifest of the front."""

from collections.abc import Sequence

from portside.ingress import front
from portside.ingress.front import FrontRoutes, FrontServices
from portside.kernel.modules import Module
from portside.kernel.reconcile import Task


def _build_tasks(services: FrontServices) -> Sequence[Task]:
    return [] if services.front is None else [FrontRoutes(services.front)]


module = Module[FrontServices](
    package="portside.ingress",
    routes=list(front.routes),
    build_tasks=_build_tasks,
    has_rate_limits=False,
)
