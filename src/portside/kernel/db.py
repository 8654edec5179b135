"""Postgres by asyncpg: a pool, transactions, and named queries run on them.

A statement on the pool is a transaction of its own. Where Postgres undid it because it crossed another one, it is run
again; a transaction of several statements is not, and whoever asked for it is told to (`http/refusals.py`).

`jsonb` columns arrive decoded; select `column::text` where the raw JSON can go straight to a client.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol, TypeVar

import asyncpg

from portside.kernel.codec import dump_user, load, without_nul
from portside.kernel.errors import OutOfReach
from portside.kernel.logs import get_logger
from portside.kernel.pool import Connection, Pool, watch
from portside.kernel.queries import Query

log = get_logger(__name__)
T = TypeVar("T")
Record = asyncpg.Record
Isolation = Literal["repeatable_read"]
STATEMENT_TIMEOUT_S = 900.0
# A process that is paused inside a transaction holds what others wait for.
IDLE_IN_TRANSACTION_S = 60.0
CONNECTED_WITHIN_S = 10.0
# Postgres' words for a transaction that it undid because of another one: a deadlock, and a conflict of serialization.
CROSSED_STATES = frozenset({"40P01", "40001"})
TRIES = 4
_PREFETCH = 500


class _Source(Protocol):
    def fetch(self, query: str, *args: Any) -> Awaitable[list[Record]]: ...
    def fetchrow(self, query: str, *args: Any) -> Awaitable[Record | None]: ...
    def fetchval(self, query: str, *args: Any) -> Awaitable[Any]: ...
    def execute(self, query: str, *args: Any) -> Awaitable[str]: ...
    def executemany(self, command: str, args: Iterable[Any]) -> Awaitable[None]: ...


class _Again:
    """A pool whose statements are run again when Postgres undid them because they crossed others."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def fetch(self, query: str, *args: Any) -> Awaitable[list[Record]]:
        return _tried(self._pool.run, "fetch", query, *args)

    def fetchrow(self, query: str, *args: Any) -> Awaitable[Record | None]:
        return _tried(self._pool.run, "fetchrow", query, *args)

    def fetchval(self, query: str, *args: Any) -> Awaitable[Any]:
        return _tried(self._pool.run, "fetchval", query, *args)

    def execute(self, query: str, *args: Any) -> Awaitable[str]:
        return _tried(self._pool.run, "execute", query, *args)

    def executemany(self, command: str, args: Iterable[Any]) -> Awaitable[None]:
        return _tried(self._pool.run, "executemany", command, args)


async def _tried(run: Callable[..., Awaitable[T]], *args: Any) -> T:
    for attempt in range(1, TRIES):
        try:
            return await run(*args)
        except asyncpg.PostgresError as exc:
            if exc.sqlstate not in CROSSED_STATES:
                raise
            log.warning("a statement crossed another one and is run again", attempt=attempt, error=str(exc))
        # Not at once, and not both at the same moment.
        await asyncio.sleep(random.uniform(0, 0.02) * attempt)  # noqa: S311 - no secret
    return await run(*args)


class Codec(Protocol):
    """Changes what goes into statements and what comes out of them."""

    async def encode(self, query: Query, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that the statement is run with."""
        ...

    async def decode(self, query: Query, rows: list[Record]) -> list[Any]:
        """Return the rows that the caller gets, each one with names and values as a Record has them."""
        ...


class Session:
    """Named queries on one connection or on the pool, with what a codec makes of them where there is one."""

    def __init__(self, source: Any, codec: Codec | None = None) -> None:
        self._source: _Source = source
        self.codec = codec

    async def fetch(self, query: Query, **values: Any) -> list[Record]:
        """Run the query and return its rows."""
        if self.codec is None:
            return await self._source.fetch(query.sql, *query.arguments(values))
        encoded = await self.codec.encode(query, values)
        return await self.codec.decode(query, await self._source.fetch(query.sql, *query.arguments(encoded)))

    async def fetchrow(self, query: Query, **values: Any) -> Record | None:
        """Run the query and return its first row, or None."""
        if self.codec is None:
            return await self._source.fetchrow(query.sql, *query.arguments(values))
        encoded = await self.codec.encode(query, values)
        row = await self._source.fetchrow(query.sql, *query.arguments(encoded))
        return None if row is None else (await self.codec.decode(query, [row]))[0]

    async def fetchval(self, query: Query, **values: Any) -> Any:
        """Run the query and return the first column of its first row, or None."""
        if self.codec is None:
            return await self._source.fetchval(query.sql, *query.arguments(values))
        row = await self.fetchrow(query, **values)
        return None if row is None else next(iter(row.values()))

    async def execute(self, query: Query, **values: Any) -> int:
        """Run the query and return how many rows it touched."""
        encoded = values if self.codec is None else await self.codec.encode(query, values)
        tag = await self._source.execute(query.sql, *query.arguments(encoded))
        count = tag.rsplit(" ", 1)[-1]
        return int(count) if count.isdigit() else 0

    async def executemany(self, query: Query, rows: Iterable[dict[str, Any]]) -> None:
        """Run the query once per row, in one batch."""
        encoded = rows if self.codec is None else [await self.codec.encode(query, row) for row in rows]
        await self._source.executemany(query.sql, [query.arguments(row) for row in encoded])


class Transaction(Session):
    """A connection inside a transaction."""

    def __init__(self, connection: Any, codec: Codec | None = None) -> None:
        super().__init__(connection, codec)
        self.connection = connection

    async def stream(self, query: Query, **values: Any) -> AsyncIterator[Record]:
        """Run the query and yield its rows as they are wanted, so that no answer is too large to hold."""
        encoded = values if self.codec is None else await self.codec.encode(query, values)
        async for row in self.connection.cursor(query.sql, *query.arguments(encoded), prefetch=_PREFETCH):
            yield row if self.codec is None else (await self.codec.decode(query, [row]))[0]

    async def copy(self, table: str, columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows to a table by COPY; values go in as they are, past any codec."""
        await self.connection.copy_records_to_table(table, columns=list(columns), records=rows)


class Database(Session):
    """A pool of connections to one Postgres database."""

    def __init__(self, pool: Any, codec: Codec | None = None) -> None:
        super().__init__(_Again(pool), codec)
        self.pool = pool
        self._asked: asyncio.Future[bool | None] | None = None

    @classmethod
    async def connect(
        cls, url: str, *, max_size: int = 20, schema: str | None = None, codec: Codec | None = None
    ) -> "Database":
        """Open a pool. Raises OutOfReach when the database cannot be reached or refuses the credentials."""
        settings = {
            "application_name": "portside",
            # No statement here gains from it, and the driver would switch it off and on around its own.
            "jit": "off",
            "statement_timeout": str(int(STATEMENT_TIMEOUT_S * 1000)),
            "idle_in_transaction_session_timeout": str(int(IDLE_IN_TRANSACTION_S * 1000)),
        }
        if schema:
            settings["search_path"] = f"{schema},public"
        kind: Any = type("_Connection", (Connection,), {})
        try:
            pool = await Pool.opened(
                url,
                max_size=max_size,
                init=_prepare,
                connection_class=kind,
                server_settings=settings,
                command_timeout=STATEMENT_TIMEOUT_S,
                timeout=CONNECTED_WITHIN_S,
            )
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            raise OutOfReach(f"the database does not answer: {exc or type(exc).__name__}") from exc
        database = cls(pool, codec)
        kind.on_dead = database.make_anew
        return database

    def make_anew(self, *_: Any) -> None:
        """Have every connection replaced before it is used again."""
        self._replacing = asyncio.ensure_future(self.pool.expire_connections())

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Take a connection, begin, and commit at the end; an exception rolls back.

        With `repeatable_read` every statement sees the same moment; otherwise each sees what is committed by then.
        """
        async with self.pool.acquire() as connection, connection.transaction(isolation=isolation):
            yield Transaction(connection, self.codec)

    async def is_alive(self) -> bool:
        """Whether Postgres answers a trivial query within two seconds.

        It is asked once at a time: anybody may ask a server for its health, and that shall not take up its connections.
        """
        while (asked := self._asked) is not None:
            # Nothing is told when who asked was cancelled: then the next one asks.
            if (told := await asyncio.shield(asked)) is not None:
                return told
        self._asked = asked = asyncio.get_running_loop().create_future()
        answers = None
        try:
            answers = await self._answers()
            return answers
        finally:
            self._asked = None
            asked.set_result(answers)

    async def _answers(self) -> bool:
        try:
            return bool(await self.pool.run("fetchval", "select true", timeout=2))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False

    async def close(self) -> None:
        """Close the pool; connections still in use after five seconds are cut."""
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except TimeoutError:
            self.pool.terminate()


async def _prepare(connection: Any) -> None:
    watch(connection)
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=_encode, decoder=load, format="text")


def _encode(value: Any) -> str:
    """Encode a value for `jsonb`, which cannot hold NUL characters: values out of users' graphs may."""
    return without_nul(dump_user(value)).decode()
