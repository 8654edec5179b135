"""What a store holds: its backups, and the times that can be restored with them and the WAL beside them.

Everything is read from names and headers, so nobody needs the passphrase. When a backup ends, Postgres archives a small
file whose name has the segment in which the backup began. From that segment on, the WAL is of use until the first
segment that is missing.
"""

import re
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

import msgspec

from portside.backup.container import Header, read_header
from portside.backup.databases import BackupFailed
from portside.backup.stores import SUFFIX, Store, StoredFile
from portside.backup.wal_archive import FOLDER, is_segment, next_segment
from portside.kernel.errors import UserMistake

_END_FILE = re.compile(r"(?P<segment>[0-9A-F]{24})\.[0-9A-F]{8}\.backup")


def read_stored_header(store: Store, name: str) -> Header:
    """Return the header of a stored backup. Raises BackupRefused and BackupFailed."""
    with store.open(name) as source:
        return read_header(source)


class ListedBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup in a store, by its header. `problem` says why the header cannot be read."""

    name: str
    size_bytes: int
    created_at: datetime
    kind: str = ""
    version: str = ""
    installation: str = ""
    problem: str | None = None


def list_stored_backups(store: Store) -> list[ListedBackup]:
    """List the backups in a store, newest first. Raises BackupFailed if it cannot be reached."""
    backups = [_to_listed_backup(store, file) for file in store.list() if file.name.endswith(SUFFIX)]
    return sorted(backups, key=lambda backup: backup.created_at, reverse=True)


def _to_listed_backup(store: Store, file: StoredFile) -> ListedBackup:
    try:
        header = read_stored_header(store, file.name)
    except UserMistake as exc:
        return ListedBackup(name=file.name, size_bytes=file.size_bytes, created_at=file.modified_at, problem=str(exc))

    return ListedBackup(
        name=file.name,
        size_bytes=file.size_bytes,
        created_at=header.created_at,
        kind=header.kind,
        version=header.version,
        installation=header.installation,
    )


class TimeSpan(msgspec.Struct, frozen=True):
    """A time span whose every second can be restored."""

    since: datetime
    until: datetime

    def __str__(self) -> str:
        return f"from {self.since:%Y-%m-%d %H:%M:%S}Z to {self.until:%Y-%m-%d %H:%M:%S}Z"

    def holds(self, at: datetime) -> bool:
        """Whether a time is in the span."""
        return self.since <= at <= self.until


class RestorableBackup(NamedTuple):
    """A backup with the WAL beside it: the segment that a restore begins with, and the times that it reaches."""

    name: str
    installation: str
    first_segment: str
    span: TimeSpan


def list_restorable_backups(store: Store) -> list[RestorableBackup]:
    """Return the backups from which times can be restored, the newest first. Raises BackupFailed."""
    backups = [backup for backup in list_stored_backups(store) if backup.kind == "data" and backup.problem is None]
    restorable: list[RestorableBackup] = []
    for installation in {backup.installation for backup in backups}:
        own_backups = [backup for backup in backups if backup.installation == installation]
        restorable += _find_restorable(store, installation, sorted(own_backups, key=lambda backup: backup.created_at))

    return sorted(restorable, key=lambda backup: backup.span.since, reverse=True)


def _find_restorable(store: Store, installation: str, backups: list[ListedBackup]) -> list[RestorableBackup]:
    """Return the backups of one home from which times can be restored; `backups` are ordered by time."""
    folder = f"{FOLDER}/{installation}/"
    names = [file.name.removeprefix(folder) for file in store.list(folder.rstrip("/"))]
    segments = sorted(name for name in names if is_segment(name))
    archived_at: dict[str, datetime] = {}

    def get_time(name: str) -> datetime:
        if name not in archived_at:
            archived_at[name] = read_stored_header(store, folder + name).created_at

        return archived_at[name]

    # When each backup ended, and the segment in which it began.
    matches = [match for match in map(_END_FILE.fullmatch, names) if match is not None]
    ends = sorted((get_time(match[0]), match["segment"]) for match in matches)

    restorable = []
    for backup, following in pairwise([*backups, None]):
        assert backup is not None  # noqa: S101 - only the last one is

        for ended_at, first in ends:
            is_of_backup = backup.created_at <= ended_at and (following is None or ended_at < following.created_at)
            last = _find_last_segment(segments, first) if is_of_backup else None
            if last is not None:
                span = TimeSpan(ended_at, max(ended_at, get_time(last)))
                restorable.append(RestorableBackup(backup.name, installation, first, span))
                break

    return restorable


def _find_last_segment(segments: list[str], first: str) -> str | None:
    """Return the last segment before one is missing, or None if the first one is."""
    if first not in segments:
        return None

    last = first
    for name in segments[segments.index(first) + 1 :]:
        if name != next_segment(last):
            break
        last = name

    return last


def join_spans(backups: list[RestorableBackup]) -> list[TimeSpan]:
    """Return the time spans of backups, the earliest first; those that overlap are joined."""
    joined: list[TimeSpan] = []
    for span in sorted((backup.span for backup in backups), key=lambda backup: backup.since):
        if joined and span.since <= joined[-1].until:
            joined[-1] = TimeSpan(joined[-1].since, max(joined[-1].until, span.until))
        else:
            joined.append(span)

    return joined


def describe_spans(location: str, backups: list[RestorableBackup]) -> str:
    """Say which times can be restored."""
    if not backups:
        return (
            f"no time can be restored from {location}: it has no WAL of this platform that follows a backup, because "
            "BACKUP_POINT_IN_TIME was off, or the WAL was deleted with older backups"
        )

    return f"the times that can be restored from {location} are {' and '.join(map(str, join_spans(backups)))}"


def choose_backup(store: Store, at: datetime, name: str | None = None) -> str:
    """Return the name of the newest backup, or check the named one, from which a time can be restored.

    Raises BackupFailed, with the times that can be.
    """
    candidates = [backup for backup in list_restorable_backups(store) if name in {None, backup.name}]
    for backup in candidates:
        if backup.span.holds(at):
            return backup.name

    source = store.location if name is None else f"{store.location}/{name}"
    raise BackupFailed(f"--at {at.isoformat()}: {describe_spans(source, candidates)}")


def choose_newest_backup(store: Store) -> str:
    """Return the name of the newest backup in a store. Raises BackupFailed."""
    for backup in list_stored_backups(store):
        if backup.problem is None:
            return backup.name

    raise BackupFailed(f"there is no backup in {store.location} that can be read")
