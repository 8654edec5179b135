"""Checkpoints in Postgres: one statement for each call, and batches for the rows of runs.

A `PostgresBackend` belongs to the event loop of its database; calls from other loops are executed there. The migration
describes the layout of the tables.

The `CheckpointWriter` writes in batches: what the runs of this process produce within 5 ms is one statement. A run goes
on while its rows wait. It waits for them only before it ends, when it reads its own thread back, and when its
durability is `sync`. The rows of a thread that is deleted with its run are dropped if the run ends quickly, so they
cost no statement. Rows are written only while their run still is the attempt that produced them: a worker that was
paused for longer than its lease cannot overwrite what its successor did.

Rows are put from any thread and written on the writer's own event loop. That is not the graphs' loop: a node that
blocks its loop does not keep the steps before it from being written.
"""

import asyncio
import contextlib
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

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
from portside.agent.encryption.reencryption import rebind_checkpoints
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
from portside.executor.checkpoints.stored_pieces import encode_array
from portside.kernel.batching import Batcher
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Record, Session
from portside.kernel.timeouts import timeout

WRITE_DELAY_S = 0.005
# A database that takes longer is out of service: the runs are returned to the queue.
WRITE_TIMEOUT_S = 15.0
# The rows of an ephemeral thread are only written if its run takes longer than this, or has more rows than this.
NEW_THREAD_DELAY_S = 0.1
NEW_THREAD_LIMIT_BYTES = 1024 * 1024
# With more than this waiting in all buffers, a run waits until its rows are written.
PENDING_LIMIT_BYTES = 64 * 1024 * 1024
# Shorter parts are not shared: naming the piece takes 64 bytes itself.
MIN_BYTES = 128
# A part is found by a sample of this size, and this many samples of a value are searched for.
SAMPLE_BYTES = 32
SAMPLES = 16
# More pieces than this are not searched: each sample takes up to a microsecond for each four kilobytes of them.
MAX_SEARCHED_BYTES = 256_000
_PIECE_DATA = PIECE_COLUMNS.index("p_data")
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

T = TypeVar("T")


class LeaseLost(Exception):
    """Another worker has the run; what this one still produces is not stored."""


async def run_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Await a call on a loop, from this one or from any other."""
    if asyncio.get_running_loop() is loop:
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


class RunAttempt(NamedTuple):
    """The attempt at a run that writes to a thread. `is_new`: the thread was created for it and has no checkpoints yet.

    `flush_events` is called before checkpoints are written, and what it returns is awaited: a worker that resumes from
    a checkpoint does not send the events before it again, so those must outlive this process first.
    """

    run_id: UUID
    attempt: int
    is_new: bool = False
    flush_events: Callable[[], Awaitable[None] | None] = lambda: None


class CheckpointBuffer:
    """The rows of a run that wait to be written to its thread."""

    def __init__(self, writer: "CheckpointWriter", thread_id: str, owner: RunAttempt) -> None:
        self.thread_id = thread_id
        self.owner = owner
        self.failure: BaseException | None = None
        self.is_closed = False
        self._writer = writer

        # Guarded by the writer's lock, as are `_size`, `is_closed` and `_is_scheduled`.
        self._parts: list[Rows] = []
        self._size = 0

        # Whether the event loop was asked to queue this buffer for the next batch.
        self._is_scheduled = False
        # Set when the batch that this buffer was last queued for was written.
        self._written: asyncio.Event | None = None
        self._is_queued = False
        self._namespaces: set[str] = set()
        self._is_open = not owner.is_new

        # A short run on a thread of its own needs no checkpoint: its rows wait until it takes longer.
        self._opening = writer.loop.call_later(NEW_THREAD_DELAY_S, self._queue) if owner.is_new else None

        if self._is_open:
            # Queued before it has rows: every run puts some at once, and they need not wake the event loop then.
            self._is_scheduled = self._is_queued = True
            self._written = writer.batches.add(self)

    def is_empty(self, checkpoint_ns: str) -> bool:
        """Whether a namespace surely has no checkpoint: the thread is new and nothing was put there."""
        return self.owner.is_new and checkpoint_ns not in self._namespaces

    async def put(self, checkpoint_ns: str, rows: Rows) -> None:
        """Add rows, on any loop. Raises the error of an earlier write, and LeaseLost after the end of the run."""
        if self.failure is not None:
            raise self.failure

        self._namespaces.add(checkpoint_ns)
        with self._writer.lock:
            if self.is_closed:
                raise LeaseLost("the run has ended")

            self._parts.append(rows)
            self._size += rows.size
            self._writer.pending_bytes += rows.size
            is_first = not self._is_scheduled and (self._is_open or self._size > NEW_THREAD_LIMIT_BYTES)
            self._is_scheduled = self._is_scheduled or is_first

        if is_first:
            self._writer.loop.call_soon_threadsafe(self._queue)

        if self._is_open and self._writer.pending_bytes > PENDING_LIMIT_BYTES:
            await self.flush()

    def take(self) -> Rows:
        """Remove and return the rows that wait."""
        with self._writer.lock:
            parts = self._parts
            self._parts = []
            self._writer.pending_bytes -= self._size
            self._size = 0
            self._is_scheduled = False

        self._is_queued = False
        rows = Rows()
        for part in parts:
            rows.merge(part)

        return rows

    async def flush(self) -> None:
        """Wait until everything is written, on any loop. Raises the error of the write, and LeaseLost."""
        if self._namespaces:
            await run_on(self._writer.loop, self._flush())
        elif self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Drop what was not written, and take nothing more."""
        if self._opening is not None:
            self._opening.cancel()

        with self._writer.lock:
            self.is_closed = True
            self._writer.pending_bytes -= self._size
            self._parts = []
            self._size = 0

    def _queue(self) -> None:
        """Write the rows with the next batch, and all later rows with theirs."""
        self._is_open = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

        if self._parts and not self._is_queued:
            self._is_queued = True
            self._written = self._writer.batches.add(self)

    async def _flush(self) -> None:
        self._queue()
        if self._written is not None and not self._written.is_set():
            self._writer.batches.hurry()
            await self._written.wait()

        if self.failure is not None:
            raise self.failure


class CheckpointWriter:
    """The buffers of the runs of this process, and the batches in which they are written.

    Make it on the event loop that its database was connected on: it writes there, and buffers are opened and closed
    there.
    """

    def __init__(self, db: Session, *, delay_s: float = WRITE_DELAY_S) -> None:
        self.loop = asyncio.get_running_loop()
        # Guards the rows of all buffers, which graphs put from their own threads.
        self.lock = threading.Lock()

        # The size of the rows that wait in all buffers.
        self.pending_bytes = 0
        self.batches: Batcher[CheckpointBuffer, None] = Batcher(self._write_batch, max_batch=None, delay_s=delay_s)
        self._db = db
        self.buffers: dict[str, CheckpointBuffer] = {}

        """The buffers of the runs that execute, by the threads that they write to."""

    @asynccontextmanager
    async def buffering(self, thread_id: str, owner: RunAttempt) -> AsyncIterator[None]:
        """Buffer what a run writes to its thread, and write the rest of it at the end.

        The rows of a thread that is made for the run and deleted with it are dropped instead; unless the run was
        cancelled, for it may be resumed. Raises the error of a write, and LeaseLost.
        """
        buffer = self.buffers[thread_id] = CheckpointBuffer(self, thread_id, owner)
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            if is_complete and owner.is_new and buffer.failure is None:
                self._close(buffer)
            else:
                await asyncio.shield(self._flush_and_close(buffer))

    def is_buffering(self, thread_id: UUID) -> bool:
        """Whether a run of this process may have checkpoints of a thread that are not in the database yet."""
        return str(thread_id) in self.buffers

    async def flush(self, thread_id: UUID) -> None:
        """Wait until the checkpoints that a run of this process made on a thread are written, or the run was lost."""
        buffer = self.buffers.get(str(thread_id))
        if buffer is not None and not buffer.is_empty(""):
            with contextlib.suppress(LeaseLost):
                await buffer.flush()

    async def _flush_and_close(self, buffer: CheckpointBuffer) -> None:
        try:
            await buffer.flush()
        finally:
            self._close(buffer)

    def _close(self, buffer: CheckpointBuffer) -> None:
        buffer.close()
        # The attempt may have lost its run while it stopped, and the thread's next run may already have a buffer here.
        if self.buffers.get(buffer.thread_id) is buffer:
            del self.buffers[buffer.thread_id]

    async def write(self, thread_id: str, rows: Rows, *, attempt: RunAttempt | None) -> None:
        """Write rows now, past the buffers. Raises LeaseLost when they are of an attempt that lost its run."""
        writing = self._db.fetch(
            sql.write_checkpoints,
            threads=[thread_id],
            runs=[attempt and attempt.run_id],
            attempts=[attempt.attempt if attempt else 0],
            **rows.columns(),
        )
        if not await run_on(self.loop, writing):
            raise LeaseLost("another worker has the run, or it has ended")

    async def _write_batch(self, buffers: list[CheckpointBuffer]) -> list[None]:
        taken = [(buffer, buffer.take()) for buffer in buffers if not buffer.is_closed]
        results = [None] * len(buffers)

        # A buffer may still be empty: its loop is busy, or a graph in an executor begins late.
        queued = [buffer for buffer, rows in taken if rows]
        if not queued:
            return results

        parts = [rows for _, rows in taken if rows]
        try:
            await self._write_buffers(queued, parts)
        except BaseException as exc:
            # Also when the batch is cancelled: no run may believe that its rows are written.
            for buffer in queued:
                buffer.failure = exc
            raise

        return results

    async def _write_buffers(self, buffers: list[CheckpointBuffer], parts: list[Rows]) -> None:
        try:
            for flushing in [buffer.owner.flush_events() for buffer in buffers]:
                if flushing is not None:
                    await flushing

            await self._write_together(buffers, parts)
        except TimeoutError as exc:
            for buffer in buffers:
                buffer.failure = exc
        except Exception:  # noqa: BLE001 - raised in the runs below
            # Postgres may refuse what one run wrote; the others must not fail with it.
            for place, (buffer, rows) in enumerate(zip(buffers, parts, strict=True)):
                try:
                    await self._write_together([buffer], [rows])
                except TimeoutError as exc:
                    # The database is out of service: waiting as long for each of the others would not help.
                    for unwritten in buffers[place:]:
                        unwritten.failure = exc
                    return
                except Exception as exc:  # noqa: BLE001 - raised in the run
                    buffer.failure = exc

    async def _write_together(self, buffers: list[CheckpointBuffer], parts: list[Rows]) -> None:
        rows = Rows()
        for part in parts:
            rows.merge(part)

        if rows.pieces and not rows.is_encrypted:
            share_parts(rows)

        async with timeout(WRITE_TIMEOUT_S):
            rows_of_owners = await self._db.fetch(
                sql.write_checkpoints,
                threads=[buffer.thread_id for buffer in buffers],
                runs=[buffer.owner.run_id for buffer in buffers],
                attempts=[buffer.owner.attempt for buffer in buffers],
                **rows.columns(),
            )

        owned = {row["thread_id"] for row in rows_of_owners}
        for buffer in buffers:
            if buffer.thread_id not in owned:
                buffer.failure = LeaseLost("another worker has the run")


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
    encrypted = Rows(is_encrypted=True)
    checkpoints = {key: complete_row(row) for key, row in rows.checkpoints.items()}
    kinds = ((checkpoints, _BODIES), (rows.values, _VALUES), (rows.pieces, _PIECES), (rows.writes, _WRITES))
    encrypted.checkpoints, encrypted.values, encrypted.pieces, encrypted.writes = await encryptor.gather(
        _encrypt_column(encryptor, *kind) for kind in kinds
    )

    column, field = _METADATA
    for key, row in encrypted.checkpoints.items():
        binding = identify_row({"thread_id": row[0], "checkpoint_ns": row[1]})
        document = await encryptor.encrypt_document(load(row[column]), field, binding)
        encrypted.checkpoints[key] = _with(row, column, dump_api(document).decode())

    encrypted.size = rows.size
    return encrypted


async def _encrypt_column(encryptor: Encryptor, rows: dict[Row, Row], encryption: _Encryption) -> dict[Row, Row]:
    column, field, binding = encryption
    blobs = await encryptor.gather(encryptor.encrypt_blob(row[column], field, binding(row)) for row in rows.values())
    return {key: _with(row, column, blob) for (key, row), blob in zip(rows.items(), blobs, strict=True)}


def _with(row: Row, column: int, value: object) -> Row:
    return (*row[:column], value, *row[column + 1 :])


class _Pieces(NamedTuple):
    """The pieces of one thread in a batch, with the position of each in their joined bytes."""

    rows: Sequence[Row]
    ends: Sequence[int]
    data: bytes

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Pieces":
        """Join the bytes of pieces."""
        datas = [row[_PIECE_DATA] for row in rows]
        return cls(rows, list(accumulate(map(len, datas))), b"".join(datas))


def share_parts(rows: Rows) -> None:
    """Replace the values and writes of a batch that have parts in common with its pieces.

    A message is in the input of its run, in the pending write of the task that returned it, and in the list that it was
    appended to. Their encodings differ in the message's id, or by the list around it. The parts that are in a piece of
    the same batch are left out: Postgres reads them from the piece (`functions/checkpoint_tuples.sql`). Nothing is
    shared with what was written before, so nothing has to be read for it.
    """
    by_thread: dict[str, list[Row]] = defaultdict(list)
    for row in rows.pieces.values():
        by_thread[row[0]].append(row)

    for thread_id, of_thread in by_thread.items():
        pieces = _Pieces.of(of_thread)
        if len(pieces.data) > MAX_SEARCHED_BYTES:
            continue

        for table, names, prefix in ((rows.values, VALUE_COLUMNS, "v_"), (rows.writes, WRITE_COLUMNS, "w_")):
            data_at = names.index(f"{prefix}data")
            shared_at = names.index(f"{prefix}shared")
            for key, row in table.items():
                if row[0] != thread_id or len(row[data_at]) < MIN_BYTES:
                    continue

                data, shared = _without_parts(row[data_at], pieces)
                if shared:
                    replaced = list(row)
                    replaced[data_at], replaced[shared_at] = data, encode_array(shared)
                    table[key] = tuple(replaced)


def _without_parts(data: bytes, pieces: _Pieces) -> tuple[bytes, list[int]]:
    """Return data without the parts that pieces have, and five numbers for each part.

    They are the part's position in the remaining data, the series and the number of the piece, and the part's position
    in the piece and its length.
    """
    kept: list[bytes] = []
    shared: list[int] = []

    # Data before `done` was kept or found in a piece; `own` bytes of it were kept.
    done = own = 0
    step = max(MIN_BYTES - SAMPLE_BYTES, len(data) // SAMPLES)
    at = step // 2
    while at + SAMPLE_BYTES <= len(data):
        found = pieces.data.find(data[at : at + SAMPLE_BYTES])
        if found < 0:
            at += step
            continue

        index = bisect_right(pieces.ends, found)
        piece = pieces.rows[index]
        bytes_of_piece = piece[_PIECE_DATA]

        inside = found - (pieces.ends[index] - len(piece[_PIECE_DATA]))
        before = _common(data[done:at][::-1], bytes_of_piece[:inside][::-1])
        length = before + _common(data[at:], bytes_of_piece[inside:])
        if length >= MIN_BYTES:
            own += at - before - done
            kept.append(data[done : at - before])
            done = at - before + length
            shared += (own, piece[1], piece[2], inside - before, length)
            at = max(at, done)
        else:
            at += step

    kept.append(data[done:])
    return b"".join(kept), shared


def _common(first: bytes, second: bytes) -> int:
    """Return how many bytes two strings have in common at their beginning, by bisection, as slices compare fast."""
    least = 0
    most = min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        if first[least:middle] == second[least:middle]:
            least = middle
        else:
            most = middle - 1

    return least
