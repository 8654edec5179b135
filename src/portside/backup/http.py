"""The routes of backups: what there is, what failed, and taking one now."""

import asyncio
import os
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from portside.backup.history import Attempt, read_attempts
from portside.backup.listing import ListedBackup, TimeSpan, join_spans, list_restorable_backups, list_stored_backups
from portside.backup.schedule import ScheduledBackups, get_next_due
from portside.backup.stores import open_store
from portside.backup.wal_archive import WalArchive
from portside.kernel.errors import Conflict, UserMistake
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.audit_actions import Action

_ATTEMPTS = 20


class NoSchedule(Conflict):
    """No backups are scheduled; set BACKUP_TO, or take one with 'portside backup create'."""

    code = "no_backup_schedule"


@dataclass(frozen=True, kw_only=True)
class BackupServices(kernel_routes.BaseServices):
    """The services of backups. `backups` is None without BACKUP_TO, and `archive` unless the WAL is archived."""

    backups: ScheduledBackups | None
    archive: WalArchive | None
    home_folder: Path


class BackupSchedule(msgspec.Struct):
    """Where scheduled backups go and which are kept. `next_at` is None if one is due or being taken."""

    location: str
    every_hours: float
    keep: int
    keep_days: int
    keeps_log: bool
    """Whether the WAL is archived, with which every second of the `restorable` times can be restored."""
    is_running: bool
    next_at: datetime | None
    restore_command: str


class Backups(msgspec.Struct):
    """The backups of this platform, newest first, and the last attempts. `problem` says why none can be listed.

    Any second of the `restorable` times can be restored, not only the moments of backups.
    """

    schedule: BackupSchedule | None
    backups: list[ListedBackup]
    attempts: list[Attempt]
    problem: str | None = None
    restorable: list[TimeSpan] = []


Context = kernel_routes.Context[BackupServices]
routes = kernel_routes.Routes[Context]("system")


@routes.get("/system/backups", permission="organization:manage")
async def list_backups(ctx: Context) -> Backups:
    """List the backups of this platform and the last attempts, with the schedule and the command to restore."""
    services = ctx.services
    if services.backups is None:
        attempts = await asyncio.to_thread(read_attempts, services.home_folder)
        return Backups(None, [], attempts[:_ATTEMPTS])

    return await asyncio.to_thread(_describe, services.backups, keeps_log=services.archive is not None)


@routes.post(
    "/system/backups", permission="organization:manage", raises=(NoSchedule,), status=204, audit=Action("backup.create")
)
async def take_backup(ctx: Context) -> None:
    """Take a scheduled backup as soon as possible, at the latest in a few seconds."""
    if ctx.services.backups is None:
        raise NoSchedule
    ctx.services.backups.request()


def _describe(backups: ScheduledBackups, *, keeps_log: bool) -> Backups:
    planned = backups.schedule
    schedule = BackupSchedule(
        location=planned.location,
        every_hours=planned.every.total_seconds() / 3600,
        keep=planned.keep,
        keep_days=planned.keep_for.days,
        keeps_log=keeps_log,
        is_running=backups.is_running,
        next_at=None if backups.is_running else get_next_due(planned),
        restore_command=f"portside backup restore {shlex.quote(planned.location)} --home NEW_FOLDER",
    )

    attempts = read_attempts(planned.home)[:_ATTEMPTS]
    try:
        store = open_store(planned.location, os.environ)
        restorable = join_spans(list_restorable_backups(store)) if keeps_log else []
        return Backups(schedule, list_stored_backups(store), attempts, restorable=restorable)
    except UserMistake as exc:
        return Backups(schedule, [], attempts, str(exc))
