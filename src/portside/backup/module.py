"""The manifest of backups."""

from collections.abc import Sequence

from portside.backup import http
from portside.backup.http import BackupServices
from portside.kernel.modules import Module
from portside.kernel.reconcile import Task


def _build_tasks(services: BackupServices) -> Sequence[Task]:
    tasks = (services.backups, services.archive)
    return [task for task in tasks if task is not None]


module = Module[BackupServices](package="portside.backup", routes=list(http.routes), build_tasks=_build_tasks)
