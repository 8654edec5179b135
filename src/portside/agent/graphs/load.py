"""The graphs of a project, by id.

What does not change from run to run is prepared once: a compiled graph gets our checkpointer and store at start, so
that opening it for a run costs nothing. Only factories are called for each use.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from portside.agent.config import AgentConfig
from portside.agent.graphs.acting import act_for
from portside.agent.graphs.factories import AccessContext, Factory, Graph, Use, as_graph
from portside.agent.graphs.imports import add_to_path, import_export, load_failure
from portside.kernel.errors import NotFound, UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)

Export = Graph | Factory


def load_graphs(config: AgentConfig) -> "Graphs":
    """Import every graph of the project. Raises UserMistake that names the graph and the line that failed."""
    for name, value in config.env.items():
        os.environ.setdefault(name, value)
    roots = add_to_path(config)
    exports: dict[str, Export] = {}
    for graph_id in config.graphs:
        exports[graph_id] = _export(config, graph_id, import_export(config, graph_id, roots))
    return Graphs(exports, {graph_id: source.description for graph_id, source in config.graphs.items()})


class Graphs:
    """The graphs a server has. `attach` gives them a memory; without it they run, but remember nothing."""

    def __init__(self, exports: Mapping[str, Export], descriptions: Mapping[str, str | None]) -> None:
        self._exports = dict(exports)
        self._descriptions = dict(descriptions)
        self._checkpointer: BaseCheckpointSaver[Any] | None = None
        self._store: BaseStore | None = None

    def ids(self) -> list[str]:
        """List the graphs in the order of the configuration."""
        return list(self._exports)

    def is_fixed(self, graph_id: str | None) -> bool:
        """Whether a graph is the same at every use, and of a class whose states depend on its checkpoints alone."""
        return type(self._exports.get(graph_id or "")) in (Pregel, CompiledStateGraph)

    def description(self, graph_id: str) -> str | None:
        """Return what the configuration says about a graph. Raises NotFound."""
        self._find(graph_id)
        return self._descriptions.get(graph_id)

    def attach(self, checkpointer: BaseCheckpointSaver[Any] | None, store: BaseStore | None = None) -> "Graphs":
        """Return the same graphs with this checkpointer and store; a checkpointer of their own is replaced."""
        attached = Graphs(self._exports, self._descriptions)
        attached._checkpointer, attached._store = checkpointer, store
        for graph_id, export in self._exports.items():
            if isinstance(export, Factory):
                continue
            if isinstance(export.checkpointer, BaseCheckpointSaver):
                log.warning("checkpointer_replaced", graph=graph_id, reason="the server brings its own")
            attached._exports[graph_id] = attached._equip(graph_id, export)
        return attached

    def open(
        self,
        graph_id: str,
        config: RunnableConfig | None = None,
        *,
        access: AccessContext = "threads.create_run",
        context: dict[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Graph]:
        """Open a graph for one use; the last three say for what, to factories that ask. Raises NotFound.

        What a factory raises comes out on entering.
        """
        export = self._find(graph_id)
        act_for(config)
        if not isinstance(export, Factory):
            return nullcontext(export)
        return self._make(graph_id, export, Use(config or {}, access, context, self._store))

    @asynccontextmanager
    async def _make(self, graph_id: str, factory: Factory, use: Use) -> AsyncIterator[Graph]:
        async with factory.open(use) as graph:
            yield self._equip(graph_id, graph)

    def _equip(self, graph_id: str, graph: Graph) -> Graph:
        update: dict[str, Any] = {"checkpointer": self._checkpointer}
        if self._store is not None:
            update["store"] = self._store
        if graph.name == "LangGraph":
            update["name"] = graph_id
        return graph.copy(update)

    def _find(self, graph_id: str) -> Export:
        try:
            return self._exports[graph_id]
        except KeyError:
            raise NotFound(f"Graph '{graph_id}' not found. Expected one of: {self.ids()}") from None


def _export(config: AgentConfig, graph_id: str, value: Any) -> Export:
    try:
        graph = as_graph(value, graph_id)
        if graph is None and callable(value):
            return Factory(value, graph_id)
    except Exception as exc:
        raise load_failure(config, graph_id, exc) from exc
    if graph is None:
        raise UserMistake(
            f"{config.file}: graph {graph_id!r} ({config.graphs[graph_id].path}) is of type {type(value).__name__}; "
            "export a compiled graph, a StateGraph, an @entrypoint, or a function that returns one"
        )
    return graph
