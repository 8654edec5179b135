"""A transaction for a change of a thread's state, which begins when the graph first uses its checkpoints.

Until then the graph may be made by the project's code, which takes as long as it likes and needs no connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from portside.kernel.db import Database, Session

OnBegin = Callable[[Session], Awaitable[None]]


class _LazyConnection:
    """A connection inside a transaction, one call at a time: graphs request several checkpoints at once."""

    def __init__(self, db: Database, on_begin: OnBegin, stack: AsyncExitStack) -> None:
        self._db = db
        self._on_begin = on_begin
        self._stack = stack
        self._lock = asyncio.Lock()
        self._connection: Any = None
        self.failure: Exception | None = None
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            async with self._lock:
                if self._is_over:
                    raise RuntimeError("the transaction is over")
                if self._connection is None:
                    await self._begin()
                return await getattr(self._connection, name)(*args)

        return call

    async def _begin(self) -> None:
        try:
            tx = await self._stack.enter_async_context(self._db.transaction())
            await self._on_begin(tx)
        except Exception as exc:
            self.failure, self._is_over = exc, True
            raise
        self._connection = tx.connection

    async def end(self) -> None:
        """Wait for a call that was cancelled, and refuse all others."""
        async with self._lock:
            self._is_over = True


@asynccontextmanager
async def lazy_transaction(db: Database, on_begin: OnBegin) -> AsyncIterator[Session]:
    """Yield a session in a transaction that begins with its first statement, and with `on_begin` in front of it.

    It is committed at the end; an exception rolls back. What `on_begin` raises is raised here, whatever the graph made
    of it.
    """
    async with AsyncExitStack() as stack:
        connection = _LazyConnection(db, on_begin, stack)
        try:
            yield Session(connection, db.codec)
        except Exception:
            if connection.failure is not None:
                raise connection.failure from None
            raise
        finally:
            await connection.end()
