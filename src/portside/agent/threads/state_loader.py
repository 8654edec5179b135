"""Loading the stored states of threads, in batches."""

from typing import NamedTuple
from uuid import UUID

from portside.agent.sql import sql
from portside.kernel.batching import Batcher
from portside.kernel.db import Database, Record
from portside.kernel.large_reads import ReadReservation, ReservationNeeded, set_current_read

# Concurrent statements. Most version checks return no checkpoint, so a single statement answers all that wait, which
# costs Postgres half of what two would. Full reads may return much and should not wait for each other.
CONCURRENT_VERSION_CHECKS = 1
CONCURRENT_FULL_READS = 2
# Checkpoints may be large, and those of one statement are in memory together.
MAX_BATCH = 16
MAX_BATCH_BYTES = 8_000_000


class StateRequest(NamedTuple):
    """The checkpoint to read, the latest unless one is named, and the version that the caller has cached."""

    thread_id: UUID
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    cached_version: str | None = None


class StoredState(NamedTuple):
    """The stored state of a thread: its graph, and its checkpoint with a version.

    The version changes whenever the checkpoint, its pending writes or the graph do; it is None for a state that
    depends on other checkpoints as well. `row` is None if the caller has cached this version, and if there is no such
    checkpoint.
    """

    graph_id: str | None
    version: str | None
    row: Record | None


class StateLoader:
    """Loads checkpoints, in batches, for all callers on one event loop."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version_checks: Batcher[StateRequest, StoredState | None] = Batcher(
            self._fetch_batch, max_concurrent=CONCURRENT_VERSION_CHECKS, max_batch=MAX_BATCH
        )
        self._full_reads: Batcher[StateRequest, StoredState | None] = Batcher(
            self._fetch_batch, max_concurrent=CONCURRENT_FULL_READS, max_batch=MAX_BATCH
        )

    async def load(self, request: StateRequest) -> StoredState | None:
        """Return what is stored; None if there is no such thread."""
        if self._db.codec is not None:
            # A thread that cannot be decrypted must not fail the others of a batch.
            return await self._fetch_alone(request)

        batcher = self._full_reads if request.cached_version is None else self._version_checks
        try:
            return await batcher.submit(request)
        except ReservationNeeded:
            # The batch is too large: read alone, on the memory budget of this request.
            return await self._fetch_alone(request)

    async def _fetch_alone(self, request: StateRequest) -> StoredState | None:
        (state,) = await self._fetch([request])
        return state

    async def _fetch_batch(self, requests: list[StateRequest]) -> list[StoredState | None]:
        set_current_read(ReadReservation(None, MAX_BATCH_BYTES))
        return await self._fetch(requests)

    async def _fetch(self, requests: list[StateRequest]) -> list[StoredState | None]:
        # Several clients often watch the same thread.
        places = {request: place for place, request in enumerate(dict.fromkeys(requests), 1)}
        rows = await self._db.fetch(
            sql.read_states,
            thread_ids=[request.thread_id for request in places],
            namespaces=[request.checkpoint_ns for request in places],
            checkpoint_ids=[request.checkpoint_id for request in places],
            known=[request.cached_version for request in places],
        )

        states: dict[int, StoredState] = {}
        for row in rows:
            checkpoint = row if row["checkpoint_id"] is not None else None
            states[row["place"]] = StoredState(row["graph_id"], row["state_version"], checkpoint)

        return [states.get(places[request]) for request in requests]
