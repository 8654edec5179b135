"""Notifications between the processes of one database, and the buses that carry them: Postgres, Redis, or none.

A notification only says that it is time to look into Postgres, where the truth is. A bus may lose, repeat or delay
them: every process looks at intervals anyway. A bus may carry chunks of events as well, which saves the look.

Only this module knows Redis. It needs the extra `portside[redis]`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Protocol

import asyncpg
import msgspec

from portside.agent.encryption.codec import find_encryptor
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.chunks import Chunk
from portside.agent.streams.notifications import NOBODY, Notification, RedisMessage
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most

POSTGRES_CHANNEL = "portside_streams"
# Postgres allows 8,000 bytes.
PAYLOAD_LIMIT_BYTES = 7_800
# Redis may refuse larger messages.
MESSAGE_LIMIT_BYTES = 128 * 1024 * 1024
AGAIN_AFTER_S = 1.0
AGAIN_AFTER_AT_MOST_S = 5.0
WITHIN_S = 5.0
# A connection that is only listened on looks the same whether the server is silent or gone, so it is asked this often.
CHECK_EVERY_S = 15.0

Receive = Callable[[Notification, list[Chunk]], None]
_json_encoder = msgspec.json.Encoder()
_json_decoder = msgspec.json.Decoder(Notification)
_msgpack_encoder = msgspec.msgpack.Encoder()
_msgpack_decoder = msgspec.msgpack.Decoder(RedisMessage)


class Bus(Protocol):
    """A connection to all other processes of the database."""

    carries_chunks: bool

    async def open(self, receive: Receive) -> None:
        """Start to receive, without waiting for the connection. A bus that cannot connect keeps trying.

        Each time it connects it calls `receive` with a notification from NOBODY.
        """
        ...

    async def send(self, notification: Notification, chunks: list[Chunk]) -> None:
        """Send to all others. Raises the error of the connection; nothing depends on it."""
        ...

    async def close(self) -> None:
        """Stop receiving."""
        ...


async def open_bus(db: Database, settings: AgentSettings, database_url: str) -> Bus:
    """Return the configured bus: Redis if REDIS_URI is set, else Postgres. Raises UserMistake.

    Encrypted events are read from the database, whose codec decrypts them: Redis carries none of them.
    """
    if settings.stream_bus == "none":
        return NullBus()
    if settings.redis_uri is None:
        return PostgresBus(database_url)

    channel = f"{settings.redis_key_prefix}portside:{await db.fetchval(sql.bus_name)}"
    carries_chunks = find_encryptor(db) is None
    return RedisBus(settings.redis_uri, channel, settings.redis_max_connections, carries_chunks=carries_chunks)


class NullBus:
    """A bus that carries nothing. Several processes still work together, only later."""

    carries_chunks = False

    async def open(self, receive: Receive) -> None:
        """Do nothing."""

    async def send(self, notification: Notification, chunks: list[Chunk]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class _ConnectedBus:
    """A bus that keeps one connection open to receive on, and opens it again when it is lost."""

    def __init__(self, name: str, expected: tuple[type[Exception], ...]) -> None:
        backoff = Backoff(AGAIN_AFTER_S, AGAIN_AFTER_AT_MOST_S)
        self._supervision = Supervision(name, backoff=backoff, expected=expected)
        self._receiving: asyncio.Task[None] | None = None

    async def open(self, receive: Receive) -> None:
        """Start to receive, without waiting for the connection."""
        self._receiving = asyncio.create_task(self._supervision.run(partial(self._keep_receiving, receive)))

    async def close(self) -> None:
        """Stop receiving."""
        await cancel_and_wait(self._receiving)

    async def _keep_receiving(self, receive: Receive) -> None:
        while True:
            await self._receive_from_one_connection(receive)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _receive_from_one_connection(self, receive: Receive) -> None:
        raise NotImplementedError


class PostgresBus(_ConnectedBus):
    """Carries notifications by LISTEN and NOTIFY, over a connection of its own.

    Postgres commits transactions with a NOTIFY one after the other, under one lock for all databases. So a NOTIFY is
    never sent in a transaction with data, and the caller gathers its news into few notifications. A notification has
    space for ids alone.
    """

    carries_chunks = False

    def __init__(self, database_url: str) -> None:
        super().__init__("notifications by NOTIFY", (OSError,))
        self._url = database_url
        self._connection: asyncpg.Connection[Any] | None = None
        self._sending = asyncio.Lock()

    async def send(self, notification: Notification, _chunks: list[Chunk]) -> None:
        """Send to all others, if connected."""
        connection = self._connection
        if connection is None:
            return

        payload = _json_encoder.encode(notification)
        if len(payload) > PAYLOAD_LIMIT_BYTES:
            payload = _json_encoder.encode(Notification(sender=notification.sender, many=True))

        query = sql.send_notification
        values = query.arguments({"channel": POSTGRES_CHANNEL, "payload": payload.decode()})
        await self._execute(connection, query.sql, *values)

    async def _execute(self, connection: "asyncpg.Connection[Any]", statement: str, *values: object) -> None:
        """Execute a statement; a connection that does not answer in time is given up, and opened again.

        Raises the error of the connection.
        """
        async with self._sending:
            try:
                async with timeout(WITHIN_S):
                    await connection.execute(statement, *values)
            except TimeoutError:
                # A network that drops packets closes nothing: until TCP gave up, each statement would wait as long.
                connection.terminate()
                raise

    async def _receive_from_one_connection(self, receive: Receive) -> None:
        def on_notify(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            with contextlib.suppress(msgspec.DecodeError):
                receive(_json_decoder.decode(str(payload)), [])

        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._url, timeout=WITHIN_S, server_settings={"application_name": "portside notifications"}
        )

        disconnection = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _connection: disconnection.set())
            await connection.add_listener(POSTGRES_CHANNEL, on_notify)
            self._connection = connection
            receive(Notification(sender=NOBODY, many=True), [])

            while not disconnection.is_set():
                await wait_at_most(CHECK_EVERY_S, disconnection.wait())

                if not disconnection.is_set():
                    await self._execute(connection, "select")
        finally:
            self._connection = None
            connection.terminate()


class RedisBus(_ConnectedBus):
    """Carries notifications and chunks over one channel of Redis, or of a server that speaks its protocol.

    The chunks are in Postgres before they are sent, so Redis may lose them. A message that would be too large goes
    without its chunks; the notification in it names the threads.
    """

    def __init__(self, url: str, channel: str, max_connections: int, *, carries_chunks: bool = True) -> None:
        try:
            from redis.asyncio import Redis
            from redis.exceptions import RedisError
        except ImportError as exc:
            raise UserMistake(
                "REDIS_URI is set, which needs the package redis: install the wheel with its extra [redis]"
            ) from exc

        super().__init__("notifications by Redis", (OSError, RedisError))
        self.carries_chunks = carries_chunks
        self._channel = channel
        try:
            self._redis: Any = Redis.from_url(
                url,
                max_connections=max_connections,
                health_check_interval=15,
                socket_connect_timeout=WITHIN_S,
                # Also of a command's response: a network that drops packets closes nothing.
                socket_timeout=WITHIN_S,
            )
        except ValueError:
            # Not the library's reason: it may quote a part of the password.
            raise UserMistake(
                "REDIS_URI is not a Redis URL; use redis://[USER:PASSWORD@]HOST:PORT/NUMBER, and percent-encode the "
                "special characters of the password"
            ) from None

    async def send(self, notification: Notification, chunks: list[Chunk]) -> None:
        """Send to all others, with the chunks unless they are too large."""
        if sum(len(chunk.body) for chunk in chunks) >= MESSAGE_LIMIT_BYTES:
            chunks = []

        message = RedisMessage(notification, chunks)
        await self._redis.publish(self._channel, _msgpack_encoder.encode(message))

    async def close(self) -> None:
        """Stop receiving, and disconnect."""
        await super().close()
        await self._redis.aclose()

    async def _receive_from_one_connection(self, receive: Receive) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            receive(Notification(sender=NOBODY, many=True), [])

            async for item in _read_messages(channel):
                if item["type"] == "message":
                    with contextlib.suppress(msgspec.DecodeError):
                        message = _msgpack_decoder.decode(item["data"])
                        receive(message.notification, message.chunks)


async def _read_messages(channel: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a channel. Raises TimeoutError if the server does not answer when it is asked."""
    loop = asyncio.get_running_loop()
    asked_at: float | None = None
    while True:
        message = await channel.get_message(timeout=CHECK_EVERY_S if asked_at is None else WITHIN_S)
        if message is not None:
            asked_at = None
            yield message
        elif asked_at is None:
            asked_at = loop.time()
            await channel.ping()
        elif loop.time() - asked_at >= WITHIN_S:
            raise TimeoutError("the server does not answer")
