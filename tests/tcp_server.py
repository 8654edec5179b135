"""A TCP server in the process of a test, none of whose connections outlives it.

One that was left open would be found by the garbage collector during a later test, and that test would fail.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve_connections(answer: Answer, **options: Any) -> AsyncIterator[int]:
    """Have each connection answered, and closed after that; yields the port. At the end, stop those that still are."""
    connections: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in connections:
            connection.cancel()

        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
