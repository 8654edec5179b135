"""Graphs that are made anew for each use: functions of the user that return one.

A factory may be plain, async, or an (async) context manager; it may ask for the run's `config` and for the server's
`ServerRuntime`, each by its name or its annotation.
"""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from portside.agent.graphs.contexts import context_for
from portside.agent.types.access import User

AccessContext = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
Graph = Pregel[Any, Any, Any, Any]


class Use:
    """What a graph is opened for: the config, why, the run's context, and the store it gets."""

    __slots__ = ("access", "config", "context", "store")

    def __init__(
        self,
        config: RunnableConfig,
        access: AccessContext,
        context: dict[str, Any] | None = None,
        store: BaseStore | None = None,
    ) -> None:
        self.config = config
        self.access = access
        self.context = context
        self.store = store


class Factory:
    """A function of the user that makes a graph. Raises TypeError when it wants what no server can give."""

    def __init__(self, function: Callable[..., Any], graph_id: str) -> None:
        self._function = function
        self._graph_id = graph_id
        self._wanted = _wanted(function)

    @asynccontextmanager
    async def open(self, use: Use) -> AsyncIterator[Graph]:
        """Make the graph; what the factory set up is taken down at the end. Raises TypeError when it made none."""
        given = {"config": use.config, "runtime": None}
        arguments = {
            name: _server_runtime(use, annotation) if role == "runtime" else given[role]
            for name, (role, annotation) in self._wanted.items()
        }
        made = self._function(**arguments)
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            async with made as graph:
                yield self._checked(graph)
        elif hasattr(made, "__enter__"):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    def _checked(self, made: Any) -> Graph:
        graph = as_graph(made, self._graph_id)
        if graph is None:
            raise TypeError(
                f"the factory of graph {self._graph_id!r} returned no graph but a value of type {type(made).__name__}"
            )
        return graph


def as_graph(value: Any, graph_id: str) -> Graph | None:
    """Return a value as a graph that can run, compiling a builder; None when it is neither."""
    if isinstance(value, StateGraph):
        return value.compile(name=graph_id)
    return value if isinstance(value, Pregel) else None


def _wanted(function: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Map the parameters that get an argument to what they want: `config` or `runtime`."""
    parameters = _signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wanted = {p.name: (role, p.annotation) for p in parameters if (role := _role(p))}
    unknown = [p.name for p in required if p.name not in wanted]
    if len(unknown) == 1 and len(required) == 1:
        wanted[unknown[0]] = ("config", None)
    elif unknown:
        raise TypeError(
            f"a graph factory may take a config and a ServerRuntime, but this one wants {', '.join(unknown)}"
        )
    return wanted


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)


def _role(parameter: inspect.Parameter) -> str | None:
    annotation = str(parameter.annotation)
    if parameter.name == "config" or "RunnableConfig" in annotation:
        return "config"
    return "runtime" if parameter.name == "runtime" or "ServerRuntime" in annotation else None


def _server_runtime(use: Use, annotation: Any) -> Any:
    # The SDK has no public way to make one; a server has to reach for the classes behind the alias.
    from langgraph_sdk.runtime import _ExecutionRuntime, _ReadRuntime

    store: Any = use.store
    told = use.config.get("configurable", {}).get("langgraph_auth_user")
    user: Any = User(told) if type(told) is dict else told
    if use.access != "threads.create_run":
        return _ReadRuntime(access_context=use.access, store=store, user=user)
    context = _typed_context(annotation, use.context)
    return _ExecutionRuntime(access_context=use.access, store=store, context=context, user=user)


def _typed_context(annotation: Any, given: dict[str, Any] | None) -> Any:
    """Make the context that `ServerRuntime[Context]` promises."""
    schema = next(iter(get_args(annotation)), None)
    fitted = context_for(schema, given)
    return schema(**fitted) if isinstance(schema, type) and isinstance(fitted, dict) else fitted
