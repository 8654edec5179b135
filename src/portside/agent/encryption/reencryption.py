"""Ciphertext that is already stored and has to be written again.

A handler may replace what it decrypts, for example to move it to a newer key: `ReplacementWriter` stores that in the
background, one statement at a time, and only where the old ciphertext is still there. A replacement that is dropped
is offered again with the next read.

A copied thread has its original's checkpoints, bound to the original: `rebind_checkpoints` binds them to the copy.
What does not decrypt is left as it is, and will not decrypt in the copy either.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from portside.agent.encryption.encryptor import Encryptor, Replacement, decrypt_document
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    Location,
    body_binding,
    piece_binding,
    row_of,
    value_binding,
    write_binding,
)
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption import CannotDecrypt
from portside.kernel.codec import dump_api
from portside.kernel.db import Query, Record, Session, Transaction
from portside.kernel.logs import get_logger

log = get_logger(__name__)
MAX_WAITING = 1000
# Values may be large, and those of one page are in memory together.
PAGE = 16
_METADATA = ModelField("checkpoint", "metadata")
_CHECKPOINT = ("thread_id", "checkpoint_ns", "checkpoint_id")
# By the table that a query declares as `replaceable`, the statement that replaces, and the columns that name the row.
_REPLACEMENTS: dict[str, tuple[Query, tuple[str, ...]]] = {
    "threads": (sql.replace_in_threads, ("thread_id",)),
    "runs": (sql.replace_in_runs, ("run_id",)),
    "assistants": (sql.replace_in_assistants, ("assistant_id",)),
    "assistant_versions": (sql.replace_in_assistant_versions, ("assistant_id", "version")),
    "crons": (sql.replace_in_crons, ("cron_id",)),
    "items": (sql.replace_in_items, ("namespace", "key")),
    "checkpoints": (sql.replace_in_checkpoints, _CHECKPOINT),
}
Rows = list[Record]
Statement = tuple[Query, dict[str, Any]]


class ReplacementWriter:
    """Writes replacements. Create it on the event loop of the pool; any loop may offer."""

    def __init__(self, pool: Any) -> None:
        # Without a codec: what it writes is already encrypted.
        self._session = Session(pool)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Statement] = deque()
        self._writing: asyncio.Task[None] | None = None

    def offer(self, statements: list[Statement]) -> None:
        """Queue statements to be run in the background; those that do not fit the queue are dropped."""
        if statements:
            self._loop.call_soon_threadsafe(self._take, statements)

    def _take(self, statements: list[Statement]) -> None:
        self._waiting.extend(statements[: MAX_WAITING - len(self._waiting)])
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                query, values = self._waiting.popleft()
                await self._session.execute(query, **values)
        except Exception as exc:  # noqa: BLE001 - the next read offers it again
            log.warning("a replacement by an encryption handler was not stored", error=type(exc).__name__)
        finally:
            self._writing = None


def document_statements(table: str | None, row: Record, field: str, replacements: list[Replacement]) -> list[Statement]:
    """Return the statements that replace envelopes in a document of a row; none where a query declares no table."""
    if table is None:
        return []
    query, keys = _REPLACEMENTS[table]
    ids = {key: row[key] for key in keys}
    return [
        (query, {**ids, "field": field, "path": list(one.path), "old": one.old, "new": one.new}) for one in replacements
    ]


def blob_statement(row: Record, column: str, index: int, pair: tuple[bytes, bytes]) -> Statement | None:
    """Return the statement that replaces a blob of a checkpoint; None for events, which are kept for minutes only."""
    if "checkpoint_id" not in row:
        return None
    values: dict[str, Any] = {key: row[key] for key in _CHECKPOINT} | {"old": pair[0], "new": pair[1]}
    if column == "body":
        return sql.replace_checkpoint_body, values
    if column == "write_datas":
        named = {"task_id": row["write_tasks"][index], "channel": row["write_channels"][index]}
        return sql.replace_checkpoint_write, values | named
    del values["checkpoint_id"]
    return sql.replace_checkpoint_value, values | {"channel": row["value_channels"][index]}


async def rebind_checkpoints(encryptor: Encryptor, transaction: Transaction, source: str, target: str) -> None:
    """Bind the copies of a thread's checkpoints, in the transaction that copied them. Raises EncryptionFailed."""
    # Without a codec, which would expect the rows to be bound to the copy already.
    copy = _CopiedCheckpoints(encryptor, Session(transaction.connection), source, target)
    await copy.bind_checkpoints()
    await copy.bind_values()
    await copy.bind_pieces()
    await copy.bind_writes()


class _CopiedCheckpoints:
    """The checkpoints of one copy, with their values and pending writes."""

    def __init__(self, encryptor: Encryptor, session: Session, source: str, target: str) -> None:
        self._encryptor = encryptor
        self._session = session
        self._source = source
        self._target = target

    async def bind_checkpoints(self) -> None:
        async for rows in self._pages(sql.copied_checkpoints, {"ns": "checkpoint_ns", "id": "checkpoint_id"}):
            named = [(row["checkpoint_ns"], row["checkpoint_id"]) for row in rows]
            bound = [(body_binding(self._source, *name), body_binding(self._target, *name)) for name in named]
            await self._session.execute(
                sql.bind_checkpoints,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                checkpoint_ids=[row["checkpoint_id"] for row in rows],
                metadatas=[await self._metadata(row["metadata"], row["checkpoint_ns"]) for row in rows],
                bodies=await self._blobs([row["body"] for row in rows], CHECKPOINT_BODY, bound),
            )

    async def bind_values(self) -> None:
        after = {"ns": "checkpoint_ns", "channel": "channel", "version": "version"}
        async for rows in self._pages(sql.copied_values, after):
            named = [(row["checkpoint_ns"], row["channel"]) for row in rows]
            bound = [(value_binding(self._source, *name), value_binding(self._target, *name)) for name in named]
            await self._session.execute(
                sql.bind_values,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                channels=[row["channel"] for row in rows],
                versions=[row["version"] for row in rows],
                datas=await self._blobs([row["data"] for row in rows], CHECKPOINT_VALUE, bound),
            )

    async def bind_pieces(self) -> None:
        async for rows in self._pages(sql.copied_pieces, {"series": "series", "number": "number"}):
            named = [(row["series"], row["number"]) for row in rows]
            bound = [(piece_binding(self._source, *name), piece_binding(self._target, *name)) for name in named]
            await self._session.execute(
                sql.bind_pieces,
                thread_id=self._target,
                series=[row["series"] for row in rows],
                numbers=[row["number"] for row in rows],
                datas=await self._blobs([row["data"] for row in rows], CHECKPOINT_PIECE, bound),
            )

    async def bind_writes(self) -> None:
        after = {"ns": "checkpoint_ns", "id": "checkpoint_id", "task": "task_id", "idx": "idx"}
        async for rows in self._pages(sql.copied_writes, after):
            await self._session.execute(
                sql.bind_writes,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                checkpoint_ids=[row["checkpoint_id"] for row in rows],
                task_ids=[row["task_id"] for row in rows],
                places=[row["idx"] for row in rows],
                datas=await self._blobs(
                    [row["data"] for row in rows],
                    CHECKPOINT_WRITE,
                    [(_write_in(self._source, row), _write_in(self._target, row)) for row in rows],
                ),
            )

    async def _pages(self, query: Query, after: dict[str, str]) -> AsyncIterator[Rows]:
        # Tasks have ids, so nothing sorts between the empty id with index 0 and the first row.
        numbers = {"idx": 0, "series": -1, "number": -1}
        cursor: dict[str, Any] = {f"after_{name}": numbers.get(name, "") for name in after}
        while rows := await self._session.fetch(query, thread_id=self._target, limit=PAGE, **cursor):
            yield rows
            cursor = {f"after_{name}": rows[-1][column] for name, column in after.items()}

    async def _metadata(self, stored: Any, checkpoint_ns: str) -> str:
        with suppress(CannotDecrypt):
            old = row_of({"thread_id": self._source, "checkpoint_ns": checkpoint_ns})
            new = row_of({"thread_id": self._target, "checkpoint_ns": checkpoint_ns})
            plain, _ = await decrypt_document(self._encryptor, stored, Location(old, _METADATA.field))
            stored = await self._encryptor.encrypt_document(plain, _METADATA, new)
        return dump_api(stored).decode()

    async def _blobs(self, stored: list[bytes], target: ModelField, bound: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [await self._encryptor.rebind_blob(one, target, *pair) for one, pair in zip(stored, bound, strict=True)]


def _write_in(thread_id: str, row: Record) -> bytes:
    return write_binding((thread_id, row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"])
