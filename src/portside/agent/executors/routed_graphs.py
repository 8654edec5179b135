"""Graphs behind several services: each call goes to the service that has the graph, or the revision, of its request."""

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from portside.agent.graphs import EventSink, GraphDescriptions, GraphRuns, GraphService, GraphStates
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

GraphRequest = RunRequest | StateRead | HistoryRead | StateChange | StateCreation | DescriptionRequest
FindGraphs = Callable[[GraphRequest], Awaitable[GraphService]]


class RoutedRuns:
    """Executes each run with the service that `begin` returns for it, and reads what it left with that of `find`."""

    def __init__(
        self, graphs: GraphService, *, begin: Callable[[RunRequest], Awaitable[GraphService]], find: FindGraphs
    ) -> None:
        self.facts = graphs.facts
        self.writer = graphs.writer
        self._begin = begin
        self._find = find

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph to its end. Raises what its service raises."""
        graphs = await self._begin(request)
        return await graphs.runs.execute(request, sink, timeout_s=timeout_s)

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        graphs = await self._find(request)
        return await graphs.runs.read_outcome(request)


class RoutedStates:
    """Reads and changes each state with the service that `find` returns for it."""

    def __init__(self, graphs: GraphService, *, find: FindGraphs) -> None:
        self.facts = graphs.facts
        self.writer = graphs.writer
        self._find = find

    async def read_state(self, read: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        graphs = await self._find(read)
        return await graphs.states.read_state(read)

    async def read_history(self, read: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        graphs = await self._find(read)
        return await graphs.states.read_history(read)

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        graphs = await self._find(change)
        return await graphs.states.update_state(change, scope)

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        graphs = await self._find(creation)
        return await graphs.states.create_state(creation, scope)


class RoutedDescriptions:
    """Describes each graph with the service that `find` returns for it."""

    def __init__(self, find: FindGraphs) -> None:
        self._find = find

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        graphs = await self._find(request)
        return await graphs.descriptions.draw(request)

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        graphs = await self._find(request)
        return await graphs.descriptions.schemas(request)

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        graphs = await self._find(request)
        return await graphs.descriptions.subgraphs(request)


class GraphsByLanguage:
    """A `GraphService` whose graphs are of several languages, each behind a service of its own."""

    def __init__(self, *services: GraphService) -> None:
        self._services = services
        self.pools: Sequence[Any] = [pool for service in services for pool in service.pools]
        self.writer = services[0].writer

        # The maps of the services themselves, which change with each executor that starts.
        libraries = [cast("dict[str, str]", service.libraries) for service in services]
        facts = [cast("dict[str, GraphFacts]", service.facts) for service in services]
        self.libraries: Mapping[str, str] = ChainMap(*libraries)
        self.facts: Mapping[str, GraphFacts] = ChainMap(*facts)

        self.runs: GraphRuns = RoutedRuns(self, begin=self._find, find=self._find)
        self.states: GraphStates = RoutedStates(self, find=self._find)
        self.descriptions: GraphDescriptions = RoutedDescriptions(self._find)

    async def _find(self, request: GraphRequest) -> GraphService:
        """Return the service of a request's graph. For an unknown graph it is the first one, which raises the error."""
        matches = (service for service in self._services if request.graph_id in service.facts)
        return next(matches, self._services[0])

    async def close(self) -> None:
        """Close all services."""
        await asyncio.gather(*(service.close() for service in self._services))
