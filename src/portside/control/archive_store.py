"""The folder that stores source archives: one file for each, which appears under its name only when it is complete."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from portside.kernel.errors import BadRequest, BodyTooLarge, Conflict
from portside.kernel.files import make_private_dir

MAX_ARCHIVE_BYTES = 200 * 1024 * 1024
SUFFIX = ".tar.gz"
_PARTIAL_SUFFIX = ".partial"
# Younger files are not garbage yet: a finished file exists shortly before its row is committed, and a slow client may
# write to a partial file for an hour.
GARBAGE_AFTER_S = {SUFFIX: 60.0, _PARTIAL_SUFFIX: 7200.0}
_GZIP = b"\x1f\x8b"
_WRITE_BYTES = 1024 * 1024


class UploadUnderWay(Conflict):
    """Another upload to this address is in progress; request a new address with POST …/upload-url."""

    code = "upload_under_way"


class NotGzip(BadRequest):
    """The uploaded file is not a gzip file; send a .tar.gz."""

    code = "no_archive"


class PartialArchive:
    """An archive that is being uploaded, in a temporary file."""

    def __init__(self, file: BinaryIO, temporary: Path, final: Path) -> None:
        self._file = file
        self._temporary = temporary
        self._final = final

    async def write(self, chunks: AsyncIterator[bytes]) -> int:
        """Write the chunks to the file, at most 1 MB of them in memory, and return the size.

        Raises BodyTooLarge and NotGzip.
        """
        size = 0
        buffer = bytearray()
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_ARCHIVE_BYTES:
                raise BodyTooLarge(
                    f"The archive is larger than {MAX_ARCHIVE_BYTES} bytes; leave out unneeded files.",
                    headers={"Connection": "close"},
                )

            buffer += chunk
            if len(buffer) >= _WRITE_BYTES:
                await asyncio.to_thread(self._file.write, buffer)
                buffer = bytearray()

        await asyncio.to_thread(self._file.write, buffer)
        await asyncio.to_thread(self._check_format)
        return size

    def _check_format(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)

        if self._file.read(len(_GZIP)) != _GZIP:
            raise NotGzip

    def publish(self) -> None:
        """Move the complete file to its final path."""
        self._temporary.replace(self._final)


class ArchiveStore:
    """A folder with one file for each archive. A file appears under its final name only when it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, archive_id: UUID) -> Path:
        """Return the path of an archive's file."""
        return self._folder / f"{archive_id}{SUFFIX}"

    @contextlib.asynccontextmanager
    async def open_upload(self, archive_id: UUID) -> AsyncIterator[PartialArchive]:
        """Open a partial archive; it is deleted at the end unless it was published. Raises UploadUnderWay."""
        temporary = self._folder / f"{archive_id}{_PARTIAL_SUFFIX}"
        await asyncio.to_thread(make_private_dir, self._folder)
        try:
            file = await asyncio.to_thread(_create_private, temporary)
        except FileExistsError as exc:
            raise UploadUnderWay from exc

        try:
            yield PartialArchive(file, temporary, self.path(archive_id))
        finally:
            try:
                # Writes what is still in its buffer, which fails on a full disk.
                file.close()
            finally:
                temporary.unlink(missing_ok=True)

    def list_archives(self) -> list[UUID]:
        """Return the ids of all archives whose files are old enough to be garbage if they have no row."""
        if not self._folder.is_dir():
            return []

        now = time.time()
        archive_ids = set()
        for file in self._folder.iterdir():
            name, _, ending = file.name.partition(".")
            after_s = GARBAGE_AFTER_S.get(f".{ending}")

            # Not the name of an archive, or an upload that has just ended.
            with contextlib.suppress(ValueError, FileNotFoundError):
                if after_s is not None and file.stat().st_mtime < now - after_s:
                    archive_ids.add(UUID(name))

        return list(archive_ids)

    def remove(self, archive_ids: Iterable[UUID]) -> int:
        """Remove archives and their partial files; return how many files were removed."""
        file_count = 0
        for archive_id in archive_ids:
            for file in (self.path(archive_id), self._folder / f"{archive_id}{_PARTIAL_SUFFIX}"):
                if file.exists():
                    file.unlink(missing_ok=True)
                    file_count += 1

        return file_count


def _create_private(path: Path) -> BinaryIO:
    """Create a file that only its owner can read. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
