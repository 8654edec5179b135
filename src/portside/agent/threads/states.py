"""The state and history of threads: read, and changed by clients, through the graph of the thread.

`reading` reads a single state. A change is one transaction under the thread's lock, like the admission of a run: it is
refused while a run is in flight, no run begins during it, and the checkpoint, the thread's values and its status are
written together or not at all.

A request for a checkpoint that does not exist is a 404. Other servers answer with an empty state, which looks like a
thread that lost its memory; no client relies on that. A thread without any checkpoint has the empty state.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.encryption.codec import find_encryptor, has_whole_rows
from portside.agent.graphs import GraphStates
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound, StateReader, build_config, get_graph_id
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, Caller, Filter
from portside.agent.types.states import Checkpoint, HistorySearch, StateAtCheckpoint, StatePatch, StateUpdate
from portside.agent.types.threads import Thread, ThreadCreate, ThreadStatus
from portside.executor.requests import ChangedState, HistoryRead, StateChange, StateCreation
from portside.kernel.clock import in_utc
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, OnBegin, Session, lazy_transaction
from portside.kernel.errors import BadRequest, Conflict, Invalid
from portside.kernel.ids import uuid7
from portside.kernel.user_json import dump_jsonb, without_nul

# Each change holds a connection while it waits for its thread and while the graph computes; leases need the others.
MAX_CONCURRENT_CHANGES = 4
# The keys that langgraph and the deletion of runs depend on.
RESERVED_METADATA = frozenset({"source", "step", "parents", "run_id", "thread_id", "counters_since_delta_snapshot"})

CHECKPOINT_SOURCES = ("input", "loop", "update", "fork")
# What a state shows of its thread and its place, and what langgraph counts itself.
COMPUTED_METADATA = frozenset(
    {
        "thread_id",
        "checkpoint_ns",
        "langgraph_checkpoint_ns",
        "checkpoint_map",
        "parents",
        "counters_since_delta_snapshot",
    }
)


class ThreadInFlight(Conflict):
    """The thread has a run in flight; wait for it before changing the state."""

    code = "thread_in_flight"


class _ThreadExists(Exception):
    """The thread to create is there already."""


class States:
    """Reads and changes the states of threads; followers of a thread are notified of a change."""

    def __init__(self, db: Database, graphs: GraphStates, hub: Hub, *, memory_bytes: int) -> None:
        self._db = db
        self._graphs = graphs
        self._hub = hub
        self._reader = StateReader(db, graphs, cache_bytes=memory_bytes)
        self._changes = asyncio.Semaphore(min(MAX_CONCURRENT_CHANGES, db.pool.get_max_size() // 2))
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def create(self, request: ThreadCreate, visible: Filter | None = None) -> Thread:
        """Create a thread, with a state if supersteps or a history are given: both appear together or not at all.

        An existing thread is returned only if it matches the filter.

        Raises ThreadExists, and Invalid if the graph cannot apply the supersteps or the history.
        """
        if not (request.supersteps or request.history):
            return await records.create_thread(self._db, request, visible)

        thread_id = request.thread_id or uuid7()
        creation = StateCreation(
            graph_id=read_graph_id(request, list(self._graphs.facts)),
            config=build_config(thread_id, None, ANYONE),
            supersteps=msgspec.to_builtins([step.updates for step in request.supersteps or ()]),
            history=read_history(request),
        )

        async def insert(tx: Session) -> None:
            if await records.insert_thread(tx, thread_id, request) is None:
                raise _ThreadExists

        try:
            async with self._change(thread_id, insert) as tx:
                state = await self._graphs.create_state(creation, self._open_backend(tx))
                await _write_to_thread(tx, thread_id, state)
                await records.restore_times(tx, thread_id, request)
                return await records.get_thread(tx, thread_id)
        except _ThreadExists:
            return await records.get_existing_thread(self._db, thread_id, request, visible=visible)

    async def read(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> dict[str, Any]:
        """Return a state as plain data. Raises the same errors as `read_json`."""
        state: dict[str, Any] = load(await self.read_json(thread_id, query, caller))
        return state

    async def read_json(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> bytes:
        """Return the JSON of a state, the latest unless a checkpoint is named.

        Raises ThreadNotFound, CheckpointNotFound, and NotFound if this server does not have the thread's graph.
        """
        return await self._reader.read_json(thread_id, query, caller)

    async def history(self, thread_id: UUID, query: HistorySearch, caller: Caller = ANYONE) -> bytes:
        """Return the JSON of a list of states, newest first.

        Raises ThreadNotFound and NotFound as `read_json` does, and Invalid if `before` names no checkpoint.
        """
        graph_id = await get_graph_id(self._db, thread_id)
        if graph_id is None:
            return b"[]"

        request = HistoryRead(
            graph_id=graph_id,
            config=await self._reader.get_config(thread_id, graph_id, query.checkpoint, caller),
            limit=query.limit or 1,
            before=query.before,
            filter=query.metadata,
            select=query.select,
        )
        return await self._graphs.read_history(request)

    async def update(self, thread_id: UUID, update: StateUpdate, caller: Caller = ANYONE) -> dict[str, Any]:
        """Change a state.

        Raises ThreadNotFound, CheckpointNotFound, ThreadInFlight, and BadRequest if the graph cannot apply the change.
        """
        graph_id = await get_graph_id(self._db, thread_id)
        if graph_id is None:
            raise BadRequest(f"Thread '{thread_id}' has no assigned graph ID; start a run on it first")

        at = _get_checkpoint(update)
        change = StateChange(
            graph_id=graph_id,
            config=await self._reader.get_config(thread_id, graph_id, at, caller),
            values=update.values,
            as_node=update.as_node,
        )

        async with self._change(thread_id, partial(_lock, thread_id)) as tx:
            state = await self._graphs.update_state(change, self._open_backend(tx))
            if state is None:
                raise CheckpointNotFound.of(thread_id, at.checkpoint_id or "")

            values = await _write_to_thread(tx, thread_id, state)

        checkpoint = name_checkpoint(state.checkpoint)
        self._hub.publish_state_update(thread_id, dump_api({**checkpoint, "values": msgspec.Raw(values)}))
        return checkpoint

    @asynccontextmanager
    async def _change(self, thread_id: UUID, on_begin: OnBegin) -> AsyncIterator[Session]:
        """Yield a session in the transaction of one change of a thread."""
        # Changes of one thread wait for each other without a slot, or they would block those of all other threads.
        lock = self._locks.setdefault(thread_id, asyncio.Lock())
        async with lock, self._changes, lazy_transaction(self._db, on_begin) as tx:
            yield tx

    def _open_backend(self, tx: Session) -> PostgresBackend:
        return PostgresBackend(tx, encryptor=find_encryptor(self._db))

    async def patch(self, thread_id: UUID, patch: StatePatch) -> dict[str, Any]:
        """Merge metadata into that of a checkpoint.

        Raises ThreadNotFound, CheckpointNotFound, and Invalid for keys that the server writes itself.
        """
        server_keys = sorted(RESERVED_METADATA & patch.metadata.keys())
        if server_keys:
            raise Invalid.field(["body", "metadata", server_keys[0]], "the server writes this key itself; leave it out")

        at = _get_checkpoint(patch)
        row = await self._db.fetchrow(
            sql.patch_checkpoint,
            thread_id=str(thread_id),
            checkpoint_ns=at.checkpoint_ns or "",
            checkpoint_id=at.checkpoint_id or None,
            metadata=dump_jsonb(patch.metadata),
        )
        if row is None:
            # Without the thread, this raises instead.
            await get_graph_id(self._db, thread_id)
            raise CheckpointNotFound.of(thread_id, at.checkpoint_id or "(the latest)")

        return name_checkpoint(dict(row))


async def _lock(thread_id: UUID, tx: Session) -> None:
    active_runs = await tx.fetchval(sql.lock_thread, thread_id=thread_id)
    if active_runs is None:
        raise ThreadNotFound.of(thread_id)
    if active_runs:
        raise ThreadInFlight(f"Thread {thread_id} has in-flight runs: {active_runs}; wait for them, or cancel them")


async def _write_to_thread(tx: Session, thread_id: UUID, state: ChangedState) -> bytes:
    """Write a state to the thread's row; return the JSON of the whole values."""
    values = without_nul(state.values)
    row_values = values
    long_values = None if has_whole_rows(tx) else state.long_values
    if long_values is not None and state.row_values is not None:
        row_values = without_nul(state.row_values)

    await tx.execute(
        sql.write_thread_state,
        thread_id=thread_id,
        values=row_values.decode(),
        long_values=long_values,
        status=ThreadStatus.INTERRUPTED if state.has_next else ThreadStatus.IDLE,
        interrupts=state.interrupts,
    )

    return values


def name_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a new checkpoint under each name that clients read."""
    return {"checkpoint": checkpoint, "configurable": checkpoint, "checkpoint_id": checkpoint.get("checkpoint_id")}


def _get_checkpoint(change: StateUpdate | StatePatch) -> Checkpoint:
    """Return the checkpoint that a change names; older clients send its id as a field of its own."""
    at = change.checkpoint or Checkpoint()
    return msgspec.structs.replace(at, checkpoint_id=at.checkpoint_id or change.checkpoint_id)


def read_history(request: ThreadCreate) -> list[dict[str, Any]] | None:
    """Return the states of a history as plain data, each with the metadata that a checkpoint may take over.

    Raises Invalid beside supersteps, and for ids that do not increase: histories are ordered by them.
    """
    if not request.history:
        return None

    if request.supersteps:
        raise Invalid.field(["body", "history"], "a thread has either supersteps or a history; leave one of them out")

    states: list[dict[str, Any]] = msgspec.to_builtins(request.history)
    previous_id: UUID | None = None
    for position, (imported, state) in enumerate(zip(request.history, states, strict=True)):
        where: list[str | int] = ["body", "history", position]
        if previous_id is not None and imported.checkpoint_id <= previous_id:
            raise Invalid.field([*where, "checkpoint_id"], "must be greater than the one before; send the oldest first")
        if imported.metadata.get("source", "loop") not in CHECKPOINT_SOURCES:
            raise Invalid.field([*where, "metadata", "source"], f"must be one of {', '.join(CHECKPOINT_SOURCES)}")
        if not isinstance(imported.metadata.get("step", 0), int):
            raise Invalid.field([*where, "metadata", "step"], "must be a whole number")

        previous_id = imported.checkpoint_id
        state["created_at"] = in_utc(imported.created_at).isoformat()
        state["metadata"] = {key: value for key, value in imported.metadata.items() if key not in COMPUTED_METADATA}

    return states


def read_graph_id(request: ThreadCreate, graph_ids: Sequence[str]) -> str:
    """Return the graph that the metadata of a new thread names. Raises Invalid unless this server has it."""
    graph_id = (request.metadata or {}).get("graph_id")
    if graph_id is None:
        raise Invalid.field(
            ["body", "metadata", "graph_id"], "required with supersteps: name the graph that applies them", "missing"
        )

    if graph_id not in graph_ids:
        message = f"Graph '{graph_id}' not found. Expected one of: {', '.join(graph_ids)}"
        raise Invalid.field(["body", "metadata", "graph_id"], message)

    return str(graph_id)
