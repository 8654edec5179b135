"""Running a graph in this process: the local implementation of `Executor`.

How a run ended is read off its own stream. Only a run that stopped at an interrupt costs a look at the stored state,
because only there the ids of the waiting tasks are needed.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import LangChainTracer
from langgraph.types import StateSnapshot
from langsmith.utils import tracing_is_enabled

from portside.agent.graphs.commands import parse_command
from portside.agent.graphs.contexts import context_for
from portside.agent.graphs.events import encoder_for, has_channels, langgraph_modes
from portside.agent.graphs.factories import Graph
from portside.agent.graphs.listening import Listener
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.protocol import Emitted, Outcome, RunRequest
from portside.agent.types.access import User
from portside.kernel.codec import dump_user, storable

INTERRUPT = "__interrupt__"
_MISSING = object()
# Langgraph has no public name for the one, and older versions of it do not know the other.
STRICT_RESUME = "__pregel_strict_resume"
UNKNOWN_INTERRUPT = "UnknownInterruptError"
USER = "langgraph_auth_user"
_POSITION = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")

Item = tuple[tuple[str, ...], str, Any]


class LocalExecutor:
    """Runs graphs on the event loop it is called on."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def execute(self, request: RunRequest) -> "LocalExecution":
        """Prepare a run, which starts when it is iterated over. Raises Invalid on a command without sense."""
        return LocalExecution(self._graphs, request)


class LocalExecution:
    """One run of a graph in this process."""

    def __init__(self, graphs: Graphs, request: RunRequest) -> None:
        self.outcome: Outcome | None = None
        self._graphs = graphs
        self._request = request
        self._input = _input(request)
        self._config = _config(request)
        self._values: Any = _MISSING
        self._told: bytes | None = None
        self._stopped = False

    async def __aiter__(self) -> AsyncIterator[Emitted]:
        """Run the graph, yielding its events as they come."""
        request, encoder = self._request, encoder_for(self._request)
        output: str | list[str] = []
        try:
            opened = self._graphs.open(request.graph_id, self._config, context=request.context)
            async with opened as graph, aclosing(self._stream(graph)) as items:
                output = _output_keys(graph)
                async for item in items:
                    self._watch(*item)
                    for emitted in encoder.encode(*item):
                        if emitted.event == "values":
                            self._told = emitted.data
                        yield emitted
                    if item[1] == "values":
                        # Nodes that await nothing never let the loop put what the step before them left.
                        await asyncio.sleep(0)
                self.outcome = await self._ended(graph)
        except asyncio.CancelledError as exc:
            if _is_being_cancelled():
                raise
            # The user's code let a cancellation of its own out; nobody asked for an end of this run.
            failure: BaseException = exc
        except GeneratorExit:
            raise
        except BaseException as exc:  # noqa: BLE001 - what the user's code raises belongs in the run
            failure = exc
        else:
            return
        error = {"error": type(failure).__name__, "message": _text(failure)}
        values = None if self._values is _MISSING else dump_user(_select(self._values, output))
        is_refused = type(failure).__name__ == UNKNOWN_INTERRUPT
        self.outcome = Outcome(values=values, interrupts={}, has_next=False, error=error, is_refused=is_refused)
        yield Emitted("error", dump_user(error))

    def _stream(self, graph: Graph) -> AsyncGenerator[Item, None]:
        request = self._request
        modes = langgraph_modes(request)
        if request.interrupt_before or request.interrupt_after or _has_breakpoints(graph):
            modes.add("updates")
        options: dict[str, Any] = {
            "stream_mode": list(modes),
            "subgraphs": request.stream_subgraphs,
            "interrupt_before": request.interrupt_before or None,
            "interrupt_after": request.interrupt_after or None,
            "context": context_for(graph.context_schema, request.context),
            "durability": request.durability if graph.checkpointer else None,
        }
        if "events" in request.stream_modes:
            return _items_among_events(graph.astream_events(self._input, self._config, version="v2", **options))
        return _items(graph.astream(self._input, self._config, **options))

    def _watch(self, namespace: tuple[str, ...], mode: str, payload: Any) -> None:
        """Note what the outcome needs: the last values, and whether the graph stopped at an interrupt."""
        if namespace or mode not in ("values", "updates"):
            return
        stopped = isinstance(payload, dict) and INTERRUPT in payload
        self._stopped = self._stopped or stopped
        values = {key: value for key, value in payload.items() if key != INTERRUPT} if stopped else payload
        if mode == "values" and (values or not stopped):
            self._values = values

    async def _ended(self, graph: Graph) -> Outcome:
        if graph.checkpointer and (self._stopped or self._values is _MISSING):
            state = await graph.aget_state(_latest(self._config))
            return _outcome(graph, state, state.values if self._values is _MISSING else self._values)
        given: Any = None if self._values is _MISSING else self._values
        values = _select(given, _output_keys(graph))
        # A long conversation is the most that is encoded of a run: not once more where its last event was all of it.
        is_told = self._told is not None and isinstance(values, dict) and len(values) == len(given)
        encoded = self._told if is_told else dump_user(values)
        return Outcome(values=encoded, interrupts={}, has_next=False, error=None)


async def read_rest(graphs: Graphs, request: RunRequest) -> Outcome:
    """Return what a run that was stopped left: the thread's last values, what waits, and whether steps are left."""
    config = _config(request)
    async with graphs.open(request.graph_id, config, context=request.context) as graph:
        state = await graph.aget_state(_latest(config)) if graph.checkpointer else None
        if state is None or state.metadata is None:
            return Outcome(values=None, interrupts={}, has_next=False, error=None)
        return _outcome(graph, state, state.values)


def _outcome(graph: Graph, state: StateSnapshot, values: Any) -> Outcome:
    # A task with a result has been answered, though older versions of langgraph still list its question.
    open_tasks = [task for task in state.tasks if task.interrupts and task.result is None]
    waiting = [asked for task in open_tasks for asked in task.interrupts]
    interrupts = {task.id: [_asked(asked) for asked in task.interrupts] for task in open_tasks}
    values = _select(values, _output_keys(graph))
    if waiting:
        values = {**values, INTERRUPT: waiting} if isinstance(values, dict) else {INTERRUPT: waiting}
    return Outcome(values=dump_user(values), interrupts=interrupts, has_next=bool(state.next), error=None)


async def _items(stream: Any) -> AsyncGenerator[Item, None]:
    """Give every item of a stream the same three parts, whether namespaces were asked for or not."""
    async with aclosing(stream):
        async for chunk in stream:
            yield chunk if len(chunk) == 3 else ((), *chunk)


async def _items_among_events(stream: Any) -> AsyncGenerator[Item, None]:
    """Take the graph's own stream out of its events; the rest are events proper."""
    root: str | None = None
    async with aclosing(stream):
        async for event in stream:
            root = root or event["run_id"]
            if event["event"] == "on_chain_stream" and event["run_id"] == root:
                chunk = event["data"]["chunk"]
                yield chunk if len(chunk) == 3 else ((), *chunk)
            else:
                yield (), "events", event


def _text(failure: BaseException) -> str:
    """Return what an exception says, as every client and database takes it."""
    try:
        return storable(str(failure))
    except Exception as exc:  # noqa: BLE001 - the exception is the user's, and so is what it says of itself
        return f"the exception has no text: its __str__ raised {type(exc).__name__}"


def _input(request: RunRequest) -> Any:
    if request.resume:
        return None
    return request.input if request.command is None else parse_command(request.command)


def _config(request: RunRequest) -> RunnableConfig:
    """Make the graph's config. What steers langgraph from the inside is not a client's to set."""
    given = request.config
    dropped = _POSITION if request.resume else ()
    configurable = {
        key: value
        for key, value in (given.get("configurable") or {}).items()
        if not key.startswith("__pregel_") and key not in dropped
    }
    if user := configurable.get(USER):
        configurable[USER] = User(user)
    config = RunnableConfig(
        configurable=configurable, metadata=dict(given.get("metadata") or {}), tags=list(given.get("tags") or ())
    )
    if request.strict_resume:
        configurable[STRICT_RESUME] = True
    if callbacks := _callbacks(request):
        config["callbacks"] = callbacks
    if given.get("recursion_limit"):
        config["recursion_limit"] = given["recursion_limit"]
    if run_id := configurable.get("run_id"):
        config["run_id"] = UUID(str(run_id))
    return config


def _callbacks(request: RunRequest) -> list[BaseCallbackHandler]:
    tracers = [LangChainTracer(**request.tracer)] if request.tracer and tracing_is_enabled() else []
    return [*tracers, *([Listener()] if has_channels(request) else [])]


def _latest(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"].get("thread_id"), "checkpoint_ns": ""}}


def _has_breakpoints(graph: Graph) -> bool:
    return bool(graph.interrupt_before_nodes or graph.interrupt_after_nodes)


def _output_keys(graph: Graph) -> str | list[str]:
    """Return the keys of the output schema, or "" where the values are the output as they are."""
    if isinstance(graph.stream_channels_asis, str):
        return ""
    return graph.output_channels if isinstance(graph.output_channels, str) else list(graph.output_channels)


def _select(values: Any, keys: str | list[str]) -> Any:
    """Pick the output out of the values of the whole state."""
    if not isinstance(values, dict) or keys == "":
        return values
    if isinstance(keys, str):
        return values.get(keys)
    return {key: values[key] for key in keys if key in values}


def _asked(interrupt: Any) -> dict[str, Any]:
    """Return a question as its thread keeps it. Older versions of langgraph know no schemas of answers."""
    schema = getattr(interrupt, "response_schema", None)
    plain = {"id": interrupt.id, "value": interrupt.value}
    return plain if schema is None else {**plain, "response_schema": schema}


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
