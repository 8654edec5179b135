"""The graphs in executor processes: a `GraphService` whose calls go over links.

When an executor crashes, the attempts at its runs are lost. If a run had the process to itself, its attempt counts
against BG_JOB_MAX_RETRIES. Runs that shared the process return to the queue without that, because only one of them may
be the cause; the next attempt at each has a process to itself. Other calls are repeated with another executor.
"""

import asyncio
import contextvars
import copy
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import orjson
from cachetools import LRUCache

from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.executors.graph_cache import GraphCache
from portside.agent.executors.member import CallContext, Executor, ExecutorFailed
from portside.agent.executors.pool import ExecutorPool
from portside.agent.executors.serving import Scopes
from portside.agent.graphs import EventSink, GraphRequest, GraphService, RoutedGraphs
from portside.agent.queue.active_run import ActiveRun, AttemptLost
from portside.agent.streams.buffers import ThreadBridge, size_of_event
from portside.executor import messages
from portside.executor.checkpoints.backend import CheckpointBackend
from portside.executor.errors import RunTimeout, check_size, to_error
from portside.executor.link import CallFailed, LinkClosed
from portside.executor.messages import GraphCall
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
from portside.kernel.codec import load
from portside.kernel.errors import Unavailable
from portside.kernel.user_json import dump_user

if TYPE_CHECKING:
    from portside.executor.channels import Channels

ATTEMPTS_AT_A_CALL = 3
KEPT_DESCRIPTIONS = 256
USER = "langgraph_auth_user"
FOR_CHANNELS = "&"
"""Begins the names of events that are items of langgraph's stream, for the channels of the event streaming protocol."""


class StoppedEarly(Exception):
    """An executor stopped a run, because no message told it in time that the lease was renewed."""


class RemoteGraphs:
    """The graphs of this server's executors. The methods are those of `GraphService`."""

    def __init__(
        self, pool: ExecutorPool, writer: CheckpointWriter, scopes: Scopes, cache: GraphCache | None = None
    ) -> None:
        self.facts: Mapping[str, GraphFacts] = pool.facts
        self.libraries: Mapping[str, str] = pool.libraries
        self.writer = writer
        self.pools = [pool]
        self._pool = pool
        self._scopes = scopes
        self._numbers = count(1)

        # A graph that is no factory never changes, so its descriptions are cached and need no executor.
        self._cache = cache or GraphCache(None)
        self._descriptions: LRUCache[tuple[str, bytes], Any] = LRUCache(KEPT_DESCRIPTIONS)
        self._descriptions.update(self._cache.descriptions)
        self._keep()

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph in an executor. Raises RunTimeout, Invalid, and AttemptLost if the executor crashed."""
        bridge = ThreadBridge(sink.publish, size_of_event, sink.has_listeners)
        run_id = UUID(request.config["configurable"]["run_id"])
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with self._pool.for_run(run_id, request.attempt, is_alone=request.is_suspect) as executor:
                try:
                    call = GraphCall(request=request, timeout_s=timeout_s, is_unfollowed=not sink.has_listeners())
                    receiver = _EventReceiver(bridge, request.max_event_bytes)
                    work = self._call_one(executor, messages.EXECUTE, call, receiver.push, run=sink.run)
                    outcome = await executor.unless_silent(work, lambda: receiver.has_begun)
                except StoppedEarly as exc:
                    if sink.run is not None:
                        # This server would have stopped it a moment later, which cancels this task.
                        sink.run.lose()
                        await asyncio.sleep(0)

                    raise AttemptLost(str(exc), is_counted=False) from exc
                except ExecutorFailed as exc:
                    raise AttemptLost(f"its executor {exc}", is_counted=False) from exc
                except LinkClosed as exc:
                    attempt_lost = await self._lost(executor)
                    raise RunTimeout() if began_at + timeout_s < loop.time() else attempt_lost from exc
        finally:
            bridge.close()

        return messages.read(Outcome, outcome)

    async def _lost(self, executor: Executor) -> AttemptLost:
        runs = executor.lost_runs()
        reason = await executor.wait_ended()
        if executor.has_ended_on_purpose:
            return AttemptLost("the server stops", is_counted=False)

        return AttemptLost(f"its executor {reason}", is_counted=len(runs) <= 1, is_suspect=True)

    async def read_outcome(self, request: RunRequest) -> Outcome:
        """Return the outcome of a run that was stopped."""
        return messages.read(Outcome, await self._call("read_outcome", request))

    async def read_state(self, request: StateRead) -> bytes | None:
        """Return the JSON of a state, or None if the config names a checkpoint that does not exist."""
        if request.checkpoint is not None:
            request.checkpoint = dict(request.checkpoint)

        state: bytes | None = await self._call("read_state", request)
        return state

    async def read_history(self, request: HistoryRead) -> bytes:
        """Return the JSON of a list of states, newest first."""
        states: bytes = await self._call("read_history", request)
        return states

    async def update_state(self, change: StateChange, scope: CheckpointBackend) -> ChangedState | None:
        """Change a state in the transaction of a scope; None if the config names a checkpoint that does not exist."""
        fields = await self._change(messages.UPDATE_STATE, change, scope)
        return None if fields is None else messages.read(ChangedState, fields)

    async def create_state(self, creation: StateCreation, scope: CheckpointBackend) -> ChangedState:
        """Make the state of a new thread in the transaction of a scope."""
        return messages.read(ChangedState, await self._change(messages.CREATE_STATE, creation, scope))

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises GraphFailed."""
        return messages.read(Drawing, await self._describe("draw", request))

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises GraphFailed."""
        return messages.read(Schemas, await self._describe("schemas", request))

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of a graph's subgraphs by their names. Raises GraphFailed."""
        schemas_by_name = await self._describe("subgraphs", request)
        return {name: messages.read(Schemas, schemas) for name, schemas in schemas_by_name.items()}

    async def _describe(self, method: str, request: DescriptionRequest) -> Any:
        facts = self.facts.get(request.graph_id)
        if facts is None or facts.is_factory:
            return await self._call(method, request)

        key = (method, orjson.dumps((request.graph_id, request.xray, request.namespace, request.recurse)))
        if key not in self._descriptions:
            self._descriptions[key] = await self._call(method, request)
            self._keep()

        return copy.deepcopy(self._descriptions[key])

    def _keep(self) -> None:
        self._cache.save(self.facts, self.libraries, self._descriptions)

    async def _change(self, method: str, change: StateChange | StateCreation, scope: CheckpointBackend) -> Any:
        number = self._scopes.open(scope)
        try:
            async with self._pool.for_call() as executor:
                try:
                    return await executor.unless_silent(
                        self._call_one(executor, method, GraphCall(request=change, scope=number))
                    )
                except ExecutorFailed as exc:
                    raise Unavailable(f"the graph's executor {exc}") from exc
                except LinkClosed as exc:
                    # Not repeated: the transaction may hold a part of the change already. The caller rolls it back.
                    raise Unavailable(f"the graph's executor {await executor.wait_ended()}") from exc
        finally:
            self._scopes.close(number)

    async def _call(self, method: str, request: Any) -> Any:
        """Call an executor, and another one if it ends meanwhile. Raises Unavailable if several end in turn."""
        for _ in range(ATTEMPTS_AT_A_CALL):
            async with self._pool.for_call() as executor:
                try:
                    return await executor.unless_silent(self._call_one(executor, method, GraphCall(request=request)))
                except ExecutorFailed as exc:
                    reason = str(exc)
                except LinkClosed:
                    reason = await executor.wait_ended()

        raise Unavailable(f"the graph's executor {reason}")

    async def _call_one(
        self, executor: Executor, method: str, call: GraphCall, on_item: Any = None, *, run: ActiveRun | None = None
    ) -> Any:
        """Call an executor. Raises LinkClosed, and the graph's error as clients see it."""
        with self._calling(executor, call, run) as call.call:
            try:
                return await executor.link.call(method, call, on_item=on_item)
            except CallFailed as exc:
                raise executor.callers[call.call].find_failure(exc) or _to_run_error(exc) from exc

    @contextmanager
    def _calling(self, executor: Executor, call: GraphCall, run: ActiveRun | None) -> Iterator[int]:
        """Register a call, so that what the executor asks for runs in its context, and send it the lease of a run."""
        number = next(self._numbers)
        config = getattr(call.request, "config", None) or {}
        user = (config.get("configurable") or {}).get(USER)
        executor.callers[number] = CallContext(contextvars.copy_context(), user)

        if call.timeout_s:
            executor.deadlines[number] = asyncio.get_running_loop().time() + call.timeout_s

        if run is not None:
            executor.leased_runs[number] = run
            run.on_renewed = executor.send_leases
            call.leased_until = executor.clock_s(run.leased_until)

        try:
            yield number
        finally:
            del executor.callers[number]
            executor.deadlines.pop(number, None)
            executor.leased_runs.pop(number, None)

    async def close(self) -> None:
        """End the executors."""
        await self._pool.close()


class _EventReceiver:
    """Receives the items of a run. An executor with one thread sends an empty list first, to say that it has begun."""

    def __init__(self, bridge: ThreadBridge[tuple[str, bytes]], max_event_bytes: int) -> None:
        self.has_begun = False
        self._bridge = bridge
        self._max_event_bytes = max_event_bytes
        self._channels = ChannelEvents()

    def push(self, items: list[list[Any]]) -> None:
        """Deliver the events of a run's items. Raises EventTooLarge, which stops the run."""
        self.has_begun = True

        events: list[tuple[str, bytes]] = []
        for name, data in items:
            check_size(f"an event {name!r}", data, self._max_event_bytes)

            if name.startswith(FOR_CHANNELS):
                events += self._channels.convert(name, data)
            else:
                events.append((name, data))

        if events:
            self._bridge.deliver(events)


class ChannelEvents:
    """Makes the events of the protocol's channels from the streams of executors in other languages."""

    def __init__(self) -> None:
        self._channels: Channels | None = None

    def convert(self, name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the events of an item `&mode|namespace`."""
        if self._channels is None:
            # Imported here: it needs the libraries of graphs, and most servers with executors never get such items.
            from portside.executor.channels import Channels

            self._channels = Channels()

        mode, *namespace = name.removeprefix(FOR_CHANNELS).split("|")
        for method, event_namespace, payload in self._channels.convert(tuple(namespace), mode, load(data)):
            yield "|".join((f"@{method}", *event_namespace)), dump_user(payload)


def _to_run_error(failure: CallFailed) -> Exception:
    """Return the error of this process for an executor's error."""
    if failure.code == messages.LEASE_LOST:
        return StoppedEarly(f"its executor stopped it: {failure.message}")
    return RunTimeout() if failure.code == "run_timeout" else to_error(failure)


class GraphsByLanguage(RoutedGraphs):
    """Graphs of several languages, each behind a service of its own."""

    def __init__(self, *services: GraphService) -> None:
        self._services = services
        self.pools = [pool for service in services for pool in service.pools]
        self.writer = services[0].writer

        # The maps of the services themselves, which change with each executor that starts.
        libraries = [cast("dict[str, str]", service.libraries) for service in services]
        facts = [cast("dict[str, GraphFacts]", service.facts) for service in services]
        self.libraries: Mapping[str, str] = ChainMap(*libraries)
        self.facts: Mapping[str, GraphFacts] = ChainMap(*facts)

    async def route(self, request: GraphRequest) -> GraphService:
        """Return the service of a request's graph. For an unknown graph it is the first one, which raises the error."""
        matches = (service for service in self._services if request.graph_id in service.facts)
        return next(matches, self._services[0])

    async def close(self) -> None:
        """Close all services."""
        await asyncio.gather(*(service.close() for service in self._services))
