"""A wire between two programs that tests can cut, mend and lose."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """Carries connections until it is cut; then nothing passes in either direction. `connect` reaches the other end."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._never = asyncio.Event()
        self._lost: set[asyncio.StreamWriter] = set()
        self._carried: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen on a unix socket."""
        async with await asyncio.start_unix_server(self._carry, path):
            yield

    @contextlib.asynccontextmanager
    async def listening_on(self, port: int) -> AsyncIterator[None]:
        """Listen on a port of this machine."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", port)
        try:
            yield
        finally:
            # Not `wait_closed`: connections of tests that failed may be open.
            server.close()
            self.break_off()

    def cut(self) -> None:
        """Let nothing pass until `mend`."""
        self._is_open.clear()

    def mend(self) -> None:
        """Let everything pass again."""
        self._is_open.set()

    def lose(self) -> int:
        """Block the present connections for good, without closing them; return how many."""
        self._lost |= self._carried
        return len(self._lost)

    def break_off(self) -> None:
        """End the present connections at once."""
        for writer in self._carried:
            writer.transport.abort()
        self._carried.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.close()
            return

        self._carried |= {writer, far_writer}
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

        writer.close()
        far_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await (self._never if writer in self._lost else self._is_open).wait()
            writer.write(data)
            await writer.drain()

        writer.close()
