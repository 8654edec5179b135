"""The graphs of a project by id: compiled graphs, and factories that make one for each use.

A compiled graph gets our checkpointer and store once, at start, so that opening it for a run costs nothing. A factory
is called for each use. It may be plain, async, or an (async) context manager, and it may take the run's `config` and
the server's `ServerRuntime`, each by its name or its annotation.
"""

import dataclasses
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from pydantic import BaseModel

from portside.executor.imports import add_to_path, describe_graph_failure, import_export
from portside.executor.project import Project, set_environment
from portside.executor.requests import GraphFacts
from portside.executor.user import User, set_current_user
from portside.executor.versions import SERVER_RUNTIME
from portside.kernel.errors import NotFound, UserMistake

log = logging.getLogger(__name__)
AccessContext = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
if TYPE_CHECKING:
    Graph = Pregel[Any, Any, Any, Any]
else:
    # Before langgraph 0.6 the class has no parameters.
    Graph = Pregel


Export: TypeAlias = "Graph | GraphFactory"


class GraphUse(NamedTuple):
    """What a graph is opened for: the config, the kind of access, the run's context, and the store."""

    config: RunnableConfig
    access: AccessContext
    context: dict[str, Any] | None = None
    store: BaseStore | None = None


class GraphFactory:
    """A function of the project that makes a graph. Raises TypeError if it has parameters that no server can fill."""

    def __init__(self, function: Callable[..., Any], graph_id: str) -> None:
        self._function = function
        self._graph_id = graph_id
        self._parameters = _read_parameters(function)

    @asynccontextmanager
    async def open(self, use: GraphUse) -> AsyncIterator[Graph]:
        """Make a graph, and close the factory's context at the end. Raises TypeError if it made none."""
        arguments_by_role = {"config": use.config, "runtime": None}
        arguments = {
            name: _build_runtime(use, annotation) if role == "runtime" else arguments_by_role[role]
            for name, (role, annotation) in self._parameters.items()
        }

        graph_or_context = self._function(**arguments)
        if inspect.isawaitable(graph_or_context):
            graph_or_context = await graph_or_context

        if hasattr(graph_or_context, "__aenter__"):
            async with graph_or_context as graph:
                yield self._check(graph)
        elif hasattr(graph_or_context, "__enter__"):
            with graph_or_context as graph:
                yield self._check(graph)
        else:
            yield self._check(graph_or_context)

    def _check(self, value: Any) -> Graph:
        graph = to_graph(value, self._graph_id)
        if graph is None:
            raise TypeError(
                f"the factory of graph {self._graph_id!r} returned a value of type {type(value).__name__}, not a graph"
            )

        return graph


def to_graph(value: Any, graph_id: str) -> Graph | None:
    """Return a value as a graph, and compile it if it is a builder; None if it is neither."""
    if isinstance(value, StateGraph):
        return value.compile(name=graph_id)
    return value if isinstance(value, Pregel) else None


def _read_parameters(function: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Map the parameters of a factory to their arguments: `config` or `runtime`."""
    parameters = _read_signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    filled = {p.name: (role, p.annotation) for p in parameters if (role := _find_role(p))}
    unknown = [p.name for p in required if p.name not in filled]
    if len(unknown) == 1 and len(required) == 1:
        filled[unknown[0]] = ("config", None)
    elif unknown:
        raise TypeError(f"a graph factory may take a config and a ServerRuntime, but this one has {', '.join(unknown)}")

    return filled


def _read_signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)


def _find_role(parameter: inspect.Parameter) -> str | None:
    annotation = str(parameter.annotation)
    if parameter.name == "config" or "RunnableConfig" in annotation:
        return "config"

    return "runtime" if parameter.name == "runtime" or "ServerRuntime" in annotation else None


def _build_runtime(use: GraphUse, annotation: Any) -> Any:
    SERVER_RUNTIME.require()
    # The SDK has no public constructor; a server has to use the classes behind the alias.
    from langgraph_sdk.runtime import _ExecutionRuntime, _ReadRuntime

    store: Any = use.store
    original_user = use.config.get("configurable", {}).get("langgraph_auth_user")

    user: Any = User(original_user) if type(original_user) is dict else original_user
    if use.access != "threads.create_run":
        return _ReadRuntime(access_context=use.access, store=store, user=user)

    context = _build_context(annotation, use.context)
    return _ExecutionRuntime(access_context=use.access, store=store, context=context, user=user)


def _build_context(annotation: Any, context: dict[str, Any] | None) -> Any:
    """Make the context for `ServerRuntime[Context]`."""
    schema = next(iter(get_args(annotation)), None)
    fitted = convert_context(schema, context)
    return schema(**fitted) if isinstance(schema, type) and isinstance(fitted, dict) else fitted


def load_graphs(project: Project) -> "Graphs":
    """Import every graph of the project. Raises UserMistake that names the graph and the line that failed."""
    set_environment(project)
    roots = add_to_path(project)
    exports: dict[str, Export] = {}
    for graph_id in project.graphs:
        exports[graph_id] = _to_export(project, graph_id, import_export(project, graph_id, roots))

    return Graphs(exports, {graph_id: source.description for graph_id, source in project.graphs.items()})


class Graphs:
    """The graphs of a server. Without `attach` they have no checkpointer and remember nothing."""

    def __init__(self, exports: Mapping[str, Export], descriptions: Mapping[str, str | None]) -> None:
        self._exports = dict(exports)
        self._descriptions = dict(descriptions)
        self.checkpointer: BaseCheckpointSaver[Any] | None = None
        self._store: BaseStore | None = None

    def list_ids(self) -> list[str]:
        """List the graphs in the order of the configuration."""
        return list(self._exports)

    def facts(self) -> dict[str, GraphFacts]:
        """Return the facts about each graph for which it need not be opened, in the order of the configuration."""
        return {
            graph_id: GraphFacts(
                description=self._descriptions.get(graph_id),
                is_factory=isinstance(export, GraphFactory),
                is_fixed=type(export) in (Pregel, CompiledStateGraph),
            )
            for graph_id, export in self._exports.items()
        }

    def attach(self, checkpointer: BaseCheckpointSaver[Any] | None, store: BaseStore | None = None) -> "Graphs":
        """Return the same graphs with this checkpointer, which replaces their own, and this store."""
        attached = Graphs(self._exports, self._descriptions)
        attached.checkpointer = checkpointer
        attached._store = store

        for graph_id, export in self._exports.items():
            if isinstance(export, GraphFactory):
                continue

            if isinstance(export.checkpointer, BaseCheckpointSaver):
                log.warning(
                    "the server replaces the checkpointer of a graph by its own", extra={"fields": {"graph": graph_id}}
                )

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
        """Open a graph for one use, which the other arguments describe to a factory. Raises NotFound.

        The user of the config becomes the current user of this task. Entering the context raises the exceptions of a
        factory.
        """
        export = self._exports.get(graph_id)
        if export is None:
            raise NotFound(f"Graph '{graph_id}' not found. Expected one of: {self.list_ids()}")

        set_current_user(((config or {}).get("configurable") or {}).get("langgraph_auth_user"))
        if not isinstance(export, GraphFactory):
            return nullcontext(export)

        use = GraphUse(config=config or {}, access=access, context=context, store=self._store)
        return self._make(graph_id, export, use)

    @asynccontextmanager
    async def _make(self, graph_id: str, factory: GraphFactory, use: GraphUse) -> AsyncIterator[Graph]:
        async with factory.open(use) as graph:
            yield self._equip(graph_id, graph)

    def _equip(self, graph_id: str, graph: Graph) -> Graph:
        update: dict[str, Any] = {"checkpointer": self.checkpointer}
        if self._store is not None:
            update["store"] = self._store

        if graph.name == "LangGraph":
            update["name"] = graph_id

        return graph.copy(update)


def convert_context(schema: Any, context: dict[str, Any] | None) -> Any:
    """Convert a request's context to the graph's `context_schema`, without unknown keys.

    An empty context becomes the schema's defaults, or None if the schema has required fields. Raises TypeError and
    ValueError if the context does not fit. Langgraph before 0.6.3 leaves this conversion to its caller.
    """
    if dataclasses.is_dataclass(schema):
        names = {field.name for field in dataclasses.fields(schema) if field.init}
    elif isinstance(schema, type) and issubclass(schema, BaseModel):
        fields = schema.model_fields.items()
        names = {name for name, _ in fields} | {field.alias for _, field in fields if field.alias}
    else:
        return context or ({} if schema is not None else None)

    arguments = {key: value for key, value in (context or {}).items() if key in names}
    if arguments:
        return schema(**arguments)

    try:
        return schema()
    except (TypeError, ValueError):
        return None


def _to_export(project: Project, graph_id: str, value: Any) -> Export:
    try:
        graph = to_graph(value, graph_id)
        if graph is None and callable(value):
            return GraphFactory(value, graph_id)
    except Exception as exc:
        raise describe_graph_failure(project, graph_id, exc) from exc

    if graph is None:
        raise UserMistake(
            f"{project.file}: graph {graph_id!r} ({project.graphs[graph_id].path}) is of type {type(value).__name__}; "
            "export a compiled graph, a StateGraph, an @entrypoint, or a function that returns one"
        )

    return graph
