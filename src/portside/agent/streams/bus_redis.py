"""Hints and events by Redis: one channel for each database. Needs the extra `portside[redis]`.

Events travel along with the hints and spare the others a look into Postgres, where they are written first. A message
that Redis may refuse for its size goes without them; the hint in it names where they are.
"""

import asyncio
import contextlib
from typing import Any

import msgspec

from portside.agent.streams.bus import NOBODY, Hints, Receive
from portside.agent.streams.chunks import Chunk
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)
MESSAGE_LIMIT_BYTES = 128 * 1024 * 1024
AGAIN_AFTER_S = 1.0
CONNECTED_WITHIN_S = 5.0


class Message(msgspec.Struct, array_like=True):
    """What goes over the channel."""

    hints: Hints
    chunks: list[Chunk]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class RedisBus:
    """Speaks over a channel of Redis, or of what understands its protocol."""

    carries_chunks = True

    def __init__(self, url: str, channel: str, max_connections: int) -> None:
        self._channel = channel
        self._redis = _connect(url, max_connections)
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, receive: Receive) -> None:
        """Begin to hear the others as soon as Redis lets us; nobody waits for that."""
        self._keeping = asyncio.create_task(self._keep(receive))

    async def say(self, hints: Hints, chunks: list[Chunk]) -> None:
        """Tell the others, with the events themselves unless they are too large."""
        carried = chunks if sum(len(chunk.body) for chunk in chunks) < MESSAGE_LIMIT_BYTES else []
        await self._redis.publish(self._channel, _encoder.encode(Message(hints, carried)))

    async def close(self) -> None:
        """Hear no more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._redis.aclose()

    async def _keep(self, receive: Receive) -> None:
        from redis.exceptions import RedisError

        while True:
            try:
                await self._hear(receive)
            except (OSError, RedisError) as exc:
                log.warning("the connection to Redis was lost", error=str(exc))
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _hear(self, receive: Receive) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            # Nobody knows what was said meanwhile.
            receive(Hints(sender=NOBODY, many=True), [])
            async for given in channel.listen():
                if given["type"] == "message":
                    with contextlib.suppress(msgspec.DecodeError):
                        message = _decoder.decode(given["data"])
                        receive(message.hints, message.chunks)


def _connect(url: str, max_connections: int) -> Any:
    try:
        from redis.asyncio import Redis
    except ImportError as exc:
        raise UserMistake("REDIS_URI is set, which needs the package redis: install portside[redis]") from exc
    try:
        return Redis.from_url(
            url,
            max_connections=max_connections,
            health_check_interval=15,
            socket_connect_timeout=CONNECTED_WITHIN_S,
        )
    except ValueError as exc:
        raise UserMistake(f"REDIS_URI is no address of Redis: {exc}") from exc
