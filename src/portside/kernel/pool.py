"""Connections to Postgres and their pool: asyncpg's, extended, and without some of its overhead.

No code of this package sets session state. So an idle connection needs no reset before its next user, and the pool
takes it back at once; any other goes through the driver's own release. This relies on internals of the driver, whose
version is pinned; `tests/db/test_kernel_db.py` fails if they change.
"""
# ruff: noqa: SLF001

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import asyncpg

from portside.kernel.large_reads import RowMeter, current_read
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout
from portside.kernel.transient_errors import DatabaseUnreachable, log_failure

log = get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
# The SQL states of a deadlock and of a serialization failure: Postgres rolls one of two transactions back.
_CONFLICTS = frozenset({"40P01", "40001"})
MAX_ATTEMPTS = 4
CANCEL_TIMEOUT_S = 5.0
# The driver's own default, which it applies only in its function `create_pool`.
MAX_QUERIES = 50_000
# Idle connections are closed after this: many agent servers share one Postgres, and most of them are idle.
IDLE_S = 60.0
# Background work shares one connection; it waits this long for it before it takes another.
BACKGROUND_WAITS_S = 0.1
# If Postgres refuses further connections, the pool opens none for this time, and works with those it has.
FULL_FOR_S = 1.0
FREE_TIMEOUT_S = 10.0
FREE_POLL_S = 0.005
# With these a dead server or network is noticed within half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
_EMPTY_STATEMENT = "select"
_NO_SLOT = contextlib.nullcontext()
_background: ContextVar[asyncio.Task[Any] | None] = ContextVar("background", default=None)


def is_conflict(failure: BaseException) -> bool:
    """Whether Postgres rolled the transaction back because of another one, so that it can run again as it is."""
    return isinstance(failure, asyncpg.PostgresError) and failure.sqlstate in _CONFLICTS


def retry_conflicts(transaction: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Return a function that runs a whole transaction, and again while it conflicts, `MAX_ATTEMPTS` times in all.

    It raises the last conflict.
    """

    @wraps(transaction)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for number in range(1, MAX_ATTEMPTS):
            try:
                return await transaction(*args, **kwargs)
            except asyncpg.PostgresError as exc:
                if not is_conflict(exc):
                    raise
                log.warning("a transaction conflicted with another one and runs again", attempt=number, error=str(exc))

            # Wait for a random time, so that the two do not conflict again.
            await asyncio.sleep(random.uniform(0, 0.02) * number)  # noqa: S311 - no secret

        return await transaction(*args, **kwargs)

    return run


@contextlib.contextmanager
def background() -> Iterator[None]:
    """Mark the statements of the current task as background work, which shares one connection of the pool.

    Tasks that it starts are not marked.
    """
    token = _background.set(asyncio.current_task())
    try:
        yield
    finally:
        _background.reset(token)


class _BackgroundSlot:
    """Limits background work to one connection at a time, for at most `BACKGROUND_WAITS_S`. Other work never waits."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._has_lock = False

    async def __aenter__(self) -> None:
        marked = _background.get()
        if marked is None or marked is not asyncio.current_task():
            return

        with contextlib.suppress(TimeoutError):
            async with timeout(BACKGROUND_WAITS_S):
                await self._lock.acquire()
                self._has_lock = True

    async def __aexit__(self, *_: object) -> None:
        if self._has_lock:
            self._lock.release()


class Connection(asyncpg.Connection):
    """A connection that detects a dead server, and remembers a statement that was interrupted."""

    _protocol: Any
    _transport: Any
    _top_xact: Any
    _listeners: Any
    _log_listeners: Any
    _is_interrupted = False
    _meter: RowMeter | None = None

    def count_rows(self) -> None:
        """Count the rows of read-only requests, and stop those that become too large (`large_reads.py`)."""
        self._meter = RowMeter(self._protocol, self._transport)

    def on_dead(self) -> Any:
        """Called when a connection turned out to be dead; `Database.connect` sets it."""

    def _cancel_current_command(self, *waiters: Any) -> None:
        """Ask the server to cancel a statement, and terminate the connection if it does not respond.

        Otherwise the driver would wait for the response as long as a statement may take. The other connections of the
        pool have most likely died too, so all are replaced before their next use.
        """
        super()._cancel_current_command(*waiters)  # type: ignore[misc]
        # The first is done when the request was sent; the second, since asyncpg 0.31, when the server complied.
        completed = [waiter for waiter in waiters if waiter is not None][-1]

        def check() -> None:
            if not completed.done():
                log.warning("a connection to the database is dead")
                self.terminate()
                self.on_dead()

        asyncio.get_running_loop().call_later(CANCEL_TIMEOUT_S, check)

    async def _do_execute(self, *args: Any, **options: Any) -> Any:
        """Run a statement, and remember if it was interrupted. Raises ResponseTooLarge and ReservationNeeded."""
        self._is_interrupted = True
        reservation = current_read()
        meter = self._meter
        try:
            if reservation is None or not reservation.is_metered or meter is None or meter.reservation is not None:
                result = await super()._do_execute(*args, **options)  # type: ignore[misc]
            else:
                meter.begin(reservation)
                result = await self._run_metered(meter, args, options)
        except asyncpg.PostgresError:
            self._is_interrupted = False
            raise

        self._is_interrupted = False
        return result

    async def _run_metered(self, meter: RowMeter, args: Any, options: Any) -> Any:
        """Run a statement whose rows are counted, until it ends."""
        try:
            return await super()._do_execute(*args, **options)  # type: ignore[misc]
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            if meter.refusal is not None:
                meter.drop_rows()
                raise meter.refusal from exc

            raise
        finally:
            meter.end()

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's signature
        """Prepare the connection for its next user.

        If a statement was cancelled between its messages, the server waits for the rest and holds a snapshot; an empty
        statement ends that.
        """
        await super().reset(timeout=timeout)
        if self._is_interrupted:
            await self.execute(_EMPTY_STATEMENT, timeout=timeout)
            self._is_interrupted = False

    def get_reset_query(self) -> str:
        """Reset nothing, because no session state is ever set. The driver still ends an open transaction.

        That matters: one that is cancelled while it begins stays open, and later statements would be lost with it.
        """
        return ""


class _FreeHolders(asyncio.LifoQueue[Any]):
    """The free holders of a pool: the last one that has an open connection comes first.

    Before 0.32, the driver lends the holder that was put back last. After Postgres refused to open a connection, that
    holder has none, and the open connections of the others are not used.
    """

    _queue: list[Any]

    def _get(self) -> Any:
        holders = self._queue
        last = len(holders) - 1
        with_connection = (index for index in range(last, -1, -1) if holders[index].is_connected())
        return holders.pop(next(with_connection, last))


class Pool(asyncpg.Pool):
    """The driver's pool with a fast path for clean connections, which are lent and taken back synchronously.

    The driver would create a proxy object for each use, and a task that resets the connection after it.
    """

    _closing: bool
    _generation: int
    _queue: asyncio.Queue[Any]
    _loop: asyncio.AbstractEventLoop
    _holders: list[Any]
    _background_lock: asyncio.Lock
    # Until this time, by the loop's clock, no connection is opened, because Postgres refused one.
    _full_until: float

    @classmethod
    async def open(cls, url: str, *, max_size: int, connection_class: type[Connection], **options: Any) -> "Pool":
        """Open a pool of up to `max_size` connections; idle ones are closed.

        Raises the driver's exception if the first connection cannot be opened.
        """
        pool_class: Any = cls
        pool: Pool = pool_class(
            url,
            connection_class=connection_class,
            record_class=asyncpg.Record,
            min_size=0,
            max_size=max_size,
            max_queries=MAX_QUERIES,
            max_inactive_connection_lifetime=IDLE_S,
            loop=None,
            setup=None,
            **options,
        )
        pool._background_lock = asyncio.Lock()
        pool._full_until = 0.0
        await pool

        if type(pool._queue) is asyncio.LifoQueue:
            holders = pool._queue
            pool._queue = _FreeHolders(max_size)
            while not holders.empty():
                pool._queue.put_nowait(holders.get_nowait())

        async with pool.acquire():
            return pool

    def background_slot(self) -> _BackgroundSlot:
        """Return the context in which to take a connection; background work waits there for other background work."""
        return _BackgroundSlot(self._background_lock)

    async def _get_new_connection(self) -> Any:
        """Open a connection. Raises DatabaseUnreachable, to distinguish it from other kinds of OSError."""
        try:
            return await super()._get_new_connection()  # type: ignore[misc]
        except OSError as exc:
            raise DatabaseUnreachable(str(exc) or type(exc).__name__) from exc

    @retry_conflicts
    async def run(self, method: str, *args: Any, **options: Any) -> Any:
        """Run one statement by calling a method of any free connection; again if it conflicted with a transaction."""
        async with _NO_SLOT if _background.get() is None else self.background_slot():
            holder = self._take_clean()
            if holder is None:
                async with self.acquire() as any_connection:
                    return await getattr(any_connection, method)(*args, **options)

            connection = holder._con
            try:
                return await getattr(connection, method)(*args, **options)
            finally:
                # A connection that died has left its holder, which may be in use again.
                if holder._con is connection and not self._take_back(holder):
                    await asyncio.shield(holder.release(None))

    async def _acquire(self, timeout: float | None) -> Any:  # noqa: ASYNC109 - the driver's signature
        """Lend a connection. If Postgres refuses to open another, wait for one that is open.

        Raises TooManyConnectionsError if none is open, or none became free in time.
        """
        deadline = self._loop.time() + FREE_TIMEOUT_S
        while True:
            await self._wait_while_full(deadline)
            try:
                return await super()._acquire(timeout)  # type: ignore[misc]
            except asyncpg.TooManyConnectionsError as exc:
                now = self._loop.time()
                if now >= deadline or not any(holder.is_connected() for holder in self._holders):
                    raise

                self._full_until = now + FULL_FOR_S
                log_failure("the open connections are shared: Postgres refuses further ones", exc)

    async def _wait_while_full(self, deadline: float) -> None:
        while (now := self._loop.time()) < min(self._full_until, deadline):
            if not any(holder.is_connected() for holder in self._holders):
                return
            if any(holder.is_connected() and holder.is_idle() for holder in self._holders):
                return

            await asyncio.sleep(min(FREE_POLL_S, self._full_until - now))

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's
        """Take a connection back. One that is not clean is reset or closed by the driver, in a task of its own."""
        if connection._con is None or not self._take_back(connection._holder):
            await super().release(connection, timeout=timeout)

    def _take_clean(self) -> Any:
        """Lend a clean connection and return its holder; None if the caller must wait for one, or open one."""
        if self._closing or self._queue.empty():
            return None

        holder = self._queue.get_nowait()
        if not holder.is_connected() or holder._generation != self._generation:
            self._queue.put_nowait(holder)
            return None

        holder._maybe_cancel_inactive_callback()
        holder._in_use = self._loop.create_future()
        return holder

    def _take_back(self, holder: Any) -> bool:
        """Take a connection back; False if it needs a reset first."""
        connection = holder._con
        protocol = holder._con._protocol

        if connection.is_closed():
            _free(holder)
            return True

        needs_reset = (
            connection._is_interrupted
            or protocol.is_in_transaction()
            or protocol._is_cancelling()
            or connection._top_xact is not None
            or connection._listeners
            or connection._log_listeners
            or protocol.queries_count >= MAX_QUERIES
            or holder._generation != self._generation
        )
        if needs_reset:
            return False

        # Makes the driver reject later uses through the old proxy.
        connection._pool_release_ctr += 1
        holder._release()
        holder._setup_inactive_callback()

        return True


def _free(holder: Any) -> None:
    """Free the holder of a connection that died.

    Before 0.32, the driver never frees the holder of a connection that the server closed.
    """
    holder._con.terminate()
    if holder._con is not None:
        holder._release_on_close()


def enable_keepalive(connection: Any) -> None:
    """Let the operating system detect that the other end of a connection is gone."""
    # A duplicate, because the socket object of the transport may not support options.
    descriptor = os.dup(connection._transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=descriptor) as duplicate:
        if duplicate.family == socket.AF_UNIX:
            return

        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            # Not every system has all of these options.
            option = getattr(socket, name, None)
            if option is not None:
                duplicate.setsockopt(socket.IPPROTO_TCP, option, value)
