"""Ciphertext that is already stored and has to be written again.

A handler may replace what it decrypts, for example to move it to a newer key. `ReplacementWriter` stores the
replacement in the background, one statement at a time, and only where the old ciphertext is still there. If it is
dropped, the next read of the value offers it again.

`RenewedKeys` moves stored data from older AES keys to the current one, so that an older key can be removed. It reads
every row that an older key encrypted, a page at a time. A pass that finds none says so in the log.

A copied thread has its original's checkpoints, bound to the original: `rebind_checkpoints` binds them to the copy.
What does not decrypt is left as it is, and will not decrypt in the copy either.
"""

import asyncio
import base64
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.encryptor import Encryptor, Replacement, decrypt_document
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    EVENTS,
    Location,
    body_binding,
    events_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption import CannotDecrypt
from portside.kernel.codec import dump_api
from portside.kernel.db import Query, Record, Session, Transaction
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
MAX_WAITING = 1000
# Values may be large, and those of one page are in memory together.
PAGE = 16
# After a pass that found nothing to renew.
_CHECK_AGAIN_S = 6 * 3600.0
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
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
    "webhook_deliveries": (sql.replace_in_webhook_deliveries, ("run_id",)),
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
            log.warning("a value that the encryption handler encrypted again was not stored", error=type(exc).__name__)
        finally:
            self._writing = None


def document_statements(table: str | None, row: Record, field: str, replacements: list[Replacement]) -> list[Statement]:
    """Return the statements that replace envelopes in a document of a row; none where a query declares no table."""
    if table is None:
        return []

    query, keys = _REPLACEMENTS[table]
    ids = {key: row[key] for key in keys}
    return [
        (query, {**ids, "field": field, "path": list(replacement.path), "old": replacement.old, "new": replacement.new})
        for replacement in replacements
    ]


def blob_statement(row: Record, column: str, index: int, pair: tuple[bytes, bytes]) -> Statement | None:
    """Return the statement that replaces a blob of a checkpoint; None for events, which are kept for minutes only."""
    if "checkpoint_id" not in row:
        return None

    values: dict[str, Any] = {key: row[key] for key in _CHECKPOINT} | {"old": pair[0], "new": pair[1]}
    if column == "body":
        return sql.replace_checkpoint_body, values

    if column == "write_datas":
        ids = {"task_id": row["write_tasks"][index], "channel": row["write_channels"][index]}
        return sql.replace_checkpoint_write, values | ids

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
            names = [(row["checkpoint_ns"], row["checkpoint_id"]) for row in rows]
            bound = [(body_binding(self._source, *name), body_binding(self._target, *name)) for name in names]
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
            names = [(row["checkpoint_ns"], row["channel"]) for row in rows]
            bound = [(value_binding(self._source, *name), value_binding(self._target, *name)) for name in names]
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
            names = [(row["series"], row["number"]) for row in rows]
            bound = [(piece_binding(self._source, *name), piece_binding(self._target, *name)) for name in names]
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
            old = identify_row({"thread_id": self._source, "checkpoint_ns": checkpoint_ns})
            new = identify_row({"thread_id": self._target, "checkpoint_ns": checkpoint_ns})
            plain, _ = await decrypt_document(self._encryptor, stored, Location(old, _METADATA.field))
            stored = await self._encryptor.encrypt_document(plain, _METADATA, new)

        return dump_api(stored).decode()

    async def _blobs(self, stored: list[bytes], target: ModelField, bound: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [
            await self._encryptor.rebind_blob(blob, target, *pair) for blob, pair in zip(stored, bound, strict=True)
        ]


def _write_in(thread_id: str, row: Record) -> bytes:
    return write_binding((thread_id, row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"])


# Older keys


class _Blob(NamedTuple):
    """A column of ciphertext: what it is bound to, and the statement that replaces it, by these columns."""

    column: str
    target: ModelField
    binding: Callable[[Record], bytes]
    replace: Query
    keys: tuple[str, ...]


class _Table(NamedTuple):
    """A table: its pages, where they begin, and what may be encrypted. `name` is that of `document_statements`."""

    name: str
    page: Query
    start: dict[str, tuple[str, Any]]
    """By parameter, the column that it compares, and a value before all others."""
    documents: tuple[str, ...] = ()
    blob: _Blob | None = None


_FIRST_CHECKPOINT = {"after": ("thread_id", ""), "after_ns": ("checkpoint_ns", ""), "after_id": ("checkpoint_id", "")}
_TABLES = (
    _Table(
        "threads",
        sql.threads_of_older_keys,
        {"after": ("thread_id", _FIRST_ID)},
        ("metadata", "config", "values", "interrupts", "error"),
    ),
    _Table("runs", sql.runs_of_older_keys, {"after": ("run_id", _FIRST_ID)}, ("metadata", "kwargs", "error")),
    _Table(
        "assistants",
        sql.assistants_of_older_keys,
        {"after": ("assistant_id", _FIRST_ID)},
        ("metadata", "config", "context"),
    ),
    _Table(
        "assistant_versions",
        sql.assistant_versions_of_older_keys,
        {"after": ("assistant_id", _FIRST_ID), "after_version": ("version", -1)},
        ("metadata", "config", "context"),
    ),
    _Table("crons", sql.crons_of_older_keys, {"after": ("cron_id", _FIRST_ID)}, ("metadata", "payload", "owner")),
    _Table(
        "items", sql.items_of_older_keys, {"after_namespace": ("namespace", []), "after_key": ("key", "")}, ("value",)
    ),
    _Table(
        "checkpoints",
        sql.checkpoints_of_older_keys,
        _FIRST_CHECKPOINT,
        ("metadata",),
        _Blob(
            "body",
            CHECKPOINT_BODY,
            lambda row: body_binding(row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]),
            sql.replace_checkpoint_body,
            ("thread_id", "checkpoint_ns", "checkpoint_id"),
        ),
    ),
    _Table(
        "values",
        sql.values_of_older_keys,
        {
            "after": ("thread_id", ""),
            "after_ns": ("checkpoint_ns", ""),
            "after_channel": ("channel", ""),
            "after_version": ("version", ""),
        },
        (),
        _Blob(
            "data",
            CHECKPOINT_VALUE,
            lambda row: value_binding(row["thread_id"], row["checkpoint_ns"], row["channel"]),
            sql.replace_checkpoint_value,
            ("thread_id", "checkpoint_ns", "channel"),
        ),
    ),
    _Table(
        "pieces",
        sql.pieces_of_older_keys,
        {"after": ("thread_id", ""), "after_series": ("series", -1), "after_number": ("number", -1)},
        (),
        _Blob(
            "data",
            CHECKPOINT_PIECE,
            lambda row: piece_binding(row["thread_id"], row["series"], row["number"]),
            sql.replace_checkpoint_piece,
            ("thread_id", "series", "number"),
        ),
    ),
    _Table(
        "writes",
        sql.writes_of_older_keys,
        # Special writes have negative indexes, but no task has an empty id.
        {**_FIRST_CHECKPOINT, "after_task": ("task_id", ""), "after_idx": ("idx", 0)},
        (),
        _Blob(
            "data",
            CHECKPOINT_WRITE,
            lambda row: write_binding(
                (row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"]
            ),
            sql.replace_checkpoint_write,
            ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "channel"),
        ),
    ),
    _Table(
        "webhook_deliveries",
        sql.webhooks_of_older_keys,
        {"after": ("run_id", _FIRST_ID)},
        ("values", "metadata", "kwargs", "error"),
    ),
    _Table(
        "chunks",
        sql.chunks_of_older_keys,
        {"after": ("thread_id", _FIRST_ID), "after_number": ("number", -1)},
        (),
        _Blob(
            "body",
            EVENTS,
            lambda row: events_binding(row["thread_id"]),
            sql.replace_stream_chunk,
            ("thread_id", "number"),
        ),
    ),
)


class RenewedKeys(Task):
    """Encrypts again, with the first AES key, what older keys encrypted, one page at a time.

    Several servers may do so at once: the second one finds that the old ciphertext is gone.
    """

    every_s = 60.0

    def __init__(self, pool: Any, encryptor: Encryptor, keys: AesKeys) -> None:
        super().__init__()
        # Without a codec: pages are read as they are stored.
        self._session = Session(pool)
        self._encryptor = encryptor
        self._starts = keys.older_starts
        self._patterns = [f"%{base64_prefix(start)}%" for start in self._starts]
        self._left: list[_Table] = list(_TABLES)
        self._cursor: dict[str, Any] | None = None

        self._renewed = self._failed = 0
        self._next_pass_at = 0.0
        self._is_clean = False

    async def activate(self) -> Status:
        """Renew one page. After a pass that found nothing older, the next one is hours later."""
        if not self._starts or time.monotonic() < self._next_pass_at:
            return Status()
        if not self._left:
            return Status(again=self._end_pass())

        table = self._left[0]
        cursor = self._cursor or {name: first for name, (_, first) in table.start.items()}
        conditions = {
            name: value
            for name, value in (("patterns", self._patterns), ("starts", self._starts))
            if name in table.page.parameters
        }

        rows = await self._session.fetch(table.page, **cursor, **conditions, limit=PAGE)
        renewed = sum([await self._renew(table, row) for row in rows])
        self._renewed += renewed

        if len(rows) < PAGE:
            self._left.pop(0)
            self._cursor = None
        else:
            self._cursor = {name: rows[-1][column] for name, (column, _) in table.start.items()}

        return Status({"renewed": renewed}, again=True)

    def _end_pass(self) -> bool:
        """Report what the pass found, and return whether the next one follows at once to see what is left."""
        is_again = self._renewed > 0
        if self._failed and not is_again:
            log.error(
                "values that were encrypted with older AES keys cannot be decrypted and stay as they are",
                values=self._failed,
            )
        elif not is_again and not self._is_clean:
            keys = [start[1:].hex() for start in self._starts]
            log.warning("no stored data uses the older AES keys any more; remove them from GRAPH_AES_KEY", keys=keys)

        self._is_clean = not is_again and not self._failed
        if not is_again:
            # Servers that still encrypt with an older key may continue for a while.
            self._next_pass_at = time.monotonic() + _CHECK_AGAIN_S

        self._left = list(_TABLES)
        self._renewed = 0
        self._failed = 0

        return is_again

    async def _renew(self, table: _Table, row: Record) -> int:
        changed = 0
        for query, values in await self._statements(table, row):
            changed += await self._session.execute(query, **values)

        return int(changed > 0)

    async def _statements(self, table: _Table, row: Record) -> list[Statement]:
        statements: list[Statement] = []

        for field in table.documents:
            if row[field] is None:
                continue

            try:
                _, replacements = await decrypt_document(
                    self._encryptor, row[field], Location(identify_row(dict(row)), field)
                )
            except CannotDecrypt:
                self._failed += 1
            else:
                statements += document_statements(table.name, row, field, replacements)

        if (blob := table.blob) is not None:
            stored = row[blob.column]
            try:
                _, new = await self._encryptor.decrypt_blob(stored, blob.target, blob.binding(row))
            except CannotDecrypt:
                self._failed += 1
            else:
                if new is not None:
                    statements.append(
                        (blob.replace, {**{key: row[key] for key in blob.keys}, "old": stored, "new": new})
                    )

        await asyncio.sleep(0)
        return statements


def base64_prefix(start: bytes) -> str:
    """Return the characters with which the base64 of everything begins that begins with these bytes."""
    return base64.b64encode(start).decode()[: len(start) * 8 // 6]
