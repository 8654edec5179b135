"""Rows that are read at the database's pace and used at a client's.

A client that reads a file slowly, or not at all, must hold neither a connection nor a snapshot of the database. So the
rows of one statement, which are all of one moment, are first written to a spool: in memory up to `_CHUNK_BYTES`, then
in a file without a name, which the system removes with its process. The connection is free before the first row is
used.

The files of one process take `MAX_BYTES` together at most, and one takes `MAX_BYTES_OF_ONE`. Spool compact rows: ids
rather than the objects, counts rather than lines of text.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import IO, TypeVar

import msgspec

from portside.kernel.errors import PortsideError, Unavailable

T = TypeVar("T")
# The folder for temporary files may be in memory.
MAX_BYTES_OF_ONE = 250_000_000
MAX_BYTES = 500_000_000
RETRY_AFTER_S = 60
_CHUNK_BYTES = 262_144
_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_lock = threading.Lock()
_in_files = 0


class DownloadTooLarge(PortsideError):
    """The file has more rows than this server prepares at once; ask for less, for example for a shorter range."""

    status = 413
    code = "download_too_large"


class TooManyDownloads(Unavailable):
    """Other downloads take all the space that this server has for them; retry after Retry-After seconds."""

    code = "too_many_downloads"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, headers={"Retry-After": str(RETRY_AFTER_S)})


async def spooled(rows: AsyncGenerator[T], kind: type[T]) -> AsyncGenerator[T]:
    """Read all rows, close their generator, and then yield them.

    Raises DownloadTooLarge and TooManyDownloads, before the first row.
    """
    spool = _Spool()
    try:
        chunk_rows = list[msgspec.Raw]()
        size = 0
        async with aclosing(rows):
            async for row in rows:
                chunk_rows.append(msgspec.Raw(_encode(row)))
                size += len(chunk_rows[-1])
                if size >= _CHUNK_BYTES:
                    await asyncio.to_thread(spool.append, _encode(chunk_rows))
                    chunk_rows = []
                    size = 0

        decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]
        while chunk := await asyncio.to_thread(spool.next_chunk) if spool.is_used else b"":
            for row in decode(chunk):
                yield row

        for row in decode(_encode(chunk_rows)):
            yield row
    finally:
        spool.close()


class _Spool:
    """Chunks in a file: written one after the other, then read in the same order. Its calls may block.

    It may be closed while a thread still writes: the request that waited for the thread was cancelled.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._size = 0
        self._is_read = False
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_used(self) -> bool:
        return self._file is not None

    def append(self, chunk: bytes) -> None:
        with self._lock:
            if self._is_closed:
                return

            self._reserve(_LENGTH_BYTES + len(chunk))
            try:
                self._write(chunk)
            except OSError as exc:
                raise TooManyDownloads(
                    f"The server has no space for this download: {exc.strerror}; retry later."
                ) from exc

    def _reserve(self, size: int) -> None:
        global _in_files  # noqa: PLW0603 - one limit for all spools of the process
        if self._size + size > MAX_BYTES_OF_ONE:
            raise DownloadTooLarge

        with _lock:
            if _in_files + size > MAX_BYTES:
                raise TooManyDownloads
            _in_files += size

        self._size += size

    def _write(self, chunk: bytes) -> None:
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile(prefix="portside-")  # noqa: SIM115 - `close` closes it

        self._file.write(len(chunk).to_bytes(_LENGTH_BYTES, "big"))
        self._file.write(chunk)

    def next_chunk(self) -> bytes:
        """Return the next chunk, from the first on; empty after the last one, and once the spool is closed."""
        with self._lock:
            if self._file is None or self._is_closed:
                return b""

            if not self._is_read:
                self._is_read = True
                self._file.seek(0)

            length = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
            return self._file.read(length)

    def close(self) -> None:
        global _in_files  # noqa: PLW0603
        with self._lock:
            self._is_closed = True
            with _lock:
                _in_files -= self._size

            if self._file is not None:
                self._file.close()
