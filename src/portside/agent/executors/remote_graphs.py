"""The graphs in executor processes: a `GraphService` whose calls go over links.

When an executor crashes, the attempts at its runs are lost. If a run had the process to itself, its attempt counts
against BG_JOB_MAX_RETRIES. Runs that shared the process return to the queue without that, because only one of them may
be the cause; the next attempt at each has a process to itself. Other calls are repeated with another executor.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.executors.executor_calls import ExecutorCalls, StoppedEarly
from portside.agent.executors.graph_cache import GraphCache
from portside.agent.executors.member import Executor, ExecutorFailed
from portside.agent.executors.pool import ExecutorPool
from portside.agent.executors.remote_states import RemoteDescriptions, RemoteStates
from portside.agent.executors.serving import Scopes
from portside.agent.graphs import EventSink, GraphDescriptions, GraphRuns, GraphStates
from portside.agent.queue.active_run import AttemptLost
from portside.agent.streams.thread_bridge import ThreadBridge, size_of_event
from portside.executor import messages
from portside.executor.errors import RunTimeout, check_size
from portside.executor.link import LinkClosed
from portside.executor.messages import GraphCall
from portside.executor.requests import Emitted, GraphFacts, Outcome, RunRequest
from portside.kernel.codec import load
from portside.kernel.user_json import dump_user
from portside.kernel.value_sizes import has_long_text

if TYPE_CHECKING:
    from portside.executor.channels import Channels

FOR_CHANNELS = "&"
"""Begins the names of events that are items of langgraph's stream, for the channels of the event streaming protocol."""


class RemoteGraphs:
    """A `GraphService` with the graphs of this server's executors."""

    def __init__(
        self, pool: ExecutorPool, writer: CheckpointWriter, scopes: Scopes, cache: GraphCache | None = None
    ) -> None:
        self.facts: Mapping[str, GraphFacts] = pool.facts
        self.libraries: Mapping[str, str] = pool.libraries
        self.writer = writer
        self.pools: Sequence[Any] = [pool]
        self._pool = pool

        calls = ExecutorCalls(pool)
        self.runs: GraphRuns = RemoteRuns(calls, writer)
        self.states: GraphStates = RemoteStates(calls, writer, scopes)
        self.descriptions: GraphDescriptions = RemoteDescriptions(calls, cache)

    async def close(self) -> None:
        """End the executors."""
        await self._pool.close()


class RemoteRuns:
    """Executes runs in executors."""

    def __init__(self, calls: ExecutorCalls, writer: CheckpointWriter) -> None:
        self.facts: Mapping[str, GraphFacts] = calls.pool.facts
        self.writer = writer
        self._calls = calls

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph in an executor. Raises RunTimeout, Invalid, and AttemptLost if the executor crashed."""
        bridge = ThreadBridge(sink.publish, size_of_event, sink.has_listeners)
        run_id = UUID(request.config["configurable"]["run_id"])
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            is_large = has_long_text([request.input, request.command])
            async with self._calls.pool.for_run(
                run_id, request.attempt, is_alone=request.is_suspect, is_large=is_large
            ) as executor:
                try:
                    call = GraphCall(request=request, timeout_s=timeout_s, is_unfollowed=not sink.has_listeners())
                    receiver = _EventReceiver(bridge, request.max_event_bytes, partial(executor.note_size, run_id))
                    work = self._calls.call_one(executor, messages.EXECUTE, call, receiver.push, run=sink.run)
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
        return messages.read(Outcome, await self._calls.call("read_outcome", request))


class _EventReceiver:
    """Receives the items of a run. An executor with one thread sends an empty list first, to say that it has begun."""

    def __init__(
        self, bridge: ThreadBridge[tuple[str, bytes]], max_event_bytes: int, note_size: Callable[[int], None]
    ) -> None:
        self.has_begun = False
        self._bridge = bridge
        self._max_event_bytes = max_event_bytes
        self._note_size = note_size
        self._channels = ChannelEvents()

    def push(self, items: list[list[Any]]) -> None:
        """Deliver the events of a run's items. Raises EventTooLarge and CallFailed, which stop the run."""
        messages.expect(list[Emitted], items)
        self.has_begun = True

        events: list[tuple[str, bytes]] = []
        for name, data in items:
            check_size(f"an event {name!r}", data, self._max_event_bytes)
            self._note_size(len(data))

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
