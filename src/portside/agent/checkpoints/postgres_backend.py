"""Checkpoints in Postgres: one statement for each call, and the writer's batches for the rows of runs.

A `PostgresBackend` belongs to the event loop of its database; calls from other loops are executed there. The migration
describes the layout of the tables.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from uuid import UUID

from portside.agent.checkpoints.writer import CheckpointBuffer, CheckpointWriter, LeaseLost, RunAttempt, run_on
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    body_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.encryption.rebinding import rebind_checkpoints
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.checkpoints.backend import (
    CHECKPOINT_COLUMNS,
    PIECE_COLUMNS,
    VALUE_COLUMNS,
    WRITE_COLUMNS,
    CheckpointQuery,
    Row,
    Rows,
    complete_row,
)
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Record, Session

_METADATA = (CHECKPOINT_COLUMNS.index("c_metadata"), ModelField("checkpoint", "metadata"))
_BODY = CHECKPOINT_COLUMNS.index("c_body")
_VALUE = VALUE_COLUMNS.index("v_data")
_WRITE = WRITE_COLUMNS.index("w_data")
_WRITE_CHANNEL = WRITE_COLUMNS.index("w_channel")
# The column to encrypt, the field it belongs to, and what binds the ciphertext to its row.
_Encryption = tuple[int, ModelField, Callable[[Row], bytes]]
# The first columns of each kind of row are its key.
_BODIES: _Encryption = (_BODY, CHECKPOINT_BODY, lambda row: body_binding(*row[:3]))
_VALUES: _Encryption = (_VALUE, CHECKPOINT_VALUE, lambda row: value_binding(*row[:3]))
_PIECES: _Encryption = (PIECE_COLUMNS.index("p_data"), CHECKPOINT_PIECE, lambda row: piece_binding(*row[:3]))
_WRITES: _Encryption = (_WRITE, CHECKPOINT_WRITE, lambda row: write_binding(row[:3], row[3], row[_WRITE_CHANNEL]))


class PostgresBackend:
    """A `CheckpointBackend` of a database, or of a transaction. Make it on the event loop of its database.

    Without a writer it makes one for that database and loop.
    """

    def __init__(
        self, db: Session, *, encryptor: Encryptor | None = None, writer: CheckpointWriter | None = None
    ) -> None:
        self.encryptor = encryptor
        self.is_encrypted = encryptor is not None
        self.writer = writer or CheckpointWriter(db)
        self._db = db
        self._loop = asyncio.get_running_loop()

    async def put(
        self, thread_id: str, checkpoint_ns: str, rows: Rows, *, run: tuple[str, int] | None, is_awaited: bool
    ) -> None:
        """Encrypt rows, and write them with the run's buffer. Raises the error of the write, and LeaseLost."""
        if self.encryptor is not None:
            rows = await encrypt_rows(self.encryptor, rows)

        attempt = None if run is None else _attempt(*run)
        buffer = self.writer.buffers.get(thread_id)

        # User code writes while the buffer's run executes. But a node that was left behind in its thread may still
        # write when another run has the thread.
        if buffer is None or (attempt is not None and attempt[:2] != buffer.owner[:2]):
            await self.writer.write(thread_id, rows, attempt=attempt)
            return

        await buffer.put(checkpoint_ns, rows)
        if is_awaited:
            await buffer.flush()

    async def read(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Record | None:
        """Return the row of a checkpoint, after those that its run has put."""
        buffer = self.writer.buffers.get(thread_id)
        if buffer is not None and buffer.is_empty(checkpoint_ns):
            return None

        return await run_on(self._loop, self._read(buffer, (thread_id, checkpoint_ns, checkpoint_id)))

    async def _read(self, buffer: CheckpointBuffer | None, name: tuple[str, str, str | None]) -> Record | None:
        if buffer is not None:
            await buffer.flush()

        thread_id, checkpoint_ns, checkpoint_id = name
        try:
            return await self._db.fetchrow(
                sql.read_checkpoint,
                thread_id=thread_id,
                checkpoint_ns=checkpoint_ns,
                checkpoint_id=checkpoint_id,
            )
        except Exception as exc:
            # The graph reports this like an error of its own; the engine tells by the buffer that the database failed.
            if buffer is not None:
                buffer.failure = buffer.failure or exc
            raise

    async def list(self, query: CheckpointQuery) -> Sequence[Record]:
        """Return the rows of a page of checkpoints, with those that a run has put on the thread of the query."""
        buffer = self.writer.buffers.get(query.thread_id or "")
        if buffer is not None:
            # A client may list the history of a run that lost its lease; its rows are not in the history.
            with contextlib.suppress(LeaseLost):
                await buffer.flush()

        return await run_on(self._loop, self._db.fetch(sql.list_checkpoints, **query._asdict()))

    async def delete_threads(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads."""
        await run_on(self._loop, self._db.execute(sql.delete_checkpoints_of_threads, thread_ids=list(thread_ids)))

    async def delete_runs(self, run_ids: Sequence[str], thread_id: str | None) -> None:
        """Delete the checkpoints of runs, on one thread or on all."""
        deleting = self._db.execute(sql.delete_checkpoints_of_runs, run_ids=list(run_ids), thread_id=thread_id)
        await run_on(self._loop, deleting)

    async def keep_latest(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads but the latest of each namespace."""
        await run_on(self._loop, self._db.execute(sql.keep_latest_checkpoints, thread_ids=list(thread_ids)))

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy the history of a thread to one without checkpoints. Raises TypeError inside a transaction."""
        await run_on(self._loop, self._copy(source, target))

    async def _copy(self, source: str, target: str) -> None:
        if not isinstance(self._db, Database):
            raise TypeError("this backend already is inside a transaction")

        async with self._db.transaction() as tx:
            await tx.execute(sql.copy_checkpoints, source=source, target=target)
            if self.encryptor is not None:
                await rebind_checkpoints(self.encryptor, tx, source, target)


@lru_cache(maxsize=64)
def _attempt(run_id: str, attempt: int) -> RunAttempt | None:
    """Return the attempt at a run that a config names; None if the id is not that of a run."""
    try:
        return RunAttempt(UUID(run_id), attempt)
    except ValueError:
        return None


async def encrypt_rows(encryptor: Encryptor, rows: Rows) -> Rows:
    """Return rows with their blobs and their metadata encrypted; the codec of the database decrypts them.

    Called before rows are buffered, in the encryption context of their run. Raises EncryptionFailed.
    """
    checkpoints = {key: complete_row(row) for key, row in rows.checkpoints.items()}
    kinds = ((checkpoints, _BODIES), (rows.values, _VALUES), (rows.pieces, _PIECES), (rows.writes, _WRITES))
    columns = (_encrypt_column(encryptor, table, encryption) for table, encryption in kinds)

    encrypted = Rows(is_encrypted=True)
    encrypted.checkpoints, encrypted.values, encrypted.pieces, encrypted.writes = await encryptor.gather(columns)

    column, field = _METADATA
    for key, row in encrypted.checkpoints.items():
        binding = identify_row({"thread_id": row[0], "checkpoint_ns": row[1]})
        document = await encryptor.encrypt_document(load(row[column]), field, binding)
        encrypted.checkpoints[key] = _replace_column(row, column, dump_api(document).decode())

    encrypted.size = rows.size
    return encrypted


async def _encrypt_column(encryptor: Encryptor, rows: dict[Row, Row], encryption: _Encryption) -> dict[Row, Row]:
    column, field, binding = encryption
    blobs = await encryptor.gather(encryptor.encrypt_blob(row[column], field, binding(row)) for row in rows.values())
    return {key: _replace_column(row, column, blob) for (key, row), blob in zip(rows.items(), blobs, strict=True)}


def _replace_column(row: Row, column: int, value: object) -> Row:
    return (*row[:column], value, *row[column + 1 :])
