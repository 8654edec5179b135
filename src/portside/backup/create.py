"""Taking a backup: the databases first, then the files of the home folder.

The order matters: a file that a row names exists before the row does, so every file of the copied rows is copied, too.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from portside.backup.container import EncryptedWriter, Header, Kind, Passphrase, new_salt
from portside.backup.contents import Packer, Progress, Summary
from portside.backup.databases import (
    BackupFailed,
    OwnedDatabase,
    copy_server,
    dump_database,
    get_applied_migrations,
    get_postgres_version,
    list_platform_databases,
)
from portside.backup.history import FOLDER
from portside.backup.stores import SUFFIX, Store
from portside.backup.work import InterruptibleWork
from portside.kernel.crypto import merge_key_files
from portside.kernel.files import locked, make_private_dir, write_private
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.version import full_version

log = get_logger(__name__)
HOME = "home"
DATA = "postgres/data"
PASSWORD = "postgres/password"  # noqa: S105 - a path in the backup
MASTER_KEY = "master-key"
HOME_BEFORE = "home-before.json"
_IDENTITY = "installation.json"
# Left out of the home folder: what can be made again, what is valid on this machine only, and the database, which is
# copied by itself.
LEFT_OUT = (
    "postgres",
    "logs",
    FOLDER,
    "platform.lock",
    "address",
    "dataplane/listener.lock",
    "dataplane/uv-cache",
    "dataplane/compiled-modules",
    "dataplane/wheels",
    "dataplane/node",
    "dataplane/node-cache",
    "dataplane/node-runtimes",
    "dataplane/deployments/*/state.json",
    "dataplane/deployments/*/database-password",
    "dataplane/deployments/*/revisions",
    "dataplane/deployments/*/logs",
)


class BackedUpHome(msgspec.Struct):
    """Where the home folder was: paths below it, which some rows hold, lead into the new one after a restore."""

    path: str


class HomeIdentity(msgspec.Struct):
    """The identity of a home folder, which its backups name, and the salt that they share."""

    id: str
    salt: bytes


def ensure_identity(home: Path) -> HomeIdentity:
    """Return the identity of a home folder. It is not in backups, so a restored home gets another one."""
    folder = home / FOLDER
    identity = _read_identity(folder)
    if identity is not None:
        return identity

    make_private_dir(folder)
    # The platform archives WAL while another process takes the first backup: both must name one installation.
    with locked(folder / "installation.lock"):
        identity = _read_identity(folder)
        if identity is None:
            identity = HomeIdentity(uuid7().hex, new_salt())
            write_private(folder / _IDENTITY, msgspec.json.encode(identity).decode())

        return identity


def _read_identity(folder: Path) -> HomeIdentity | None:
    try:
        return msgspec.json.decode((folder / _IDENTITY).read_bytes(), type=HomeIdentity)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


@dataclass(frozen=True)
class SourcePlatform:
    """The platform to back up: its home folder, and the URL of its database. `kind` is how databases are copied."""

    home: Path
    url: str
    kind: Kind


@dataclass(frozen=True)
class BackupTarget:
    """Where a backup goes, under which name, and the passphrase that encrypts it."""

    store: Store
    name: str
    passphrase: Passphrase


@dataclass(frozen=True)
class BackupResult:
    """A backup that was taken: its name, its size in bytes, and a summary of its contents."""

    name: str
    size_bytes: int
    summary: Summary


def build_name(created_at: datetime) -> str:
    """Return the name of a backup that begins now; names are ordered by time."""
    return f"portside-{created_at.astimezone(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"


async def create_backup(origin: SourcePlatform, target: BackupTarget, progress: Progress) -> BackupResult:
    """Take a backup while everything runs. Raises BackupFailed; then there is no file.

    It begins again if a database is dropped meanwhile, because the deployment was deleted.
    """
    with _lock(origin.home):
        identity = ensure_identity(origin.home)
        while True:
            databases = await list_platform_databases(origin.url)
            try:
                return await _write_backup(origin, target, identity, databases, progress)
            except BackupFailed:
                remaining = await list_platform_databases(origin.url)
                dropped = {database.name for database in databases} - {database.name for database in remaining}
                if not dropped:
                    raise

                log.info("databases were dropped during the backup, which begins again", databases=sorted(dropped))


async def _write_backup(
    origin: SourcePlatform,
    target: BackupTarget,
    identity: HomeIdentity,
    databases: list[OwnedDatabase],
    progress: Progress,
) -> BackupResult:
    header = Header(
        kind=origin.kind,
        created_at=datetime.now(UTC),
        version=full_version(),
        postgres=await get_postgres_version(origin.url),
        installation=identity.id,
        salt=identity.salt,
        migrations=await get_applied_migrations(origin.url),
    )

    expected_bytes = sum(database.size_bytes for database in databases)
    expected_bytes += await asyncio.to_thread(_measure_home, origin.home)

    with target.store.create(target.name, expected_bytes) as file:
        work = InterruptibleWork()
        writer = await work.run(EncryptedWriter, file, header, target.passphrase)
        packer = Packer(writer, work.counting(progress))
        await _pack(origin, databases, packer, work)
        await work.run(packer.close)
        await work.run(writer.close)

    return BackupResult(target.name, writer.size_bytes, packer.summary)


async def _pack(
    origin: SourcePlatform, databases: list[OwnedDatabase], packer: Packer, work: InterruptibleWork
) -> None:
    packer.summary.databases = {database.name: database.size_bytes for database in databases}
    keys = _read_file(origin.home / MASTER_KEY)

    if origin.kind == "data":
        await copy_server(origin.url, packer, DATA, work)
        await work.run(_add_file, packer, PASSWORD, origin.home / PASSWORD)
    else:
        for database in databases:
            await dump_database(origin.url, database.name, packer, work)

    await work.run(_pack_home, origin.home, packer)
    before = BackedUpHome(path=str(origin.home.absolute()))
    await work.run(packer.add_bytes, HOME_BEFORE, msgspec.json.encode(before))

    # The master key may have been rotated meanwhile; the rows that were copied before need the older key.
    merged = merge_key_files(_read_file(origin.home / MASTER_KEY), keys)
    await work.run(packer.add_bytes, f"{HOME}/{MASTER_KEY}", merged)


def _pack_home(home: Path, packer: Packer) -> None:
    packer.add_tree(home, HOME, _is_left_out)


def _measure_home(home: Path) -> int:
    """Return the size in bytes of the files of a home folder that belong into a backup, before compression."""
    size = 0

    for folder, folders, files in os.walk(home):
        inside = Path(folder).relative_to(home)
        folders[:] = [name for name in folders if not _is_left_out((inside / name).as_posix())]
        for name in files:
            if not _is_left_out((inside / name).as_posix()):
                # Some files come and go while the platform runs.
                with suppress(FileNotFoundError):
                    size += (home / inside / name).lstat().st_size

    return size


def _is_left_out(name: str) -> bool:
    parts = name.split("/")
    return name == MASTER_KEY or any(_matches(parts, pattern.split("/")) for pattern in LEFT_OUT)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether each part of a path matches that of the pattern; a star stands for one folder alone."""
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _add_file(packer: Packer, name: str, path: Path) -> None:
    with path.open("rb") as file:
        packer.add_stream(name, file)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise BackupFailed(f"there is no {path}; name the platform's folder with --home") from exc


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Hold the lock of backups of this home. Raises BackupFailed if another one is being taken."""
    folder = make_private_dir(home / FOLDER)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", waits=False))
        except BlockingIOError as exc:
            raise BackupFailed("another backup of this home is being taken; wait until it has ended") from exc

        yield
