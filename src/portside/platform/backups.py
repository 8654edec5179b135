"""Backups of a platform by its settings: what is copied, when, and where it goes."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from portside.audit.entries import record_at
from portside.backup.container import Passphrase
from portside.backup.contents import Progress
from portside.backup.create import BackupResult, BackupTarget, SourcePlatform, build_name, create_backup
from portside.backup.history import Attempt, record_attempt
from portside.backup.schedule import BackupPlan, ScheduledBackups
from portside.backup.stores import Store, open_store
from portside.backup.wal_archive import WalArchive
from portside.backup.work import InterruptibleWork
from portside.kernel import interruption
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import UserMistake
from portside.kernel.transient_errors import log_failure
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings


@asynccontextmanager
async def open_origin(settings: PlatformSettings, *, as_dumps: bool) -> AsyncIterator[SourcePlatform]:
    """Yield the platform of a home folder, running or not; its embedded Postgres runs during the block.

    Raises UserMistake if there is no platform.
    """
    home = settings.home_path
    if not Home(home).master_key.is_file():
        raise UserMistake(f"there is no {Home(home).master_key}; name the platform's folder with --home")

    if settings.database_url:
        yield SourcePlatform(home, settings.database_url, "dumps")
        return

    embedded = build_embedded(settings)
    if not (embedded.data / "PG_VERSION").exists():
        raise UserMistake(f"{home} has no embedded Postgres; set DATABASE_URL as for the platform")

    try:
        url = await InterruptibleWork().run(embedded.acquire, on_interrupt=embedded.release)
        yield SourcePlatform(home, url, "dumps" if as_dumps else "data")
    finally:
        await asyncio.to_thread(embedded.release)


def build_embedded(settings: PlatformSettings) -> EmbeddedPostgres:
    """Return the embedded Postgres of the settings' home."""
    return EmbeddedPostgres(
        settings.home_path, connections=settings.postgres_max_connections, is_archiving=settings.backup_point_in_time
    )


def build_schedule(settings: PlatformSettings) -> BackupPlan | None:
    """Return when and where backups are taken, or None without BACKUP_TO."""
    if settings.backup_to is None:
        return None

    return BackupPlan(
        home=settings.home_path,
        location=settings.backup_to,
        every=timedelta(hours=settings.backup_every_hours),
        keep=settings.backup_keep,
        keep_for=timedelta(days=settings.backup_keep_days),
        keeps_log=settings.backup_point_in_time,
    )


def load_passphrase(settings: PlatformSettings) -> Passphrase | None:
    """Return the passphrase of the settings, from its file if one is named. Raises UserMistake if that is unusable."""
    if settings.backup_passphrase_file is not None:
        return Passphrase.from_file(settings.backup_passphrase_file, "PORTSIDE_BACKUP_PASSPHRASE_FILE")
    if settings.backup_passphrase:
        return Passphrase(settings.backup_passphrase)

    return None


def take_backup(
    settings: PlatformSettings,
    store: Store,
    name: str | None,
    passphrase: Passphrase,
    progress: Progress,
    **how: bool,
) -> tuple[BackupResult, Attempt]:
    """Take a backup, and record the attempt in the home's history. Raises UserMistake.

    `how` is `as_dumps` for SQL dumps, and `is_scheduled` for the history; both are false by default.
    """
    passphrase.check_strength()
    started_at = datetime.now(UTC)
    target = BackupTarget(store, name or build_name(started_at), passphrase)

    async def run() -> BackupResult:
        async with open_origin(settings, as_dumps=how.get("as_dumps", False)) as origin:
            # Before the copy, so that it is in the backup too.
            await record_at(origin.url, "backup.create", target.name)
            return await create_backup(origin, target, progress)

    def build_attempt(**outcome: Any) -> Attempt:
        return Attempt(
            started_at=started_at,
            ended_at=datetime.now(UTC),
            location=store.location,
            name=target.name,
            is_scheduled=how.get("is_scheduled", False),
            **outcome,
        )

    try:
        result = interruption.run(run())
    except Exception as exc:
        # A backup that was interrupted has not failed; the next start of the platform takes it again.
        if Home(settings.home_path).master_key.exists():
            record_attempt(settings.home_path, build_attempt(error=str(exc) or type(exc).__name__))
        raise

    attempt = build_attempt(size_bytes=result.size_bytes)
    record_attempt(settings.home_path, attempt)
    return result, attempt


async def record_trial(settings: PlatformSettings, name: str) -> None:
    """Record in the audit log of a platform that a backup was restored as a trial, if there is a platform."""
    if not Home(settings.home_path).master_key.is_file():
        return

    try:
        async with open_origin(settings, as_dumps=False) as origin:
            await record_at(origin.url, "backup.try_restore", name)
    except UserMistake as exc:
        log_failure("the audit log could not record a command", exc, action="backup.try_restore")


class BackupTasks(NamedTuple):
    """The background tasks of backups; none of them without BACKUP_TO."""

    backups: ScheduledBackups | None = None
    archive: WalArchive | None = None

    @property
    def problems(self) -> dict[str, Callable[[], str | None]]:
        """Functions that say what is wrong with them, by the name of the part."""
        parts = {"backup": self.backups, "WAL archive": self.archive}
        return {name: partial(_get_problem, part) for name, part in parts.items() if part is not None}


def _get_problem(part: ScheduledBackups | WalArchive) -> str | None:
    return part.problem


def build_backup_tasks(settings: PlatformSettings, database_url: str) -> BackupTasks:
    """Return the tasks of scheduled backups. Raises UserMistake."""
    schedule = build_schedule(settings)
    if schedule is None:
        if settings.backup_point_in_time:
            raise UserMistake("setting BACKUP_POINT_IN_TIME: needs BACKUP_TO, where the WAL is archived")
        return BackupTasks()

    passphrase = load_passphrase(settings)
    if passphrase is None:
        raise UserMistake(
            "setting BACKUP_TO: needs a passphrase; set PORTSIDE_BACKUP_PASSPHRASE_FILE or PORTSIDE_BACKUP_PASSPHRASE"
        )

    passphrase.check_strength()
    environment = {"PORTSIDE_HOME": str(settings.home_path), "DATABASE_URL": settings.database_url or ""}
    backups = ScheduledBackups(schedule, environment)
    store = open_store(schedule.location, os.environ)

    if not settings.backup_point_in_time:
        return BackupTasks(backups)
    if settings.database_url:
        raise UserMistake("setting BACKUP_POINT_IN_TIME: works with the embedded Postgres only, not DATABASE_URL")

    archive = WalArchive(settings.home_path, database_url, store, passphrase)
    return BackupTasks(backups, archive)
