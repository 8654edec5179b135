"""The state and history of threads: read, and changed by people, through the graph of the thread.

`reading` reads a single state. A change is one transaction under the thread's lock, like the admission of a run: it is
refused while a run is in flight, no run begins during it, and the checkpoint, the thread's values and its status are
written together or not at all.

A request for a checkpoint that does not exist is a 404. Other servers answer with an empty state, which looks like a
thread that lost its memory; no client relies on that. A thread without any checkpoint has the empty state.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from langgraph.types import StateUpdate as NodeWrite

from portside.agent.checkpoints.saver import PostgresSaver, in_transaction
from portside.agent.engine import Engine
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound, StateReader, config_of, graph_of_thread, select_fields
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, Caller, Filter
from portside.agent.types.threads import (
    Checkpoint,
    HistorySearch,
    NodeUpdate,
    StateAtCheckpoint,
    StatePatch,
    StateUpdate,
    Superstep,
    Thread,
    ThreadCreate,
)
from portside.executor.commands import parse_command
from portside.executor.load import Graph, Graphs
from portside.executor.state import apply_supersteps, named_checkpoint, read_history, read_state, update_state
from portside.kernel.codec import dump_api
from portside.kernel.db import Database, Session
from portside.kernel.errors import BadRequest, Conflict, Invalid, Problem
from portside.kernel.ids import uuid7
from portside.kernel.user_json import dump_jsonb, dump_user, without_nul

# Each change holds a connection while it waits for the lock of its thread; runs need the other connections.
MAX_CONCURRENT_CHANGES = 4
# The keys that langgraph and the deletion of runs depend on.
RESERVED_METADATA = frozenset({"source", "step", "parents", "run_id", "thread_id", "counters_since_delta_snapshot"})


class ThreadInFlight(Conflict):
    """The thread has a run in flight; wait for it before changing the state."""

    code = "thread_in_flight"


class States:
    """Reads and changes the states of threads; followers of a thread are notified of a change."""

    def __init__(self, db: Database, engine: Engine, hub: Hub, *, memory_bytes: int) -> None:
        self._db = db
        self._engine = engine
        self._hub = hub
        self._reader = StateReader(db, engine, memory_bytes)
        self._changes = asyncio.Semaphore(MAX_CONCURRENT_CHANGES)

    async def create(self, request: ThreadCreate, visible: Filter | None = None) -> Thread:
        """Create a thread, with a state if supersteps are given: both appear together or not at all.

        An existing thread is returned only if it matches the filter.

        Raises ThreadExists, and Invalid if the graph cannot apply the supersteps.
        """
        if not request.supersteps:
            return await records.create_thread(self._db, request, visible)
        thread_id = request.thread_id or uuid7()
        graph_id, supersteps = graph_of(request, self._engine.graphs.ids()), read_supersteps(request.supersteps)
        config = config_of(thread_id, None, ANYONE)

        async def create(graphs: Graphs) -> Thread | None:
            async with _transaction_on(graphs, graph_id, config) as (graph, tx):
                if await records.insert_thread(tx, thread_id, request) is None:
                    return None
                await apply_supersteps(graph, _with_graph_id(config, graph_id), supersteps)
                await _write_to_thread(tx, thread_id, graph)
                return await records.get_thread(tx, thread_id)

        async with self._changes:
            created = await self._engine.read(create)
        return created or await records.existing_thread(self._db, thread_id, request, visible)

    async def read(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> dict[str, Any]:
        """Return a state, the latest unless a checkpoint is named.

        Raises ThreadNotFound, CheckpointNotFound, and NotFound if this server does not have the thread's graph.
        """
        return await self._reader.read(thread_id, query, caller)

    async def read_json(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller = ANYONE) -> bytes:
        """Return the JSON of a state. Raises what `read` raises."""
        return await self._reader.read_json(thread_id, query, caller)

    async def history(self, thread_id: UUID, query: HistorySearch, caller: Caller = ANYONE) -> list[dict[str, Any]]:
        """Return states, newest first.

        Raises ThreadNotFound and NotFound as `read` does, and Invalid if `before` names no checkpoint.
        """
        graph_id = await graph_of_thread(self._db, thread_id)
        if graph_id is None:
            return []
        config = await self._reader.config(thread_id, graph_id, query.checkpoint, caller)

        async def read(graphs: Graphs) -> list[dict[str, Any]]:
            async with graphs.open(graph_id, config, access="threads.read") as graph:
                bounds: Any = {"limit": query.limit or 1, "before": query.before, "filter": query.metadata}
                states = await read_history(graph, config, **bounds)
                return [select_fields(state, query.select) for state in states]

        return await self._engine.read(read)

    async def update(self, thread_id: UUID, update: StateUpdate, caller: Caller = ANYONE) -> dict[str, Any]:
        """Change a state.

        Raises ThreadNotFound, CheckpointNotFound, ThreadInFlight, and BadRequest if the graph cannot apply the change.
        """
        graph_id = await graph_of_thread(self._db, thread_id)
        if graph_id is None:
            raise BadRequest(f"Thread '{thread_id}' has no assigned graph ID; start a run on it first")
        at = _named(update)
        config = await self._reader.config(thread_id, graph_id, at, caller)

        async def apply(graphs: Graphs) -> tuple[dict[str, Any], bytes]:
            async with _transaction_on(graphs, graph_id, config) as (graph, tx):
                await _lock(tx, thread_id)
                if at.checkpoint_id and (await graph.aget_state(config)).created_at is None:
                    raise CheckpointNotFound.of(thread_id, at.checkpoint_id)
                made = await update_state(graph, _with_graph_id(config, graph_id), update.values, update.as_node)
                return made, await _write_to_thread(tx, thread_id, graph)

        async with self._changes:
            made, values = await self._engine.read(apply)
        self._hub.publish_state_update(thread_id, dump_api({**made, "values": msgspec.Raw(values)}))
        return made

    async def patch(self, thread_id: UUID, patch: StatePatch) -> dict[str, Any]:
        """Merge metadata into that of a checkpoint.

        Raises ThreadNotFound, CheckpointNotFound, and Invalid for keys that the server writes itself.
        """
        if reserved := sorted(RESERVED_METADATA & patch.metadata.keys()):
            raise Invalid.field(["body", "metadata", reserved[0]], "the server writes this itself")
        at = _named(patch)
        row = await self._db.fetchrow(
            sql.patch_checkpoint,
            thread_id=str(thread_id),
            checkpoint_ns=at.checkpoint_ns or "",
            checkpoint_id=at.checkpoint_id or None,
            metadata=dump_jsonb(patch.metadata),
        )
        if row is None:
            await graph_of_thread(self._db, thread_id)
            raise CheckpointNotFound.of(thread_id, at.checkpoint_id or "(the latest)")
        return named_checkpoint(dict(row))


@asynccontextmanager
async def _transaction_on(graphs: Graphs, graph_id: str, config: Any) -> AsyncIterator[tuple[Graph, Session]]:
    """Open a graph whose checkpointer writes in one transaction; yield the graph and the transaction."""
    async with graphs.open(graph_id, config, access="threads.update") as graph:
        saver = graph.checkpointer
        assert isinstance(saver, PostgresSaver)  # noqa: S101 - the engine gives every graph this checkpointer
        async with in_transaction(saver) as (inside, tx):
            yield graph.copy({"checkpointer": inside}), tx


async def _lock(tx: Session, thread_id: UUID) -> None:
    active_runs = await tx.fetchval(sql.lock_thread, thread_id=thread_id)
    if active_runs is None:
        raise ThreadNotFound.of(thread_id)
    if active_runs:
        raise ThreadInFlight(f"Thread {thread_id} has in-flight runs: {active_runs}")


async def _write_to_thread(tx: Session, thread_id: UUID, graph: Graph) -> bytes:
    """Write the state of the graph to the thread's row; return the JSON of the values."""
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
    """Return the checkpoint that a change names; older clients send its id as a field of its own."""
    at = change.checkpoint or Checkpoint()
    return msgspec.structs.replace(at, checkpoint_id=at.checkpoint_id or change.checkpoint_id)


def _with_graph_id(config: Any, graph_id: str) -> Any:
    """Return a config whose checkpoints have the graph's id in their metadata, like those of runs."""
    return {**config, "metadata": {"graph_id": graph_id}}


def graph_of(request: ThreadCreate, known: Sequence[str]) -> str:
    """Return the graph that the metadata of a new thread names. Raises Invalid unless this server has it."""
    graph_id = (request.metadata or {}).get("graph_id")
    if graph_id is None:
        raise Invalid.field(
            ["body", "metadata", "graph_id"], "supersteps need the graph that they belong to", "missing"
        )
    if graph_id not in known:
        message = f"Graph '{graph_id}' not found. Expected one of: {', '.join(known)}"
        raise Invalid.field(["body", "metadata", "graph_id"], message)
    return str(graph_id)


def read_supersteps(supersteps: Sequence[Superstep]) -> list[list[NodeWrite]]:
    """Convert supersteps to langgraph's updates. Raises Invalid that names the field."""
    return [
        [
            _read_update(update, ["body", "supersteps", step, "updates", index])
            for index, update in enumerate(given.updates)
        ]
        for step, given in enumerate(supersteps)
    ]


def _read_update(update: NodeUpdate, loc: list[str | int]) -> NodeWrite:
    values: Any = update.values
    try:
        if update.command is not None:
            values = parse_command(update.command)
    except Invalid as exc:
        raise Invalid([Problem([*loc, *one.loc[1:]], one.msg, one.type) for one in exc.problems]) from exc
    return NodeWrite(values, update.as_node)
