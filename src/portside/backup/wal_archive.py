"""The write-ahead log (WAL) of the embedded Postgres, archived beside the backups for point-in-time recovery.

Postgres copies each segment of its WAL into a spool folder of the home. `WalArchive` encrypts the segments into the
store, and makes Postgres end the current one once a minute if there was work. New files of the home that a restored row
may need, the master key and uploaded archives, are stored with them.

    log/INSTALLATION/SEGMENT             a segment, or the history of a timeline
    log/INSTALLATION/files/NUMBER        a file of the home
"""

import asyncio
import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import zstandard

from portside.backup.container import BackupRefused, EncryptedReader, EncryptedWriter, Header, Passphrase
from portside.backup.contents import Progress
from portside.backup.create import MASTER_KEY, ensure_identity
from portside.backup.databases import BackupFailed, open_connection
from portside.backup.history import WalState, read_wal_state, record_wal_state
from portside.backup.stores import Store
from portside.kernel.crypto import merge_key_files
from portside.kernel.embedded import SPOOL, read_bundled_version
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, write_private
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.version import full_version

log = get_logger(__name__)
FOLDER = "log"
FILES = "files"
ARCHIVES = "archives"
END_SEGMENT_EVERY_S = 60.0
# Segments that the store does not accept may fill at most 4 GB; then the oldest are deleted.
MAX_SPOOLED = 256
# A segment's time is when Postgres copied it, which is soon after its last record.
_MARGIN = timedelta(minutes=2)
_LEVEL = 3
_SEGMENT = re.compile(r"[0-9A-F]{24}")
_SEGMENTS_PER_NUMBER = 256


def is_segment(name: str) -> bool:
    """Whether a file is a segment, and not the history of a timeline or the end of a backup."""
    return _SEGMENT.fullmatch(name) is not None


def next_segment(name: str) -> str:
    """Return the name of the segment that follows one of 16 MB on its timeline."""
    timeline, number, part = (int(name[start : start + 8], 16) for start in (0, 8, 16))
    number, part = divmod(number * _SEGMENTS_PER_NUMBER + part + 1, _SEGMENTS_PER_NUMBER)
    return f"{timeline:08X}{number:08X}{part:08X}"


class WalArchive(Task):
    """Moves the WAL segments of a home into a store. `problem` says why that does not work, or is None."""

    every_s = 10.0

    def __init__(self, home: Path, url: str, store: Store, passphrase: Passphrase) -> None:
        super().__init__()
        self._home = home
        self._url = url
        self._store = store
        self._passphrase = passphrase
        self._spool = home / "postgres" / SPOOL
        self._stored_names: set[str] | None = None

        self._last_transaction: str | None = None
        self._ended_at = 0.0

        # Postgres archives since its start, which was before this.
        self._began_at = datetime.now(UTC)
        self.problem: str | None = None

    async def activate(self) -> Status:
        """End the current segment if it is time, and store what is in the spool."""
        try:
            await self._end_segment()
            moved = await asyncio.to_thread(self._store_all)
        except UserMistake:
            if self.problem is None:
                log.exception("the WAL cannot be archived; point-in-time recovery is at risk")

            self.problem = "The WAL of Postgres cannot be archived beside the backups; the server's log has the reason."
            # List the store again: it may have completed a file although the answer was lost, and replaces none.
            self._stored_names = None
            await asyncio.to_thread(self._bound_spool)

            raise

        self.problem = None
        return Status({"stored": moved})

    async def _end_segment(self) -> None:
        if time.monotonic() - self._ended_at < END_SEGMENT_EVERY_S:
            return

        async with open_connection(self._url) as connection:
            if await connection.fetchval("show archive_mode") != "on":
                raise BackupFailed("Postgres was started without archiving: stop every program that uses this home")

            newest = await connection.fetchval("select pg_snapshot_xmax(pg_current_snapshot())::text")
            if newest != self._last_transaction:
                # Recovery to a point in time needs a transaction after it, so make one.
                await connection.fetchval("select pg_current_xact_id()::text")
                await connection.fetchval("select pg_switch_wal()::text")
                query = "select pg_snapshot_xmax(pg_current_snapshot())::text"
                self._last_transaction = await connection.fetchval(query)

        self._ended_at = time.monotonic()

    def _store_all(self) -> int:
        """Store what is in the spool, and keep in the home since when nothing of the WAL is missing."""
        last_state = read_wal_state(self._home)
        if last_state is None or last_state.location != self._store.location:
            last_state = WalState(location=self._store.location, since=self._began_at)

        state = WalState(location=last_state.location, since=last_state.since, last_segment=last_state.last_segment)
        try:
            return self._store_spooled(state)
        finally:
            if state != read_wal_state(self._home):
                record_wal_state(self._home, state)

    def _store_spooled(self, state: WalState) -> int:
        installation = ensure_identity(self._home)
        folder = f"{FOLDER}/{installation.id}"
        if self._stored_names is None:
            files = [*self._store.list(folder), *self._store.list(f"{folder}/{FILES}")]
            self._stored_names = {file.name for file in files}

        moved = 0

        for path, name in [*self._list_new_files(f"{folder}/{FILES}"), *self._list_segments(folder)]:
            if name not in self._stored_names:
                archived_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                header = Header(
                    kind="wal",
                    created_at=archived_at,
                    version=full_version(),
                    postgres=read_bundled_version(),
                    installation=installation.id,
                    salt=installation.salt,
                    wal_name=str(path.relative_to(self._home)) if f"/{FILES}/" in name else path.name,
                )

                with self._store.create(name) as out, path.open("rb") as content:
                    _compress(EncryptedWriter(out, header, self._passphrase), content)

                self._stored_names.add(name)
                moved += 1

            if is_segment(path.name):
                if state.last_segment is not None and path.name not in _list_expected_after(state.last_segment):
                    log.warning("WAL is missing before a segment; a backup is taken at once", segment=path.name)
                    state.since = datetime.now(UTC)

                state.last_segment = path.name

            if path.parent == self._spool:
                path.unlink()

        return moved

    def _list_segments(self, folder: str) -> list[tuple[Path, str]]:
        return [(path, f"{folder}/{path.name}") for path in self._list_spooled()]

    def _list_spooled(self) -> list[Path]:
        # Without archiving there is no spool. A segment that is being copied has a name that begins with a dot.
        paths = self._spool.iterdir() if self._spool.is_dir() else ()
        return sorted(path for path in paths if not path.name.startswith("."))

    def _list_new_files(self, folder: str) -> Iterator[tuple[Path, str]]:
        for path in [self._home / MASTER_KEY, *sorted((self._home / ARCHIVES).glob("*.tar.gz"))]:
            status = path.stat()
            # Ordered by time, so that the newest key is the last.
            yield path, f"{folder}/{status.st_mtime_ns:020}-{status.st_ino}"

    def _bound_spool(self) -> None:
        for path in self._list_spooled()[:-MAX_SPOOLED]:
            log.error("a WAL segment was deleted before it was archived; take a new backup", segment=path.name)
            path.unlink()


def _list_expected_after(segment: str) -> tuple[str, str]:
    """Return the segments of which one follows a segment: a crash of Postgres may repeat the last one."""
    return segment, next_segment(segment)


def _compress(writer: EncryptedWriter, content: IO[bytes]) -> None:
    zstandard.ZstdCompressor(level=_LEVEL).copy_stream(content, writer)  # type: ignore[arg-type]
    writer.close()


@contextmanager
def _open_wal_file(store: Store, name: str, passphrase: Passphrase) -> "Iterator[tuple[Header, Any]]":
    """Yield the header of an archived file and a reader of its compressed content. Raises BackupRefused."""
    with store.open(name) as source, _name_file_in_refusals(store, name):
        reader = EncryptedReader(source, passphrase)
        if reader.header.kind != "wal" or reader.header.wal_name is None:
            raise BackupRefused("it is not an archived WAL file; remove it")

        yield reader.header, reader


@contextmanager
def _name_file_in_refusals(store: Store, name: str) -> Iterator[None]:
    """Name the file in refusals, which are written for backups."""
    try:
        yield
    except BackupRefused as exc:
        reason = str(exc).replace("the backup", "it")
        raise BackupRefused(f"the WAL file {store.location}/{name} cannot be used: {reason}") from exc


def _decompress(reader: Any, out: Any) -> None:
    try:
        zstandard.ZstdDecompressor().copy_stream(reader, out)
    except zstandard.ZstdError as exc:
        raise BackupRefused(f"its content is damaged ({exc}); choose a time before it was archived") from exc


class _ByteCounter(io.RawIOBase):
    """Takes what is written to it and counts its bytes."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._progress(len(data))
        return len(data)


def check_wal(
    store: Store, backup: Header, passphrase: Passphrase, first: str, progress: Progress
) -> tuple[int, dict[str, str]]:
    """Read the segments from the first one on, and the files of the home that were stored with them.

    Returns their number, and why each of the damaged ones is refused. Raises BackupFailed.
    """
    folder = f"{FOLDER}/{backup.installation}"
    number = 0

    damaged = {}
    for file in [*store.list(folder), *store.list(f"{folder}/{FILES}")]:
        name = file.name.rpartition("/")[2]
        if is_segment(name) and name < first:
            continue

        number += 1
        try:
            with _open_wal_file(store, file.name, passphrase) as (_header, reader):
                _decompress(reader, _ByteCounter(progress))
        except BackupRefused as exc:
            damaged[name] = str(exc)

    return number, damaged


def fetch_wal(store: Store, backup: Header, passphrase: Passphrase, at: datetime, target: Path) -> int:
    """Write the segments that recovery to a point in time needs into a folder, and return their number.

    Raises BackupRefused and BackupFailed, also if the WAL does not reach that far.
    """
    count = 0
    beyond = 0
    for file in store.list(f"{FOLDER}/{backup.installation}"):
        with _open_wal_file(store, file.name, passphrase) as (header, reader):
            name = str(header.wal_name)
            if name != Path(name).name or header.created_at < backup.created_at - _MARGIN:
                continue

            with (target / name).open("wb") as out:
                _decompress(reader, out)

            count += 1
            beyond += header.created_at > at + _MARGIN

        # Recovery needs a transaction after the point in time, which the first segment archived later may not hold.
        if beyond >= 2:
            break

    if not count:
        raise BackupRefused(
            f"{store.location} has no WAL of this platform for that time: BACKUP_POINT_IN_TIME was off, or the WAL was "
            "deleted with older backups"
        )

    return count


def fetch_files(store: Store, backup: Header, passphrase: Passphrase, home: Path) -> None:
    """Add the files that were new after a backup to a restored home: master keys and archives."""
    for file in store.list(f"{FOLDER}/{backup.installation}/{FILES}"):
        with _open_wal_file(store, file.name, passphrase) as (header, reader):
            name = str(header.wal_name)
            if name == MASTER_KEY:
                content = io.BytesIO()
                _decompress(reader, content)
                path = home / MASTER_KEY
                write_private(path, merge_key_files(content.getvalue(), path.read_bytes()).decode())
                continue

            archive = Path(name)
            if archive.parts[0] == ARCHIVES and len(archive.parts) == 2:
                path = make_private_dir(home / ARCHIVES) / archive.name
                if not path.exists():
                    with path.open("xb") as out:
                        path.chmod(0o600)
                        _decompress(reader, out)


def prune_wal(store: Store, oldest: datetime) -> int:
    """Delete the WAL from before the oldest backup that is kept, and return the number of files.

    Also that of other installations: a restored home is another one, and goes on with the store of the first.
    """
    names = [
        file.name
        for installation in store.list_folders(FOLDER)
        for folder in (f"{FOLDER}/{installation}", f"{FOLDER}/{installation}/{FILES}")
        for file in store.list(folder)
        if file.modified_at < oldest - 2 * _MARGIN
    ]

    for name in names:
        store.delete(name)

    return len(names)
