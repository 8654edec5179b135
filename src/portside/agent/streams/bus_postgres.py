"""Hints by NOTIFY: one connection of this process's own, which hears and says. It is made again when it is lost.

A NOTIFY takes a lock that all of a database's commits pass, so there is never one inside a transaction with data, and
the caller joins what it has to say into few of them. A payload holds ids alone: it may have 8,000 bytes.
"""

import asyncio
import contextlib
from typing import Any

import asyncpg
import msgspec

from portside.agent.sql import sql
from portside.agent.streams.bus import NOBODY, Hints, Receive
from portside.agent.streams.chunks import Chunk
from portside.kernel.logs import get_logger

log = get_logger(__name__)
CHANNEL = "portside_streams"
PAYLOAD_LIMIT = 7_800
AGAIN_AFTER_S = 1.0
WITHIN_S = 5.0
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Hints)


class PostgresBus:
    """Speaks over LISTEN and NOTIFY."""

    carries_chunks = False

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: asyncpg.Connection[Any] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._saying = asyncio.Lock()

    async def open(self, receive: Receive) -> None:
        """Begin to hear the others as soon as the database lets us; nobody waits for that."""
        self._keeping = asyncio.create_task(self._keep(receive))

    async def say(self, hints: Hints, _chunks: list[Chunk]) -> None:
        """Tell the others."""
        connection = self._connection
        if connection is None:
            return
        payload = _encoder.encode(hints)
        if len(payload) > PAYLOAD_LIMIT:
            payload = _encoder.encode(Hints(sender=hints.sender, many=True))
        query = sql.say_hints
        async with self._saying:
            values = query.arguments({"channel": CHANNEL, "payload": payload.decode()})
            await connection.execute(query.sql, *values, timeout=WITHIN_S)

    async def close(self) -> None:
        """Hear no more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep(self, receive: Receive) -> None:
        while True:
            try:
                await self._hear(receive)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                log.warning("the connection for hints was lost", error=str(exc))
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _hear(self, receive: Receive) -> None:
        def on_notify(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            with contextlib.suppress(msgspec.DecodeError):
                receive(_decoder.decode(str(payload)), [])

        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._url, timeout=WITHIN_S, server_settings={"application_name": "portside hints"}
        )
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(CHANNEL, on_notify)
            self._connection = connection
            # Nobody knows what was said meanwhile.
            receive(Hints(sender=NOBODY, many=True), [])
            await lost.wait()
        finally:
            self._connection = None
            connection.terminate()
