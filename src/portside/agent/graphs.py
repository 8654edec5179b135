"""The graphs, as the rest of the agent server uses them: an interface, and its implementation in this process.

Graphs run on event loops in threads of their own, away from the loop that answers requests. A node that blocks its loop
delays neither `/ok` nor the leases of this worker's runs. All runs share one graph loop, because agents may hold
clients that were made at import time; with BG_JOB_ISOLATED_LOOPS each concurrent run gets its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from langgraph.store.base import BaseStore

from portside.agent.checkpoints.saver import PostgresSaver
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.streams.buffers import ThreadBridge
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.execute import execute
from portside.executor.load import Graphs
from portside.executor.loops import GraphLoop
from portside.executor.operations import GraphOperations
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
from portside.kernel.db import Database

CLOSED_WITHIN_S = 3.0
Publish = Callable[[list[tuple[str, bytes]]], None]
MakeStore = Callable[[Database], Awaitable[BaseStore]]


class EventSink(NamedTuple):
    """Receives the events of a run.

    `publish` takes events. `flush` is called before checkpoints are written, and what it returns is awaited. Both are
    called on the loop that executes the run for its caller. `has_listeners` is called in any thread: without listeners
    a run that ends quickly publishes nothing.
    """

    publish: Publish
    flush: Callable[[], Awaitable[None] | None] = lambda: None
    has_listeners: Callable[[], bool] = lambda: True


class GraphService(Protocol):
    """What the agent server asks of graphs: plain data in and out (`executor/requests.py`)."""

    facts: Mapping[str, GraphFacts]
    """What is known of each graph without opening it, in the order of the configuration."""
    writer: CheckpointWriter
    """Writes the checkpoints that graphs make; it belongs to the loop of the callers."""

    @property
    def pools(self) -> Sequence[Any]:
        """The pools of executors behind it, which executors on other machines may join."""
        ...

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph to its end, publishing its events on the calling loop. An error is not an event.

        Raises RunTimeout, and Invalid for an invalid command.
        """
        ...

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        ...

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

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        ...

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        ...

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        ...

    async def close(self) -> None:
        """Release what the graphs run on."""
        ...


class LocalGraphs:
    """The graphs in this process, on loops of their own. The methods are those of `GraphService`."""

    def __init__(self, graphs: Graphs, loops: list[GraphLoop], db: Database, saver: PostgresSaver) -> None:
        self.facts: Mapping[str, GraphFacts] = graphs.facts()
        self._graphs = graphs
        self._operations = GraphOperations(graphs)
        self.writer = saver.writer
        self.pools: Sequence[Any] = ()
        self._loops = loops
        self._db = db

    @classmethod
    async def start(
        cls,
        graphs: Graphs,
        connect: Callable[[], Awaitable[Database]],
        *,
        loops: int = 1,
        make_saver: Callable[[Database], PostgresSaver],
        make_store: MakeStore | None = None,
    ) -> "LocalGraphs":
        """Start the graph loops, and on the first of them connect the graphs' database, checkpointer and store.

        The checkpoint writer belongs to the calling loop. Raises UserMistake when the database cannot be reached.
        """
        first = GraphLoop("graphs-0")

        async def prepare() -> tuple[Database, PostgresSaver, BaseStore | None]:
            db = await connect()
            return db, make_saver(db), await make_store(db) if make_store else None

        db, saver, store = await first.call(prepare())
        others = [GraphLoop(f"graphs-{number}") for number in range(1, loops)]
        return cls(graphs.attach(saver, store), [first, *others], db, saver)

    @property
    def database(self) -> Database:
        """The connections of the graphs."""
        return self._db

    def replace_connections(self) -> None:
        """Replace the graphs' connections before their next use. Any thread may call this."""
        self._loops[0].call_soon(self._db.replace_connections)

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph on the loop with the fewest runs."""
        bridge: ThreadBridge[tuple[str, bytes]] = ThreadBridge(
            sink.publish, lambda event: len(event[1]), sink.has_listeners
        )
        loop = min(self._loops, key=lambda candidate: candidate.load)
        try:
            return await loop.call(execute(self._graphs, request, bridge.push, timeout_s))
        finally:
            bridge.close()

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        return await self._loops[0].call(self._operations.read_outcome(request))

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        return await self._loops[0].call(self._operations.read_state(read))

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        return await self._loops[0].call(self._operations.read_history(read))

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        return await self._loops[0].call(self._operations.update_state(change, scope))

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        return await self._loops[0].call(self._operations.create_state(creation, scope))

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        return await self._loops[0].call(self._operations.draw(request))

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        return await self._loops[0].call(self._operations.schemas(request))

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        return await self._loops[0].call(self._operations.subgraphs(request))

    async def close(self) -> None:
        """Close the database and stop the loops; threads that user code blocks are left behind."""
        await asyncio.wait([asyncio.create_task(self._loops[0].call(self._db.close()))], timeout=CLOSED_WITHIN_S)
        for loop in self._loops:
            loop.close()
