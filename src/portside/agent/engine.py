"""Executes claimed runs, and reads the results of those that were stopped.

The worker calls `RunExecutor`. The graphs themselves are behind `graphs`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.checkpoints.writer import RunAttempt
from portside.agent.encryption.codec import has_whole_rows, raise_if_undecryptable
from portside.agent.graphs import EventSink, GraphRuns, Publish
from portside.agent.queue import statements
from portside.agent.queue.active_run import ActiveRun, AttemptLost, RunState
from portside.agent.queue.types import Cancellation, ClaimedRun, RunResult
from portside.agent.sql import sql
from portside.agent.streams.events import OpenInterrupt, RunEnd
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.thread_bridge import size_of_event
from portside.agent.types.runs import CancelAction, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.executor.errors import RunTimeout
from portside.executor.requests import LifecycleEvent, Outcome, RunRequest
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError, Unavailable
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user

log = get_logger(__name__)
# The size of the events that wait for a lease. As much may be on its way from the graph's thread.
HELD_LIMIT_BYTES = 16 * 1024 * 1024
UNREADABLE = Outcome(values=None, interrupts={}, has_next=False, error=None)


@dataclass
class EventGate:
    """Holds a run's events back while another worker may own the run.

    Otherwise a process that was paused could send its clients events that the next owner sends again, or differently.
    The events of a lost run are dropped, and a run that emits too many for its lease to be waited for is lost. Then
    none follow, even if the lease is renewed: the next attempt sends them.
    """

    deliver: Publish
    flush_delivered: Callable[[], Awaitable[None] | None]
    """Waits until other processes can read the events that were delivered."""
    run: ActiveRun
    _waiting: list[tuple[str, bytes]] = field(default_factory=list)
    _size: int = 0
    _is_closed: bool = False

    def publish(self, events: list[tuple[str, bytes]]) -> None:
        """Publish events, now or with the next ones."""
        if self._is_closed:
            return

        if not self.run.is_owned:
            self._waiting += events
            self._size += sum(map(size_of_event, events))
            if self._size > HELD_LIMIT_BYTES:
                log.warning(
                    "a run is stopped: its lease is unsure, and it emits more than can wait for that",
                    run_id=str(self.run.claimed.run_id),
                    waiting_bytes=self._size,
                )

                self.run.lose()

            if self.run.state is RunState.LOST:
                self._is_closed = True
                self._waiting = []

            return

        if self._waiting:
            events = self._waiting + events
            self._waiting = []
            self._size = 0

        if events:
            self.deliver(events)

    def flush(self) -> Awaitable[None] | None:
        """Publish what waits, if it may be; return a wait for other processes to have all of it, or None."""
        self.publish([])
        return self.flush_delivered()


class RunLimits(NamedTuple):
    """How long one run may take, and how many bytes one of its events, or its result, may have; 0 is no limit."""

    timeout_s: float
    event_bytes: int = 0


class RunExecutor:
    """The worker's `RunHandler`: executes a run, reads the state that a cancelled run left, and notifies followers."""

    def __init__(
        self, db: Database, graphs: GraphRuns, hub: Hub, *, limits: RunLimits, webhook_due: asyncio.Event
    ) -> None:
        self._db = db
        self._graphs = graphs
        self._hub = hub
        self._timeout_s = limits.timeout_s
        self._max_event_bytes = limits.event_bytes
        self._webhook_due = webhook_due

    async def execute(self, run: ActiveRun) -> RunResult:
        """Execute a run; its events are published only while this worker certainly owns it."""
        claimed = run.claimed
        graph_id = find_graph_id(claimed)
        if graph_id is None:
            raise_if_undecryptable(claimed.kwargs)
            # Another attempt would find the same row.
            error = {"error": "UnreadableRun", "message": "the stored run has no config.configurable.graph_id"}
            return RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)

        start = AttemptStart(
            run_id=claimed.run_id,
            thread_id=claimed.thread_id,
            graph_id=graph_id,
            attempt=claimed.attempt,
            is_resumable=bool(claimed.kwargs.get("resumable")),
            is_temporary=claimed.is_temporary,
            was_started=claimed.was_started,
            is_streamed_elsewhere=claimed.is_streamed_elsewhere,
        )

        stream = await self._hub.prepare(start)
        await run.wait_until_owned()
        self._hub.begin(start)

        gate = EventGate(stream.publish, lambda: self._hub.pending_writes(stream), run)
        try:
            sink = EventSink(
                publish=gate.publish,
                flush=gate.flush,
                has_listeners=lambda: stream.has_listeners,
                run=run,
                is_private=stream.is_private,
            )

            result = await self._attempt(claimed, sink)
            await run.wait_until_owned()
        finally:
            gate.publish([])

        await self._hub.flush_run(claimed.run_id)
        return result

    async def _attempt(self, run: ClaimedRun, sink: EventSink) -> RunResult:
        resume = run.is_retry and await statements.has_own_checkpoint(self._db, run)
        try:
            if self._db.codec is not None:
                raise_if_undecryptable(run.kwargs)

            request = to_run_request(run, resume=resume)
            request.max_event_bytes = self._max_event_bytes
            configurable = request.config["configurable"]
            attempt = RunAttempt(
                UUID(configurable["run_id"]), run.attempt, is_ephemeral=request.is_ephemeral, flush_events=sink.flush
            )

            # On exit this writes the run's checkpoints, and raises the error if that fails.
            async with self._graphs.writer.buffering(configurable["thread_id"], attempt):
                outcome = await self._graphs.execute(request, sink, timeout_s=self._timeout_s)

            if outcome.error is not None:
                # Published only after the block above: there a failure of the database, or a lost lease, is raised. It
                # does not end the run, so it must not become an event.
                sink.publish([("error", dump_user(outcome.error))])

            return to_run_result(self._drop_row_parts(run, outcome))
        except RunTimeout:
            message = f"the run took longer than BG_JOB_TIMEOUT_SECS allows ({self._timeout_s:g} s)"
            error = {"error": "TimeoutError", "message": message}
            after = await self._read_thread(run, to_run_request(run, resume=False))
            after["thread_status"] = ThreadStatus.ERROR
            return RunResult(status=RunStatus.TIMEOUT, error=error, **after)
        except Unavailable as exc:
            waited_s = await self._db.fetchval(sql.seconds_since_start, run_id=run.run_id) or 0.0
            if waited_s < self._timeout_s:
                raise AttemptLost(str(exc), is_counted=False) from exc

            limit = f"longer than it may take (BG_JOB_TIMEOUT_SECS is {self._timeout_s:g} s)"
            message = f"the run began {waited_s:.0f} s ago, {limit}: {exc}"
            error = {"error": type(exc).__name__, "message": message}
            return RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)
        except PortsideError as exc:
            # The graph could not start, and another attempt would fail in the same way.
            error = {"error": type(exc).__name__, "message": str(exc)}
            return RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)

    async def finish_cancelled(self, run: ClaimedRun, cancellation: Cancellation) -> RunResult:
        """Return the result of a run that was cancelled and has stopped; a rollback first removes its checkpoints."""
        await self._hub.flush_run(run.run_id)
        # A run that is cancelled while its last checkpoints are written leaves them to the writer. They must not come
        # after those of a rollback were deleted.
        await self._graphs.writer.flush(run.thread_id)

        if cancellation.action is CancelAction.ROLLBACK:
            return await self._roll_back(run)

        error = {"error": "UserInterrupt", "message": cancellation.reason}
        after = await self._read_thread(run, to_run_request(run, resume=False))
        return RunResult(status=RunStatus.INTERRUPTED, error=error, **after)

    async def _roll_back(self, run: ClaimedRun) -> RunResult:
        await self._db.execute(sql.delete_checkpoints_of_runs, run_ids=[str(run.run_id)], thread_id=str(run.thread_id))
        graph_before = await self._db.fetchval(sql.graph_before, thread_id=run.thread_id, run_id=run.run_id)
        request = to_run_request(run, resume=False)
        if graph_before in self._graphs.facts:
            request.graph_id = graph_before

        return RunResult(status=RunStatus.ROLLED_BACK, **await self._read_thread(run, request))

    async def _read_thread(self, run: ClaimedRun, request: RunRequest) -> dict[str, Any]:
        """Read the state that a stopped run left on its thread. Without a readable state the thread is idle."""
        try:
            outcome = self._drop_row_parts(run, await self._graphs.read_outcome(request))
        except Exception:
            log.exception("the state of a stopped run could not be read", graph_id=request.graph_id)
            outcome = UNREADABLE

        status = ThreadStatus.INTERRUPTED if outcome.has_next else ThreadStatus.IDLE
        return {
            "thread_status": status,
            "interrupts": outcome.interrupts,
            "values": outcome.values,
            "row_values": outcome.row_values,
            "long_values": outcome.long_values,
        }

    def _drop_row_parts(self, run: ClaimedRun, outcome: Outcome) -> Outcome:
        """Drop the parts of an outcome that are for the thread's row, where the row must keep the whole values."""
        if run.is_temporary or has_whole_rows(self._db):
            # Rows without long lists save later runs from writing them again, but a temporary thread has none.
            outcome.row_values = None
            outcome.long_values = None

        return outcome

    async def flush_events(self) -> None:
        """Write the events of all runs so far to the log in Postgres, where other processes follow them."""
        await self._hub.transport.flush()

    def on_end(self, run: ClaimedRun, result: RunResult | None) -> None:
        """End the streams of a run. Without a result it continues in another process."""
        self._hub.finish(run.run_id, None if result is None else _to_run_end(run, result), result)
        if result is not None and run.kwargs.get("webhook"):
            self._webhook_due.set()


def _to_run_end(run: ClaimedRun, result: RunResult) -> RunEnd:
    """Return a run's end for the followers of its thread.

    They see a cancelled run as failed: `interrupted` means that the graph waits for an answer.
    """
    graph_id = find_graph_id(run) or ""
    if result.status is not RunStatus.SUCCESS:
        error = result.error or {}
        text = error.get("message") or error.get("error") or f"the run ended with status {result.status}"
        return RunEnd(LifecycleEvent.FAILED, graph_id, text)

    if result.thread_status is not ThreadStatus.INTERRUPTED:
        return RunEnd(LifecycleEvent.COMPLETED, graph_id)

    interrupts = [interrupt for of_task in (result.interrupts or {}).values() for interrupt in of_task]
    waiting = tuple(OpenInterrupt(str(interrupt["id"]), interrupt.get("value")) for interrupt in interrupts)
    return RunEnd(LifecycleEvent.INTERRUPTED, graph_id, interrupts=waiting)


def find_graph_id(run: ClaimedRun) -> str | None:
    """Return the graph that a stored run names, or None."""
    config = run.kwargs.get("config") or {}
    configurable = config.get("configurable") or {}
    return configurable.get("graph_id")


def to_run_request(run: ClaimedRun, *, resume: bool) -> RunRequest:
    """Return the request with which the graph is executed.

    A row that another program has written may lack fields. They count as empty: the end of a run, which must be
    written whatever its row has, needs the request as well.
    """
    kwargs = run.kwargs
    config = dict(kwargs.get("config") or {})
    thread_ids = {"run_id": str(run.run_id), "thread_id": str(run.thread_id)}
    config["configurable"] = {**thread_ids, **(config.get("configurable") or {})}

    # A rollback finds the run's checkpoints by this id, so a client must not override it.
    ids = {"run_attempt": run.attempt, "run_id": str(run.run_id)}
    config["metadata"] = {**(config.get("metadata") or {}), **ids}
    return RunRequest(
        graph_id=find_graph_id(run) or "",
        input=kwargs.get("input"),
        command=kwargs.get("command"),
        config=config,
        context=kwargs.get("context") or None,
        stream_modes=kwargs.get("stream_mode", ["values"]),
        stream_subgraphs=kwargs.get("subgraphs", False),
        interrupt_before=kwargs.get("interrupt_before"),
        interrupt_after=kwargs.get("interrupt_after"),
        durability=kwargs.get("durability", "async"),
        strict_resume=kwargs.get("strict_resume", False),
        tracer=kwargs.get("langsmith_tracer"),
        resume=resume,
        attempt=run.attempt,
        is_suspect=run.is_suspect,
        is_ephemeral=run.is_ephemeral,
    )


def to_run_result(outcome: Outcome) -> RunResult:
    """Return the result of a run that was executed to its outcome."""
    if outcome.is_refused:
        return RunResult(status=RunStatus.ERROR, thread_status=None, error=outcome.error)

    if outcome.error is not None:
        status, thread_status = RunStatus.ERROR, ThreadStatus.ERROR
    elif outcome.has_next or outcome.interrupts:
        status, thread_status = RunStatus.SUCCESS, ThreadStatus.INTERRUPTED
    else:
        status, thread_status = RunStatus.SUCCESS, ThreadStatus.IDLE

    return RunResult(
        status=status,
        thread_status=thread_status,
        error=outcome.error,
        values=outcome.values,
        row_values=outcome.row_values,
        long_values=outcome.long_values,
        interrupts=outcome.interrupts,
    )
