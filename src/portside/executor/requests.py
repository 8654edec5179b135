"""The requests of an agent server to graphs, and the responses: requests, events, outcomes and descriptions.

All is plain data, so that the other side may be another process: values of a project's types are encoded as JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, NewType

STREAM_PROTOCOL = "__stream_protocol__"
"""The key in `configurable` of a run that was started over the event streaming protocol."""
INTERRUPT = "__interrupt__"
"""The key under which langgraph puts the interrupts of a run among its values and updates."""
INTERRUPT_IDS = "asked"
"""No method of the protocol. It carries the ids of a subgraph's interrupts, which the end of the run does not."""
UNKNOWN_INTERRUPT = "UnknownInterruptError"
"""The error of a run that answered an interrupt which is not open; older versions of langgraph do not know it."""
OTHER_LANGUAGE = "OtherLanguage"
"""The error of a run on a thread that a graph of another language has begun."""
Filter = NewType("Filter", dict[str, Any])
"""A checked condition on the metadata of a resource, in the form that the database function `matches_access` takes."""
Config = Any
"""A config of langgraph, as a plain dict."""


@dataclass(slots=True, kw_only=True)
class RunRequest:
    """One run of a graph, with the names and defaults of `RunsClient.create` in langgraph_sdk."""

    graph_id: str
    input: Any = None
    command: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    stream_modes: list[str] = field(default_factory=lambda: ["values"])
    stream_subgraphs: bool = False
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    durability: Literal["sync", "async", "exit"] = "async"
    strict_resume: bool = False
    """Fail if the command answers an interrupt that is not open, instead of ignoring the answer."""
    tracer: dict[str, Any] | None = None
    """The tracing project and the dataset example of the run, if tracing is on."""
    attempt: int = 1
    is_ephemeral: bool = False
    """The thread was created for this attempt, and is deleted when the run ends: it has no checkpoints to read."""
    is_suspect: bool = False
    """An executor crashed during an earlier attempt: it has one for itself."""
    resume: bool = False
    """An earlier attempt wrote a checkpoint: continue from it, without the input or the command."""
    max_event_bytes: int = 0
    """A larger event, or a larger result, ends the run with an error; 0 is no limit."""


class Emitted(NamedTuple):
    """An event of a run as clients receive it: its name and its JSON."""

    event: str
    data: bytes


class LifecycleEvent(StrEnum):
    """What the channel `lifecycle` of the event streaming protocol says of a graph."""

    # The graph of a run begins, or a subgraph of it.
    RUNNING = "running"
    STARTED = "started"
    # How it ends. An interrupted graph waits for an answer.
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    values: bytes | None
    """The JSON of the final values, with `__interrupt__` if interrupts are open; None if a failed run has none."""
    row_values: bytes | None = None
    """The JSON of the values without the long lists that are in the last checkpoint; None if it has none."""
    long_values: dict[str, str] | None = None
    """The versions of those lists in the checkpoint, by their keys."""
    interrupts: dict[str, list[dict[str, Any]]]
    """The open interrupts by task id: `{id, value}`, and `response_schema` if the graph gives one."""
    has_next: bool
    """Whether the graph stopped before its end without a failure: the thread is interrupted."""
    error: dict[str, str] | None
    """The class and the message of the exception that ended the run, as `{error, message}`."""
    is_refused: bool = False
    """The run failed before it changed anything, so the thread keeps its state."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The description of a graph that needs no opened graph."""

    description: str | None = None
    """The description in the configuration."""
    is_factory: bool = False
    """Whether a function of the project makes the graph for each use."""
    is_fixed: bool = False
    """Whether it is not a factory, and its class computes states from its checkpoints alone."""
    language: str = "Python"
    """The language that it is written in. Threads cannot go from one language to another."""


@dataclass(slots=True, kw_only=True)
class DescriptionRequest:
    """A graph to describe, opened with an assistant's configuration."""

    graph_id: str
    config: Config
    context: dict[str, Any] | None = None
    xray: int | bool = 0
    """How many levels of subgraphs a drawing shows; True is all of them."""
    namespace: str | None = None
    """The subgraph to return; None for all."""
    recurse: bool = False
    """Whether to return the subgraphs of subgraphs."""


@dataclass(slots=True)
class Drawing:
    """A graph's nodes and edges."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


@dataclass(slots=True)
class Schemas:
    """The JSON schemas of a graph's input, output, state and configuration; null if there is none."""

    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


@dataclass(slots=True, kw_only=True)
class StateRead:
    """The state of a thread to read: the one that the config names, or the latest."""

    graph_id: str
    config: Config
    checkpoint: Any = None
    """The row of that checkpoint by its columns; None if there is none."""
    subgraphs: bool = False
    without_checkpoint: dict[str, Any] = field(default_factory=dict)
    """Fields of a state that has no checkpoint."""
    select: list[str] | None = None
    """The fields to return, all if there are none; `values.<key>` is one key of the values."""


@dataclass(slots=True, kw_only=True)
class HistoryRead:
    """States of a thread to read, newest first. `before` names a checkpoint; `filter` is matched with the metadata."""

    graph_id: str
    config: Config
    limit: int
    before: Any = None
    filter: dict[str, Any] | None = None
    select: list[str] | None = None


@dataclass(slots=True, kw_only=True)
class StateChange:
    """A state to change, as if a node had returned these values."""

    graph_id: str
    config: Config
    values: Any
    as_node: str | None = None


@dataclass(slots=True, kw_only=True)
class StateCreation:
    """The state of a new thread, made of the steps of another: lists of `{values, as_node, command}`.

    Or its whole history, made of the states of a thread at another server.
    """

    graph_id: str
    config: Config
    supersteps: list[list[dict[str, Any]]]
    history: list[dict[str, Any]] | None = None


@dataclass(slots=True, kw_only=True)
class ChangedState:
    """A thread's latest state after a change."""

    checkpoint: dict[str, Any]
    """The new checkpoint; empty for a new thread."""
    values: bytes
    """The JSON of the values."""
    has_next: bool
    interrupts: dict[str, list[dict[str, Any]]]
    """The open interrupts by task id, as plain data."""
    row_values: bytes | None = None
    """The JSON of the values that the thread's row keeps, without the lists that `long_values` names; else None."""
    long_values: dict[str, str] | None = None


def select_fields(state: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Return the selected fields of a state, all if none are selected; `values.<key>` selects one key of the values."""
    if not fields:
        return state

    selected = {field: state[field] for field in fields if field in state}
    keys = [field.removeprefix("values.") for field in fields if field.startswith("values.")]
    if keys and "values" not in fields:
        values = state["values"] if isinstance(state["values"], dict) else {}
        selected["values"] = {key: values[key] for key in keys if key in values}

    return selected
