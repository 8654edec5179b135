"""The attempts to take backups of a home folder: what the platform, its commands and alerts know of them.

A file in the home folder, not a table: it is also written when the database is what fails.
"""

from datetime import datetime
from pathlib import Path

import msgspec

from portside.kernel.files import locked, make_private_dir, write_private

FOLDER = "backups"
_KEPT = 200


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt: where the backup went, and its size in bytes or the reason why there is none."""

    started_at: datetime
    ended_at: datetime
    location: str
    name: str
    is_scheduled: bool
    size_bytes: int | None = None
    error: str | None = None


class LastBackup(msgspec.Struct, kw_only=True):
    """The newest backup, and the newest failure if it is newer than that. None for what never happened."""

    succeeded: Attempt | None
    failed: Attempt | None


class WalState(msgspec.Struct, kw_only=True):
    """The archived WAL of a home: where it is, since when nothing of it is missing, and its last segment."""

    location: str
    since: datetime
    last_segment: str | None = None


def read_wal_state(home: Path) -> WalState | None:
    """Return the state of the archived WAL, or None if none was archived."""
    try:
        return msgspec.json.decode((home / FOLDER / "wal.json").read_bytes(), type=WalState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def record_wal_state(home: Path, state: WalState) -> None:
    """Keep the state of the archived WAL; only the platform writes it."""
    write_private(make_private_dir(home / FOLDER) / "wal.json", msgspec.json.encode(state).decode())


def read_attempts(home: Path) -> list[Attempt]:
    """Return the attempts of a home folder, newest first."""
    try:
        return msgspec.json.decode((home / FOLDER / "history.json").read_bytes(), type=list[Attempt])
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def record_attempt(home: Path, attempt: Attempt) -> None:
    """Add an attempt. Several programs may do so at once."""
    folder = make_private_dir(home / FOLDER)
    with locked(folder / "history.lock"):
        attempts = [attempt, *read_attempts(home)][:_KEPT]
        write_private(folder / "history.json", msgspec.json.encode(attempts).decode())


def get_last_backup(home: Path) -> LastBackup:
    """Return the last backup of a home folder and the failure since, for alerts and status pages."""
    attempts = read_attempts(home)
    succeeded = next((attempt for attempt in attempts if attempt.error is None), None)
    newest = attempts[0] if attempts else None
    return LastBackup(succeeded=succeeded, failed=newest if newest and newest.error is not None else None)
