"""The manifest of the platform's own routes and tasks."""

from collections.abc import Sequence

from portside.kernel.modules import Module
from portside.kernel.reconcile import Task
from portside.platform import system
from portside.platform.deleted_workspaces import DeletedWorkspaces
from portside.platform.listener import ListenerKey, ListenerLog
from portside.platform.system import SystemServices


def _build_tasks(services: SystemServices) -> Sequence[Task]:
    db = services.db
    home = services.home
    tasks: list[Task] = [
        services.disk,
        services.key_rotation,
        services.rollouts,
        DeletedWorkspaces(db, services.emptiers),
    ]
    if services.settings.own_listener:
        tasks += [ListenerKey(db, home), ListenerLog(home.listener_log)]

    return tasks


module = Module[SystemServices](package="portside.platform", routes=list(system.routes), build_tasks=_build_tasks)
