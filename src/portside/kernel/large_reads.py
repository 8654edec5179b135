"""Limits how many bytes one response may hold, and how many all large reads of a process hold together.

Every read-only request gets a `ReadReservation`. A `RowMeter` between the connection and the driver counts what
Postgres sends for the request, so routes need no code for this. Up to `FREE_BYTES` are free; more must be reserved from
the `ReadBudget` of the process. A reservation lasts until the response was sent. If the budget has nothing left, the
statement is stopped, the request waits in line without a connection, and its handler runs again (`http/routes.py`).

A route with a cursor calls `reserve_page` to learn how many of its objects one response may hold, before it reads them.
Any other response above the budget is refused, with the number of objects that fit: a page is never
shortened silently. A single object may be larger than the budget, because it was accepted when it was stored.
"""

import asyncio
import contextlib
import ctypes
import gc
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from portside.kernel.errors import PortsideError, Unavailable
from portside.kernel.timeouts import timeout

FREE_BYTES = 1_000_000
WAIT_S = 10.0
RETRY_AFTER_S = 5
# M_MMAP_THRESHOLD of glibc's malloc.h.
_MMAP_THRESHOLD = -3
# The header of a message of the wire protocol: its kind and its length.
_HEADER = struct.Struct("!BI")
_DATA_ROW = ord("D")
_READY = ord("Z")
_current: ContextVar["ReadReservation | None"] = ContextVar("read", default=None)
set_current_read = _current.set
reset_current_read = _current.reset
current_read = _current.get


class ResponseTooLarge(PortsideError):
    """The response would be larger than this server allows; send the request again with a smaller `limit`."""

    status = 413
    code = "answer_too_large"

    @classmethod
    def for_limit(cls, response_bytes: int, fitting: int) -> "ResponseTooLarge":
        """Name the limit, and how many objects fit, from the first on."""
        return cls(
            f"The response would be larger than {response_bytes} bytes (setting ANSWER_MAX_BYTES); send the request "
            f"again with a smaller `limit`: {max(fitting, 1)} objects fit."
        )


class TooManyLargeReads(Unavailable):
    """Other large requests use all the memory that this server reserves for them; retry after Retry-After seconds."""

    code = "too_many_large_reads"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, headers={"Retry-After": str(RETRY_AFTER_S)})


class ReservationNeeded(TooManyLargeReads):
    """A statement was stopped; `size` bytes must be reserved before it can run again."""

    def __init__(self, size: int) -> None:
        super().__init__((TooManyLargeReads.__doc__ or "").strip())
        self.size = size


def return_large_blocks() -> None:
    """Make the allocator return the memory of large values to the system when they are freed.

    Otherwise glibc keeps blocks up to the size that was freed last, at most 32 MB, for later. Other C libraries have no
    such setting.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, FREE_BYTES)


class ReadBudget:
    """The bytes that all large reads of a process may hold together, granted first come, first served.

    Call `reserve` on the event loop that answers requests; the other methods work in any thread.
    """

    def __init__(self, response_bytes: int, total_bytes: int, wait_s: float = WAIT_S) -> None:
        self.response_bytes = response_bytes
        self.total_bytes = max(response_bytes, total_bytes)
        self._wait_s = wait_s
        self._left = self.total_bytes
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_reserve(self, size: int) -> bool:
        """Reserve bytes without waiting. Returns False if too few are left, or if others wait already."""
        with self._lock:
            if self._waiting or size > self._left:
                return False

            self._left -= size
            return True

    async def reserve(self, size: int, wait_s: float | None = None) -> int:
        """Reserve bytes and return how many: at most the whole budget.

        Raises TooManyLargeReads after `wait_s`, or after the budget's own time.
        """
        size = min(size, self.total_bytes)
        if self.try_reserve(size):
            return size

        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((size, granted))

        # Bytes may have been released between `try_reserve` and the append, when nobody was in line yet.
        self.release(0)
        try:
            async with timeout(self._wait_s if wait_s is None else wait_s):
                await asyncio.shield(granted)
        except (TimeoutError, asyncio.CancelledError) as exc:
            self._abandon(size, granted)
            if isinstance(exc, TimeoutError):
                raise TooManyLargeReads from exc

            raise

        return size

    def release(self, size: int) -> None:
        """Return reserved bytes, and grant the reservations at the head of the line that fit now."""
        with self._lock:
            self._left += size
            while self._waiting and self._waiting[0][0] <= self._left:
                reserved, granted = self._waiting.popleft()
                self._left -= reserved
                granted.get_loop().call_soon_threadsafe(_grant, granted)

    def _abandon(self, size: int, granted: "asyncio.Future[None]") -> None:
        """Leave the line, or return what was granted as the wait ended."""
        with self._lock:
            is_waiting = (size, granted) in self._waiting
            if is_waiting:
                self._waiting.remove((size, granted))

        self.release(0 if is_waiting else size)


def _grant(granted: "asyncio.Future[None]") -> None:
    if not granted.done():
        granted.set_result(None)


class ReadReservation:
    """The bytes that one request reads: those that arrived for it so far (`used`), and those reserved for it.

    Without a budget nothing can be reserved: a statement that reads more than `free_bytes` is stopped.
    """

    __slots__ = ("_budget", "free_bytes", "is_metered", "reserved", "used")

    def __init__(self, budget: ReadBudget | None, free_bytes: int = FREE_BYTES) -> None:
        self._budget = budget
        self.free_bytes = free_bytes
        self.reserved = 0
        self.used = 0
        self.is_metered = True

    def check(self, size: int, rows: int, fitting: int = 0) -> None:
        """Let a statement continue, or raise ResponseTooLarge or ReservationNeeded.

        The statement is at row number `rows` and has `size` bytes once that row is complete. `fitting` is the number of
        rows at the last check that passed; 0 means all but the last row. Works in any thread.
        """
        size += self.used
        if size <= self.reserved + self.free_bytes:
            return

        budget = self._budget
        if budget is None:
            raise ReservationNeeded(size)

        # A single object is always sent.
        if rows > 1 and size > max(budget.response_bytes, self.reserved) + self.free_bytes:
            raise ResponseTooLarge.for_limit(budget.response_bytes, fitting or rows - 1)

        new_reserved = min(max(size, budget.response_bytes), budget.total_bytes)
        if new_reserved <= self.reserved:
            return
        if not budget.try_reserve(new_reserved - self.reserved):
            raise ReservationNeeded(new_reserved)

        self.reserved = new_reserved
        if self._budget is None:
            # The request ended in the meantime, in another thread.
            self.reserved = 0
            budget.release(new_reserved)

    def check_objects(self, fitting: int) -> None:
        """Raise ResponseTooLarge if the objects read so far are too large; for lists that read each object by itself.

        `fitting` is the number of objects before the last one that was read. A single object is always sent.
        """
        budget = self._budget
        if budget is not None and fitting and self.used > budget.response_bytes + self.free_bytes:
            raise ResponseTooLarge.for_limit(budget.response_bytes, fitting)

    async def reserve(self, size: int) -> None:
        """Reserve at least this many bytes, and start to count from zero. Raises TooManyLargeReads.

        What was reserved is released first: two requests that wait for each other's share would wait forever.
        """
        self.used = 0
        if self._budget is None or min(size, self._budget.total_bytes) <= max(self.reserved, self.free_bytes):
            return

        self._release()
        self.reserved = await self._budget.reserve(size)

    async def reserve_page(self, sizes: Sequence[int]) -> int:
        """Return how many objects of these sizes one response may hold, from the first on, and reserve for them."""
        if self._budget is None:
            return len(sizes)

        total = 0
        count = 0
        for size in sizes:
            if count and total + size > self._budget.response_bytes:
                break

            total += size
            count += 1

        await self.reserve(total)
        return count

    @asynccontextmanager
    async def reserve_chunk(self, size: int) -> AsyncIterator[None]:
        """Reserve bytes for one chunk of a streamed response. Raises TooManyLargeReads."""
        chunk_bytes = 0
        if self._budget is not None and size > self.free_bytes:
            chunk_bytes = await self._budget.reserve(size)

        try:
            yield
        finally:
            if chunk_bytes and self._budget is not None:
                self._budget.release(chunk_bytes)

    def release_unused(self) -> None:
        """Keep reserved only what arrived, once everything has arrived."""
        if self._budget is not None and self.used < self.reserved:
            self._budget.release(self.reserved - self.used)
            self.reserved = self.used

    def start_streaming(self) -> None:
        """Release everything and stop counting: from now on each chunk is reserved by `reserve_chunk`."""
        self.is_metered = False
        self._release()

    def close(self) -> None:
        """Release everything: the response was sent."""
        self.is_metered = False
        if self.reserved:
            self._release()

        self._budget = None

    def _release(self) -> None:
        if self._budget is not None and self.reserved:
            self._budget.release(self.reserved)
        self.reserved = 0


async def reserve_page(sizes: Sequence[int]) -> int:
    """Call `ReadReservation.reserve_page` for the current request; outside of requests everything fits."""
    reservation = _current.get()
    return len(sizes) if reservation is None else await reservation.reserve_page(sizes)


def start_streaming() -> None:
    """Call `ReadReservation.start_streaming` for the current request, if there is one."""
    reservation = _current.get()
    if reservation is not None:
        reservation.start_streaming()


@asynccontextmanager
async def reserve_chunk(size: int) -> AsyncIterator[None]:
    """Call `ReadReservation.reserve_chunk` for the current request, if there is one."""
    reservation = _current.get()
    if reservation is None:
        yield
        return

    async with reservation.reserve_chunk(size):
        yield


class RowMeter(asyncio.Protocol):
    """Counts what Postgres sends for a statement as it arrives, and stops a statement that becomes too large.

    During a statement it stands between the connection's transport and the driver's protocol. Up to the free bytes it
    only counts. Beyond them it walks over the messages of the wire protocol: each begins with its length, so the size
    of a large row is known before the row is in memory.
    """

    def __init__(self, inner: Any, transport: Any) -> None:
        self.reservation: ReadReservation | None = None
        self.refusal: PortsideError | None = None
        self._transport = transport
        self._inner = inner
        self._forward = inner.data_received
        # The bytes that arrived, and those that may arrive before the walk begins.
        self._count = 0
        self._free = 0
        # The rows at the last check that passed.
        self._fitting = 0
        # The data that arrived before the walk began; the walk has to begin at the first message.
        self._early_data: list[bytes] = []
        self._walk: _MessageWalk | None = None

        for name in ("connection_lost", "eof_received", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(inner, name))

    def begin(self, reservation: ReadReservation | None) -> None:
        """Count what arrives from now on against a reservation; None counts nothing."""
        self._transport.set_protocol(self._inner if reservation is None else self)
        self.reservation = reservation
        self.refusal = None
        self._count = 0
        self._fitting = 0
        self._early_data = []
        self._walk = None

        if reservation is not None:
            self._free = reservation.reserved + reservation.free_bytes - reservation.used

    def end(self) -> None:
        """Add what arrived to the reservation, and stop counting."""
        if self.reservation is not None:
            self.reservation.used += self._count
        self.begin(None)

    def drop_rows(self) -> None:
        """Free the rows of a statement that was stopped.

        Otherwise the driver keeps them until its connection, which refers to itself, is garbage-collected. That may
        take minutes.
        """
        for referent in gc.get_referents(self._inner):
            if type(referent) is list:
                referent.clear()

    def data_received(self, data: bytes) -> None:
        """Pass data on to the driver, unless the statement exceeds its reservation."""
        self._count += len(data)
        if self._walk is None:
            self._early_data.append(data)

        if self._count <= self._free or self._is_allowed(data):
            self._forward(data)

    def _is_allowed(self, data: bytes) -> bool:
        if self.reservation is None or self.refusal is not None:
            return False

        if self._walk is None:
            self._walk = _MessageWalk()
            data = b"".join(self._early_data)
            self._early_data = []

        self._walk.feed(data)
        size = self._count + self._walk.missing_bytes
        try:
            self.reservation.check(size, self._walk.rows, self._fitting)
        except PortsideError as exc:
            self.refusal = exc
            # Reading the rest only to drop it could take longer than a new connection.
            self._transport.abort()
            return False

        self._fitting = self._walk.rows
        return True


class _MessageWalk:
    """A walk over messages: how many rows have begun, and how many bytes of the last message are missing."""

    __slots__ = ("_header", "missing_bytes", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.missing_bytes = 0

        # The beginning of a header that was cut between two packets.
        self._header = b""

    def feed(self, data: bytes) -> None:
        """Go on with the next data."""
        if self._header:
            data = self._header + data

        position = self.missing_bytes
        end = len(data)
        while position + _HEADER.size <= end:
            kind, length = _HEADER.unpack_from(data, position)
            if kind == _DATA_ROW:
                self.rows += 1
            elif kind == _READY:
                # The rows before belonged to a query of the driver itself, for a type that it did not know.
                self.rows = 0

            position += 1 + length

        self._header = data[position:] if position < end else b""
        self.missing_bytes = max(0, position - end)
