"""Restoring a backup into a new home folder, and checking one.

The whole file is checked before anything is written. Then everything is made in a work folder, the database is
recovered and checked there, and the result becomes the new home at the end. A restore that is refused, fails or is
interrupted leaves nothing behind.

The work folder is beside the new home. If that exists, it may be a volume, or the home of a service below a folder of
root: then the work folder is in it.
"""

import asyncio
import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import InvalidVersion, Version

from portside import __version__
from portside.backup.container import BackupRefused, EncryptedReader, Header, Passphrase
from portside.backup.contents import Progress, Summary, check, unpack
from portside.backup.create import DATA, HOME, HOME_BEFORE, MASTER_KEY, PASSWORD, BackedUpHome
from portside.backup.databases import DUMPS, BackupFailed, count_rows, restore_dumps
from portside.backup.listing import TimeSpan, choose_backup, list_restorable_backups, read_stored_header
from portside.backup.stores import Store
from portside.backup.wal_archive import check_wal, fetch_files, fetch_wal
from portside.backup.work import InterruptibleWork, Phases
from portside.kernel import interruption
from portside.kernel.embedded import EmbeddedPostgres, read_bundled_version
from portside.kernel.files import get_user_name, make_private_dir
from portside.kernel.schema_files import read_migrations

# Recover with the WAL inside the backup alone: the server asks for more, gets none, and begins a new timeline, so that
# its WAL cannot be confused with that of the original.
_RECOVER_ALL = {"restore_command": "false", "recovery_target_timeline": "current"}
_SEGMENTS = "segments"
_WORK = ".restore-"
Check = Callable[[str, Path], Awaitable[None]]
Move = Callable[[str, str, str], Awaitable[None]]


@dataclass(frozen=True)
class Backup:
    """A backup in a store, and the passphrase that opens it."""

    store: Store
    name: str
    passphrase: Passphrase


@dataclass(frozen=True)
class NewHome:
    """The home folder to make. Dumps go into the server of `url`, or into an embedded one if it is None.

    `check` opens the restored database as the platform does, with the folder that becomes the home. The data is as it
    was `at` a time, or at the end of the backup if that is None. `move` gets the database, and the paths of the home
    before and now.
    """

    path: Path
    url: str | None
    check: Check
    at: datetime | None = None
    move: Move | None = None


class VerifiedWal(NamedTuple):
    """The WAL that follows a backup: the number of files, the times that it reaches, and why each bad file is bad."""

    files: int
    span: TimeSpan
    damaged: dict[str, str]


def verify(backup: Backup, phases: Phases) -> tuple[Header, Summary]:
    """Read a whole backup and check that it is complete and unchanged. Raises BackupRefused and BackupFailed."""
    with backup.store.open(backup.name) as source:
        reader = EncryptedReader(source, backup.passphrase)
        return reader.header, check(reader, phases("checking the backup"))


def verify_wal(backup: Backup, header: Header, phases: Phases) -> VerifiedWal | None:
    """Read the WAL that follows a backup as far as there is any. Raises BackupFailed.

    Returns None if none follows it.
    """
    for candidate in list_restorable_backups(backup.store):
        if candidate.name == backup.name:
            progress = phases("checking the WAL")
            number, damaged = check_wal(
                backup.store, header, backup.passphrase, first=candidate.first_segment, progress=progress
            )
            return VerifiedWal(number, candidate.span, damaged)

    return None


async def try_restore(backup: Backup, check: Check, phases: Phases) -> dict[str, int]:
    """Restore a backup into a temporary folder, and return the number of rows of each database.

    Raises BackupRefused and BackupFailed. Nothing is left of it.
    """
    rows: dict[str, int] = {}

    async def look(url: str, home: Path) -> None:
        await check(url, home)
        rows.update(await count_rows(url))

    with tempfile.TemporaryDirectory(prefix="portside-verify-") as folder:
        await restore(backup, NewHome(Path(folder) / "home", None, look), phases)

    return rows


async def restore(backup: Backup, target: NewHome, phases: Phases) -> Summary:
    """Restore a backup. Raises BackupRefused and BackupFailed; then nothing is left of it."""
    _check_free(target.path)
    header = await asyncio.to_thread(read_stored_header, backup.store, backup.name)
    _check_versions(header, target)

    if target.at is not None:
        await asyncio.to_thread(choose_backup, backup.store, target.at, backup.name)

    work = InterruptibleWork()

    def phase(name: str) -> Progress:
        return work.counting(phases(name))

    _, summary = await work.run(verify, backup, phase)
    with _create_parents(target.path), _work_folder(target.path) as folder:
        await work.run(_unpack, backup, folder, phase("writing the files"))
        home = folder / HOME
        phases("recovering the databases")(0)

        if header.kind == "data":
            await _recover(folder, target, ArchivedWal(backup, header), work)
        else:
            await _restore_dumps(folder, home, target, work)

        _move_home(home, target.path)

    return summary


def _move_home(home: Path, target: Path) -> None:
    """Make a restored folder the new home, or fill an empty folder with it."""
    home.chmod(0o700)
    if not target.exists():
        home.rename(target)
        return

    # Another program may have begun to use it meanwhile.
    _check_free(target)
    target.chmod(0o700)

    # The key is last: without it no platform starts on the others.
    for entry in sorted(home.iterdir(), key=lambda path: path.name == MASTER_KEY):
        entry.rename(target / entry.name)


def _unpack(backup: Backup, folder: Path, progress: Progress) -> None:
    make_private_dir(folder / HOME)
    with backup.store.open(backup.name) as source:
        unpack(EncryptedReader(source, backup.passphrase), folder, progress)


def _check_free(path: Path) -> None:
    """Raise BackupFailed for a file, and for a folder that is somebody else's or is not empty."""
    if not path.exists():
        return

    if path.is_dir() and path.stat().st_uid != os.geteuid():
        owner = get_user_name(path.stat().st_uid)
        raise BackupFailed(f"{path} belongs to the user {owner}: restore as {owner}, for example with sudo -u {owner}")

    if not path.is_dir() or not all(map(_may_stay, path.iterdir())):
        raise BackupFailed(f"{path} is not empty; name a new folder with --home, nothing was changed")


def _may_stay(entry: Path) -> bool:
    """Whether a folder is empty apart from this: what file systems make, and work folders of restores."""
    return entry.name == "lost+found" or entry.name.startswith(_WORK)


def _check_versions(header: Header, target: NewHome) -> None:
    """Raise BackupRefused for a backup of a newer version, or of another major version of Postgres."""
    try:
        is_newer = Version(Version(header.version).public) > Version(__version__)
    except InvalidVersion as exc:
        raise BackupRefused("the backup is damaged: its header names no version") from exc

    if is_newer:
        raise BackupRefused(
            f"this backup was made by Portside {header.version}, which is newer than this one ({__version__}); install "
            "that version to restore it"
        )

    for package, number in header.migrations.items():
        try:
            numbers = [migration.number for migration in read_migrations(f"portside.{package}")]
        except (ModuleNotFoundError, FileNotFoundError):
            # This version lacks the package, or the package has no tables yet.
            numbers = []

        last_number = max(numbers, default=0)
        if number > last_number:
            raise BackupRefused(
                f"this backup was made by a newer version of Portside ({header.version}): its database has migration "
                f"{number} of {package}, and this version knows {last_number}; install that version"
            )

    if header.kind == "wal":
        raise BackupRefused("this file is a WAL segment, not a backup; name a backup, or the folder with --at")

    if header.kind == "data" and target.url is not None:
        raise BackupRefused(
            "this backup holds the data folder of the embedded Postgres, and DATABASE_URL names another server: unset "
            "it, or take a backup with --dumps"
        )

    if header.kind == "dumps" and target.at is not None:
        raise BackupRefused("dumps hold one moment only; --at needs a backup of the embedded Postgres")

    if header.kind == "data" and header.postgres != read_bundled_version():
        raise BackupRefused(
            f"this backup holds a data folder of Postgres {header.postgres}, and this version of Portside brings "
            f"Postgres {read_bundled_version()}; install a version that brings {header.postgres}"
        )


class ArchivedWal(NamedTuple):
    """The WAL that was archived beside a backup."""

    backup: Backup
    header: Header

    def fetch(self, at: datetime, segments: Path, home: Path) -> None:
        """Write its segments into a folder, and the files that were new since the backup into the home."""
        store = self.backup.store
        passphrase = self.backup.passphrase
        fetch_wal(store, self.header, passphrase, at=at, target=segments)
        fetch_files(store, self.header, passphrase, home)


async def _recover(folder: Path, target: NewHome, wal: ArchivedWal, work: InterruptibleWork) -> None:
    """Let Postgres recover the copied data folder, and check it. Raises UserMistake."""
    home = folder / HOME
    make_private_dir(home / "postgres")

    for name in (DATA, PASSWORD):
        (folder / name).rename(home / name)

    settings = dict(_RECOVER_ALL)

    if target.at is not None:
        segments = make_private_dir(folder / _SEGMENTS)
        await work.run(wal.fetch, target.at, segments, home)
        settings |= {
            # Runs in the data folder.
            "restore_command": f"cp ../../../{_SEGMENTS}/%f %p",
            "recovery_target_time": target.at.isoformat(),
            "recovery_target_action": "promote",
        }

    postgres = EmbeddedPostgres(home)
    recovered = postgres.recovered(settings)
    try:
        url = await work.run(recovered.__enter__, on_interrupt=postgres.end_recovery)
        await _finish(url, home, folder, target)
    except asyncio.CancelledError:
        postgres.end_recovery()
        raise
    finally:
        await work.run(recovered.__exit__, None, None, None)


async def _restore_dumps(folder: Path, home: Path, target: NewHome, work: InterruptibleWork) -> None:
    async with _open_server(home, target.url, work) as url:
        await restore_dumps(url, folder / DUMPS)
        await _finish(url, home, folder, target)


async def _finish(url: str, home: Path, folder: Path, target: NewHome) -> None:
    """Check a database that was restored, and let the paths in it lead into the new home."""
    await target.check(url, home)
    before = folder / HOME_BEFORE

    # Backups of earlier versions do not say where the home was.
    if target.move is not None and before.exists():
        origin = msgspec.json.decode(before.read_bytes(), type=BackedUpHome)
        await target.move(url, origin.path, str(target.path.absolute()))


@asynccontextmanager
async def _open_server(home: Path, url: str | None, work: InterruptibleWork) -> AsyncIterator[str]:
    """Return the URL of the given server, or of an embedded one in the new home, during the block."""
    if url is not None:
        yield url
        return

    embedded = EmbeddedPostgres(home)
    try:
        yield await work.run(embedded.acquire, on_interrupt=embedded.release)
    finally:
        await work.run(embedded.release)


@contextmanager
def _create_parents(path: Path) -> Iterator[None]:
    """Make the parents of a path; those that were missing are removed after a failure. Raises BackupFailed."""
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as exc:
        for parent in new_parents:
            with contextlib.suppress(OSError):
                parent.rmdir()

        if not isinstance(exc, OSError):
            raise

        hint = "; let root make the folder, and give it to this user" if isinstance(exc, PermissionError) else ""
        raise BackupFailed(f"cannot restore into {path}: {exc.strerror or exc}; nothing is left of it{hint}") from exc


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Make a private folder on the file system of a new home. It is removed at the end.

    Folders that killed restores of the same path left are removed first. Each restore holds a lock of its folder.
    """
    beside = (path.parent, f".{path.name}{_WORK}")
    places = [(path, _WORK), beside] if path.exists() else [beside]
    for place in places:
        _remove_leftovers(*place)

    folder, lock = _create_locked_folder(*places[0])
    try:
        yield folder
    finally:
        with interruption.ending():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)

        # Another restore may have taken it for a leftover before it was locked.
        if folder.exists():
            return folder, lock

        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its Postgres may have outlived it.
                EmbeddedPostgres(folder / HOME).stop_leftover()
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
