"""The states and the descriptions of graphs in executor processes."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import orjson
from cachetools import LRUCache

from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.executors.executor_calls import ExecutorCalls
from portside.agent.executors.graph_cache import GraphCache
from portside.agent.executors.member import ExecutorFailed
from portside.agent.executors.serving import Scopes
from portside.executor import messages
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.link import LinkClosed
from portside.executor.messages import GraphCall
from portside.executor.requests import (
    ChangedState,
    DescriptionRequest,
    Drawing,
    GraphFacts,
    HistoryRead,
    Schemas,
    StateChange,
    StateCreation,
    StateRead,
)
from portside.kernel.errors import Unavailable

KEPT_DESCRIPTIONS = 256
T = TypeVar("T")


class RemoteStates:
    """Reads and changes states in executors. A change writes through this server, in the transaction of its scope."""

    def __init__(self, calls: ExecutorCalls, writer: CheckpointWriter, scopes: Scopes) -> None:
        self.facts: Mapping[str, GraphFacts] = calls.pool.facts
        self.writer = writer
        self._calls = calls
        self._scopes = scopes

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        if read.checkpoint is not None:
            read.checkpoint = dict(read.checkpoint)

        state: bytes | None = messages.expect(bytes | None, await self._calls.call("read_state", read))
        return state

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        states: bytes = messages.expect(bytes, await self._calls.call("read_history", read))
        return states

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        fields = await self._change(messages.UPDATE_STATE, change, scope)
        return None if fields is None else messages.read(ChangedState, fields)

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        return messages.read(ChangedState, await self._change(messages.CREATE_STATE, creation, scope))

    async def _change(self, method: str, change: StateChange | StateCreation, scope: CheckpointBackend) -> Any:
        number = self._scopes.open(scope)
        try:
            async with self._calls.pool.for_call() as executor:
                try:
                    return await executor.unless_silent(
                        self._calls.call_one(executor, method, GraphCall(request=change, scope=number))
                    )
                except ExecutorFailed as exc:
                    raise Unavailable(f"the graph's executor {exc}") from exc
                except LinkClosed as exc:
                    # Not repeated: the transaction may hold a part of the change already. The caller rolls it back.
                    raise Unavailable(f"the graph's executor {await executor.wait_ended()}") from exc
        finally:
            self._scopes.close(number)


class RemoteDescriptions:
    """Describes graphs in executors. A graph that is no factory never changes, so its descriptions are cached."""

    def __init__(self, calls: ExecutorCalls, cache: GraphCache | None = None) -> None:
        self._calls = calls
        self._facts: Mapping[str, GraphFacts] = calls.pool.facts
        self._libraries: Mapping[str, str] = calls.pool.libraries
        self._cache = cache or GraphCache(None)
        self._descriptions: LRUCache[tuple[str, bytes], Any] = LRUCache(KEPT_DESCRIPTIONS)
        self._descriptions.update(self._cache.descriptions)
        self._keep()

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        return await self._describe("draw", request, partial(messages.read, Drawing))

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        return await self._describe("schemas", request, partial(messages.read, Schemas))

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        return await self._describe("subgraphs", request, _read_schemas_by_name)

    async def _describe(self, method: str, request: DescriptionRequest, read: Callable[[Any], T]) -> T:
        facts = self._facts.get(request.graph_id)
        if facts is None or facts.is_factory:
            return read(await self._calls.call(method, request))

        key = (method, orjson.dumps((request.graph_id, request.xray, request.namespace, request.recurse)))
        if key not in self._descriptions:
            description = await self._calls.call(method, request)
            # Not kept if it cannot be read.
            read(description)
            self._descriptions[key] = description
            self._keep()

        return read(copy.deepcopy(self._descriptions[key]))

    def _keep(self) -> None:
        self._cache.save(self._facts, self._libraries, self._descriptions)


def _read_schemas_by_name(description: Any) -> dict[str, Schemas]:
    schemas_by_name = messages.expect(dict[str, Schemas], description)
    return {name: messages.read(Schemas, schemas) for name, schemas in schemas_by_name.items()}
