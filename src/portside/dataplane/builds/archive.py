"""A source that was uploaded as an archive, which is not trusted.

An archive is a gzipped tar. Only regular files and folders below the target folder are unpacked, with plain modes.
Links, devices and everything else are refused, and so are archives that are too large in total, in their number of
entries, in the length of a path, or in their own headers. Sizes are counted while the data is unpacked.
"""

import asyncio
import gzip
import os
import tarfile
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from portside.dataplane.builds.sources import CommitTexts, too_large
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput

Download = Callable[[Path], Awaitable[None]]
_MAX_ENTRIES = 100_000
_MAX_PATH = 1024
_MAX_NAME = 255
# The most that is read at once. tarfile asks for more only to read the header of a malicious entry.
_READ_BYTES = 256 * 1024


@dataclass(frozen=True)
class ArchiveSource:
    """An uploaded archive; `download` writes it to a file."""

    download: Download
    max_bytes: int

    @property
    def title(self) -> str:
        """A description of the source for the log."""
        return "the uploaded archive"

    @property
    def secrets(self) -> list[str]:
        """No value: an archive has no credentials."""
        return []

    def checkout(self, folder: Path, _output: MaskedOutput) -> "ArchiveCheckout":
        """Return the checkout that downloads and unpacks the archive."""
        return ArchiveCheckout(self, folder)


class ArchiveCheckout:
    """Downloads an archive and unpacks it into a folder."""

    def __init__(self, source: ArchiveSource, folder: Path) -> None:
        self._source = source
        self._archive = folder / "source.tar.gz"
        self.files = folder / "source"

    async def fetch(self) -> str:
        """Download and unpack the archive; it has no commit. Raises BuildFailed."""
        await self._source.download(self._archive)
        await unpack(self._archive, self.files, self._source.max_bytes)
        self._archive.unlink()
        return ""

    async def read_commit_texts(self) -> CommitTexts:
        """Return no texts: an archive has no commit."""
        return CommitTexts()

    def keep_history(self, history_folder: Path | None) -> None:
        """Do nothing: the control plane keeps the archive."""


async def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Unpack an archive into a new folder; a cancellation waits until writing has stopped. Raises BuildFailed."""
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_Unpacking(folder, max_bytes, stop).run, archive))
    try:
        await asyncio.shield(work)
    finally:
        stop.set()
        await asyncio.gather(work, return_exceptions=True)


class _Unpacking:
    """Unpacks one archive in a thread; `stop` ends it early."""

    def __init__(self, folder: Path, max_bytes: int, stop: threading.Event) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._stop = stop

    def run(self, archive: Path) -> None:
        """Unpack everything. Raises BuildFailed."""
        self._folder.mkdir(parents=True)
        try:
            self._measure(archive)
            for tar, entry in self._entries(archive):
                self._unpack(tar, entry)
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, RecursionError, ValueError) as exc:
            raise BuildFailed(f"the archive cannot be read as a gzipped tar: {exc}") from exc

    def _measure(self, archive: Path) -> None:
        """Read only the headers, so that an archive that is too large is refused before any file is written."""
        size = 0
        for number, (_, entry) in enumerate(self._entries(archive), 1):
            size += entry.size
            if number > _MAX_ENTRIES:
                raise BuildFailed(f"the archive has more than {_MAX_ENTRIES} entries")
            if size > self._max_bytes:
                raise too_large("archive", self._max_bytes)

    def _entries(self, archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        with gzip.open(archive) as content, _open_tar(content) as tar:
            for entry in tar:
                if self._stop.is_set():
                    return

                yield tar, entry
                vars(tar).update(members=[], pax_headers={})  # tarfile would keep all entries in memory

    def _unpack(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = _to_path(entry)
        target = self._folder / path
        try:
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._write(tar, entry, target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
            raise BuildFailed(f"the archive has {str(path)!r} both as a file and as a folder") from exc

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
        content = tar.extractfile(entry)
        assert content is not None  # noqa: S101 - it is a file
        mode = 0o700 if entry.mode & 0o100 else 0o600

        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            while not self._stop.is_set() and (chunk := content.read(_READ_BYTES)):
                file.write(chunk)


def _to_path(entry: tarfile.TarInfo) -> PurePosixPath:
    """Return the path of an entry relative to the folder. Raises BuildFailed."""
    path = PurePosixPath(entry.name)
    name = repr(entry.name[:200])
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
        raise BuildFailed(f"the archive's {name} leads out of its folder; pack it with relative paths")

    if len(os.fsencode(path)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_NAME for part in path.parts):
        raise BuildFailed(f"the archive's {name} is too long; a path has at most {_MAX_PATH} bytes, a name {_MAX_NAME}")

    if entry.issym() or entry.islnk():
        raise BuildFailed(f"the archive's {name} is a link; replace it by a file, because links are not unpacked")
    if not (entry.isreg() or entry.isdir()) or entry.issparse() or entry.size < 0:
        raise BuildFailed(f"the archive's {name} is neither a plain file nor a folder")

    return path


def _open_tar(content: gzip.GzipFile) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("IO[bytes]", _BoundedReader(content)), mode="r:")


class _BoundedReader:
    """A stream that refuses large reads, so that a header in an archive cannot fill the memory."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _READ_BYTES:
            raise BuildFailed("the archive has an entry whose header is too long")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
