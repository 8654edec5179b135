"""The graphs of this process, with the checkpointer and the store that they see.

Graphs run on event loops in threads of their own, away from the loop that answers requests. A node that blocks its loop
delays neither `/ok` nor the leases of this worker's runs. All runs share one graph loop, because agents may hold
clients that were made at import time; with BG_JOB_ISOLATED_LOOPS each concurrent run gets its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore

from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import AgentConfig
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.graphs import EventSink, GraphDescriptions, GraphRuns, GraphStates
from portside.agent.local_store import build_store_factory
from portside.agent.settings import AgentSettings
from portside.agent.store.search_index import StoreSetup
from portside.agent.streams.thread_bridge import ThreadBridge, size_of_event
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.checkpoints.saver import Checkpointer
from portside.executor.checkpoints.serde import SerdeRules, make_serde
from portside.executor.execute import execute
from portside.executor.graph_operations import GraphOperations
from portside.executor.load import Graphs
from portside.executor.loops import GraphLoop
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
from portside.executor.versions import list_installed_libraries
from portside.kernel.db import Database, Session

CLOSED_WITHIN_S = 3.0
MakeStore = Callable[[Database], Awaitable[BaseStore]]


class PostgresSaver(Checkpointer):
    """The checkpointer of graphs in this process."""

    def __init__(
        self,
        db: Session,
        *,
        serde: SerializerProtocol | None = None,
        encryptor: Encryptor | None = None,
        writer: CheckpointWriter | None = None,
    ) -> None:
        backend = PostgresBackend(db, encryptor=encryptor, writer=writer)
        super().__init__(backend, serde=serde)
        self.writer = backend.writer


async def start_local(
    graphs: Graphs,
    connect: Callable[[], Awaitable[Database]],
    config: AgentConfig,
    settings: AgentSettings,
    server: tuple[PostgresBackend, StoreSetup],
) -> "LocalGraphs":
    """Start the graphs of this process, beside the checkpoints and the store of the server.

    Raises UserMistake when the database cannot be reached.
    """
    backend, setup = server
    serde = make_serde(SerdeRules(**msgspec.structs.asdict(config.serde)))
    return await LocalGraphs.start(
        graphs,
        connect,
        loops=settings.slots if settings.bg_job_isolated_loops and settings.slots else 1,
        make_saver=partial(PostgresSaver, serde=serde, encryptor=backend.encryptor, writer=backend.writer),
        make_store=build_store_factory(setup),
    )


class LocalGraphs:
    """A `GraphService` with the graphs in this process, on loops of their own."""

    def __init__(self, graphs: Graphs, loops: list[GraphLoop], db: Database, saver: PostgresSaver) -> None:
        self.facts: Mapping[str, GraphFacts] = graphs.facts()
        self.libraries: Mapping[str, str] = list_installed_libraries()
        self.writer = saver.writer
        self.pools: Sequence[Any] = ()
        self._loops = loops
        self._db = db

        operations = GraphOperations(graphs)
        self.runs: GraphRuns = LocalRuns(graphs, operations, loops, self.writer)
        self.states: GraphStates = LocalStates(graphs, operations, loops[0], self.writer)
        self.descriptions: GraphDescriptions = LocalDescriptions(operations, loops[0])

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

    async def close(self) -> None:
        """Close the database and stop the loops, without waiting for threads that user code blocks."""
        await asyncio.wait([asyncio.create_task(self._loops[0].call(self._db.close()))], timeout=CLOSED_WITHIN_S)
        for loop in self._loops:
            loop.close()


class LocalRuns:
    """Executes runs on the loops."""

    def __init__(
        self, graphs: Graphs, operations: GraphOperations, loops: Sequence[GraphLoop], writer: CheckpointWriter
    ) -> None:
        self.facts: Mapping[str, GraphFacts] = graphs.facts()
        self.writer = writer
        self._graphs = graphs
        self._operations = operations
        self._loops = loops

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph on the loop with the fewest runs."""
        bridge = ThreadBridge(sink.publish, size_of_event, sink.has_listeners)
        is_followed = bridge.is_followed if sink.is_private else None
        loop = min(self._loops, key=lambda candidate: candidate.load)
        try:
            return await loop.call(execute(self._graphs, request, bridge.push, timeout_s, is_followed))
        finally:
            bridge.close()

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        return await self._loops[0].call(self._operations.read_outcome(request))


class LocalStates:
    """Reads and changes states on a loop."""

    def __init__(self, graphs: Graphs, operations: GraphOperations, loop: GraphLoop, writer: CheckpointWriter) -> None:
        self.facts: Mapping[str, GraphFacts] = graphs.facts()
        self.writer = writer
        self._operations = operations
        self._loop = loop

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        return await self._loop.call(self._operations.read_state(read))

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        return await self._loop.call(self._operations.read_history(read))

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        return await self._loop.call(self._operations.update_state(change, scope))

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        return await self._loop.call(self._operations.create_state(creation, scope))


class LocalDescriptions:
    """Describes graphs on a loop."""

    def __init__(self, operations: GraphOperations, loop: GraphLoop) -> None:
        self._operations = operations
        self._loop = loop

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        return await self._loop.call(self._operations.draw(request))

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        return await self._loop.call(self._operations.schemas(request))

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        return await self._loop.call(self._operations.subgraphs(request))
