"""An uploaded archive as a source: a gzipped tar, unpacked by rules that no archive can talk its way out of.

Only files and folders are unpacked, below the folder and nowhere else, with plain modes. Links, devices and anything
else are refused, and so is what is too large: the whole, the number of entries, the length of a path, and what the
archive says about its own entries. Sizes are those of what comes out, counted while it comes out.
"""

import asyncio
import gzip
import os
import tarfile
import threading
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from portside.dataplane.builds.output import Output
from portside.dataplane.builds.source import too_large
from portside.dataplane.failures import BuildFailed

Download = Callable[[Path], Awaitable[None]]

_MAX_ENTRIES = 100_000
_MAX_PATH, _MAX_NAME = 1024, 255
# What is read at once; only descriptions of entries would want more.
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class ArchiveSource:
    """An archive that `download` puts where it is told to."""

    download: Download
    max_bytes: int

    @property
    def title(self) -> str:
        """What is fetched, in words."""
        return "the uploaded archive"

    @property
    def hidden(self) -> list[str]:
        """Nothing."""
        return []

    def checkout(self, folder: Path, _output: Output) -> "ArchiveCheckout":
        """Return what downloads and unpacks the archive."""
        return ArchiveCheckout(self, folder)


class ArchiveCheckout:
    """One archive on its way into a folder."""

    def __init__(self, source: ArchiveSource, folder: Path) -> None:
        self._source, self._archive = source, folder / "source.tar.gz"
        self.files = folder / "source"

    async def fetch(self) -> str:
        """Download and unpack; an archive has no commit. Raises BuildFailed."""
        await self._source.download(self._archive)
        await unpack(self._archive, self.files, self._source.max_bytes)
        self._archive.unlink()
        return ""

    def forget_history(self) -> None:
        """An archive has none."""


async def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Unpack an archive into a new folder; when cancelled, it has stopped writing. Raises BuildFailed."""
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_Unpacking(folder, max_bytes, stop).run, archive))
    try:
        await asyncio.shield(work)
    finally:
        stop.set()
        await asyncio.gather(work, return_exceptions=True)


class _Unpacking:
    """The unpacking of one archive, in a thread; `stop` ends it early."""

    def __init__(self, folder: Path, max_bytes: int, stop: threading.Event) -> None:
        self._folder, self._max_bytes, self._stop = folder, max_bytes, stop
        self._written = 0

    def run(self, archive: Path) -> None:
        """Unpack everything. Raises BuildFailed."""
        self._folder.mkdir(parents=True)
        try:
            with gzip.open(archive) as content, _open_tar(content) as tar:
                for number, entry in enumerate(tar):
                    if number >= _MAX_ENTRIES:
                        raise BuildFailed(f"the archive has more than {_MAX_ENTRIES} entries")
                    if self._stop.is_set():
                        return
                    self._unpack(tar, entry)
                    vars(tar).update(members=[], pax_headers={})  # It would remember all of them.
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, RecursionError, ValueError) as exc:
            raise BuildFailed(f"the archive cannot be read as a gzipped tar: {exc}") from exc

    def _unpack(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = _path_of(entry)
        target = self._folder / path
        try:
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._write(tar, entry, target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
            raise BuildFailed(f"the archive has {str(path)!r} as a file and as a folder") from exc

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
        content = tar.extractfile(entry)
        assert content is not None  # noqa: S101 - it is a file
        mode = 0o700 if entry.mode & 0o100 else 0o600
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            while not self._stop.is_set() and (chunk := content.read(_CHUNK)):
                self._written += len(chunk)
                if self._written > self._max_bytes:
                    raise too_large("archive", self._max_bytes)
                file.write(chunk)


def _path_of(entry: tarfile.TarInfo) -> PurePosixPath:
    """Return where an entry goes, relative to the folder. Raises BuildFailed."""
    path = PurePosixPath(entry.name)
    shown = repr(entry.name[:200])
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
        raise BuildFailed(f"the archive's {shown} leads out of its folder")
    if len(os.fsencode(path)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_NAME for part in path.parts):
        raise BuildFailed(
            f"the archive's {shown} is too long; a path has at most {_MAX_PATH} bytes, a name {_MAX_NAME}"
        )
    if entry.issym() or entry.islnk():
        raise BuildFailed(f"the archive's {shown} is a link; links are not unpacked")
    if not (entry.isreg() or entry.isdir()) or entry.issparse() or entry.size < 0:
        raise BuildFailed(f"the archive's {shown} is neither a plain file nor a folder")
    return path


def _open_tar(content: gzip.GzipFile) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("IO[bytes]", _Measured(content)), mode="r:")


class _Measured:
    """A stream that is only read in pieces: descriptions in an archive cannot fill the memory."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _CHUNK:
            raise BuildFailed("the archive describes an entry at too great a length")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
