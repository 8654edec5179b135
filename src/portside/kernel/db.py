"""Postgres through asyncpg: a pool, transactions, and named queries that run on both.

A single statement on the pool is a transaction of its own. If Postgres rolls it back because of a deadlock or a
serialization conflict, it runs again. A transaction of several statements does not: its client gets a 409 that asks it
to send the request again (`http/error_responses.py`).

`jsonb` columns are decoded; select `column::text` to send the raw JSON to a client without decoding it.

The statements live in the `sql/*.sql` files of each package, in blocks that start with `-- name: claim_runs`.
Parameters are written `:run_id` and passed by keyword.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, Literal, Protocol, TypeVar, cast
from uuid import UUID

import asyncpg
import msgspec

from portside.kernel.codec import load
from portside.kernel.errors import DependencyUnavailable
from portside.kernel.large_reads import FREE_BYTES, reserve_chunk
from portside.kernel.pool import Connection, Pool, enable_keepalive
from portside.kernel.spool import spooled
from portside.kernel.timeouts import timeout
from portside.kernel.transient_errors import join_library_outages, log_failure
from portside.kernel.user_json import dump_jsonb

T = TypeVar("T")
Record = asyncpg.Record
Isolation = Literal["repeatable_read"]
OnBegin = Callable[["Session"], Awaitable[None]]
STATEMENT_TIMEOUT_S = 900.0
# Ends the transactions of a process that is paused, because others wait for their locks.
IDLE_IN_TRANSACTION_S = 60.0
CONNECT_TIMEOUT_S = 10.0
ALIVE_WITHIN_S = 2.0
_PREFETCH = 500
# A row that is converted to another format is in memory several times.
_DECODED_FACTOR = 4
_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")
_IDENTIFIER = re.compile(r'"([^"]+)"')


class Query:
    """One statement: its name, its SQL with numbered parameters, and the parameters' names in that order."""

    __slots__ = ("declared", "name", "parameters", "sql", "text")
    parameters: tuple[str, ...]
    sql: str

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.declared: Any = None
        """The result of `parse_header` of `Queries` for the comments below the name."""

    def __getattr__(self, name: str) -> Any:
        """Parse the statement at its first use: no program uses all of them, and parsing all would slow its start."""
        if name not in {"parameters", "sql"}:
            raise AttributeError(name)

        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        self.sql = _PARAMETER.sub(number, _COMMENT.sub("", self.text)).strip()
        self.parameters = tuple(names)
        return getattr(self, name)

    def with_identifiers(self, identifiers: Mapping[str, str]) -> "Query":
        """Return the query for other tables and columns: what it writes in double quotes is replaced, and nothing else.

        A parameter cannot be a name. Raises KeyError if a quoted name has no replacement.
        """

        def replace(match: re.Match[str]) -> str:
            identifier = identifiers[match[1]].replace('"', '""')
            return f'"{identifier}"'

        return Query(self.name, _IDENTIFIER.sub(replace, _COMMENT.sub("", self.text)))

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Return keyword values in the order of the parameters. Raises TypeError if names are missing or unknown."""
        if len(values) != len(self.parameters):
            raise TypeError(f"query {self.name} takes {self.parameters}, got {tuple(values)}")

        try:
            return [values[name] for name in self.parameters]
        except KeyError as missing:
            raise TypeError(f"query {self.name} lacks {missing}") from None


class Queries:
    """The statements of one package, as attributes."""

    def __init__(self, package: str, parse_header: Callable[[Query], Any] | None = None) -> None:
        self._queries: dict[str, Query] = {}

        for file in sorted(files(package).joinpath("sql").iterdir(), key=lambda f: f.name):
            if file.name.endswith(".sql"):
                self._read(file.read_text("utf-8"), f"{package}/{file.name}")

        if parse_header is not None:
            for query in self:
                query.declared = parse_header(query)

    def _read(self, text: str, file: str) -> None:
        marks = list(_NAME.finditer(text))
        for index, mark in enumerate(marks):
            end = marks[index + 1].start() if index + 1 < len(marks) else len(text)
            name = mark[1]
            if name in self._queries:
                raise ValueError(f"{file}: query {name} is defined twice")

            query = Query(name, text[mark.end() : end])
            self._queries[name] = query
            setattr(self, name, query)

    def __getattr__(self, name: str) -> Query:
        """Every query is an attribute of its own, so only unknown names come here."""
        raise AttributeError(f"no query named {name} in the sql files of this package")

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


class _Source(Protocol):
    def fetch(self, query: str, *args: Any) -> Awaitable[list[Record]]: ...
    def fetchrow(self, query: str, *args: Any) -> Awaitable[Record | None]: ...
    def fetchval(self, query: str, *args: Any) -> Awaitable[Any]: ...
    def execute(self, query: str, *args: Any) -> Awaitable[str]: ...
    def executemany(self, command: str, args: Iterable[Any]) -> Awaitable[None]: ...


class _PoolSource:
    """Runs each statement on any free connection of a pool."""

    def __init__(self, pool: Any) -> None:
        self.fetch = partial(pool.run, "fetch")
        self.fetchrow = partial(pool.run, "fetchrow")
        self.fetchval = partial(pool.run, "fetchval")
        self.execute = partial(pool.run, "execute")
        self.executemany = partial(pool.run, "executemany")


class Codec(Protocol):
    """Changes the parameters of statements and the rows they return: encryption."""

    async def encode(self, query: Query, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters to run the statement with."""
        ...

    async def decode(self, query: Query, values: dict[str, Any], rows: list[Record]) -> list[Any]:
        """Return the rows for the caller, each a mapping like Record. `values` are the caller's parameters."""
        ...


class Batch(msgspec.Struct, array_like=True):
    """Rows that are read at once: their ids, and the bytes that they have together."""

    ids: list[UUID]
    bytes: int


class Session:
    """Runs named queries on one connection or on the pool, through a codec if there is one."""

    def __init__(self, source: Any, codec: Codec | None = None) -> None:
        self._source: _Source = source
        self.codec = codec

    async def fetch(self, query: Query, **values: Any) -> list[Record]:
        """Run the query and return its rows."""
        if self.codec is None:
            return await self._source.fetch(query.sql, *query.arguments(values))

        parameters = await self.codec.encode(query, values)
        rows = await self._source.fetch(query.sql, *query.arguments(parameters))
        return await self.codec.decode(query, values, rows)

    async def fetchrow(self, query: Query, **values: Any) -> Record | None:
        """Run the query and return its first row, or None."""
        if self.codec is None:
            return await self._source.fetchrow(query.sql, *query.arguments(values))

        parameters = await self.codec.encode(query, values)
        row = await self._source.fetchrow(query.sql, *query.arguments(parameters))
        if row is None:
            return None

        (decoded_row,) = await self.codec.decode(query, values, [row])
        return cast("Record", decoded_row)

    async def fetchval(self, query: Query, **values: Any) -> Any:
        """Run the query and return the first column of its first row, or None."""
        if self.codec is None:
            return await self._source.fetchval(query.sql, *query.arguments(values))

        row = await self.fetchrow(query, **values)
        return None if row is None else next(iter(row.values()))

    async def execute(self, query: Query, **values: Any) -> int:
        """Run the query and return the number of rows it affected."""
        parameters = values if self.codec is None else await self.codec.encode(query, values)
        tag = await self._source.execute(query.sql, *query.arguments(parameters))
        count = tag.rsplit(" ", 1)[-1]
        return int(count) if count.isdigit() else 0

    async def executemany(self, query: Query, rows: Iterable[dict[str, Any]]) -> None:
        """Run the query once per row, in one batch."""
        parameters = rows if self.codec is None else [await self.codec.encode(query, row) for row in rows]
        await self._source.executemany(query.sql, [query.arguments(row) for row in parameters])

    async def read_batch(self, batch: Batch, rows: Query, values: dict[str, Any]) -> AsyncIterator[Record]:
        """Yield the rows of one batch of `stream_by_size`. Raises TooManyLargeReads."""
        chunk_bytes = batch.bytes * _DECODED_FACTOR if batch.bytes > FREE_BYTES else 0
        async with reserve_chunk(chunk_bytes):
            for row in await self.fetch(rows, ids=batch.ids, **values):
                yield row


class Transaction(Session):
    """A connection inside a transaction."""

    def __init__(self, connection: Any, codec: Codec | None = None) -> None:
        super().__init__(connection, codec)
        self.connection = connection

    async def stream(self, query: Query, **values: Any) -> AsyncIterator[Record]:
        """Run the query and yield its rows as the caller takes them, so that they are never all in memory."""
        parameters = values if self.codec is None else await self.codec.encode(query, values)
        async for row in self.connection.cursor(query.sql, *query.arguments(parameters), prefetch=_PREFETCH):
            if self.codec is None:
                yield row
            else:
                (decoded_row,) = await self.codec.decode(query, values, [row])
                yield decoded_row

    async def stream_by_size(self, sizes: Query, rows: Query, **values: Any) -> AsyncIterator[Record]:
        """Yield large rows, reading few at a time, so that little of them is in memory.

        The query `sizes` returns the `id` and the `bytes` of all rows in order; the query `rows` returns the rows with
        the given `ids` in the same order. Raises TooManyLargeReads.
        """
        async for batch in self.batches(sizes, values):
            async for row in self.read_batch(batch, rows, values):
                yield row

    async def batches(self, sizes: Query, values: dict[str, Any]) -> AsyncGenerator[Batch]:
        """Yield the rows of a query like `sizes` of `stream_by_size` in batches that are read at once."""
        batch = Batch([], 0)
        async for row in self.stream(sizes, **values):
            is_full = batch.bytes + row["bytes"] > FREE_BYTES or len(batch.ids) == _PREFETCH
            if batch.ids and is_full:
                yield batch
                batch = Batch([], 0)

            batch.ids.append(row["id"])
            batch.bytes += row["bytes"]

        if batch.ids:
            yield batch

    async def copy(self, table: str, columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows to a table by COPY. The values bypass the codec."""
        await self.connection.copy_records_to_table(table, columns=list(columns), records=rows)


class Database(Session):
    """A pool of connections to one Postgres database."""

    def __init__(self, pool: Any, codec: Codec | None = None) -> None:
        super().__init__(_PoolSource(pool), codec)
        self.pool = pool
        self._health_check: asyncio.Future[bool | None] | None = None
        self._on_dead: list[Callable[[], None]] = [self.replace_connections]

    @classmethod
    async def connect(
        cls, url: str, *, max_size: int = 20, schema: str | None = None, codec: Codec | None = None
    ) -> "Database":
        """Open a pool. Raises DependencyUnavailable if the database is unreachable or refuses the credentials."""
        settings = {
            "application_name": "portside",
            # No statement here gains from it, and the driver would switch it off and on around its own queries.
            "jit": "off",
            "statement_timeout": str(int(STATEMENT_TIMEOUT_S * 1000)),
            "idle_in_transaction_session_timeout": str(int(IDLE_IN_TRANSACTION_S * 1000)),
        }

        if schema:
            settings["search_path"] = f"{schema},public"

        join_library_outages("asyncpg.pool")
        # A class for each database, because the driver makes the connections, and each reports to its database.
        connection_class: Any = type("_Connection", (Connection,), {})
        try:
            pool = await Pool.open(
                url,
                max_size=max_size,
                init=_prepare,
                connection_class=connection_class,
                server_settings=settings,
                command_timeout=STATEMENT_TIMEOUT_S,
                timeout=CONNECT_TIMEOUT_S,
            )
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            raise DependencyUnavailable(f"the database does not answer: {exc or type(exc).__name__}") from exc

        database = cls(pool, codec)
        connection_class.on_dead = database._report_dead
        return database

    def on_dead(self, callback: Callable[[], None]) -> None:
        """Call this when a connection turns out to be dead: others to the same server most likely died with it."""
        self._on_dead.append(callback)

    def _report_dead(self) -> None:
        for callback in self._on_dead:
            callback()

    def replace_connections(self) -> None:
        """Replace every connection before its next use."""
        # Kept in an attribute, because the event loop refers to its tasks only weakly.
        self._replacing = asyncio.ensure_future(self.pool.expire_connections())

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Open a transaction that commits at the end of the block; an exception rolls it back.

        With `repeatable_read` all statements see one snapshot; otherwise each sees what was committed before it.
        """
        pool = self.pool
        async with pool.background_slot(), pool.acquire() as connection, connection.transaction(isolation=isolation):
            yield Transaction(connection, self.codec)

    async def stream_by_size(self, sizes: Query, rows: Query, **values: Any) -> AsyncIterator[Record]:
        """Yield large rows as `Transaction.stream_by_size` does, without a transaction or connection between batches.

        The ids of all rows are of one moment. Each batch is read later, so `values` should name a fixed version of the
        rows; rows that are gone by then are left out. Raises TooManyLargeReads, DownloadTooLarge and TooManyDownloads.
        """

        async def batches() -> AsyncGenerator[Batch]:
            async with self.transaction() as tx:
                async for batch in tx.batches(sizes, values):
                    yield batch

        async for batch in spooled(batches(), Batch):
            async for row in self.read_batch(batch, rows, values):
                yield row

    async def is_alive(self) -> bool:
        """Whether Postgres answers a trivial query within ALIVE_WITHIN_S seconds.

        Concurrent callers share one query: the health route is public, and must not use up the connections.
        """
        while (check := self._health_check) is not None:
            # The result is None if the caller that ran the query was cancelled; then this one runs it.
            if (result := await asyncio.shield(check)) is not None:
                return result

        self._health_check = check = asyncio.get_running_loop().create_future()
        is_alive = None
        try:
            is_alive = await self._responds()
            return is_alive
        finally:
            self._health_check = None
            check.set_result(is_alive)

    async def _responds(self) -> bool:
        try:
            return bool(await self.pool.run("fetchval", "select true", timeout=ALIVE_WITHIN_S))
        except Exception as failure:  # noqa: BLE001 - the result says it
            log_failure("the database does not answer", failure)
            return False

    async def close(self) -> None:
        """Close the pool. Connections still in use after five seconds are terminated."""
        try:
            async with timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()


class _LazyConnection:
    """A connection inside a transaction, for several coroutines: one call at a time."""

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
            self.failure = exc
            self._is_over = True
            raise

        self._connection = tx.connection

    async def end(self) -> None:
        """Wait for a call that was cancelled, and refuse all others."""
        async with self._lock:
            self._is_over = True


@asynccontextmanager
async def lazy_transaction(db: Database, on_begin: OnBegin) -> AsyncIterator[Session]:
    """Yield a session in a transaction that begins at its first statement, after a call of `on_begin`.

    Until then the block holds no connection, and may do long work. Several coroutines may use the session. The
    transaction is committed at the end; an exception rolls back. An error of `on_begin` is raised here, even if the
    block has replaced or suppressed it.
    """
    async with AsyncExitStack() as stack:
        connection = _LazyConnection(db, on_begin, stack)
        try:
            yield Session(connection, db.codec)
        except Exception:
            if connection.failure is not None:
                raise connection.failure from None
            raise
        else:
            if connection.failure is not None:
                raise connection.failure
        finally:
            await connection.end()


async def _prepare(connection: Any) -> None:
    enable_keepalive(connection)
    connection.count_rows()
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=dump_jsonb, decoder=load, format="text")
