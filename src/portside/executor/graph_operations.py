"""The operations of an agent server on a project's graphs beside executing runs, on the current event loop.

`GraphOperations` takes and returns plain data (`requests`), so that the agent server may be another process. Below it
are the state of a thread as clients see it (`ThreadState` of langgraph_sdk), whose values are those of the user's
graph, and the descriptions of a graph: its drawing, its schemas and its subgraphs.
"""

import functools
import json
import logging
import operator
import traceback
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import typing_extensions
from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Interrupt, PregelTask, StateSnapshot, StateUpdate
from pydantic import Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.checkpoints.serde import UnsafeCheckpoint
from portside.executor.errors import GraphFailed
from portside.executor.execute import find_checkpoint, get_long_lists, read_outcome, split_for_row
from portside.executor.imported_states import import_states
from portside.executor.interrupts import get_interrupt_id
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
from portside.executor.run_commands import parse_command
from portside.executor.versions import CONTEXT
from portside.kernel.errors import BadRequest, Invalid, PortsideError, Problem
from portside.kernel.user_json import dump_user, plain

log = logging.getLogger(__name__)
Schema = dict[str, Any]
# The exceptions for invalid values: those of langgraph, and those that models, reducers and conditions of a user's
# graph raise. An exception of any other class is one too, unless it comes from reading or storing checkpoints.
REFUSALS = (InvalidUpdateError, EmptyInputError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_STORAGE = "portside.executor.checkpoints."
STATE_REFUSED = (
    "the graph refuses the values of this state (select=values reads them without the graph, and an update of the "
    "state can mend them)"
)
# The fields of a state for which langgraph prepares the input of the next nodes.
_FIELDS_OF_TASKS = frozenset({"next", "tasks", "interrupts"})
_QUALIFIERS = (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly)
# The schema of messages takes 0.1 s on a loop that executes runs. It never changes, so it is cached.
_schemas: WeakKeyDictionary[Any, Schemas] = WeakKeyDictionary()


class GraphOperations:
    """Reads and describes the graphs of a project."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        return await read_outcome(self._graphs, request)

    async def read_state(self, request: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist.

        Raises NotFound for an unknown graph, and BadRequest for an unknown subgraph and for values that the graph
        refuses.
        """
        async with self._graphs.open(request.graph_id, request.config, access="threads.read") as opened_graph:
            graph = opened_graph if _needs_tasks(request.select) else _remove_models(opened_graph)
            checkpointer: Any = graph.checkpointer

            # Pending writes are applied to the values by the graph's reducers.
            is_plain = not (request.subgraphs or (request.checkpoint and request.checkpoint["write_tasks"]))
            preloaded = checkpointer.preloaded(request.config, request.checkpoint)
            with preloaded, _reading_for_json(graph, request.config, is_plain=is_plain):
                state = await read_state(graph, request.config, subgraphs=request.subgraphs)

        if state["created_at"] is None and request.config["configurable"].get("checkpoint_id"):
            return None

        if state["checkpoint"] is None:
            state |= request.without_checkpoint

        return dump_user(select_fields(state, request.select))

    async def read_history(self, request: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first.

        Raises NotFound for an unknown graph, BadRequest for an unknown subgraph and for values that the graph refuses,
        and Invalid if `before` names no checkpoint.
        """
        async with self._graphs.open(request.graph_id, request.config, access="threads.read") as opened_graph:
            graph = opened_graph if _needs_tasks(request.select) else _remove_models(opened_graph)
            bounds: Any = {"limit": request.limit, "before": request.before, "filter": request.filter}
            with _reading_for_json(graph, request.config):
                states = await read_history(graph, request.config, **bounds)

        return dump_user([select_fields(state, request.select) for state in states])

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state; None if the config names a checkpoint that does not exist.

        `scope` stores in the transaction of the change. Raises NotFound, BadRequest if the graph refuses the
        values, and the errors of the transaction's begin.
        """
        async with self._open_to_change(change.graph_id, change.config, scope) as graph:
            is_named = change.config["configurable"].get("checkpoint_id")
            checkpointer: Any = graph.checkpointer

            # The checkpoint alone: the graph may refuse the values that this change is to mend.
            if is_named and await checkpointer.aget_tuple(change.config) is None:
                return None

            config = _add_graph_id(change.config, change.graph_id)
            checkpoint = await update_state(graph, config, change.values, change.as_node)
            return await _read_changed_state(graph, change.config, checkpoint)

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread from supersteps or a history. `scope` stores in the creation's transaction.

        Raises NotFound, Invalid if the graph cannot apply them, and what the transaction raises when it begins.
        """
        supersteps = read_supersteps(creation.supersteps)
        async with self._open_to_change(creation.graph_id, creation.config, scope) as graph:
            config = _add_graph_id(creation.config, creation.graph_id)
            if creation.history:
                await import_states(graph, config, creation.history)
            else:
                await apply_supersteps(graph, config, supersteps)

            return await _read_changed_state(graph, creation.config, {})

    @asynccontextmanager
    async def _open_to_change(self, graph_id: str, config: Config, scope: CheckpointBackend) -> AsyncIterator[Graph]:
        async with self._graphs.open(graph_id, config, access="threads.update") as graph:
            checkpointer: Any = graph.checkpointer
            yield graph.copy({"checkpointer": checkpointer.within(scope)})

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises NotFound and GraphFailed."""
        async with self._open_to_describe(request) as graph:
            return await draw(graph, request.config, request.xray)

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises NotFound and GraphFailed."""
        async with self._open_to_describe(request) as graph:
            return get_schemas(graph)

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of the subgraphs of a graph by their names. Raises NotFound and GraphFailed."""
        async with self._open_to_describe(request) as graph:
            return await get_subgraph_schemas(graph, request.namespace, recurse=request.recurse)

    @asynccontextmanager
    async def _open_to_describe(self, request: DescriptionRequest) -> AsyncIterator[Graph]:
        opening = self._graphs.open(request.graph_id, request.config, access="assistants.read", context=request.context)
        try:
            async with opening as graph:
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


def _add_graph_id(config: Config, graph_id: str) -> Config:
    """Return a config whose checkpoints have the graph's id in their metadata, like those of runs."""
    return {**config, "metadata": {"graph_id": graph_id}}


async def _read_changed_state(graph: Graph, config: Config, checkpoint: dict[str, Any]) -> ChangedState:
    """Return the latest state of a thread."""
    latest: Any = {"configurable": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": ""}}
    state = await read_state(graph, latest)
    interrupts = {task["id"]: task["interrupts"] for task in state["tasks"] if task["interrupts"]}
    values = dump_user(state["values"])
    versions = get_long_lists(graph.checkpointer, latest, state["values"])
    row_values, long_values = split_for_row(values, state["values"], versions)

    return ChangedState(
        checkpoint=checkpoint,
        values=values,
        has_next=bool(state["next"]),
        interrupts=plain(interrupts),
        row_values=row_values,
        long_values=long_values,
    )


# The state of a thread


async def read_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> dict[str, Any]:
    """Return the state that a config names, or the latest. Without one, `metadata` and `created_at` are None.

    Raises BadRequest if the config names an unknown subgraph, or if the graph refuses the values.
    """
    with _refusing_state(config):
        try:
            return to_thread_state(await graph.aget_state(config, subgraphs=subgraphs))
        except Exception as exc:
            if not is_refusal(exc):
                raise

            # A reducer fails on the pending writes, for example on the input of a run that failed the same way.
            async for snapshot in graph.aget_state_history(config, limit=1):
                return to_thread_state(snapshot)

            raise


async def read_history(
    graph: Graph,
    config: RunnableConfig,
    *,
    limit: int,
    before: Any = None,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - langgraph's name for it
) -> list[dict[str, Any]]:
    """Return states, newest first. `before` may be a checkpoint id, a checkpoint or a config that holds one.

    Raises Invalid if `before` names no checkpoint, and BadRequest if the config names an unknown subgraph, or if the
    graph refuses the values of a state.
    """
    history = graph.aget_state_history(
        config, filter=dict(filter) if filter else None, before=_parse_before(before), limit=limit
    )

    with _refusing_state(config):
        return [to_thread_state(snapshot) async for snapshot in history]


async def update_state(graph: Graph, config: RunnableConfig, values: Any, as_node: str | None) -> dict[str, Any]:
    """Update the state as if the node had returned these values; return the new checkpoint.

    Raises BadRequest if the graph refuses the values.
    """
    try:
        new_config = await graph.aupdate_state(config, values, as_node=as_node)
    except Exception as exc:
        if not is_refusal(exc):
            raise

        try:
            # The graph may refuse the values that this change mends. What it makes of the new ones is read afterwards.
            new_config = await _remove_models(graph).aupdate_state(config, values, as_node=as_node)
        except Exception as again:
            if not is_refusal(again):
                raise
            raise BadRequest(_explain(exc)) from exc

    return find_checkpoint(new_config) or {}


async def apply_supersteps(graph: Graph, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
    """Apply steps of another thread's nodes. Raises Invalid that names the field if the graph refuses them."""
    try:
        await graph.abulk_update_state(config, supersteps)
    except Exception as exc:
        if not is_refusal(exc):
            raise
        raise Invalid.field(["body", "supersteps"], _explain(exc)) from exc


def read_supersteps(supersteps: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[StateUpdate]]:
    """Convert `{values, as_node, command}` to langgraph's updates. Raises Invalid that names the field."""
    return [
        [_read_update(update, ["body", "supersteps", step, "updates", index]) for index, update in enumerate(updates)]
        for step, updates in enumerate(supersteps)
    ]


def _read_update(update: Mapping[str, Any], loc: list[str | int]) -> StateUpdate:
    command = update.get("command")
    try:
        values = update.get("values") if command is None else parse_command(command)
    except Invalid as exc:
        problems = [Problem([*loc, *problem.loc[1:]], problem.msg, problem.type) for problem in exc.problems]
        raise Invalid(problems) from exc

    return StateUpdate(values, update.get("as_node"))  # type: ignore[arg-type]


def reads_without_code(graph: Graph) -> bool:
    """Whether reading a state calls no code of the graph's author with its values: no model of the state, no cache key.

    Reducers are called for pending writes, and by channels that store their changes.
    """
    # An attribute that this version of langgraph lacks counts as set: it may call the author's code in another way.
    users_of_values: list[Any] = [getattr(graph, "cache_policy", ...)]
    users_of_values += [
        getattr(node, name, ...) for node in graph.nodes.values() for name in ("mapper", "cache_policy")
    ]
    if any(user is not None for user in users_of_values):
        return False

    kinds = {channel if isinstance(channel, type) else type(channel) for channel in graph.channels.values()}
    return all(
        kind.__module__.startswith(("langgraph.channels.", "langgraph.managed.")) and kind.__name__ != "DeltaChannel"
        for kind in kinds
    )


def is_refusal(exc: Exception) -> bool:
    """Whether an exception says that the graph's own code refuses values, and not that checkpoints are out of reach."""
    if isinstance(exc, PortsideError):
        return False

    frames = traceback.walk_tb(exc.__traceback__)
    is_of_storage = any(frame.f_globals.get("__name__", "").startswith(_STORAGE) for frame, _ in frames)
    return isinstance(exc, REFUSALS) or not is_of_storage


def _needs_tasks(select: Sequence[str] | None) -> bool:
    return not select or not _FIELDS_OF_TASKS.isdisjoint(select)


def _remove_models(graph: Graph) -> Graph:
    """Return a graph whose states can be read although its models refuse their values: no input of nodes is made."""
    nodes = {name: node.copy({"mapper": None}) for name, node in graph.nodes.items()}
    return graph.copy({"nodes": nodes})


def _explain(exc: Exception) -> str:
    """Return why a graph refused values, with the class of the exception if the graph's own code raised it."""
    is_plain = isinstance(exc, (InvalidUpdateError, EmptyInputError, ValueError, TypeError))
    return str(exc) if is_plain else f"{type(exc).__name__}: {exc}"


def to_thread_state(snapshot: StateSnapshot) -> dict[str, Any]:
    """Return a snapshot of langgraph as a ThreadState."""
    checkpoint = find_checkpoint(snapshot.config) if _is_named(snapshot.config) else None
    parent = find_checkpoint(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_to_task(task) for task in snapshot.tasks],
        "metadata": _build_metadata(snapshot),
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": [_to_interrupt(interrupt) for interrupt in snapshot.interrupts],
        "checkpoint_id": (checkpoint or {}).get("checkpoint_id"),
        "parent_checkpoint_id": (parent or {}).get("checkpoint_id"),
    }


def _to_task(task: PregelTask) -> dict[str, Any]:
    """Return a task; that of a subgraph has its checkpoint, or its state if that was requested."""
    is_snapshot = isinstance(task.state, StateSnapshot)
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": [_to_interrupt(interrupt) for interrupt in task.interrupts],
        "checkpoint": None if is_snapshot else find_checkpoint(task.state),  # type: ignore[arg-type]
        "state": to_thread_state(task.state) if is_snapshot else None,  # type: ignore[arg-type]
        "result": task.result,
    }


def _build_metadata(snapshot: StateSnapshot) -> dict[str, Any] | None:
    """Add the thread and the namespace to a checkpoint's metadata; a copied thread keeps its checkpoints."""
    if snapshot.metadata is None:
        return None

    configurable = snapshot.config["configurable"]
    metadata = {**snapshot.metadata, "thread_id": configurable["thread_id"]}
    if checkpoint_ns := configurable.get("checkpoint_ns"):
        metadata |= {"checkpoint_ns": checkpoint_ns, "langgraph_checkpoint_ns": checkpoint_ns}
        metadata["checkpoint_map"] = snapshot.metadata.get("parents") or {}

    return metadata


def _to_interrupt(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": get_interrupt_id(interrupt), "value": interrupt.value}


@contextmanager
def _refusing_state(config: RunnableConfig) -> Iterator[None]:
    """Turn what a graph raises while one of its states is read into BadRequest with the reason.

    Older versions of langgraph raise a ValueError for an unknown namespace.
    """
    try:
        yield
    except UnsafeCheckpoint as exc:
        raise BadRequest(str(exc)) from exc
    except Exception as exc:
        if not is_refusal(exc):
            raise
        if config["configurable"].get("checkpoint_ns") and type(exc) is ValueError:
            raise BadRequest(str(exc)) from exc

        raise BadRequest(f"{STATE_REFUSED}: {_explain(exc)}") from exc


def _is_named(config: RunnableConfig) -> bool:
    return bool(config.get("configurable", {}).get("checkpoint_id"))


def _parse_before(raw: Any) -> RunnableConfig | None:
    if raw is None:
        return None

    holder = raw.get("configurable", raw) if isinstance(raw, dict) else {"checkpoint_id": raw}
    checkpoint_id = holder.get("checkpoint_id") if isinstance(holder, dict) else None
    if not isinstance(checkpoint_id, str):
        raise Invalid.field(["body", "before"], "Expected a checkpoint id, a checkpoint, or a config with one")

    return {"configurable": {"checkpoint_id": checkpoint_id}}


# Descriptions of a graph


async def draw(graph: Graph, config: Any, xray: int) -> Drawing:
    """Draw a graph, without the source locations of its nodes."""
    drawn = json.loads(dump_user((await graph.aget_graph(config, xray=xray)).to_json()))
    for node in drawn["nodes"]:
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)

    return Drawing(drawn["nodes"], drawn["edges"])


async def get_subgraph_schemas(graph: Graph, namespace: str | None, *, recurse: bool) -> dict[str, Schemas]:
    """Return the schemas of a graph's subgraphs, or of the one at a namespace, by node name."""
    is_nested = namespace is not None and "|" in namespace
    subgraphs = graph.aget_subgraphs(namespace=namespace, recurse=recurse or is_nested)
    return {name: get_schemas(subgraph) async for name, subgraph in subgraphs}


def get_schemas(graph: Any) -> Schemas:
    """Return the schemas of a graph; a remote graph may have none.

    A schema that cannot be made, for example of a state with a socket, is None; the others are returned all the same.
    """
    schemas = _schemas.get(graph)
    if schemas is None:
        schemas = _schemas[graph] = _build_schemas(graph)

    return schemas


def _build_schemas(graph: Any) -> Schemas:
    context = _attempt("context", lambda: _build_context_schema(graph))
    if not CONTEXT.is_available:
        config = _attempt("config", lambda: _build_config_schema(graph))
    else:
        config = {} if context is None and _has_no_context(graph) else context

    return Schemas(
        input_schema=_attempt("input", lambda: _build_input_schema(graph)),
        output_schema=_attempt("output", lambda: _build_output_schema(graph)),
        state_schema=_attempt("state", lambda: _build_state_schema(graph)),
        config_schema=config,
        context_schema=context,
    )


def _has_no_context(graph: Any) -> bool:
    return getattr(graph, "context_schema", None) is None


def _attempt(kind: str, make: Callable[[], Schema | None]) -> Schema | None:
    try:
        return make()
    except Exception as exc:  # noqa: BLE001 - the types are the user's code
        fields = {"kind": kind, "error": f"{type(exc).__name__}: {exc}"[:300]}
        log.info("a JSON schema of a graph could not be generated", extra={"fields": fields})
        return None


def _build_input_schema(graph: Any) -> Schema:
    kind = _get_builder_type(graph, "input") if isinstance(graph, CompiledStateGraph) else graph.InputType
    return _build_schema(graph.get_input_jsonschema, kind)


def _build_output_schema(graph: Any) -> Schema:
    kind = _get_builder_type(graph, "output") if isinstance(graph, CompiledStateGraph) else graph.OutputType
    return _build_schema(graph.get_output_jsonschema, kind)


def _get_builder_type(graph: Any, which: str) -> Any:
    """Return a type of a graph's builder, whose attributes had other names before langgraph 0.5."""
    builder = graph.builder
    return getattr(builder, f"{which}_schema", None) or getattr(builder, which)


def _build_config_schema(graph: Any) -> Schema | None:
    """Return the schema of `configurable`, which graphs have instead of a context before langgraph 0.6."""
    kind = getattr(graph, "config_type", None)
    return {} if kind is None else TypeAdapter(modernize(kind)).json_schema()


def _build_context_schema(graph: Any) -> Schema | None:
    return None if _has_no_context(graph) else _build_schema(graph.get_context_jsonschema, graph.context_schema)


def _build_state_schema(graph: Any) -> Schema:
    """Return the schema of a thread's state: every channel, none required; or the value of the only channel."""
    channel_names = graph.stream_channels_asis
    if isinstance(channel_names, str):
        return TypeAdapter(modernize(graph.channels[channel_names].ValueType)).json_schema()

    channels = {name: graph.channels[name] for name in channel_names}
    fields: dict[str, Any] = {
        f"channel_{index}": (modernize(channel.ValueType), Field(None, alias=name))
        for index, (name, channel) in enumerate(channels.items())
        if isinstance(channel, BaseChannel)
    }

    schema: Schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


def _build_schema(make: Callable[[], Schema], kind: Any) -> Schema:
    """Make a schema with langgraph, or without it where it fails: before Python 3.12 on `typing.TypedDict`."""
    try:
        return make()
    except PydanticUserError as exc:
        if exc.code != "typed-dict-version":
            raise
        return TypeAdapter(modernize(kind)).json_schema()


def modernize(kind: Any, enclosing: frozenset[Any] = frozenset()) -> Any:
    """Replace each `typing.TypedDict` in a type by one that pydantic accepts; a recursive one becomes a dict."""
    if typing_extensions.is_typeddict(kind):
        return dict[str, Any] if kind in enclosing else _modernize_dict(kind, enclosing | {kind})

    arguments = typing.get_args(kind)
    rebuilt = tuple(modernize(argument, enclosing) for argument in arguments)
    origin: Any = typing.get_origin(kind)
    if origin in _QUALIFIERS:
        # Older versions of langgraph leave these qualifiers on the channels of a state.
        return rebuilt[0]

    if rebuilt == arguments:
        return kind
    if origin is typing.Annotated:
        return typing.Annotated[(rebuilt[0], *kind.__metadata__)]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, rebuilt)

    return origin[rebuilt]


def _modernize_dict(kind: Any, enclosing: frozenset[Any]) -> Any:
    hints = typing_extensions.get_type_hints(kind)
    fields = {name: modernize(hint, enclosing) for name, hint in hints.items()}
    required = kind.__required_keys__
    make: Any = typing_extensions.TypedDict

    rebuilt = make(
        kind.__name__,
        {
            name: typing_extensions.Required[field] if name in required else typing_extensions.NotRequired[field]
            for name, field in fields.items()
        },
    )

    rebuilt.__doc__ = kind.__doc__
    return rebuilt
