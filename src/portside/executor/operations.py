"""What an agent server asks of the graphs of a project beside executing runs, on the current event loop.

Requests and results are plain data (`requests`), so that the agent server may be another process.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.descriptions import draw, schemas_of, subgraph_schemas
from portside.executor.errors import GraphFailed
from portside.executor.execute import read_outcome
from portside.executor.load import Graph, Graphs
from portside.executor.requests import (
    ChangedState,
    Config,
    DescriptionRequest,
    Drawing,
    HistoryRead,
    Outcome,
    RunRequest,
    Schemas,
    StateChange,
    StateCreation,
    StateRead,
    select_fields,
)
from portside.executor.state import (
    apply_supersteps,
    read_history,
    read_state,
    read_supersteps,
    reads_without_code,
    update_state,
)
from portside.kernel.user_json import dump_user, plain


class GraphOperations:
    """Reads and describes the graphs of a project."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        return await read_outcome(self._graphs, request)

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist.

        Raises NotFound for an unknown graph, and BadRequest for an unknown subgraph.
        """
        async with self._graphs.open(read.graph_id, read.config, access="threads.read") as graph:
            checkpointer: Any = graph.checkpointer
            # Pending writes are applied to the values by the graph's reducers.
            is_plain = not (read.subgraphs or (read.checkpoint and read.checkpoint["write_tasks"]))
            preloaded = checkpointer.preloaded(read.config, read.checkpoint)
            with preloaded, _reading_for_json(graph, read.config, is_plain=is_plain):
                state = await read_state(graph, read.config, subgraphs=read.subgraphs)
        if state["created_at"] is None and read.config["configurable"].get("checkpoint_id"):
            return None
        if state["checkpoint"] is None:
            state |= read.without_checkpoint
        return dump_user(select_fields(state, read.select))

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first.

        Raises NotFound for an unknown graph, BadRequest for an unknown subgraph, and Invalid if `before` names no
        checkpoint.
        """
        async with self._graphs.open(read.graph_id, read.config, access="threads.read") as graph:
            bounds: Any = {"limit": read.limit, "before": read.before, "filter": read.filter}
            with _reading_for_json(graph, read.config):
                states = await read_history(graph, read.config, **bounds)
        return dump_user([select_fields(state, read.select) for state in states])

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state; None if the config names a checkpoint that does not exist.

        `scope` stores in the transaction of the change. Raises NotFound, BadRequest if the graph refuses the
        values, and what the transaction raises when it begins.
        """
        async with self._changing(change.graph_id, change.config, scope) as graph:
            is_named = change.config["configurable"].get("checkpoint_id")
            if is_named and (await graph.aget_state(change.config)).created_at is None:
                return None
            config = _with_graph_id(change.config, change.graph_id)
            checkpoint = await update_state(graph, config, change.values, change.as_node)
            return await _changed(graph, change.config, checkpoint)

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread from supersteps. `scope` stores in the transaction of the creation.

        Raises NotFound, Invalid if the graph cannot apply the supersteps, and what the transaction raises when it
        begins.
        """
        supersteps = read_supersteps(creation.supersteps)
        async with self._changing(creation.graph_id, creation.config, scope) as graph:
            await apply_supersteps(graph, _with_graph_id(creation.config, creation.graph_id), supersteps)
            return await _changed(graph, creation.config, {})

    @asynccontextmanager
    async def _changing(self, graph_id: str, config: Config, scope: CheckpointBackend) -> AsyncIterator[Graph]:
        async with self._graphs.open(graph_id, config, access="threads.update") as graph:
            checkpointer: Any = graph.checkpointer
            yield graph.copy({"checkpointer": checkpointer.within(scope)})

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return await draw(graph, request.config, request.xray)

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return schemas_of(graph)

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of the subgraphs of a graph by their names. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return await subgraph_schemas(graph, request.namespace, recurse=request.recurse)

    @asynccontextmanager
    async def _described(self, request: DescriptionRequest) -> AsyncIterator[Graph]:
        opened = self._graphs.open(request.graph_id, request.config, access="assistants.read", context=request.context)
        try:
            async with opened as graph:
                yield graph
        except (Exception, SystemExit) as exc:
            # The error is in the project's code, so the client sees it; the server itself is fine.
            raise GraphFailed(f"Graph '{request.graph_id}': {type(exc).__name__}: {exc}") from exc


def _reading_for_json(graph: Graph, config: Config, *, is_plain: bool = True) -> AbstractContextManager[None]:
    """Let the checkpointer return messages as the dicts that their JSON has, if no code sees them before."""
    is_plain = is_plain and not config["configurable"].get("checkpoint_ns") and reads_without_code(graph)
    checkpointer: Any = graph.checkpointer
    manager: AbstractContextManager[None] = checkpointer.reading_for_json(is_for_json=is_plain)
    return manager


def _with_graph_id(config: Config, graph_id: str) -> Config:
    """Return a config whose checkpoints have the graph's id in their metadata, like those of runs."""
    return {**config, "metadata": {"graph_id": graph_id}}


async def _changed(graph: Graph, config: Config, checkpoint: dict[str, Any]) -> ChangedState:
    """Return the latest state of a thread."""
    latest: Any = {"configurable": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": ""}}
    state = await read_state(graph, latest)
    interrupts = {task["id"]: task["interrupts"] for task in state["tasks"] if task["interrupts"]}
    return ChangedState(
        checkpoint=checkpoint,
        values=dump_user(state["values"]),
        has_next=bool(state["next"]),
        interrupts=plain(interrupts),
    )
