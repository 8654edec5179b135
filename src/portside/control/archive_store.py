"""The folder in which source archives are kept: one file for each, which appears whole or not at all."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from portside.kernel.errors import BadRequest, BodyTooLarge, Conflict
from portside.kernel.files import make_private_dir

MAX_ARCHIVE_BYTES = 200 * 1024 * 1024
_SUFFIX, _ARRIVING = ".tar.gz", ".arriving"
# A file appears a moment before its row says so; one that arrives is written to while a client is slow.
SETTLED_AFTER_S = {_SUFFIX: 60.0, _ARRIVING: 7200.0}
_GZIP = b"\x1f\x8b"
_WRITE_BYTES = 1024 * 1024


class UploadUnderWay(Conflict):
    """An archive is arriving at this address right now; ask for another with POST …/upload-url."""

    code = "upload_under_way"


class NoArchive(BadRequest):
    """What arrived is no gzip file; send a .tar.gz."""

    code = "no_archive"


class ArrivingArchive:
    """An archive on its way to its place."""

    def __init__(self, file: BinaryIO, temporary: Path, final: Path) -> None:
        self._file, self._temporary, self._final = file, temporary, final

    async def write(self, chunks: AsyncIterator[bytes]) -> int:
        """Write what arrives, which is never in memory as a whole; return its size.

        Raises BodyTooLarge and NoArchive.
        """
        size, held = 0, bytearray()
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_ARCHIVE_BYTES:
                raise BodyTooLarge(
                    f"The archive is larger than {MAX_ARCHIVE_BYTES} bytes; leave out what is not needed to build it.",
                    headers={"Connection": "close"},
                )
            held += chunk
            if len(held) >= _WRITE_BYTES:
                await self._write(held)
                held = bytearray()
        await self._write(held)
        await asyncio.to_thread(self._check)
        return size

    async def _write(self, held: bytearray) -> None:
        await asyncio.to_thread(self._file.write, held)

    def _check(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        if self._file.read(len(_GZIP)) != _GZIP:
            raise NoArchive

    def keep(self) -> None:
        """Put the archive into its place."""
        self._temporary.replace(self._final)


class ArchiveStore:
    """Archives by their ids."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, archive_id: UUID) -> Path:
        """Where an archive is kept."""
        return self._folder / f"{archive_id}{_SUFFIX}"

    @asynccontextmanager
    async def arriving(self, archive_id: UUID) -> AsyncIterator[ArrivingArchive]:
        """Open the place where an archive arrives; what was not kept is gone at the end. Raises UploadUnderWay."""
        temporary = self._folder / f"{archive_id}{_ARRIVING}"
        await asyncio.to_thread(make_private_dir, self._folder)
        try:
            file = await asyncio.to_thread(_make, temporary)
        except FileExistsError as exc:
            raise UploadUnderWay from exc
        try:
            yield ArrivingArchive(file, temporary, self.path(archive_id))
        finally:
            file.close()
            temporary.unlink(missing_ok=True)

    def settled(self) -> list[UUID]:
        """Return the ids of the files that nobody writes any more."""
        if not self._folder.is_dir():
            return []
        now, found = time.time(), set()
        for file in self._folder.iterdir():
            name, _, ending = file.name.partition(".")
            after_s = SETTLED_AFTER_S.get(f".{ending}")
            if after_s is not None and file.stat().st_mtime < now - after_s:
                found.add(UUID(name))
        return list(found)

    def remove(self, archive_ids: Iterable[UUID]) -> int:
        """Remove archives, and what is left of any that never arrived; return how many files there were."""
        removed = 0
        for archive_id in archive_ids:
            for file in (self.path(archive_id), self._folder / f"{archive_id}{_ARRIVING}"):
                if file.exists():
                    file.unlink(missing_ok=True)
                    removed += 1
        return removed


def _make(path: Path) -> BinaryIO:
    """Make a file that only its owner can read. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
