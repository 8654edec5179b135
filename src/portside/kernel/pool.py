"""Connections to Postgres and the pool that lends them: what asyncpg leaves to us, or does dearer than it need be.

Nobody sets session state, which is a rule of this house. So a connection that a statement or a transaction has ended on
is fit for its next user as it is, and the pool takes it back at once; every other one goes the driver's way. This looks
into the driver, whose version is pinned; `tests/db/test_kernel_db.py` tells whether the next one is still like that.
"""
# ruff: noqa: SLF001

import asyncio
import os
import socket
from typing import Any

import asyncpg

from portside.kernel.logs import get_logger

log = get_logger(__name__)
CANCELLED_WITHIN_S = 5.0
# The driver's own figures, which it only adds where a pool is made by its own function.
MAX_QUERIES = 50_000
IDLE_S = 300.0
# A server, or a network on the way to it, that lets nothing through any more is noticed within half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
_SETTLE = "select"


class Connection(asyncpg.Connection):
    """A connection that notices when the server is gone, and when a statement was left halfway."""

    _protocol: Any
    _top_xact: Any
    _listeners: Any
    _log_listeners: Any
    _is_left_halfway = False

    def on_dead(self) -> Any:
        """Say to the pool that a connection was found dead."""

    @property
    def is_fit(self) -> bool:
        """Whether nothing is to be done before somebody else uses it: it is open, idle, and listens to nothing."""
        protocol = self._protocol
        return not (
            self._is_left_halfway
            or self.is_closed()
            or protocol.is_in_transaction()
            or protocol._is_cancelling()
            or self._top_xact is not None
            or self._listeners
            or self._log_listeners
            or protocol.queries_count >= MAX_QUERIES
        )

    def _cancel_current_command(self, waiter: Any, acknowledged: Any = None) -> None:
        """Ask the server to stop a statement. One that says nothing to that is not there: the connection goes.

        Without this the driver waits for the word of the server for as long as a statement may take. The others of the
        pool have most likely died with it, and are made anew before they are used.
        """
        super()._cancel_current_command(waiter, acknowledged)  # type: ignore[misc]

        def look() -> None:
            if not (acknowledged or waiter).done():
                log.warning("a connection to the database is dead")
                self.terminate()
                self.on_dead()

        asyncio.get_running_loop().call_later(CANCELLED_WITHIN_S, look)

    async def _do_execute(self, *args: Any, **options: Any) -> Any:
        """Run a statement, and remember one that was left halfway."""
        self._is_left_halfway = True
        try:
            result = await super()._do_execute(*args, **options)  # type: ignore[misc]
        except asyncpg.PostgresError:
            self._is_left_halfway = False
            raise
        self._is_left_halfway = False
        return result

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's signature
        """Make the connection fit for its next user.

        Where a statement was cancelled between its parts the server waits for the rest, and holds a snapshot meanwhile.
        """
        await super().reset(timeout=timeout)
        if self._is_left_halfway:
            await self.execute(_SETTLE, timeout=timeout)
            self._is_left_halfway = False

    def get_reset_query(self) -> str:
        """Reset nothing: no session state is ever set. What the driver still does is to end a transaction.

        One that is cancelled while it begins stays open, and all that came after on its connection would be lost.
        """
        return ""


class Pool(asyncpg.Pool):
    """The driver's pool, short of what it does for connections that are in order: they are lent and taken back at once.

    The driver makes objects around each loan, and a task that resets the connection after it.
    """

    _closing: bool
    _generation: int
    _queue: asyncio.Queue[Any]
    _loop: asyncio.AbstractEventLoop

    @classmethod
    async def opened(cls, url: str, *, max_size: int, connection_class: type[Connection], **options: Any) -> "Pool":
        """Open a pool of up to so many connections. Raises what the driver raises when the first cannot be had."""
        sizes = {"min_size": 1, "max_size": max_size, "max_queries": MAX_QUERIES}
        more = {"loop": None, "setup": None, "record_class": asyncpg.Record, "max_inactive_connection_lifetime": IDLE_S}
        make: Any = cls
        pool: Pool = await make(url, connection_class=connection_class, **sizes, **more, **options)
        return pool

    async def run(self, method: str, *args: Any, **options: Any) -> Any:
        """Run one statement by a method of a connection, on any that is free."""
        holder = self._ready()
        if holder is None:
            async with self.acquire() as lent:
                return await getattr(lent, method)(*args, **options)
        connection = holder._con
        try:
            return await getattr(connection, method)(*args, **options)
        finally:
            # One that died meanwhile has left its holder, which may be in use again.
            if holder._con is connection and not self._takes_back(holder):
                await asyncio.shield(holder.release(None))

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's
        """Take a connection back; what is not fit for its next user is made so, or closed, in a task of its own."""
        if connection._con is None or not self._takes_back(connection._holder):
            await super().release(connection, timeout=timeout)

    def _ready(self) -> Any:
        """Return the holder of a connection, which is lent now; None where one has to be waited for, or made."""
        if self._closing or self._queue.empty():
            return None
        holder = self._queue.get_nowait()
        if not holder.is_connected() or holder._generation != self._generation:
            self._queue.put_nowait(holder)
            return None
        holder._maybe_cancel_inactive_callback()
        holder._in_use = self._loop.create_future()
        return holder

    def _takes_back(self, holder: Any) -> bool:
        """Take back what a holder lent; False where something is to be done about the connection first."""
        if not holder._con.is_fit or holder._generation != self._generation:
            return False
        # Who kept the connection is told so.
        holder._con._pool_release_ctr += 1
        holder._release()
        holder._setup_inactive_callback()
        return True


def watch(connection: Any) -> None:
    """Have the system notice when the other end of a connection is not there any more."""
    # What the transport calls its socket need not be able to set options.
    with socket.socket(fileno=os.dup(connection._transport.get_extra_info("socket").fileno())) as own:
        if own.family == socket.AF_UNIX:
            return
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            # Not every system has all of them.
            if (option := getattr(socket, name, None)) is not None:
                own.setsockopt(socket.IPPROTO_TCP, option, value)
