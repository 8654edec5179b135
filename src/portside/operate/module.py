"""The manifest of what operators see."""

from collections.abc import Sequence

from portside.kernel.modules import Module
from portside.kernel.reconcile import Task
from portside.operate import http
from portside.operate.http import OperateServices


def _build_tasks(services: OperateServices) -> Sequence[Task]:
    return [services.database_limit]


module = Module[OperateServices](package="portside.operate", routes=list(http.routes), build_tasks=_build_tasks)
