"""The state of threads: read, walked back and changed by people, through the graph that made it."""

from typing import Any
from uuid import UUID

from portside.agent.engine import Engine
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.state import read_history, read_state, update_state
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.threads import Checkpoint, HistorySearch, StateUpdate
from portside.kernel.codec import dump_user, without_nul
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, Conflict

EMPTY_STATE: dict[str, Any] = {
    "values": {}, "next": [], "tasks": [], "metadata": None, "created_at": None, "checkpoint": None,
    "parent_checkpoint": None, "interrupts": [], "checkpoint_id": None, "parent_checkpoint_id": None,
}  # fmt: skip


class ThreadInFlight(Conflict):
    """The thread has a run in flight; wait for it before changing the state."""

    code = "thread_in_flight"


class States:
    """Reads and changes the states of threads."""

    def __init__(self, db: Database, engine: Engine) -> None:
        self._db = db
        self._engine = engine

    async def read(self, thread_id: UUID, *, at: Checkpoint | None = None, subgraphs: bool = False) -> dict[str, Any]:
        """Return a state, the latest unless a checkpoint is named. Raises ThreadNotFound."""
        graph_id, _ = await self._thread(thread_id)
        if graph_id is None:
            return EMPTY_STATE

        async def reading(graphs: Graphs) -> dict[str, Any]:
            config = _config(thread_id, at)
            async with graphs.open(graph_id, config, access="threads.read") as graph:
                return await read_state(graph, config, subgraphs=subgraphs)

        return await self._engine.read(reading)

    async def history(self, thread_id: UUID, query: HistorySearch) -> list[dict[str, Any]]:
        """Return states, newest first. Raises ThreadNotFound, and BadRequest when `before` names no checkpoint."""
        graph_id, _ = await self._thread(thread_id)
        if graph_id is None:
            return []

        async def reading(graphs: Graphs) -> list[dict[str, Any]]:
            config = _config(thread_id, query.checkpoint)
            async with graphs.open(graph_id, config, access="threads.read") as graph:
                return await read_history(graph, config, limit=query.limit, before=query.before, filter=query.metadata)

        return await self._engine.read(reading)

    async def update(self, thread_id: UUID, update: StateUpdate) -> dict[str, Any]:
        """Change a state. Raises ThreadNotFound, ThreadInFlight, and BadRequest when the graph cannot take it."""
        graph_id, active_runs = await self._thread(thread_id)
        if graph_id is None:
            raise BadRequest(f"Thread '{thread_id}' has no assigned graph ID; start a run on it first")
        if active_runs:
            raise ThreadInFlight(f"Thread {thread_id} has in-flight runs: {active_runs}")

        async def updating(graphs: Graphs) -> tuple[dict[str, Any], dict[str, Any]]:
            config = _config(thread_id, update.checkpoint or Checkpoint(update.checkpoint_id))
            async with graphs.open(graph_id, config, access="threads.update") as graph:
                made = await update_state(graph, config, update.values, update.as_node)
                return made, await read_state(graph, _config(thread_id, None))

        made, state = await self._engine.read(updating)
        await self._write_thread(thread_id, state)
        return made

    async def _thread(self, thread_id: UUID) -> tuple[str | None, int]:
        row = await self._db.fetchrow(sql.graph_of_thread, thread_id=thread_id)
        if row is None:
            raise ThreadNotFound.of(thread_id)
        graph_id = row["graph_id"]
        return (graph_id if graph_id in self._engine.graphs.ids() else None), row["active_runs"]

    async def _write_thread(self, thread_id: UUID, state: dict[str, Any]) -> None:
        await self._db.execute(
            sql.write_thread_state,
            thread_id=thread_id,
            values=without_nul(dump_user(state["values"])).decode(),
            status="interrupted" if state["next"] else "idle",
            interrupts={task["id"]: task["interrupts"] for task in state["tasks"] if task["interrupts"]},
        )


def _config(thread_id: UUID, at: Checkpoint | None) -> Any:
    configurable: dict[str, Any] = {"thread_id": str(thread_id), "checkpoint_ns": (at and at.checkpoint_ns) or ""}
    if at is not None and at.checkpoint_id:
        configurable["checkpoint_id"] = at.checkpoint_id
    if at is not None and at.checkpoint_map:
        configurable["checkpoint_map"] = at.checkpoint_map
    return {"configurable": configurable}
