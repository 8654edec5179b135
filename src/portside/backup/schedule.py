"""Scheduled backups: when the next one is due, running it in a process of its own, and which ones are kept.

A backup runs in another process, because compressing gigabytes would slow down the platform's requests.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from portside.backup.create import ensure_identity
from portside.backup.history import Attempt, get_last_backup, read_attempts, read_wal_state
from portside.backup.listing import ListedBackup, list_stored_backups
from portside.backup.stores import Store
from portside.backup.wal_archive import prune_wal
from portside.kernel.clock import now
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import wait_at_most

log = get_logger(__name__)
# After a failure it is tried again soon, but not at once: the reason may be a full disk or an unreachable store.
RETRY_AFTER = timedelta(minutes=15)
_REASON_CHARACTERS = 500
END_WITHIN_S = 10.0


@dataclass(frozen=True)
class BackupPlan:
    """Where scheduled backups of a home folder go, how often one is taken, and how many are kept for how long.

    `keeps_log` says whether the WAL is archived beside them.
    """

    home: Path
    location: str
    every: timedelta
    keep: int
    keep_for: timedelta
    keeps_log: bool = False


def get_next_due(schedule: BackupPlan) -> datetime | None:
    """Return when the next backup is due; None for at once."""
    attempts = [attempt for attempt in read_attempts(schedule.home) if attempt.is_scheduled]
    newest = next(iter(attempts), None)
    if newest is None or (newest.error is None and _lacks_base(schedule, attempts)):
        return None

    wait = schedule.every if newest.error is None else min(RETRY_AFTER, schedule.every)
    return newest.started_at + wait


def _lacks_base(schedule: BackupPlan, attempts: list[Attempt]) -> bool:
    """Whether the archived WAL follows none of the backups, because it began later or a part of it was lost."""
    wal = read_wal_state(schedule.home) if schedule.keeps_log else None
    if wal is None:
        return False

    return not any(
        attempt.error is None and attempt.location == wal.location and attempt.started_at >= wal.since
        for attempt in attempts
    )


def list_surplus(backups: list[ListedBackup], schedule: BackupPlan, at: datetime) -> list[str]:
    """Return which backups of a list, newest first, are no longer kept.

    The schedule keeps the newest `keep` backups of any age, and all that are younger than `keep_for`.
    """
    readable = [backup for backup in backups if backup.problem is None]
    return [backup.name for backup in readable[schedule.keep :] if backup.created_at < at - schedule.keep_for]


def prune(store: Store, schedule: BackupPlan) -> int:
    """Delete backups that are no longer kept and the WAL from before the oldest; return the number of files.

    Only those of this home: other platforms may keep their backups at the same location. Raises BackupFailed.
    """
    installation_id = ensure_identity(schedule.home).id
    # A backup whose header cannot be read now names no home. It may be one of these: it stays, and so does its WAL.
    backups = [backup for backup in list_stored_backups(store) if backup.installation in {installation_id, ""}]

    deleted = list_surplus(backups, schedule, now())
    for name in deleted:
        store.delete(name)

    times = [backup.created_at for backup in backups if backup.name not in deleted]
    if not times:
        return len(deleted)

    return len(deleted) + prune_wal(store, min(times))


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Let a backup remove what it has written, and kill it if that takes too long."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()

    if not await wait_at_most(END_WITHIN_S, process.wait()):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class ScheduledBackups(Task):
    """Takes a backup when it is due. Failures are in the log and in the home's history."""

    every_s = 20.0

    def __init__(self, schedule: BackupPlan, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.schedule = schedule
        self._environment = {**os.environ, **environment}
        self.is_running = False
        self._is_requested = False

        # Says that the newest backup failed, without addresses and paths: `GET /ok` shows it to everybody.
        self.problem: str | None = None

    def request(self) -> None:
        """Take a backup now, although none is due."""
        self._is_requested = True
        self.signal.set()

    async def activate(self) -> Status:
        """Take a backup if it is due or requested."""
        failure = (await asyncio.to_thread(get_last_backup, self.schedule.home)).failed
        self.problem = None

        if failure is not None:
            self.problem = f"The backup of {failure.started_at:%Y-%m-%d %H:%M}Z failed; the log has the reason."

        due_at = await asyncio.to_thread(get_next_due, self.schedule)
        if due_at is not None and now() < due_at and not self._is_requested:
            return Status()

        self._is_requested = False
        self.is_running = True
        try:
            return await self._run()
        finally:
            self.is_running = False

    async def _run(self) -> Status:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "portside",
            "backup",
            "run",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )

        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            await _end_process(process)
            raise

        reason = errors.decode("utf-8", "replace").strip()[-_REASON_CHARACTERS:]
        if process.returncode == 0:
            log.info("the scheduled backup was taken", location=self.schedule.location, report=reason)
        else:
            log.error("the scheduled backup failed", location=self.schedule.location, reason=reason)
            self.problem = "The last scheduled backup failed; the log has the reason."

        has_failed = process.returncode != 0
        return Status({"taken": int(not has_failed), "failed": int(has_failed)})
