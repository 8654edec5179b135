"""Where backups are kept: a folder, or a bucket of an S3-compatible store.

A location is a folder or `s3://BUCKET/PREFIX`. The store's address and keys are read from AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. A file appears under its name only when it is complete.
"""

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from portside.backup.container import ByteSource, Sink
from portside.backup.databases import BackupFailed
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir

SUFFIX = ".backup"
_S3 = "s3://"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
# S3 takes 10,000 parts of one upload, of up to 5 GB each.
MAX_PARTS = 10_000
MIN_PART_BYTES = 16 << 20
# Enough for 5 TB, the largest object of S3. A part is in memory until it is uploaded.
MAX_PART_BYTES = 512 << 20
# How many bytes of parts are uploaded at once, unless one part is larger.
_UPLOADED_AT_ONCE_BYTES = 192 << 20
# A database may grow while it is copied, and its log is copied, too.
_GROWTH = 1.25
_ABANDONED_AFTER_S = 24 * 3600.0
# A service sees the system so.
_READ_ONLY = "; if the platform is a service, 'portside service install' lets it write to the folder of BACKUP_TO"


class StoredFile(NamedTuple):
    """A file in a store, named relative to its location."""

    name: str
    size_bytes: int
    modified_at: datetime


class Store(Protocol):
    """A place for backups. All methods raise BackupFailed if it cannot be reached."""

    location: str

    def list(self, folder: str = "") -> list[StoredFile]:
        """List the files of a folder in the store, without those of folders in it, ordered by name."""
        ...

    def list_folders(self, folder: str) -> Sequence[str]:
        """List the names of the folders in a folder of the store."""
        ...

    def open(self, name: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading. Raises BackupFailed also if there is none."""
        ...

    def create(self, name: str, expected_bytes: int = 0) -> AbstractContextManager[Sink]:
        """Write a new file of about `expected_bytes`, which exists when the block has ended without an exception.

        Raises BackupFailed also if there is a file of this name.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...


class FolderStore:
    """Backups in a folder, with mode 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.location = str(folder)

    def list(self, folder: str = "") -> list[StoredFile]:
        """List the files of a folder."""
        files = []
        with _explain_failures(self.location), contextlib.suppress(FileNotFoundError):
            for path in sorted((self._folder / folder).iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    status = path.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    files.append(StoredFile(str(path.relative_to(self._folder)), status.st_size, modified))

        return files

    def list_folders(self, folder: str) -> Sequence[str]:
        """List the names of the folders in a folder."""
        with _explain_failures(self.location), contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in (self._folder / folder).iterdir() if path.is_dir())
        return []

    @contextmanager
    def open(self, name: str) -> Iterator[ByteSource]:
        """Open a file for reading."""
        with _explain_failures(self.location):
            file = (self._folder / name).open("rb")

        with file:
            yield file

    @contextmanager
    def create(self, name: str, expected_bytes: int = 0) -> Iterator[Sink]:  # noqa: ARG002 - any size fits
        """Write a new file under a temporary name; an existing one is not replaced."""
        path = self._folder / name
        partial = path.with_name(f".{path.name}.partial")
        with _explain_failures(self.location):
            make_private_dir(path.parent)
            if path.exists():
                raise BackupFailed(f"{path} exists already; choose another name")

            _remove_abandoned(path.parent)
            file = os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")

        try:
            with _explain_failures(self.location):
                with file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())

                partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def delete(self, name: str) -> None:
        """Delete a file."""
        with _explain_failures(self.location):
            (self._folder / name).unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed programs left: partial files that nobody has written to for a day."""
    for partial in folder.glob(".*.partial"):
        # Another program may have completed or removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if partial.lstat().st_mtime < time.time() - _ABANDONED_AFTER_S:
                partial.unlink()


class BucketStore:
    """Backups in a bucket. Files are uploaded in parts, so they need no room on this machine."""

    def __init__(self, location: str, environ: Mapping[str, str]) -> None:
        try:
            from obstore.store import S3Store
        except ImportError as exc:
            raise UserMistake(f"{location} needs a client of S3: install the wheel with its extra [s3]") from exc

        unset = [name for name in _CREDENTIALS if not environ.get(name)]
        if unset:
            raise UserMistake(f"{location} needs credentials; set {' and '.join(unset)}")

        bucket, _, prefix = location.removeprefix(_S3).partition("/")
        endpoint = environ.get("AWS_ENDPOINT_URL")

        # Without an address it is AWS itself. The library accepts no None for these options.
        options: dict[str, Any] = {}
        if endpoint:
            options = {"endpoint": endpoint, "virtual_hosted_style_request": False}

        self.location = location
        self._store = S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            access_key_id=environ[_CREDENTIALS[0]],
            secret_access_key=environ[_CREDENTIALS[1]],
            region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            # A store in one's own network may have no certificate; the backups are encrypted in any case.
            client_options={"allow_http": bool(endpoint and endpoint.startswith("http://"))},
            retry_config={"max_retries": 3},
            **options,
        )

    def list(self, folder: str = "") -> list[StoredFile]:
        """List the files of a folder."""
        import obstore

        with _explain_failures(self.location):
            entries = obstore.list_with_delimiter(self._store, folder or None)["objects"]

        files = [StoredFile(entry["path"], entry["size"], entry["last_modified"]) for entry in entries]
        return sorted(files)

    def list_folders(self, folder: str) -> Sequence[str]:
        """List the names of the folders in a folder."""
        import obstore

        with _explain_failures(self.location):
            prefixes = obstore.list_with_delimiter(self._store, folder)["common_prefixes"]

        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)

    @contextmanager
    def open(self, name: str) -> Iterator[ByteSource]:
        """Open a file for reading."""
        import obstore

        with _explain_failures(self.location):
            reader = obstore.open_reader(self._store, name)

        yield _Reader(reader, self.location)

    @contextmanager
    def create(self, name: str, expected_bytes: int = 0) -> Iterator[Sink]:
        """Upload a file; an existing one is not replaced. An exception aborts the upload.

        All parts of an upload have one size. So a file that is expected to be large gets larger parts.
        """
        import obstore

        part_bytes = get_part_bytes(expected_bytes)
        at_once = max(1, _UPLOADED_AT_ONCE_BYTES // part_bytes)
        with _explain_failures(self.location), contextlib.suppress(FileNotFoundError):
            obstore.head(self._store, name)
            raise BackupFailed(f"{self.location}/{name} exists already; choose another name")

        with (
            _explain_failures(self.location),
            obstore.open_writer(self._store, name, buffer_size=part_bytes, max_concurrency=at_once) as writer,
        ):
            yield _BoundedWriter(writer, f"{self.location}/{name}", part_bytes * MAX_PARTS)

    def delete(self, name: str) -> None:
        """Delete a file."""
        import obstore

        with _explain_failures(self.location), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, name)


def get_part_bytes(expected_bytes: int) -> int:
    """Return the size of the parts in which a file of about `expected_bytes` is uploaded."""
    return max(MIN_PART_BYTES, min(MAX_PART_BYTES, math.ceil(expected_bytes * _GROWTH / MAX_PARTS)))


class _BoundedWriter:
    """A writer that fails at the last part that a store takes, and not after the whole upload."""

    def __init__(self, writer: Sink, name: str, max_bytes: int) -> None:
        self._writer = writer
        self._name = name
        self._max_bytes = max_bytes
        self._written = 0

    def write(self, data: bytes, /) -> object:
        """Write data. Raises BackupFailed if the file becomes too large."""
        self._written += len(data)
        if self._written > self._max_bytes:
            raise BackupFailed(
                f"{self._name} would be larger than {self._max_bytes // 10**9} GB, the limit for its upload in "
                f"{MAX_PARTS:,} parts, which were chosen by the size of the data; take the backup again"
            )

        return self._writer.write(data)


class _Reader:
    def __init__(self, reader: Any, location: str) -> None:
        self._reader = reader
        self._location = location

    def read(self, size: int, /) -> bytes:
        with _explain_failures(self._location):
            return bytes(self._reader.read(size))


@contextmanager
def _explain_failures(location: str) -> Iterator[None]:
    """Turn failures of a store into BackupFailed, without the details of its library."""
    try:
        yield
    except FileNotFoundError as exc:
        raise BackupFailed(f"{location}: there is no such file or bucket ({_first_line(exc)})") from exc
    except OSError as exc:
        # The block also reads the files to store, so the failure may be about one of those.
        hint = _READ_ONLY if exc.errno == errno.EROFS else ""
        raise BackupFailed(f"{exc.filename or location}: {exc.strerror or _first_line(exc)}{hint}") from exc
    except Exception as exc:
        if not type(exc).__module__.startswith("obstore"):
            raise
        raise BackupFailed(f"{location}: {_first_line(exc)}") from exc


def _first_line(failure: Exception) -> str:
    return str(failure).strip().split("\n", 1)[0][:500]


def open_store(location: str, environ: Mapping[str, str]) -> Store:
    """Return the store of a location. Raises UserMistake for an impossible one."""
    if location.startswith(_S3):
        if not location.removeprefix(_S3).partition("/")[0]:
            raise UserMistake(f"{location} names no bucket; write s3://BUCKET or s3://BUCKET/PREFIX")
        return BucketStore(location.rstrip("/"), environ)

    if "://" in location:
        raise UserMistake(f"{location} is neither a folder nor s3://BUCKET/PREFIX")

    return FolderStore(Path(location).expanduser().absolute())


def split_location(target: str) -> tuple[str, str | None]:
    """Split what a user names into a location and the name of one backup; a name of None means the whole location.

    A name that does not exist yet is that of a file only if it ends in `.backup`, as the names of all backups do.
    """
    if target.startswith(_S3):
        folder, _, name = target.rpartition("/")
        is_file = name.endswith(SUFFIX) and folder != "s3:/"
        return (folder, name) if is_file else (target, None)

    path = Path(target).expanduser().absolute()
    if path.is_dir() or target.endswith("/") or not (path.name.endswith(SUFFIX) or path.exists()):
        return str(path), None

    return str(path.parent), path.name
