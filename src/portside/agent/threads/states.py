"""The state of threads: read, walked back and changed by people, through the graph that made it.

Reading one state is in `reading`. A change happens in one transaction under the thread's lock, as an admission does:
while it lasts no run begins, it is refused when there is one, and the checkpoint, the thread's values and its status
are written together or not at all.

A checkpoint that is named and not there is a 404. Other servers answer with an empty state, which looks like a thread
that lost its memory; no client relies on it. Where none is named, a thread without a checkpoint has the empty state.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from portside.agent.checkpoints.saver import PostgresSaver
from portside.agent.checkpoints.transactions import in_transaction
from portside.agent.engine import Engine
from portside.agent.graphs.factories import Graph
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.state import apply_supersteps, named_checkpoint, read_history, read_state, update_state
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.fields import select_fields
from portside.agent.threads.reading import CheckpointNotFound, Reader, config_of, graph_of_thread
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.supersteps import graph_of, read_supersteps
from portside.agent.types.access import ANYONE, Caller, Filter
from portside.agent.types.threads import (
    Checkpoint,
    HistorySearch,
    StateAtCheckpoint,
    StatePatch,
    StateUpdate,
    Thread,
    ThreadCreate,
)
from portside.kernel.codec import dump_api, dump_user, without_nul
from portside.kernel.db import Database, Session
from portside.kernel.errors import BadRequest, Conflict, Invalid
from portside.kernel.ids import uuid7

# Each change holds a connection while it waits for its thread; the runs need the others.
CHANGES_AT_ONCE = 4
# What langgraph and the deletion of runs go by.
RESERVED_METADATA = frozenset({"source", "step", "parents", "run_id", "thread_id", "counters_since_delta_snapshot"})


class ThreadInFlight(Conflict):
    """The thread has a run in flight; wait for it before changing the state."""

    code = "thread_in_flight"


class States:
    """Reads and changes the states of threads; who follows a thread is told of a change."""

    def __init__(self, db: Database, engine: Engine, hub: Hub, *, memory_bytes: int) -> None:
        self._db = db
        self._engine = engine
        self._hub = hub
        self._reader = Reader(db, engine, memory_bytes)
        self._changes = asyncio.Semaphore(CHANGES_AT_ONCE)

    async def create(self, request: ThreadCreate, seen: Filter | None = None) -> Thread:
        """Make a thread, with a state where supersteps are given: the two appear together or not at all.

        Of threads that are there already, those that do not fit are not seen.

        Raises ThreadExists, and Invalid when the graph cannot take the supersteps.
        """
        if not request.supersteps:
            return await records.create_thread(self._db, request, seen)
        thread_id = request.thread_id or uuid7()
        graph_id, supersteps = graph_of(request, self._engine.graphs.ids()), read_supersteps(request.supersteps)
        config = config_of(thread_id, None, ANYONE)

        async def creating(graphs: Graphs) -> Thread | None:
            async with _changing(graphs, graph_id, config) as (graph, tx):
                if await records.insert_thread(tx, thread_id, request) is None:
                    return None
                await apply_supersteps(graph, _told(config, graph_id), supersteps)
                await _show_on_thread(tx, thread_id, graph)
                return await records.get_thread(tx, thread_id)

        async with self._changes:
            made = await self._engine.read(creating)
        return made or await records.existing_thread(self._db, thread_id, request, seen)

    async def read(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> dict[str, Any]:
        """Return a state, the latest unless a checkpoint is named.

        Raises ThreadNotFound, CheckpointNotFound, and NotFound when this server does not have the thread's graph.
        """
        return await self._reader.read(thread_id, query, caller)

    async def answer(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> bytes:
        """Return a state's JSON. Raises as `read` does."""
        return await self._reader.answer(thread_id, query, caller)

    async def history(self, thread_id: UUID, query: HistorySearch, caller: Caller = ANYONE) -> list[dict[str, Any]]:
        """Return states, newest first.

        Raises ThreadNotFound and NotFound as `read` does, and Invalid when `before` names no checkpoint.
        """
        graph_id = await graph_of_thread(self._db, thread_id)
        if graph_id is None:
            return []
        config = config_of(thread_id, query.checkpoint, caller)

        async def reading(graphs: Graphs) -> list[dict[str, Any]]:
            async with graphs.open(graph_id, config, access="threads.read") as graph:
                bounds: Any = {"limit": query.limit or 1, "before": query.before, "filter": query.metadata}
                states = await read_history(graph, config, **bounds)
                return [select_fields(state, query.select) for state in states]

        return await self._engine.read(reading)

    async def update(self, thread_id: UUID, update: StateUpdate, caller: Caller = ANYONE) -> dict[str, Any]:
        """Change a state.

        Raises ThreadNotFound, CheckpointNotFound, ThreadInFlight, and BadRequest when the graph cannot take it.
        """
        graph_id = await graph_of_thread(self._db, thread_id)
        if graph_id is None:
            raise BadRequest(f"Thread '{thread_id}' has no assigned graph ID; start a run on it first")
        at = _named(update)
        config = config_of(thread_id, at, caller)

        async def updating(graphs: Graphs) -> tuple[dict[str, Any], bytes]:
            async with _changing(graphs, graph_id, config) as (graph, tx):
                await _lock(tx, thread_id)
                if at.checkpoint_id and (await graph.aget_state(config)).created_at is None:
                    raise CheckpointNotFound.of(thread_id, at.checkpoint_id)
                made = await update_state(graph, _told(config, graph_id), update.values, update.as_node)
                return made, await _show_on_thread(tx, thread_id, graph)

        async with self._changes:
            made, values = await self._engine.read(updating)
        self._hub.update(thread_id, dump_api({**made, "values": msgspec.Raw(values)}))
        return made

    async def patch(self, thread_id: UUID, patch: StatePatch) -> dict[str, Any]:
        """Merge metadata into a checkpoint's.

        Raises ThreadNotFound, CheckpointNotFound, and Invalid for names that the server writes itself.
        """
        if reserved := sorted(RESERVED_METADATA & patch.metadata.keys()):
            raise Invalid.field(["body", "metadata", reserved[0]], "the server writes this itself")
        at = _named(patch)
        row = await self._db.fetchrow(
            sql.patch_checkpoint,
            thread_id=str(thread_id),
            checkpoint_ns=at.checkpoint_ns or "",
            checkpoint_id=at.checkpoint_id or None,
            metadata=without_nul(dump_user(patch.metadata)).decode(),
        )
        if row is None:
            await graph_of_thread(self._db, thread_id)
            raise CheckpointNotFound.of(thread_id, at.checkpoint_id or "(the latest)")
        return named_checkpoint(dict(row))


@asynccontextmanager
async def _changing(graphs: Graphs, graph_id: str, config: Any) -> AsyncIterator[tuple[Graph, Session]]:
    """Open a graph whose memory is inside one transaction; yield it, and the transaction for statements beside it."""
    async with graphs.open(graph_id, config, access="threads.update") as graph:
        saver = graph.checkpointer
        assert isinstance(saver, PostgresSaver)  # noqa: S101 - the engine gives every graph one
        async with in_transaction(saver) as (inside, tx):
            yield graph.copy({"checkpointer": inside}), tx


async def _lock(tx: Session, thread_id: UUID) -> None:
    active_runs = await tx.fetchval(sql.lock_thread, thread_id=thread_id)
    if active_runs is None:
        raise ThreadNotFound.of(thread_id)
    if active_runs:
        raise ThreadInFlight(f"Thread {thread_id} has in-flight runs: {active_runs}")


async def _show_on_thread(tx: Session, thread_id: UUID, graph: Graph) -> bytes:
    """Write what the graph remembers now to the thread's row; return the values' JSON."""
    state = await read_state(graph, config_of(thread_id, None, ANYONE))
    values = without_nul(dump_user(state["values"]))
    await tx.execute(
        sql.write_thread_state,
        thread_id=thread_id,
        values=values.decode(),
        status="interrupted" if state["next"] else "idle",
        interrupts={task["id"]: task["interrupts"] for task in state["tasks"] if task["interrupts"]},
    )
    return values


def _named(change: StateUpdate | StatePatch) -> Checkpoint:
    """Return the checkpoint that a change names; its id may stand beside it, as older clients have it."""
    at = change.checkpoint or Checkpoint()
    return msgspec.structs.replace(at, checkpoint_id=at.checkpoint_id or change.checkpoint_id)


def _told(config: Any, graph_id: str) -> Any:
    """Have the metadata of a checkpoint tell its graph, as those that runs make do."""
    return {**config, "metadata": {"graph_id": graph_id}}
