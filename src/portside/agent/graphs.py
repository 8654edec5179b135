"""The graphs, as the rest of the agent server uses them: interfaces of plain data (`executor/requests.py`).

`local_graphs` has the graphs of this process, `executors` those of other processes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.queue.active_run import ActiveRun
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.requests import (
    ChangedState,
    DescriptionRequest,
    Drawing,
    GraphFacts,
    HistoryRead,
    Outcome,
    RunRequest,
    Schemas,
    StateChange,
    StateCreation,
    StateRead,
)

Publish = Callable[[list[tuple[str, bytes]]], None]


class EventSink(NamedTuple):
    """Receives the events of a run."""

    publish: Publish
    """Takes events, on the event loop of the caller."""
    flush: Callable[[], Awaitable[None] | None] = lambda: None
    """Called before checkpoints are written, on the event loop of the caller; its result is awaited."""
    has_listeners: Callable[[], bool] = lambda: True
    """May be called in any thread. Without listeners a run that ends quickly publishes nothing."""
    run: ActiveRun | None = None
    """Tells executors when the run's lease ends."""
    is_private: bool = False
    """Whether only the client that waits for the result knows of the run.

    Then its values become events only once somebody listens.
    """


class GraphService(Protocol):
    """The graphs of an agent server: what is known of them, and three things to do with them."""

    facts: Mapping[str, GraphFacts]
    """The description of each graph, which needs no opened graph, in the order of the configuration."""
    libraries: Mapping[str, str]
    """The versions of the graphs' libraries by the names of packages."""
    writer: CheckpointWriter
    """Writes the checkpoints that graphs make; use it on the event loop of the callers."""
    pools: Sequence[Any]
    """The pools of executors behind it, which executors on other machines may join."""

    runs: "GraphRuns"
    states: "GraphStates"
    descriptions: "GraphDescriptions"

    async def close(self) -> None:
        """Release the loops or executors of the graphs."""
        ...


class GraphRuns(Protocol):
    """Executes runs."""

    facts: Mapping[str, GraphFacts]
    writer: CheckpointWriter

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph to its end, publishing its events on the calling loop. An error is not an event.

        Raises RunTimeout, and Invalid for an invalid command.
        """
        ...

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        ...


class GraphStates(Protocol):
    """Reads and changes the states of threads."""

    facts: Mapping[str, GraphFacts]
    writer: CheckpointWriter

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        ...

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        ...

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        ...

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        ...


class GraphDescriptions(Protocol):
    """Describes graphs, each opened with an assistant's configuration."""

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        ...

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        ...

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        ...
