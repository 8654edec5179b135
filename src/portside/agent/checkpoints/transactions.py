"""A saver inside one transaction: what a graph reads and writes through it happens wholly or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from portside.agent.checkpoints.saver import PostgresSaver
from portside.kernel.db import Session


class _InTurn:
    """A connection for several coroutines, one after the other; graphs ask for several checkpoints at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)

        async def call(*args: Any) -> Any:
            async with self._turn:
                return await method(*args)

        return call


@asynccontextmanager
async def in_transaction(saver: PostgresSaver) -> AsyncIterator[tuple[PostgresSaver, Session]]:
    """Begin a transaction on the saver's database; yield a saver inside it, and it for statements of one's own.

    Enter it on the saver's own event loop. It is committed at the end; an exception rolls back.
    """
    async with saver.database.transaction() as tx:
        session = Session(_InTurn(tx.connection), tx.codec)
        yield PostgresSaver(session, serde=saver.serde, vault=saver.vault), session
