"""Bodies of ingest requests and uploads: received and decompressed within bounds, and split into multipart parts.

SDKs compress bodies with zstd (Python) or gzip (JavaScript), and a small body may decompress to gigabytes. So the
decoded size has a limit, and bodies take their bytes from the budget that large responses use too (`large_reads.py`):
the server holds about three times the bytes of a body while it stores it.
"""

import asyncio
import gzip
import io
import re
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
import zstandard
from starlette.requests import Request

from portside.kernel.errors import BadRequest, BodyTooLarge, Invalid, PortsideError
from portside.kernel.large_reads import FREE_BYTES, ReadBudget, TooManyLargeReads

UNKNOWN_TYPE = "application/octet-stream"
MAX_RATIO = 1000
DEFAULT_MAX_BYTES = 100_000_000
MAX_PARTS = 50_000
_RATIO_FROM_BYTES = 10 * 1024 * 1024
_MAX_WINDOW_BYTES = 32 * 1024 * 1024
_CHUNK = 1024 * 1024
_INLINE_BYTES = 128 * 1024
# Longer than large responses wait: SDKs drop a batch after a few refusals, and a reader asks again.
_WAIT_S = 30.0
_MAX_HEADER_BYTES = 16 * 1024
_BOUNDARY = re.compile(
    r"^multipart/form-data\b.*?;\s*boundary=(?:\"([^\"]{1,200})\"|([^\s;,\"]{1,200}))", re.IGNORECASE
)
_NAME = re.compile(r";\s*name=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;]+))", re.IGNORECASE)
_FILENAME = re.compile(r";\s*filename=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;]+))", re.IGNORECASE)
_EXTENDED_NAME = re.compile(r";\s*name\*=utf-8''([^\s;]+)", re.IGNORECASE)
T = TypeVar("T")


class EncodingUnknown(PortsideError):
    """The Content-Encoding of the body is not supported; use gzip, zstd or identity."""

    status: ClassVar[int] = 415
    code = "encoding_unknown"


class EncodingBroken(BadRequest):
    """The body cannot be decompressed as its Content-Encoding says; send that encoding, or no header."""

    code = "encoding_broken"


BODY_ERRORS = (BodyTooLarge, EncodingBroken, EncodingUnknown, Invalid, TooManyLargeReads)
"""What `read_body` raises, for the routes that read a body to name."""


class IngestLimits(msgspec.Struct, frozen=True):
    """The largest decompressed body, and the largest run with everything that requests added to it, in bytes.

    A body and a run are held in memory as a whole, at three times their size, so these limits bound the memory of the
    server. The largest batch of an SDK (20 MB before compression, and attachments) fits.
    """

    body_bytes: int = DEFAULT_MAX_BYTES
    run_bytes: int = DEFAULT_MAX_BYTES


class _ReservationExceeded(Exception):
    """The decoded body outgrew its reservation at `size` bytes, and the budget has no more bytes at the moment."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _Reservation:
    """The bytes of the budget that one body holds: `cost` for each of its bytes. The first `FREE_BYTES` are free."""

    def __init__(self, budget: ReadBudget | None, cost: int) -> None:
        self._budget = budget
        self._cost = cost
        self._held = 0
        self._is_closed = False

        # A thread continues decoding when its request was cancelled, and must not reserve anything after `close`.
        self._lock = threading.Lock()

    async def wait_for(self, size: int) -> None:
        """Hold at least `size` bytes. Raises TooManyLargeReads when other requests do not return enough in time."""
        size *= self._cost
        if self._budget is None or size <= max(self._held, FREE_BYTES):
            return

        # Two requests that each held a part and waited for the rest would wait for each other.
        self.shrink(0)
        self._held = await self._budget.reserve(size, _WAIT_S)

    def grow(self, size: int) -> bool:
        """Hold at least `size` bytes if the budget has them now; False otherwise. May be called in any thread."""
        size *= self._cost
        if self._budget is None or min(size, self._budget.total_bytes) <= max(self._held, FREE_BYTES):
            return True

        # Doubled, so that a body that grows by megabytes asks a few times.
        target = min(2 * size, self._budget.total_bytes)
        with self._lock:
            if self._is_closed or not self._budget.try_reserve(target - self._held):
                return False

            self._held = target
            return True

    def shrink(self, size: int) -> None:
        """Return what a body of `size` bytes does not need. May be called in any thread."""
        size *= self._cost
        with self._lock:
            if self._budget is not None and self._held > size:
                self._budget.release(self._held - size)
                self._held = size

    def close(self) -> None:
        """Return everything, and hold nothing from now on."""
        self._is_closed = True
        self.shrink(0)


@asynccontextmanager
async def read_body(
    request: Request,
    budget: ReadBudget | None,
    limits: IngestLimits,
    parse: Callable[[bytes, str], T],
    *,
    cost: int = 1,
) -> AsyncIterator[T]:
    """Receive a body, undo its content encoding, and yield what `parse` makes of the bytes and the content type.

    The body holds its part of the budget until the end of the block, in which the caller stores it. `cost` is for
    bodies that take more memory when they are parsed than others of their size.
    Raises BodyTooLarge, EncodingBroken, EncodingUnknown, Invalid and TooManyLargeReads.
    """
    reservation = _Reservation(budget, cost)
    try:
        yield await _receive(request, reservation, limits, parse)
    finally:
        reservation.close()


async def _receive(
    request: Request, reservation: _Reservation, limits: IngestLimits, parse: Callable[[bytes, str], T]
) -> T:
    encoding = request.headers.get("content-encoding", "")
    content_type = request.headers.get("content-type", "")

    content_length = request.headers.get("content-length", "")
    if content_length.isdigit():
        try:
            await reservation.wait_for(int(content_length))
        except TooManyLargeReads:
            # A client that is still sending would see a broken connection instead of the response.
            async for _ in request.stream():
                pass
            raise

    # Not `request.body()`, which keeps the bytes until the request ends.
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if not reservation.grow(size):
            await reservation.wait_for(2 * size)

        chunks.append(chunk)

    body = b"".join(chunks)
    chunks.clear()

    if size <= _INLINE_BYTES and not encoding:
        return parse(body, content_type)

    def work() -> T:
        content = decode(body, encoding, limit=limits.body_bytes, reserve=lambda total: reservation.grow(size + total))
        reservation.shrink(size + len(content))
        return parse(content, content_type)

    while True:
        try:
            # In a thread, because decompressing and parsing a large body would block the event loop.
            return await asyncio.to_thread(work)
        except _ReservationExceeded as exc:
            # Each round decodes at least twice as much as the one before.
            await reservation.wait_for(size + min(2 * exc.size, limits.body_bytes))


def decode(
    body: bytes, encoding: str, *, limit: int = DEFAULT_MAX_BYTES, reserve: Callable[[int], bool] = lambda _size: True
) -> bytes:
    """Undo a Content-Encoding. Raises EncodingUnknown, EncodingBroken, and BodyTooLarge past `limit` bytes.

    `reserve` is called with the decoded size as it grows. zstd does not report truncated input; the parsers do.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "zstd":
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            reader: Any = decompressor.stream_reader(body, read_across_frames=True)
        case "gzip" | "x-gzip":
            reader = gzip.GzipFile(fileobj=io.BytesIO(body))
        case _:
            raise EncodingUnknown

    content = bytearray()
    try:
        while chunk := reader.read(_CHUNK):
            content += chunk
            if len(content) > limit or len(content) > max(_RATIO_FROM_BYTES, len(body) * MAX_RATIO):
                raise BodyTooLarge(
                    f"The request body decompresses to more than {limit} bytes, the limit of this server "
                    f"(setting INGEST_MAX_BODY_BYTES), or to more than {MAX_RATIO} times its size; send less at once."
                )

            if not reserve(len(content)):
                raise _ReservationExceeded(len(content))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as exc:
        raise EncodingBroken from exc

    return bytes(content)


# Multipart. Our own parser, because python-multipart takes a third more time for a body of runs
# (docs/why/libraries.md).


class FormPart(NamedTuple):
    """One part of a multipart body; `filename` is empty for a part that is not a file."""

    name: str
    content_type: str
    data: bytes
    filename: str = ""


def parse_multipart(body: bytes, content_type: str, *, max_parts: int = MAX_PARTS) -> Iterator[FormPart]:
    """Yield the parts of a body. Raises Invalid when it is malformed or has more than `max_parts` parts."""
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise Invalid.field(["header", "content-type"], "must be multipart/form-data with a boundary")

    delimiter = b"\r\n--" + (match[1] or match[2]).encode("utf-8", "replace")
    # The first delimiter may stand at the very beginning, where no line ends before it.
    opening = 0 if body.startswith(delimiter[2:]) else body.find(delimiter)
    if opening < 0:
        raise _build_malformed("the boundary does not occur")

    at = opening + len(delimiter) - (2 if opening == 0 else 0)
    count = 0
    while (start := _find_line_end(body, at)) is not None:
        count += 1
        if count > max_parts:
            raise _build_malformed(f"more than {max_parts} parts")

        data_at, headers = _read_headers(body, start)
        end = _find_delimiter(body, delimiter, data_at)
        yield FormPart(_read_name(headers), headers.get("content-type", ""), body[data_at:end], _read_filename(headers))
        at = end + len(delimiter)


def _find_line_end(body: bytes, at: int) -> int | None:
    """Return where the line of a delimiter ends; None for the closing one."""
    if body.startswith(b"--", at):
        return None

    end = body.find(b"\r\n", at, at + 200)
    if end < 0:
        raise _build_malformed("a boundary is not followed by a part")

    return end + 2


def _find_delimiter(body: bytes, delimiter: bytes, at: int) -> int:
    while (at := body.find(delimiter, at)) >= 0:
        after = at + len(delimiter)
        if body.startswith((b"--", b"\r\n"), after) or body[after : after + 200].lstrip(b" \t").startswith(b"\r\n"):
            return at

        at += 1

    raise _build_malformed("a part does not end")


def _read_headers(body: bytes, at: int) -> tuple[int, dict[str, str]]:
    """Read a part's headers; return where its data begins, and the headers by lower-case name."""
    if body.startswith(b"\r\n", at):
        return at + 2, {}

    end = body.find(b"\r\n\r\n", at, at + _MAX_HEADER_BYTES)
    if end < 0:
        raise _build_malformed("the headers of a part do not end")

    headers: dict[str, str] = {}
    for line in body[at:end].decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        headers[key.strip().lower()] = value.strip()

    return end + 4, headers


def _read_name(headers: dict[str, str]) -> str:
    disposition = headers.get("content-disposition", "")
    if extended := _EXTENDED_NAME.search(disposition):
        return unquote(extended[1])

    match = _NAME.search(disposition)
    if match is None:
        raise _build_malformed("a part has no name")

    return _unquote(match)


def _read_filename(headers: dict[str, str]) -> str:
    match = _FILENAME.search(headers.get("content-disposition", ""))
    return "" if match is None else _unquote(match)


def _unquote(match: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2]


def _build_malformed(why: str) -> Invalid:
    return Invalid.field(["body"], f"malformed multipart body: {why}", "multipart_invalid")
