"""Writes events to the log in Postgres for other processes, and deletes them when they have expired.

One statement writes everything that the runs of this process emitted since the last flush. The events that wait are
bounded. If Postgres is so slow that the bound is reached, those of the run with the most are lost: its followers in
other processes get an error event and the end of the stream. The run itself continues, and other runs lose nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar
from uuid import UUID

from portside.agent.encryption.codec import find_encryptor
from portside.agent.encryption.context import context_of_run, in_context
from portside.agent.encryption.locations import EVENTS, events_binding
from portside.agent.sql import sql
from portside.agent.streams.chunks import Chunk, EventBatch, pack_events
from portside.agent.streams.events import CHUNK_LIMIT_BYTES, LOST, StreamEvent
from portside.executor.encryption_handlers import EncryptionFailed
from portside.kernel.batching import Batcher
from portside.kernel.db import Database
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import timeout
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
# Events wait this long for others, or until there are this many bytes of them.
FLUSH_S = 0.01
EARLY_BYTES = 64 * 1024
# Of all runs. As much again may be on its way to Postgres.
WAITING_LIMIT_BYTES = 64 * 1024 * 1024
WRITE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
RETRY_AFTER_S = 0.5
# The memory that an event takes in addition to its data.
EVENT_BYTES = 64
# Events are kept at least this long, for the slowest reader, even if the configured time is shorter.
KEEP_AT_LEAST_S = 15.0


class LogWriter:
    """Writes the events of this process in batches.

    `on_written` gets the chunks that were written, and `on_lost` the thread and the run of events that never will be.
    """

    def __init__(
        self,
        db: Database,
        process_id: UUID,
        on_written: Callable[[list[Chunk]], None],
        on_lost: Callable[[UUID, UUID | None], None],
    ) -> None:
        self._db = db
        self._encryptor = find_encryptor(db)
        self._process_id = process_id
        self._on_written = on_written
        self._on_lost = on_lost
        self._batches: Batcher[EventBatch, None] = Batcher(
            self._write_merged, max_batch=None, delay_s=FLUSH_S, early_bytes=EARLY_BYTES
        )

        self._losses = 0

    def write(self, batch: EventBatch) -> None:
        """Take events, to be written within milliseconds."""
        if self._encryptor is not None:
            # Read it now: the task that writes runs outside the run's context.
            batch = batch._replace(context=context_of_run(batch.run_id))

        self._batches.add(batch, _measure(batch))
        if self._batches.waiting_bytes > WAITING_LIMIT_BYTES:
            self._lose_most()

    async def flush(self, within_s: float = WRITE_TIMEOUT_S) -> None:
        """Wait until all events so far are written, for at most `within_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with timeout(within_s):
                losses = None
                # A loss replaces the awaited events by markers, which have to be written too.
                while losses != self._losses:
                    losses = self._losses
                    await self._batches.flush()

    async def close(self) -> None:
        """Write what is pending and stop."""
        await self.flush(CLOSE_TIMEOUT_S)
        await self._batches.close(0.0)

    async def _write_merged(self, batches: list[EventBatch]) -> list[None]:
        """Write the events of each run together. Never fails: `Batcher.add` has no caller that could handle it."""
        run_batches = _merge(batches)
        try:
            await self._write_all(run_batches)
        except Exception as exc:  # noqa: BLE001 - see above
            # `_write_all` retries failures of the database, so these events can never be written.
            log_failure("stream events were lost: they cannot be written", exc)
            for batch in run_batches:
                self._on_lost(batch.thread_id, batch.run_id)

        return [None] * len(batches)

    async def _write_all(self, run_batches: list[EventBatch]) -> None:
        """Write batches, and retry until it succeeds. Readers ignore repeated events, so a second write is harmless."""
        batches = [part for batch in run_batches for part in _split(batch)]
        bodies = await asyncio.gather(*(self._encode(batch) for batch in batches))
        while True:
            try:
                async with timeout(WRITE_TIMEOUT_S):
                    rows = await self._db.fetch(
                        sql.append_stream_chunks,
                        thread_ids=[batch.thread_id for batch in batches],
                        run_ids=[batch.run_id for batch in batches],
                        attempts=[batch.attempt for batch in batches],
                        bodies=bodies,
                        writer=self._process_id,
                    )
            except Exception as exc:  # noqa: BLE001 - tried again, whatever it is
                log_failure("writing stream events failed, and is tried again", exc)
                await asyncio.sleep(RETRY_AFTER_S)
            else:
                break

        self._on_written(
            [
                Chunk(
                    thread_id=row["thread_id"],
                    number=row["number"],
                    run_id=row["run_id"],
                    writer=self._process_id,
                    body=row["body"],
                )
                for row in rows
            ]
        )

    async def _encode(self, batch: EventBatch) -> bytes:
        """Encode events, and encrypt them if that is configured. A batch that cannot be encrypted is lost alone."""
        body = pack_events(batch.events)
        if self._encryptor is None:
            return body

        try:
            with in_context(batch.context):
                return await self._encryptor.encrypt_blob(body, EVENTS, events_binding(batch.thread_id))
        except EncryptionFailed as exc:
            log.error("stream events were lost: they cannot be encrypted", reason=exc.message)  # noqa: TRY400
            self._on_lost(batch.thread_id, batch.run_id)
            return pack_events([_build_lost_marker(batch)])

    def _lose_most(self) -> None:
        """Drop the events that wait of the run that has the most of them, and write a marker in their place."""
        waiting = _merge(self._batches.discard())
        largest = max(waiting, key=_measure)
        log.error(
            "stream events were lost: Postgres takes them too slowly",
            thread=str(largest.thread_id),
            run=str(largest.run_id),
            bytes=_measure(largest),
        )

        self._losses += 1
        for batch in waiting:
            if batch is largest:
                marker = batch._replace(events=[_build_lost_marker(batch)])
                self._batches.add(marker, _measure(marker))
            else:
                self._batches.add(batch, _measure(batch))

        self._on_lost(largest.thread_id, largest.run_id)


def _measure(batch: EventBatch) -> int:
    return sum(len(event.data) + EVENT_BYTES for event in batch.events)


def _build_lost_marker(batch: EventBatch) -> StreamEvent:
    return StreamEvent(LOST, batch.events[-1].event_id, b"null")


def _merge(batches: list[EventBatch]) -> list[EventBatch]:
    """Merge the batches of each run, in order; the newest attempt counts."""
    by_run: dict[tuple[UUID, UUID | None], EventBatch] = {}
    for batch in batches:
        key = (batch.thread_id, batch.run_id)
        earlier = by_run.get(key)
        if earlier is None:
            by_run[key] = batch._replace(events=[*batch.events])
        else:
            earlier.events.extend(batch.events)
            by_run[key] = earlier._replace(attempt=batch.attempt)

    return list(by_run.values())


def _split(batch: EventBatch) -> Iterator[EventBatch]:
    """Split what is too large for one chunk."""
    events: list[StreamEvent] = []
    size = 0
    for event in batch.events:
        # With EVENT_BYTES, because many small events take a reader as long as a few large ones.
        event_size = len(event.data) + EVENT_BYTES
        if events and size + event_size > CHUNK_LIMIT_BYTES:
            yield batch._replace(events=events)
            events = []
            size = 0

        events.append(event)
        size += event_size

    yield batch._replace(events=events)


class OldStreams(Task):
    """Deletes the events of runs that ended long enough ago, and the rows of dead processes."""

    every_s: ClassVar[float] = 10.0
    deletes = True
    batch: ClassVar[int] = 2000

    def __init__(self, db: Database, keep_s: float) -> None:
        super().__init__()
        self._db = db
        self._keep_s = max(keep_s, KEEP_AT_LEAST_S)

    async def activate(self) -> Status:
        """Delete one batch of each."""
        chunks = await self._db.execute(sql.delete_old_chunks, keep_s=self._keep_s, limit=self.batch)
        dead = await self._db.execute(sql.delete_dead_processes)
        heads = await self._db.execute(sql.delete_old_heads, limit=self.batch)
        sequences = await self._db.execute(sql.delete_old_sequences, limit=self.batch)

        did = {"chunks": chunks, "dead_processes": dead, "heads": heads, "sequences": sequences}
        return Status(did=did, again=self.batch in (chunks, heads, sequences))
