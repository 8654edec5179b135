"""Reading the state of a thread, and answering again what was read before (docs/why/state-reads.md).

One statement tells which graph a thread belongs to, which version its checkpoint has, and the checkpoint itself, unless
its version is that of an answer that is remembered. Remembered is what depends on nothing else: the latest state of a
graph that is not made anew for each use. What is encrypted at rest is not remembered.
"""

from typing import Any
from uuid import UUID

from portside.agent.engine import Engine
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.state import read_state
from portside.agent.sql import sql
from portside.agent.threads.fields import empty_state, select_fields
from portside.agent.threads.lookups import Ask, Found, Lookups
from portside.agent.threads.memory import Answer, Asked, Memory
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller, told_of
from portside.agent.types.threads import Checkpoint, StateAtCheckpoint
from portside.kernel.codec import dump_user
from portside.kernel.db import Database
from portside.kernel.errors import NotFound

LATEST = Checkpoint()


class CheckpointNotFound(NotFound):
    """The thread has no checkpoint with this id."""

    code = "checkpoint_not_found"

    @classmethod
    def of(cls, thread_id: UUID, checkpoint_id: str) -> "CheckpointNotFound":
        """Name the checkpoint and the thread."""
        return cls(f"Checkpoint {checkpoint_id} of thread {thread_id} not found")


class Reader:
    """Reads states for all who ask on one event loop."""

    def __init__(self, db: Database, engine: Engine, memory_bytes: int) -> None:
        self._engine = engine
        self._lookups = Lookups(db)
        self._memory = Memory(0 if db.codec is not None else memory_bytes)

    async def read(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller) -> dict[str, Any]:
        """Return a state as `States.read` does."""
        at = query.checkpoint
        if self._engine.is_writing(thread_id):
            await self._engine.settle(thread_id)
        found = await self._found(Ask(thread_id, at.checkpoint_ns or "", at.checkpoint_id or None))
        return await self._shown(thread_id, query, caller, found)

    async def answer(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller) -> bytes:
        """Return a state's JSON, as `read` returns the state."""
        # In this order: what a run of this process has not yet written is told by no stamp.
        is_latest = query.checkpoint == LATEST and not query.subgraphs and not self._engine.is_writing(thread_id)
        if not is_latest:
            return dump_user(await self.read(thread_id, query, caller))
        asked = Asked(thread_id, tuple(query.select) if query.select else None, caller.identity)
        known = self._memory.recall(asked, caller.user)
        found = await self._found(Ask(thread_id, known=known and known.stamp))
        if known is not None and found.stamp == known.stamp:
            return known.body
        body = dump_user(await self._shown(thread_id, query, caller, found))
        if found.row is not None and found.stamp is not None and self._engine.graphs.is_fixed(found.graph_id):
            self._memory.keep(asked, Answer(found.stamp, caller.user, body))
        else:
            self._memory.forget(asked)
        return body

    async def _found(self, ask: Ask) -> Found:
        found = await self._lookups.look(ask)
        if found is None:
            raise ThreadNotFound.of(ask.thread_id)
        return found

    async def _shown(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller, found: Found) -> dict[str, Any]:
        at, config = query.checkpoint, config_of(thread_id, query.checkpoint, caller)

        async def reading(graphs: Graphs, graph_id: str) -> dict[str, Any]:
            async with graphs.open(graph_id, config, access="threads.read") as graph:
                with self._engine.saver.told(config, found.row):
                    return await read_state(graph, config, subgraphs=bool(query.subgraphs))

        graph_id = found.graph_id
        state = await self._engine.read(lambda graphs: reading(graphs, graph_id)) if graph_id else empty_state()
        if at.checkpoint_id and state["created_at"] is None:
            raise CheckpointNotFound.of(thread_id, at.checkpoint_id)
        if state["checkpoint"] is None and at.thread_id:
            # RemoteGraph, which names the thread whenever it asks, takes neither of them as None.
            place = {"thread_id": str(thread_id), "checkpoint_ns": at.checkpoint_ns or "", "checkpoint_id": None}
            state |= {"checkpoint": place, "metadata": {}}
        return select_fields(state, query.select)


def config_of(thread_id: UUID, at: Checkpoint | None, caller: Caller) -> Any:
    """Return the config by which a graph finds a checkpoint, and who looks."""
    configurable: dict[str, Any] = {"thread_id": str(thread_id), "checkpoint_ns": (at and at.checkpoint_ns) or ""}
    if at is not None and at.checkpoint_id:
        configurable["checkpoint_id"] = at.checkpoint_id
    if at is not None and at.checkpoint_map:
        configurable["checkpoint_map"] = at.checkpoint_map
    return {"configurable": configurable | told_of(caller)}


async def graph_of_thread(db: Database, thread_id: UUID) -> str | None:
    """Return the graph that a thread belongs to; None before its first run. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.graph_of_thread, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)
    graph_id: str | None = row["graph_id"]
    return graph_id
