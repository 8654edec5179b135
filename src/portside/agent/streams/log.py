"""Writes events down for others: all that the runs of this process told since the last time, in one statement.

What waits is bounded. If Postgres is so late that the bound is reached, the runs that wait there are written down as
lost, which ends the streams of those who follow them elsewhere with an error; the runs themselves go on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from uuid import UUID

from portside.agent.encryption.codec import vault_of
from portside.agent.encryption.context import context_of_run, in_context
from portside.agent.encryption.errors import EncryptionFailed
from portside.agent.encryption.handlers import Place
from portside.agent.sql import sql
from portside.agent.streams.chunks import CHUNK_LIMIT_BYTES, Chunk, Telling, pack
from portside.agent.streams.events import LOST, Event
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
FLUSH_S = 0.01
EARLY_BYTES = 64 * 1024
WAITING_LIMIT_BYTES = 64 * 1024 * 1024
WITHIN_S = 10.0
AGAIN_AFTER_S = 0.5
_EVENTS = Place("run", "events")
Key = tuple[UUID, UUID | None]


class EventLog:
    """The writing end of the log of this process."""

    def __init__(self, db: Database, process_id: UUID, on_written: Callable[[list[Chunk]], None]) -> None:
        self._db = db
        self._vault = vault_of(db)
        self._process_id = process_id
        self._on_written = on_written
        self.on_lost: Callable[[UUID, UUID | None], None] = lambda _thread, _run: None
        self._waiting: dict[Key, Telling] = {}
        self._size = self._under_way = 0
        self._told = self._written = 0
        self._has_any, self._hurry, self._turn = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._writing = asyncio.create_task(self._write())

    def tell(self, telling: Telling) -> None:
        """Take events to be written within milliseconds."""
        key = (telling.thread_id, telling.run_id)
        known = self._waiting.get(key)
        if known is None:
            context = telling.context if self._vault is None else context_of_run(telling.run_id)
            self._waiting[key] = telling._replace(events=list(telling.events), context=context)
        else:
            self._waiting[key] = known._replace(attempt=telling.attempt)
            known.events.extend(telling.events)
        self._size += sum(len(event.data) + 64 for event in telling.events)
        self._told += 1
        self._has_any.set()
        if self._size > EARLY_BYTES:
            self._hurry.set()
        if self._size + self._under_way > WAITING_LIMIT_BYTES:
            self._lose()

    async def written(self, within_s: float = WITHIN_S) -> None:
        """Wait until all that was told so far is written, or for some time."""
        target = self._told
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._written < target:
                    self._hurry.set()
                    await self._turn.wait()

    async def close(self) -> None:
        """Write what waits and stop."""
        await self.written(2.0)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._has_any.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), FLUSH_S)
            self._has_any.clear()
            self._hurry.clear()
            batch, self._waiting = self._waiting, {}
            told, self._under_way, self._size = self._told, self._size, 0
            await self._write_batch(batch)
            self._under_way, self._written = 0, told
            self._turn.set()
            self._turn = asyncio.Event()

    async def _write_batch(self, batch: dict[Key, Telling]) -> None:
        """Write a batch, however often it takes: what is written twice is read once."""
        tellings = [part for telling in batch.values() for part in _parts(telling)]
        bodies = await asyncio.gather(*(self._body(telling) for telling in tellings))
        while True:
            try:
                rows = await asyncio.wait_for(
                    self._db.fetch(
                        sql.append_stream_chunks,
                        thread_ids=[telling.thread_id for telling in tellings],
                        run_ids=[telling.run_id for telling in tellings],
                        attempts=[telling.attempt for telling in tellings],
                        bodies=bodies,
                        writer=self._process_id,
                    ),
                    WITHIN_S,
                )
            except Exception as exc:  # noqa: BLE001 - tried again, whatever it is
                log.warning("events could not be written down yet", error=str(exc) or type(exc).__name__)
                await asyncio.sleep(AGAIN_AFTER_S)
            else:
                break
        self._on_written(
            [Chunk(row["thread_id"], row["number"], row["run_id"], self._process_id, row["body"]) for row in rows]
        )

    async def _body(self, telling: Telling) -> bytes:
        """Write down events, encrypted where that is configured. What cannot be encrypted is lost, and nothing else."""
        body = pack(telling.events)
        if self._vault is None:
            return body
        try:
            with in_context(telling.context):
                return await self._vault.seal_blob(body, _EVENTS)
        except EncryptionFailed as exc:
            log.error("events of a stream were lost: they cannot be encrypted", reason=exc.message)  # noqa: TRY400
            self.on_lost(telling.thread_id, telling.run_id)
            return pack([Event(LOST, telling.events[-1].event_id, b"null")])

    def _lose(self) -> None:
        log.error("events of streams were lost: Postgres does not take them in time", streams=len(self._waiting))
        for (thread_id, run_id), telling in self._waiting.items():
            telling.events[:] = [Event(LOST, telling.events[-1].event_id, b"null")]
            self.on_lost(thread_id, run_id)
        self._size = 0


def _parts(telling: Telling) -> Iterator[Telling]:
    """Cut what is too much for one chunk."""
    events: list[Event] = []
    size = 0
    for event in telling.events:
        if events and size + len(event.data) > CHUNK_LIMIT_BYTES:
            yield telling._replace(events=events)
            events, size = [], 0
        events.append(event)
        size += len(event.data)
    yield telling._replace(events=events)
