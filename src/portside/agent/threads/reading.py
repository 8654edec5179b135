"""Reading the state of a thread, and caching what was read (docs/why/state-reads.md).

One statement returns the thread's graph, the version of its checkpoint, and the checkpoint itself unless the version is
that of a cached state. Only self-contained states are cached: the latest state of a graph that is not built again for
each use. A cached state always equals a freshly computed one. Nothing that is encrypted at rest is cached.
"""

from typing import Any, NamedTuple
from uuid import UUID

from cachetools import LRUCache

from portside.agent.graphs import GraphStates
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller, auth_configurable
from portside.agent.types.states import Checkpoint, StateAtCheckpoint
from portside.executor.requests import StateRead, select_fields
from portside.kernel.batching import Batcher
from portside.kernel.db import Database, Record
from portside.kernel.errors import NotFound
from portside.kernel.large_reads import ReadReservation, ReservationNeeded, set_current_read
from portside.kernel.user_json import dump_user

LATEST = Checkpoint()
# The keys that the server writes into a run's configurable: they belong to that run and its caller.
_OF_THE_RUN = frozenset(
    {
        "run_id",
        "checkpoint_id",
        "checkpoint_ns",
        "checkpoint_map",
        "langgraph_auth_user",
        "langgraph_auth_user_id",
        "langgraph_auth_permissions",
        "langgraph_request_id",
    }
)
_EMPTY: dict[str, Any] = {
    "values": {},
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": [],
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}
# The memory that a cached state takes beside its texts.
ENTRY_BYTES = 1000
# One state may take an eighth of the cache.
LARGEST_SHARE = 8
# Concurrent statements. Most version checks return no checkpoint, so a single statement answers all that wait, which
# costs Postgres half of what two would. Full reads may return much and should not wait for each other.
CONCURRENT_VERSION_CHECKS = 1
CONCURRENT_FULL_READS = 2
# Checkpoints may be large, and those of one statement are in memory together.
MAX_BATCH = 16
MAX_BATCH_BYTES = 8_000_000


class StateRequest(NamedTuple):
    """The checkpoint to read, the latest unless one is named, and the version that the caller has cached."""

    thread_id: UUID
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    cached_version: str | None = None


class StoredState(NamedTuple):
    """The stored state of a thread: its graph, and its checkpoint with a version.

    The version changes whenever the checkpoint, its pending writes or the graph do; it is None for a state that
    depends on other checkpoints as well. `row` is None if the caller has cached this version, and if there is no such
    checkpoint.
    """

    graph_id: str | None
    version: str | None
    row: Record | None


class CheckpointNotFound(NotFound):
    """The thread has no checkpoint with this id."""

    code = "checkpoint_not_found"

    @classmethod
    def of(cls, thread_id: UUID, checkpoint_id: str) -> "CheckpointNotFound":
        """Name the checkpoint and the thread."""
        return cls(f"Checkpoint {checkpoint_id} of thread {thread_id} not found")


class StateReader:
    """Reads states for all callers on one event loop."""

    def __init__(self, db: Database, graphs: GraphStates, cache_bytes: int) -> None:
        self._db = db
        self._graphs = graphs
        self._loader = StateLoader(db)
        self._cache = StateCache(0 if db.codec is not None else cache_bytes)

    async def read_json(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller) -> bytes:
        """Return the JSON of a state, from the cache if the database still has the version it was computed from."""
        # No version in the database covers what a run of this process has not written yet, so that is checked first.
        is_latest = query.checkpoint == LATEST and not query.subgraphs
        if not is_latest or self._graphs.writer.is_buffering(thread_id):
            return await self._read(thread_id, query, caller)

        key = StateKey(thread_id.int, tuple(query.select) if query.select else None, caller.identity)
        cached = self._cache.get(key, caller.user)
        stored_state = await self._load(StateRequest(thread_id, cached_version=cached and cached.version))
        if cached is not None and stored_state.version == cached.version:
            return cached.body

        body = await self._build_state(thread_id, query, caller, stored_state)
        facts = self._graphs.facts.get(stored_state.graph_id or "")
        is_fixed = facts is not None and facts.is_fixed
        if is_fixed and stored_state.row is not None and stored_state.version is not None:
            self._cache.put(key, CachedState(stored_state.version, caller.user, body))
        else:
            self._cache.drop(key)

        return body

    async def _read(self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller) -> bytes:
        at = query.checkpoint
        if self._graphs.writer.is_buffering(thread_id):
            await self._graphs.writer.flush(thread_id)

        stored_state = await self._load(StateRequest(thread_id, at.checkpoint_ns or "", at.checkpoint_id or None))
        return await self._build_state(thread_id, query, caller, stored_state)

    async def get_config(self, thread_id: UUID, graph_id: str, at: Checkpoint | None, caller: Caller) -> Any:
        """Return the config that opens a thread's graph at a checkpoint.

        A factory builds its graph from the config, so it gets that of the thread's last run, else its assistant's.
        """
        config = build_config(thread_id, at, caller)
        facts = self._graphs.facts.get(graph_id)
        if facts is None or not facts.is_factory:
            return config

        base = await self._find_config_of_last_run(thread_id) or await self._get_config_of_assistant(thread_id)
        configurable = {
            name: value
            for name, value in base.get("configurable", {}).items()
            if name not in _OF_THE_RUN and not name.startswith("__")
        }

        return {**base, "configurable": configurable | config["configurable"]}

    async def _find_config_of_last_run(self, thread_id: UUID) -> dict[str, Any] | None:
        row = await self._db.fetchrow(
            sql.list_runs,
            thread_id=thread_id,
            status=None,
            with_metadata=False,
            with_kwargs=True,
            limit=1,
            offset=0,
        )
        return None if row is None else row["kwargs"].get("config")

    async def _get_config_of_assistant(self, thread_id: UUID) -> dict[str, Any]:
        row = await self._db.fetchrow(sql.assistant_of_thread, thread_id=thread_id)
        if row is None:
            return {}

        configurable = {**row["config"].get("configurable", {}), **row["context"]}
        return {**row["config"], "configurable": configurable}

    async def _load(self, request: StateRequest) -> StoredState:
        state = await self._loader.load(request)
        if state is None:
            raise ThreadNotFound.of(request.thread_id)

        return state

    async def _build_state(
        self, thread_id: UUID, query: StateAtCheckpoint, caller: Caller, stored_state: StoredState
    ) -> bytes:
        at = query.checkpoint
        without_checkpoint = dict[str, Any]()

        if at.thread_id:
            # RemoteGraph always names the thread, and accepts None for neither the checkpoint nor its metadata.
            checkpoint = {"thread_id": str(thread_id), "checkpoint_ns": at.checkpoint_ns or "", "checkpoint_id": None}
            without_checkpoint = {"checkpoint": checkpoint, "metadata": {}}

        state: bytes | None = None
        if stored_state.graph_id is not None:
            request = StateRead(
                graph_id=stored_state.graph_id,
                config=await self.get_config(thread_id, stored_state.graph_id, at, caller),
                checkpoint=stored_state.row,
                subgraphs=bool(query.subgraphs),
                without_checkpoint=without_checkpoint,
                select=query.select,
            )
            state = await self._graphs.read_state(request)
        elif not at.checkpoint_id:
            state = dump_user(select_fields(_EMPTY | without_checkpoint, query.select))

        if state is None:
            raise CheckpointNotFound.of(thread_id, at.checkpoint_id or "")

        return state


def build_config(thread_id: UUID, at: Checkpoint | None, caller: Caller) -> Any:
    """Return the config that names a checkpoint and the caller to a graph."""
    configurable: dict[str, Any] = {"thread_id": str(thread_id), "checkpoint_ns": (at and at.checkpoint_ns) or ""}
    if at is not None and at.checkpoint_id:
        configurable["checkpoint_id"] = at.checkpoint_id
    if at is not None and at.checkpoint_map:
        configurable["checkpoint_map"] = at.checkpoint_map

    return {"configurable": configurable | auth_configurable(caller)}


async def get_graph_id(db: Database, thread_id: UUID) -> str | None:
    """Return the graph that a thread belongs to; None before its first run. Raises ThreadNotFound."""
    row = await db.fetchrow(sql.graph_of_thread, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound.of(thread_id)

    graph_id: str | None = row["graph_id"]
    return graph_id


class StateLoader:
    """Loads checkpoints, in batches, for all callers on one event loop."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version_checks: Batcher[StateRequest, StoredState | None] = Batcher(
            self._fetch_batch, max_concurrent=CONCURRENT_VERSION_CHECKS, max_batch=MAX_BATCH
        )
        self._full_reads: Batcher[StateRequest, StoredState | None] = Batcher(
            self._fetch_batch, max_concurrent=CONCURRENT_FULL_READS, max_batch=MAX_BATCH
        )

    async def load(self, request: StateRequest) -> StoredState | None:
        """Return what is stored; None if there is no such thread."""
        if self._db.codec is not None:
            # A thread that cannot be decrypted must not fail the others of a batch.
            return await self._fetch_alone(request)

        batcher = self._full_reads if request.cached_version is None else self._version_checks
        try:
            return await batcher.submit(request)
        except ReservationNeeded:
            # The batch is too large: read alone, on the memory budget of this request.
            return await self._fetch_alone(request)

    async def _fetch_alone(self, request: StateRequest) -> StoredState | None:
        (state,) = await self._fetch([request])
        return state

    async def _fetch_batch(self, requests: list[StateRequest]) -> list[StoredState | None]:
        set_current_read(ReadReservation(None, MAX_BATCH_BYTES))
        return await self._fetch(requests)

    async def _fetch(self, requests: list[StateRequest]) -> list[StoredState | None]:
        # Several clients often watch the same thread.
        places = {request: place for place, request in enumerate(dict.fromkeys(requests), 1)}
        rows = await self._db.fetch(
            sql.read_states,
            thread_ids=[request.thread_id for request in places],
            namespaces=[request.checkpoint_ns for request in places],
            checkpoint_ids=[request.checkpoint_id for request in places],
            known=[request.cached_version for request in places],
        )

        states: dict[int, StoredState] = {}
        for row in rows:
            checkpoint = row if row["checkpoint_id"] is not None else None
            states[row["place"]] = StoredState(row["graph_id"], row["state_version"], checkpoint)

        return [states.get(places[request]) for request in requests]


class StateKey(NamedTuple):
    """The key of a cached state: its thread, its fields, and the caller's identity, as a graph may depend on the user.

    The thread's id is a number: `UUID` compares and hashes in Python, three times for each look into the cache.
    """

    thread_id: int
    select: tuple[str, ...] | None
    identity: str


class CachedState(NamedTuple):
    """The JSON of a state, the version it was computed from, and the user it was computed for."""

    version: str
    user: Any
    body: bytes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return ENTRY_BYTES + len(self.version) + len(self.body)


class StateCache:
    """The most recently used states, up to a number of bytes in all."""

    def __init__(self, max_bytes: int) -> None:
        self._states: LRUCache[StateKey, CachedState] = LRUCache(max_bytes, getsizeof=lambda state: state.size)

    @property
    def size(self) -> int:
        """How many bytes the states take."""
        return int(self._states.currsize)

    def get(self, key: StateKey, user: Any) -> CachedState | None:
        """Return the state for a key, unless it was computed for another user."""
        # Not `get`, which looks for the key one more time.
        try:
            state = self._states[key]
        except KeyError:
            return None

        return state if state.user == user else None

    def put(self, key: StateKey, state: CachedState) -> None:
        """Cache a state in place of the earlier one of this key; one that is too large is not cached."""
        self.drop(key)
        if state.size * LARGEST_SHARE <= self._states.maxsize:
            self._states[key] = state

    def drop(self, key: StateKey) -> None:
        """Remove the state for a key, if there is one."""
        self._states.pop(key, None)
