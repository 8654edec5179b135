"""The graphs of this process, with the checkpointer and the store that they see.

Graphs run on event loops in threads of their own, away from the loop that answers requests. A node that blocks its loop
delays neither `/ok` nor the leases of this worker's runs. All runs share one graph loop, because agents may hold
clients that were made at import time; with BG_JOB_ISOLATED_LOOPS each concurrent run gets its own.

Each call of the store is a statement on a connection of its own: a slow embedding of one run delays no other, and an
error stays with its call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from portside.agent.checkpoints.backend import PostgresBackend
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import AgentConfig
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.graphs import EventSink
from portside.agent.settings import AgentSettings
from portside.agent.store import operations
from portside.agent.store.items import Items, get_ttl_config
from portside.agent.store.operations import run_batch
from portside.agent.store.search_index import StoreSetup
from portside.agent.streams.buffers import ThreadBridge, size_of_event
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.checkpoints.saver import Checkpointer
from portside.executor.checkpoints.serde import SerdeRules, make_serde
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
from portside.executor.versions import installed_libraries
from portside.kernel.codec import load
from portside.kernel.db import Database, Record, Session

CLOSED_WITHIN_S = 3.0
MakeStore = Callable[[Database], Awaitable[BaseStore]]
_METHODS = {GetOp: "get", SearchOp: "search", PutOp: "put", ListNamespacesOp: "list_namespaces"}


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


class PostgresStore(BaseStore):
    """Keeps items in Postgres. Create it on the event loop of its database."""

    supports_ttl = True

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        self._items = Items(db, setup)
        self._loop = asyncio.get_running_loop()
        self.ttl_config = cast("TTLConfig | None", get_ttl_config(setup))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run several operations; reads see the state before the batch. Raises ValueError and EmbeddingFailed."""
        work = self._do(list(ops))
        if asyncio.get_running_loop() is self._loop:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `abatch` from another thread. Raises InvalidStateError on the loop that would have to run it."""
        operations = list(ops)
        self._refuse_own_loop(operations)
        return asyncio.run_coroutine_threadsafe(self._do(operations), self._loop).result()

    async def _do(self, ops: Sequence[Op]) -> list[Result]:
        try:
            return await run_batch(
                ops,
                (
                    (GetOp, self._get),
                    (SearchOp, self._search),
                    (ListNamespacesOp, self._items.list_namespaces),
                    (PutOp, self._put),
                ),
            )
        except operations.InvalidNamespaceError as exc:
            raise InvalidNamespaceError(str(exc)) from exc

    # langgraph's operations have the same fields as those of `store.operations`, so they are passed on unchanged.
    async def _get(self, ops: Any) -> list[Any]:
        return [to_item(row) if row else None for row in await self._items.get(ops)]

    async def _search(self, ops: Any) -> list[Any]:
        return [[to_search_item(row) for row in rows] for rows in await self._items.search(ops)]

    async def _put(self, ops: Any) -> list[Any]:
        await self._items.write(ops)
        return [None] * len(ops)

    def _refuse_own_loop(self, ops: Sequence[Op]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return

        if here is self._loop:
            method = "batch"
            if len(ops) == 1:
                is_deletion = isinstance(ops[0], PutOp) and ops[0].value is None
                method = "delete" if is_deletion else _METHODS.get(type(ops[0]), "batch")

            # langgraph's own stores raise the same error with the same words.
            raise asyncio.InvalidStateError(
                "Synchronous calls to PostgresStore detected in the main event loop. This can lead to deadlocks or "
                "performance issues. Please use the asynchronous interface for main thread operations. "
                f"Specifically, replace `store.{method}(...)` with `await store.a{method}(...)`"
            )


def build_store_factory(setup: StoreSetup) -> Callable[[Database], Coroutine[Any, Any, BaseStore]]:
    """Return a factory for the graphs' store, to be called on the loop of the graphs."""

    async def make(db: Database) -> BaseStore:
        if setup.index is not None:
            setup.index.embedder.use_running_loop()
        return PostgresStore(db, setup)

    return make


def to_item(row: Record) -> Item:
    """Return langgraph's item of a row."""
    return Item(**_item_fields(row))


def to_search_item(row: Record) -> SearchItem:
    """Return langgraph's search result of a row."""
    return SearchItem(**_item_fields(row), score=row["score"])


def _item_fields(row: Record) -> dict[str, Any]:
    return {
        "namespace": tuple(row["namespace"]),
        "key": row["key"],
        "value": load(row["value"]),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


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
    """The graphs in this process, on loops of their own. The methods are those of `GraphService`."""

    def __init__(self, graphs: Graphs, loops: list[GraphLoop], db: Database, saver: PostgresSaver) -> None:
        self.facts: Mapping[str, GraphFacts] = graphs.facts()
        self.libraries: Mapping[str, str] = installed_libraries()
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
        """Close the database and stop the loops, without waiting for threads that user code blocks."""
        await asyncio.wait([asyncio.create_task(self._loops[0].call(self._db.close()))], timeout=CLOSED_WITHIN_S)
        for loop in self._loops:
            loop.close()
