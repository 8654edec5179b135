"""What the platform does in the background, beside answering; each chore is safe in several processes at once."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from portside.control.archive_store import ArchiveStore
from portside.control.archives import UnusedArchives
from portside.control.background import Services
from portside.control.polling import PolledBranches
from portside.control.pushes import OldDeliveries
from portside.control.scope import DesiredChanges
from portside.identity.keyring import Keyring
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.reconcile import Driver, Task
from portside.platform.removal import DeletedWorkspaces
from portside.platform.settings import PlatformSettings
from portside.tracing.figure_days import FiguresOfDays
from portside.tracing.retention import ExpiredTraces, LateRuns, Retention
from portside.usage.hours import HoursThatAreOver


@asynccontextmanager
async def chores(services: Mapping[type, Any], settings: PlatformSettings) -> AsyncIterator[None]:
    """Run the chores until the end of the block."""
    db: Database = services[Database]
    tasks: list[Task] = [
        UnusedArchives(db, services[ArchiveStore]),
        OldDeliveries(db),
        ExpiredTraces(db, services[Retention]),
        LateRuns(db, services[Retention]),
        HoursThatAreOver(db),
        FiguresOfDays(db),
        DeletedWorkspaces(db),
    ]
    if settings.repository_poll_s:
        acting = Services(db, services[SecretBox], services[Keyring], services[DesiredChanges])
        tasks.append(PolledBranches(acting, settings.repository_poll_s))
    driver = Driver(tasks)
    driver.start()
    try:
        yield
    finally:
        await driver.close()
