"""Executes graphs on event loops in threads of their own, away from the loop that answers requests.

A node that blocks its loop delays neither `/ok` nor the leases of this worker's runs. All runs share one graph loop,
because agents may hold clients that were made at import time; with BG_JOB_ISOLATED_LOOPS each concurrent run gets its
own.

A stopped run is over when none of its code runs any more. Its task is cancelled, and with it every node, subgraph and
child task that awaits. Nodes that are not coroutines run in threads, which Python cannot stop: the engine waits for
them for a limited time, and then leaves them behind with a warning. Such a node goes on in its thread: its result is
dropped, its effects on the world are not. The same holds for tasks that a node started and does not await, and for
graphs on other servers that it called.

`RunExecutor` is what the worker calls: it executes claimed runs, and reads the results of those that were stopped.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import uvloop
from langgraph.store.base import BaseStore
from langgraph.version import __version__ as langgraph_version

from portside.agent.checkpoints.saver import PostgresSaver
from portside.agent.checkpoints.writer import LeaseLost, RunAttempt
from portside.agent.encryption.codec import raise_if_undecryptable
from portside.agent.queue import statements
from portside.agent.queue.statements import Cancellation, ClaimedRun, RunResult
from portside.agent.queue.worker import ActiveRun
from portside.agent.sql import sql
from portside.agent.streams.buffers import ThreadBridge
from portside.agent.streams.events import OpenInterrupt, RunEnd
from portside.agent.streams.hub import AttemptStart, Hub
from portside.executor.execute import Execution, read_outcome
from portside.executor.load import Graphs
from portside.executor.requests import Emitted, Outcome, RunRequest
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError
from portside.kernel.logs import get_logger

log = get_logger(__name__)
T = TypeVar("T")
STOP_WITHIN_S = 60.0
CLOSED_WITHIN_S = 3.0
THREADS = 64
UNREADABLE = Outcome(values=None, interrupts={}, has_next=False, error=None)
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


# The jobs in threads of the call whose context this is.
_Jobs = set[concurrent.futures.Future[Any]]
_jobs: ContextVar[_Jobs | None] = ContextVar("jobs", default=None)


class RunTimeout(Exception):
    """The run took longer than BG_JOB_TIMEOUT_SECS."""


class NodeThreads(concurrent.futures.ThreadPoolExecutor):
    """The threads of nodes that are not coroutines; each call of a loop knows which of them work for it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a function in a thread, for the call whose context this is."""
        future = super().submit(fn, *args, **kwargs)
        jobs = _jobs.get()
        if jobs is not None:
            jobs.add(future)
            future.add_done_callback(jobs.discard)
        return future


class CrossLoopCall(Generic[T]):
    """A coroutine that runs on another loop, with a future for its result on this one.

    Cheaper than `run_coroutine_threadsafe` and `wrap_future`, which make three futures that watch one another.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._caller_loop, self._loop = asyncio.get_running_loop(), loop
        self.result: asyncio.Future[T] = self._caller_loop.create_future()
        self._task: asyncio.Task[T] | None = None
        self._has_stopped = asyncio.Event()
        loop.call_soon_threadsafe(self._start, work)

    async def stop(self) -> None:
        """Cancel the work and wait until it has stopped; work that blocks for too long is logged and left behind."""
        if not self._has_stopped.is_set():
            self._loop.call_soon_threadsafe(self._cancel)
            await _wait_for_stop(self._has_stopped)

    def _start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(_with_jobs(work))
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        # The caller's loop may be closed already.
        with contextlib.suppress(RuntimeError):
            self._caller_loop.call_soon_threadsafe(self._set_result, task)

    def _set_result(self, task: asyncio.Task[T]) -> None:
        self._has_stopped.set()
        failure = None if task.cancelled() else task.exception()
        if self.result.done():
            return
        if task.cancelled():
            self.result.cancel()
        elif failure is not None:
            self.result.set_exception(failure)
        else:
            self.result.set_result(task.result())


async def _with_jobs(work: Coroutine[Any, Any, T]) -> T:
    """Await work. If it is cancelled or runs too long, also wait for the jobs that it started in threads."""
    jobs: _Jobs = set()
    _jobs.set(jobs)
    try:
        return await work
    except (asyncio.CancelledError, RunTimeout):
        await _wait_for_jobs(*jobs)
        raise


class GraphLoop:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.load = 0
        self._is_closing = False
        self._loop = uvloop.new_event_loop()
        self._loop.set_default_executor(NodeThreads(THREADS, thread_name_prefix=name))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing:
            # A node that calls sys.exit() or raises KeyboardInterrupt ends its run, not the loop that all runs share.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop. Cancelling the call cancels the work and waits until it has really stopped."""
        call = CrossLoopCall(self._loop, work)
        self.load += 1
        try:
            return await call.result
        except asyncio.CancelledError:
            await call.stop()
            raise
        finally:
            self.load -= 1

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call a function on this loop, without waiting for it."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the loop. A thread that user code blocks is left behind; it ends with the process."""
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=2)


class Engine:
    """Executes runs and reads states on graph loops."""

    def __init__(self, graphs: Graphs, loops: list[GraphLoop], db: Database, saver: PostgresSaver) -> None:
        self.graphs = graphs
        self._saver = saver
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
    ) -> "Engine":
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

    @property
    def saver(self) -> PostgresSaver:
        """The checkpointer of the graphs."""
        return self._saver

    def is_buffering(self, thread_id: UUID) -> bool:
        """Whether a run of this process may have checkpoints of a thread that are not in the database yet."""
        return self._saver.writer.buffers.get(str(thread_id)) is not None

    async def flush_checkpoints(self, thread_id: UUID) -> None:
        """Wait until the checkpoints that a run of this process made on a thread are written, or the run was lost."""
        buffer = self._saver.writer.buffers.get(str(thread_id))
        if buffer is not None and not buffer.is_empty(""):
            with contextlib.suppress(LeaseLost):
                await buffer.flush()

    async def execute(self, request: RunRequest, sink: EventSink, *, timeout_s: float) -> Outcome:
        """Execute a graph to its end, publishing its events on the calling loop.

        Its checkpoints are stored when this returns. Raises RunTimeout, Invalid for an invalid command, LeaseLost when
        another worker has the run, and what the database failed with, its own TimeoutError included.
        """
        bridge: ThreadBridge[tuple[str, bytes]] = ThreadBridge(
            sink.publish, lambda event: len(event[1]), sink.has_listeners
        )
        configurable = request.config["configurable"]
        run_id, is_new = UUID(configurable["run_id"]), request.is_ephemeral
        attempt = RunAttempt(run_id, request.attempt, is_new=is_new, flush_events=sink.flush)
        loop = min(self._loops, key=lambda candidate: candidate.load)
        failures: list[Emitted] = []
        try:
            async with self._saver.writer.buffering(configurable["thread_id"], attempt):
                outcome = await loop.call(self._consume(request, bridge.push, timeout_s, failures))
        finally:
            bridge.close()
        # Published only now that it is known to be the graph's own: a failure of the database, or a lost lease, does
        # not end the run, and was raised above.
        if failures:
            sink.publish([(emitted.event, emitted.data) for emitted in failures])
        return outcome

    async def read(self, work: Callable[[Graphs], Awaitable[T]]) -> T:
        """Use the graphs on a graph loop: to read a state, to update it, to describe a graph."""

        async def reading() -> T:
            return await work(self.graphs)

        return await self._loops[0].call(reading())

    async def close(self) -> None:
        """Close the database and stop the loops; threads that user code blocks are left behind."""
        await asyncio.wait([asyncio.create_task(self._loops[0].call(self._db.close()))], timeout=CLOSED_WITHIN_S)
        for loop in self._loops:
            loop.close()

    async def _consume(
        self, request: RunRequest, push: Callable[[tuple[str, bytes]], None], timeout_s: float, failures: list[Emitted]
    ) -> Outcome:
        execution, limit = Execution(self.graphs, request), asyncio.timeout(timeout_s)
        emitted: Emitted
        try:
            async with limit:
                async for emitted in execution:
                    if emitted.event == "error":
                        failures.append(emitted)
                    else:
                        push((emitted.event, emitted.data))
        except TimeoutError as exc:
            # A TimeoutError that the graph itself raises passes unchanged.
            if limit.expired():
                raise RunTimeout from exc
            raise
        assert execution.outcome is not None  # noqa: S101 - the protocol promises it after the end
        return execution.outcome


async def _wait_for_jobs(*jobs: concurrent.futures.Future[Any]) -> None:
    """Wait until jobs in threads have ended; those that take too long are logged and left behind."""
    running = [future for future in jobs if not future.done()]
    if not running:
        return
    loop, all_ended = asyncio.get_running_loop(), asyncio.Event()
    left = len(running)

    def count(_future: concurrent.futures.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            loop.call_soon_threadsafe(all_ended.set)

    for future in running:
        future.add_done_callback(count)
    await _wait_for_stop(all_ended)


async def _wait_for_stop(has_stopped: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(has_stopped.wait(), STOP_WITHIN_S)
    except TimeoutError:
        log.warning("cancelled work still runs: a node blocks its thread")


@dataclass
class EventGate:
    """Holds a run's events back while the run may belong to another worker.

    A process that was paused would otherwise send its clients events that the next owner sends again, or differently.
    """

    deliver: Publish
    run: ActiveRun
    _waiting: list[tuple[str, bytes]] = field(default_factory=list)

    def publish(self, events: list[tuple[str, bytes]]) -> None:
        """Publish events, now or with the next ones."""
        if not self.run.is_owned:
            self._waiting += events
            return
        if self._waiting:
            events, self._waiting = self._waiting + events, []
        if events:
            self.deliver(events)


class RunExecutor:
    """The worker's `RunHandler`: executes a run, reads what a cancelled run left, and notifies its followers."""

    def __init__(self, db: Database, engine: Engine, hub: Hub, *, timeout_s: float, webhook_due: asyncio.Event) -> None:
        self._db = db
        self._engine = engine
        self._hub = hub
        self._timeout_s = timeout_s
        self._webhook_due = webhook_due

    async def execute(self, run: ActiveRun) -> RunResult:
        """Execute a run; its events are published only while this worker certainly owns it."""
        claimed = run.claimed
        start = AttemptStart(
            run_id=claimed.run_id,
            thread_id=claimed.thread_id,
            graph_id=claimed.kwargs["config"]["configurable"]["graph_id"],
            attempt=claimed.attempt,
            is_resumable=bool(claimed.kwargs.get("resumable")),
            is_stateless=claimed.is_temporary,
            was_started=claimed.was_started,
            is_streamed_elsewhere=claimed.is_streamed_elsewhere,
        )
        stream = await self._hub.prepare(start)
        await run.wait_until_owned()
        self._hub.begin(start)
        gate = EventGate(stream.publish, run)
        try:
            sink = EventSink(gate.publish, lambda: self._hub.pending_writes(stream), lambda: stream.has_listeners)
            result = await self._attempt(claimed, sink)
            await run.wait_until_owned()
        finally:
            gate.publish([])
        await self._hub.flush_run(claimed.run_id)
        return result

    async def _attempt(self, run: ClaimedRun, sink: EventSink) -> RunResult:
        is_retry = run.was_started or run.attempt > 1
        resume = is_retry and await statements.has_own_checkpoint(self._db, run)
        try:
            if self._db.codec is not None:
                raise_if_undecryptable(run.kwargs)
            request = execution_request(run, resume=resume)
            outcome = await self._engine.execute(request, sink, timeout_s=self._timeout_s)
            if run.kwargs.get("webhook") or run.is_temporary:
                # The webhook's row gets the whole values from the thread's; a temporary thread has no later run.
                outcome.row_values = outcome.long_values = None
            return result_of(outcome)
        except RunTimeout:
            error = {"error": "TimeoutError", "message": f"the run took longer than {self._timeout_s:g} s"}
            after = await self._thread_after(execution_request(run, resume=False)) | {"thread_status": "error"}
            return RunResult(status="timeout", error=error, **after)
        except PortsideError as exc:
            # The graph never started, and would not at another attempt either.
            error = {"error": type(exc).__name__, "message": str(exc)}
            return RunResult(status="error", thread_status="error", error=error)

    async def finish_cancelled(self, run: ClaimedRun, cancellation: Cancellation) -> RunResult:
        """Return the result of a run that was cancelled and has stopped; a rollback first removes its checkpoints."""
        await self._hub.flush_run(run.run_id)
        if cancellation.action == "rollback":
            return await self._roll_back(run)
        error = {"error": "UserInterrupt", "message": cancellation.reason}
        after = await self._thread_after(execution_request(run, resume=False))
        return RunResult(status="interrupted", error=error, **after)

    async def _roll_back(self, run: ClaimedRun) -> RunResult:
        await self._db.execute(sql.delete_checkpoints_of_runs, run_ids=[str(run.run_id)], thread_id=str(run.thread_id))
        graph_before = await self._db.fetchval(sql.graph_before, thread_id=run.thread_id, run_id=run.run_id)
        request = execution_request(run, resume=False)
        if graph_before in self._engine.graphs.ids():
            request.graph_id = graph_before
        return RunResult(status="rolled_back", **await self._thread_after(request))

    async def _thread_after(self, request: RunRequest) -> dict[str, Any]:
        """Read the state that a stopped run left on its thread. Without a readable state the thread is idle."""

        async def reading(graphs: Graphs) -> Outcome:
            return await read_outcome(graphs, request)

        try:
            outcome = await self._engine.read(reading)
        except Exception:
            log.exception("the state of a stopped run could not be read", graph_id=request.graph_id)
            outcome = UNREADABLE
        status = "interrupted" if outcome.has_next else "idle"
        return {"thread_status": status, "values": outcome.values, "interrupts": outcome.interrupts}

    async def flush_events(self) -> None:
        """Write the events of all runs so far to the log in Postgres, where other processes follow them."""
        await self._hub.transport.flush()

    def on_end(self, run: ClaimedRun, result: RunResult | None) -> None:
        """End the streams of a run. Without a result it goes on in another process."""
        self._hub.finish(run.run_id, None if result is None else _end_of(run, result), result)
        if result is not None and run.kwargs.get("webhook"):
            self._webhook_due.set()


def _end_of(run: ClaimedRun, result: RunResult) -> RunEnd:
    """Return what the followers of a thread learn of a run's end.

    A cancelled run has failed for them: `interrupted` means that the graph waits for an answer.
    """
    graph_id: str = run.kwargs["config"]["configurable"]["graph_id"]
    if result.status != "success":
        error = result.error or {}
        text = error.get("message") or error.get("error") or f"the run ended with status {result.status}"
        return RunEnd("failed", graph_id, text)
    if result.thread_status != "interrupted":
        return RunEnd("completed", graph_id)
    interrupts = [interrupt for waiting in (result.interrupts or {}).values() for interrupt in waiting]
    asked = tuple(OpenInterrupt(str(interrupt["id"]), interrupt.get("value")) for interrupt in interrupts)
    return RunEnd("interrupted", graph_id, interrupts=asked)


def execution_request(run: ClaimedRun, *, resume: bool) -> RunRequest:
    """Return what the graph is executed with."""
    kwargs, config = run.kwargs, dict(run.kwargs["config"])
    # A rollback finds the run's checkpoints by this id, so a client must not override it.
    own = {"run_attempt": run.attempt, "run_id": str(run.run_id), "langgraph_version": langgraph_version}
    config["metadata"] = {**config["metadata"], **own}
    return RunRequest(
        graph_id=config["configurable"]["graph_id"],
        input=kwargs["input"],
        command=kwargs["command"],
        config=config,
        context=kwargs["context"] or None,
        stream_modes=kwargs["stream_mode"],
        stream_subgraphs=kwargs["subgraphs"],
        interrupt_before=kwargs["interrupt_before"],
        interrupt_after=kwargs["interrupt_after"],
        durability=kwargs["durability"],
        strict_resume=kwargs.get("strict_resume", False),
        tracer=kwargs.get("langsmith_tracer"),
        resume=resume,
        attempt=run.attempt,
        # Its thread was made for this attempt.
        is_ephemeral=run.is_temporary and run.attempt == 1 and not run.was_started,
    )


def result_of(outcome: Outcome) -> RunResult:
    """Return the result of a run that was executed to its outcome."""
    if outcome.is_refused:
        return RunResult(status="error", thread_status=None, error=outcome.error)
    if outcome.error is not None:
        values, interrupts = outcome.values, outcome.interrupts
        return RunResult(
            status="error", thread_status="error", values=values, interrupts=interrupts, error=outcome.error
        )
    is_interrupted = outcome.has_next or bool(outcome.interrupts)
    return RunResult(
        status="success",
        thread_status="interrupted" if is_interrupted else "idle",
        values=outcome.values,
        row_values=outcome.row_values,
        long_values=outcome.long_values,
        interrupts=outcome.interrupts,
    )
