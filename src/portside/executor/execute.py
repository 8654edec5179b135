"""Runs graphs on the current event loop.

The outcome of a run comes from its own stream. Only a run that stopped at an interrupt reads the stored state, which
has the ids of the interrupted tasks.

Clients receive only the stream modes that they requested. `messages` and `messages-tuple` are two forms of one mode of
langgraph: the first sends the whole message again for each piece that arrives, the second sends the pieces. A run that
was started over the event streaming protocol has its channel events as well, under names that begin with `@`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, nullcontext
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import LangChainTracer
from langgraph.types import StateSnapshot
from langgraph.version import __version__ as langgraph_version
from langsmith.utils import tracing_is_enabled

from portside.executor.channels import MODES as CHANNEL_MODES
from portside.executor.channels import Channels
from portside.executor.checkpoints.saver import Checkpointer
from portside.executor.errors import RunTimeout, check_size
from portside.executor.interrupts import add_id, add_ids, get_interrupt_id
from portside.executor.load import Graph, Graphs, convert_context
from portside.executor.model_events import ModelListener
from portside.executor.requests import (
    INTERRUPT,
    OTHER_LANGUAGE,
    STREAM_PROTOCOL,
    UNKNOWN_INTERRUPT,
    Emitted,
    Outcome,
    RunRequest,
)
from portside.executor.run_commands import parse_command
from portside.executor.tracer import build_tracer
from portside.executor.user import User
from portside.executor.versions import CONTEXT, INTERRUPTS_IN_VALUES
from portside.kernel.timeouts import timeout
from portside.kernel.user_json import dump_user, plain, storable

_MISSING = object()
# Shorter values are in the thread's row as a whole.
LONG_BYTES = 8192
# Langgraph has no public name for it.
STRICT_RESUME = "__pregel_strict_resume"
# What a graph sends to a graph of another server that is one of its nodes: that it resumes, so that the input is not
# applied again, and the answers to questions by their ids. Both do no more than a command of a client can.
RESUMING = "__pregel_resuming"
RESUME_MAP = "__pregel_resume_map"
USER = "langgraph_auth_user"
_HAS_INTERRUPTS_IN_VALUES = INTERRUPTS_IN_VALUES.is_available
_POSITION = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
_LANGGRAPH_MODES = {"messages-tuple": "messages"}
_CHECKPOINT_KEYS = ("checkpoint_id", "thread_id", "checkpoint_ns", "checkpoint_map")


class Execution:
    """One run of a graph: iterate over it once, then read `outcome`. Raises Invalid if its command is malformed.

    While `is_followed`, if given, returns False, no events are made of the values.

    An exception of the graph is not raised: it becomes the outcome's `error`. Cancelling the task that iterates cancels
    the run, which then has no outcome.
    """

    def __init__(self, graphs: Graphs, request: RunRequest, is_followed: Callable[[], bool] | None = None) -> None:
        self.outcome: Outcome | None = None
        self._graphs = graphs
        self._request = request
        self._encoder = EventEncoder(request, is_followed)
        command = None if request.command is None else parse_command(request.command)
        graph_input = command or request.input

        # An attempt that continues from a checkpoint has taken its input already.
        self._input = None if request.resume else graph_input
        self._config = _build_config(request)
        if request.resume and tracing_is_enabled():
            self._config["callbacks"] = [build_tracer(graph_input, request.tracer or {})]

        if self._encoder.has_channels:
            self._config["callbacks"] = [*self._config.get("callbacks", ()), ModelListener()]  # type: ignore[misc]

        self._values: Any = _MISSING
        self._last_values_event: bytes | None = None
        self._stopped = False

    async def __aiter__(self) -> AsyncIterator[Emitted]:
        """Run the graph, yielding its events as they come."""
        request = self._request
        encoder = self._encoder
        output: str | list[str] = []
        checkpointer: Any = None

        try:
            opening = self._graphs.open(request.graph_id, self._config, context=request.context)
            async with opening as graph, aclosing(self._stream(graph)) as items:
                output = _get_output_keys(graph)
                checkpointer = graph.checkpointer

                async for chunk in items:
                    item = chunk if len(chunk) == 3 else ((), *chunk)
                    self._remember(*item)

                    for emitted in encoder.encode(*item):
                        if emitted.event == "values":
                            self._last_values_event = emitted.data
                        yield emitted

                    if item[1] == "values":
                        # Nodes that await nothing would never let the loop write the previous step's checkpoint.
                        await asyncio.sleep(0)

                outcome = await self._build_outcome_at_end(graph)
                check_size("the result", outcome.values or b"", request.max_event_bytes)
                self.outcome = outcome
        except asyncio.CancelledError as exc:
            if _is_being_cancelled():
                raise

            # The user's code raised it itself; nobody cancelled this run.
            failure: BaseException = exc
        except GeneratorExit:
            raise
        except BaseException as exc:  # noqa: BLE001 - an exception of the user's code is the run's error
            failure = exc
        else:
            return

        self.outcome = self._build_outcome_of_failure(failure, output, checkpointer)

    def _build_outcome_of_failure(self, failure: BaseException, output: str | list[str], checkpointer: Any) -> Outcome:
        """Return the outcome of a run that an exception has ended."""
        error = {"error": type(failure).__name__, "message": _to_text(failure)}
        is_refused = type(failure).__name__ in (UNKNOWN_INTERRUPT, OTHER_LANGUAGE)

        values = None if self._values is _MISSING else _select(self._values, output)
        data = None if self._values is _MISSING else dump_user(values)
        if 0 < self._request.max_event_bytes < len(data or b""):
            # The thread keeps the values that it had: its checkpoints have these.
            values = data = None

        outcome = Outcome(values=data, interrupts={}, has_next=False, error=error, is_refused=is_refused)
        return _remove_long_lists(outcome, values, get_long_lists(checkpointer, self._config, values))

    def _stream(self, graph: Graph) -> Any:
        """Start the graph. Its chunks are (mode, payload), with the namespace in front where subgraphs are streamed."""
        request = self._request
        modes = set(self._encoder.langgraph_modes)
        breakpoints = (
            request.interrupt_before,
            request.interrupt_after,
            graph.interrupt_before_nodes,
            graph.interrupt_after_nodes,
        )
        if any(breakpoints) or not _HAS_INTERRUPTS_IN_VALUES:
            modes.add("updates")

        options: dict[str, Any] = {
            "stream_mode": list(modes),
            "subgraphs": request.stream_subgraphs,
            "interrupt_before": request.interrupt_before or None,
            "interrupt_after": request.interrupt_after or None,
            **_build_options(graph, request),
        }

        chunks: Any
        if "events" in request.stream_modes:
            chunks = _split_events(graph.astream_events(self._input, self._config, version="v2", **options))
        else:
            chunks = graph.astream(self._input, self._config, **options)

        return chunks if _HAS_INTERRUPTS_IN_VALUES else _add_interrupts(chunks)

    def _remember(self, namespace: tuple[str, ...], mode: str, payload: Any) -> None:
        """Remember the last values, and whether the graph stopped at an interrupt, for the outcome."""
        if namespace or mode not in ("values", "updates"):
            return

        stopped = isinstance(payload, dict) and INTERRUPT in payload
        self._stopped = self._stopped or stopped

        values = {key: value for key, value in payload.items() if key != INTERRUPT} if stopped else payload
        if mode == "values" and (values or not stopped):
            # An event of these values, if there is one, comes after this.
            self._values = values
            self._last_values_event = None

    async def _build_outcome_at_end(self, graph: Graph) -> Outcome:
        if graph.checkpointer and (self._stopped or self._values is _MISSING):
            # Before reading the state, which makes other objects.
            versions = (
                {} if self._values is _MISSING else get_long_lists(graph.checkpointer, self._config, self._values)
            )
            state = await graph.aget_state(_build_latest_config(self._config))
            if self._values is _MISSING:
                versions = get_long_lists(graph.checkpointer, self._config, state.values)
                return _build_outcome(graph, state, state.values, versions)

            return _build_outcome(graph, state, self._values, versions)

        state_values: Any = None if self._values is _MISSING else self._values
        values = _select(state_values, _get_output_keys(graph))

        # Encoding a long conversation costs most of a run: reuse the last event if it holds the same values.
        has_all_values = isinstance(values, dict) and len(values) == len(state_values)
        is_encoded = self._last_values_event is not None and has_all_values
        data = self._last_values_event if is_encoded else dump_user(values)
        outcome = Outcome(values=data, interrupts={}, has_next=False, error=None)

        return _remove_long_lists(outcome, values, get_long_lists(graph.checkpointer, self._config, values))


def _build_options(graph: Graph, request: RunRequest) -> dict[str, Any]:
    """Return the options for a run's context and for how its checkpoints are written.

    Before langgraph 0.6 a graph has no context, and writes each checkpoint in the background or only the last one.
    """
    if CONTEXT.is_available:
        return {
            "context": convert_context(graph.context_schema, request.context),
            "durability": request.durability if graph.checkpointer else None,
        }

    return {"checkpoint_during": request.durability != "exit" if graph.checkpointer else None}


async def execute(
    graphs: Graphs,
    request: RunRequest,
    push: Callable[[Emitted], Awaitable[None] | None],
    timeout_s: float,
    is_followed: Callable[[], bool] | None = None,
) -> Outcome:
    """Execute a run to its end. Raises RunTimeout, and Invalid if its command is malformed.

    `push` gets the events of the run, and may return what the run has to wait for before its next one.

    While `is_followed`, if given, returns False, no events are made of the values: nobody would get them.
    """
    execution = Execution(graphs, request, is_followed)
    limit = timeout(timeout_s)
    checkpointer = graphs.checkpointer
    thread_id = (request.config.get("configurable") or {}).get("thread_id", "")

    remembering = checkpointer.remembering(thread_id) if isinstance(checkpointer, Checkpointer) else nullcontext()
    try:
        with remembering:
            async with limit:
                async for emitted in execution:
                    if (delivery := push(emitted)) is not None:
                        await delivery
    except TimeoutError as exc:
        # A TimeoutError that the graph itself raises passes unchanged.
        if limit.expired():
            raise RunTimeout from exc
        raise

    assert execution.outcome is not None  # noqa: S101 - it is set at the end
    return execution.outcome


async def read_outcome(graphs: Graphs, request: RunRequest) -> Outcome:
    """Return the outcome of a cancelled run: the thread's last values, open interrupts, and whether steps are left."""
    config = _build_config(request)
    async with graphs.open(request.graph_id, config, context=request.context) as graph:
        state = await graph.aget_state(_build_latest_config(config)) if graph.checkpointer else None
        if state is None or state.metadata is None:
            return Outcome(values=None, interrupts={}, has_next=False, error=None)

        versions = get_long_lists(graph.checkpointer, config, state.values)
        return _build_outcome(graph, state, state.values, versions)


def _build_outcome(graph: Graph, state: StateSnapshot, values: Any, versions: dict[str, str]) -> Outcome:
    # A task with a result was answered, although older versions of langgraph still list its interrupts.
    open_tasks = [task for task in state.tasks if task.interrupts and task.result is None]
    open_interrupts = [add_id(interrupt) for task in open_tasks for interrupt in task.interrupts]
    interrupts = {task.id: [_to_stored_interrupt(interrupt) for interrupt in task.interrupts] for task in open_tasks}

    selected = values = _select(values, _get_output_keys(graph))
    if open_interrupts:
        values = {**values, INTERRUPT: open_interrupts} if isinstance(values, dict) else {INTERRUPT: open_interrupts}

    outcome = Outcome(values=dump_user(values), interrupts=plain(interrupts), has_next=bool(state.next), error=None)
    return _remove_long_lists(outcome, selected, versions)


def get_long_lists(checkpointer: Any, config: RunnableConfig, values: Any) -> dict[str, str]:
    """Return the versions of those values that are long lists in the last checkpoint, by their keys."""
    if not isinstance(checkpointer, Checkpointer) or not isinstance(values, dict):
        return {}
    return checkpointer.get_long_lists(config, values)


def _remove_long_lists(outcome: Outcome, values: Any, versions: dict[str, str]) -> Outcome:
    outcome.row_values, outcome.long_values = split_for_row(outcome.values, values, versions)
    return outcome


def split_for_row(
    data: bytes | None, values: Any, versions: dict[str, str]
) -> tuple[bytes | None, dict[str, str] | None]:
    """Return the JSON of the values without the lists of the last checkpoint, and the versions of these lists.

    The thread's row keeps both. Both are None if the row keeps the whole values.

    `data` is the JSON of the whole values, and `versions` are those of the lists in the last checkpoint.
    """
    if data is None or len(data) < LONG_BYTES or not isinstance(values, dict):
        return None, None

    list_versions = {key: version for key, version in versions.items() if key in values}
    if not list_versions:
        return None, None

    other_values = {key: value for key, value in values.items() if key not in list_versions}
    return dump_user(other_values), list_versions


async def _split_events(stream: Any) -> AsyncGenerator[Any, None]:
    """Split `astream_events` into the graph's own stream and the other events."""
    root: str | None = None
    async with aclosing(stream):
        async for event in stream:
            root = root or event["run_id"]
            if event["event"] == "on_chain_stream" and event["run_id"] == root:
                yield event["data"]["chunk"]
            else:
                yield (), "events", event


async def _add_interrupts(chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Add an interrupt that arrives as an update to the values as well, as newer versions of langgraph do."""
    values: dict[tuple[str, ...], Any] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            namespace, mode, payload = chunk if len(chunk) == 3 else ((), *chunk)
            payload = add_ids(mode, payload)
            yield namespace, mode, payload

            if mode == "values":
                values[namespace] = payload
            elif mode == "updates" and isinstance(payload, dict) and payload.get(INTERRUPT):
                last_values = values.get(namespace)
                yield namespace, "values", {**last_values, **payload} if isinstance(last_values, dict) else payload


def _to_text(failure: BaseException) -> str:
    """Return the message of an exception, in a form that every client and Postgres accept."""
    try:
        return storable(str(failure))
    except Exception as exc:  # noqa: BLE001 - the exception's __str__ is the user's code
        return f"the exception has no text: its __str__ raised {type(exc).__name__}"


def _build_config(request: RunRequest) -> RunnableConfig:
    """Make the graph's config. What steers langgraph from the inside is not a client's to set, except a resume."""
    client_config = request.config
    dropped = _POSITION if request.resume else ()
    configurable = {
        key: value
        for key, value in (client_config.get("configurable") or {}).items()
        if (not key.startswith("__pregel_") or _is_resume(key, value)) and key not in dropped
    }
    if user := configurable.get(USER):
        configurable[USER] = User(user)

    config = RunnableConfig(
        configurable=configurable,
        metadata={**(client_config.get("metadata") or {}), "langgraph_version": langgraph_version},
        tags=list(client_config.get("tags") or ()),
    )

    if request.strict_resume:
        configurable[STRICT_RESUME] = True

    if request.tracer and not request.resume and tracing_is_enabled():
        config["callbacks"] = [LangChainTracer(**request.tracer)]

    if client_config.get("recursion_limit"):
        config["recursion_limit"] = client_config["recursion_limit"]

    if run_id := configurable.get("run_id"):
        config["run_id"] = UUID(str(run_id))

    return config


def _is_resume(key: str, value: Any) -> bool:
    """Whether a part of a client's config is how a parent graph on another server resumes this one."""
    return (key == RESUMING and value is True) or (key == RESUME_MAP and isinstance(value, dict))


def _build_latest_config(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"].get("thread_id"), "checkpoint_ns": ""}}


def _get_output_keys(graph: Graph) -> str | list[str]:
    """Return the keys of the output schema, or "" if the output is the values themselves."""
    if isinstance(graph.stream_channels_asis, str):
        return ""
    return graph.output_channels if isinstance(graph.output_channels, str) else list(graph.output_channels)


def _select(values: Any, keys: str | list[str]) -> Any:
    """Select the output from the values of the state."""
    if not isinstance(values, dict) or keys == "":
        return values
    if isinstance(keys, str):
        return values.get(keys)

    return {key: values[key] for key in keys if key in values}


def _to_stored_interrupt(interrupt: Any) -> dict[str, Any]:
    """Return an interrupt as its thread stores it. Older versions of langgraph have no `response_schema`."""
    schema = getattr(interrupt, "response_schema", None)
    plain = {"id": get_interrupt_id(interrupt), "value": interrupt.value}
    return plain if schema is None else {**plain, "response_schema": schema}


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class EventEncoder:
    """Encodes the events of one run, and joins the pieces of its messages."""

    def __init__(self, request: RunRequest, is_followed: Callable[[], bool] | None = None) -> None:
        self._is_followed = is_followed
        self._max_event_bytes = request.max_event_bytes
        self._modes = frozenset(request.stream_modes or ["values"])
        self._partial: dict[str, BaseMessage] = {}

        configurable = request.config.get("configurable") or {}
        self.has_channels = bool(configurable.get(STREAM_PROTOCOL))
        """Whether the run has the events of the protocol's channels."""
        self._channels = Channels() if self.has_channels else None

        requested = {_LANGGRAPH_MODES.get(mode, mode) for mode in self._modes} - {"events"}
        self.langgraph_modes = requested | {"values"} | (CHANNEL_MODES if self.has_channels else set())
        """The modes that langgraph must stream: those requested, and always the values, for the outcome."""

    def encode(self, namespace: tuple[str, ...], mode: str, payload: Any) -> Iterator[Emitted]:
        """Yield the events for one item of langgraph's stream. Raises EventTooLarge."""
        suffix = "|".join(("", *namespace))
        if mode == "messages":
            yield from self._encode_message(suffix, *payload)
        elif mode in self._modes and (mode != "values" or self._is_followed is None or self._is_followed()):
            is_checkpoint = mode == "debug" and payload["type"] == "checkpoint"
            yield self._encode(mode + suffix, _convert_debug_event(payload) if is_checkpoint else payload)

        if self._channels is not None:
            for method, event_namespace, data in self._channels.convert(namespace, mode, payload):
                yield self._encode("|".join((f"@{method}", *event_namespace)), data)

    def _encode_message(self, suffix: str, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[Emitted]:
        if "messages-tuple" in self._modes:
            yield self._encode("messages" + suffix, [message, metadata])
        elif "messages" in self._modes:
            yield from self._encode_whole_message(message, metadata)

    def _encode_whole_message(self, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[Emitted]:
        message_id = str(message.id)
        before = self._partial.get(message_id)
        if before is None:
            yield self._encode("messages/metadata", {message_id: {"metadata": metadata}})

        if not isinstance(message, BaseMessageChunk):
            self._partial[message_id] = message
            yield self._encode("messages/complete", [message])
            return

        merged = before + message if isinstance(before, BaseMessageChunk) else message
        assert isinstance(merged, BaseMessageChunk)  # noqa: S101 - the sum of two chunks is one
        self._partial[message_id] = merged
        yield self._encode("messages/partial", [message_chunk_to_message(merged)])

    def _encode(self, name: str, value: Any) -> Emitted:
        """Encode an event. Raises EventTooLarge."""
        data = dump_user(value)
        check_size(f"an event {name!r}", data, self._max_event_bytes)
        return Emitted(name, data)


def find_checkpoint(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the checkpoint of a config, as clients see it, or None."""
    configurable = (config or {}).get("configurable", {})
    return {key: configurable[key] for key in _CHECKPOINT_KEYS if key in configurable} or None


def _convert_debug_event(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the checkpoints of a debug event as the rest of the API does."""
    step = payload["payload"]
    checkpoints = {
        "checkpoint": find_checkpoint(step["config"]),
        "parent_checkpoint": find_checkpoint(step["parent_config"]),
        "tasks": [_convert_debug_task(task) for task in step["tasks"]],
    }

    return {**payload, "payload": {**step, **checkpoints}}


def _convert_debug_task(task: dict[str, Any]) -> dict[str, Any]:
    """Replace the config that langgraph gives as the state of a subgraph's task by the checkpoint."""
    checkpoint = find_checkpoint(task["state"])
    if checkpoint is None:
        return task

    return {**{key: value for key, value in task.items() if key != "state"}, "checkpoint": checkpoint}
