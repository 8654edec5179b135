"""Reading the state of a thread, and caching what was read (docs/why/state-reads.md).

One statement returns the thread's graph, the version of its checkpoint, and the checkpoint itself unless the version is
that of a cached state. Only self-contained states are cached: the latest state of a graph that is not built again for
each use. A cached state always equals a freshly computed one. Nothing that is encrypted at rest is cached.
"""

from typing import Any
from uuid import UUID

from portside.agent.graphs import GraphStates
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.state_cache import CachedState, StateCache, StateKey
from portside.agent.threads.state_loader import StateLoader, StateRequest, StoredState
from portside.agent.types.access import Caller, auth_configurable
from portside.agent.types.threads import Checkpoint, StateAtCheckpoint
from portside.executor.requests import StateRead, select_fields
from portside.kernel.db import Database
from portside.kernel.errors import NotFound
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
