"""Where graphs run: event loops in threads of their own, away from the loop that answers requests.

A node that blocks its loop stalls neither `/ok` nor the leases of this worker's runs. All runs share one such loop, as
agents with clients made at import time need; with BG_JOB_ISOLATED_LOOPS each concurrent run gets its own.

What is cancelled has stopped when the call returns. Nodes that are no coroutines run in threads, which Python cannot
stop: they are waited for, up to a bound, and then left behind with a warning.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import uvloop
from langgraph.store.base import BaseStore

from portside.agent.checkpoints.saver import PostgresSaver
from portside.agent.checkpoints.staging import Holder, LeaseLost
from portside.agent.graphs.execute import LocalExecutor
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.protocol import Emitted, Outcome, RunRequest
from portside.agent.streams.conduit import Conduit
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
T = TypeVar("T")
STOP_WITHIN_S = 60.0
CLOSED_WITHIN_S = 3.0
THREADS = 64
Told = Callable[[], Awaitable[None] | None]
Publish = Callable[[list[tuple[str, bytes]]], None]
MakeStore = Callable[[Database], Awaitable[BaseStore]]


class Audience(NamedTuple):
    """Who is told what a run says.

    `publish` takes its events. `told` is asked before checkpoints are written, and what it returns is awaited. Both are
    called on the loop that asked for the run. `is_there` says, in any thread, whether anybody listens: without anybody
    a run that is over in a moment tells nothing.
    """

    publish: Publish
    told: Told = lambda: None
    is_there: Callable[[], bool] = lambda: True


_Jobs = set[concurrent.futures.Future[Any]]
_jobs: ContextVar[_Jobs | None] = ContextVar("jobs", default=None)


class RanTooLong(Exception):
    """The run took longer than runs may."""


class NodeThreads(concurrent.futures.ThreadPoolExecutor):
    """The threads of nodes that are no coroutines; each call of a loop can tell which are at work for it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a function in a thread, on behalf of the call whose context this is."""
        future = super().submit(fn, *args, **kwargs)
        jobs = _jobs.get()
        if jobs is not None:
            jobs.add(future)
            future.add_done_callback(jobs.discard)
        return future


class Errand(Generic[T]):
    """A coroutine that is run on another loop, and its answer on this one.

    The standard library's way there and back makes three futures that watch one another, at each run of a graph.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._home, self._away = asyncio.get_running_loop(), loop
        self.answer: asyncio.Future[T] = self._home.create_future()
        self._task: asyncio.Task[T] | None = None
        self._is_over = asyncio.Event()
        loop.call_soon_threadsafe(self._begin, work)

    async def stop(self) -> None:
        """Cancel the work and wait until it has stopped; what blocks for too long is reported and left alone."""
        if not self._is_over.is_set():
            self._away.call_soon_threadsafe(self._cancel)
            await _in_time(self._is_over)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._away.create_task(_supervised(work))
        self._task.add_done_callback(self._report)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _report(self, task: asyncio.Task[T]) -> None:
        # A loop that is closed asks for nothing any more.
        with contextlib.suppress(RuntimeError):
            self._home.call_soon_threadsafe(self._take, task)

    def _take(self, task: asyncio.Task[T]) -> None:
        self._is_over.set()
        failure = None if task.cancelled() else task.exception()
        if self.answer.done():
            return
        if task.cancelled():
            self.answer.cancel()
        elif failure is not None:
            self.answer.set_exception(failure)
        else:
            self.answer.set_result(task.result())


async def _supervised(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end; where it is cut off, let what it left in threads end as well."""
    jobs: _Jobs = set()
    _jobs.set(jobs)
    try:
        return await work
    except (asyncio.CancelledError, RanTooLong):
        await _settle(*jobs)
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
            # A node that calls sys.exit(), or raises KeyboardInterrupt, ends its run, not the loop that all runs share.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop. Cancelling the call cancels the work and waits until it has really stopped."""
        errand = Errand(self._loop, work)
        self.load += 1
        try:
            return await errand.answer
        except asyncio.CancelledError:
            await errand.stop()
            raise
        finally:
            self.load -= 1

    def close(self) -> None:
        """Stop the loop; a thread that is blocked in user code is left behind, it dies with the process."""
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
        self._executor = LocalExecutor(graphs)

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
        """Open the graph loops, and on the first of them the graphs' database with the memories that live in it.

        The saver's stage belongs to the calling loop. Raises UserMistake when the database cannot be reached.
        """
        home = GraphLoop("graphs-0")

        async def prepare() -> tuple[Database, PostgresSaver, BaseStore | None]:
            db = await connect()
            return db, make_saver(db), await make_store(db) if make_store else None

        db, saver, store = await home.call(prepare())
        others = [GraphLoop(f"graphs-{number}") for number in range(1, loops)]
        return cls(graphs.attach(saver, store), [home, *others], db, saver)

    @property
    def database(self) -> Database:
        """The connections of the graphs."""
        return self._db

    @property
    def saver(self) -> PostgresSaver:
        """What the graphs remember with."""
        return self._saver

    def is_writing(self, thread_id: UUID) -> bool:
        """Whether a run of this process may have made of a thread what is not in the database yet."""
        return self._saver.stage.find(str(thread_id)) is not None

    async def settle(self, thread_id: UUID) -> None:
        """Wait until what a run of this process made of a thread so far is in the database, or will never be."""
        hold = self._saver.stage.find(str(thread_id))
        if hold is not None and not hold.is_empty(""):
            with contextlib.suppress(LeaseLost):
                await hold.settle()

    async def execute(self, request: RunRequest, audience: Audience, *, timeout_s: float) -> Outcome:
        """Run a graph to its end, telling its events on the calling loop.

        What it remembers is stored when this returns. Raises RanTooLong, Invalid on a command without sense, LeaseLost
        when the run goes on elsewhere, and what the database failed with, a TimeoutError of its own among it.
        """
        conduit: Conduit[tuple[str, bytes]] = Conduit(audience.publish, lambda event: len(event[1]), audience.is_there)
        configurable = request.config["configurable"]
        run_id, is_new = UUID(configurable["run_id"]), request.is_passing
        holder = Holder(run_id, request.attempt, is_new=is_new, told=audience.told)
        loop = min(self._loops, key=lambda candidate: candidate.load)
        failures: list[Emitted] = []
        try:
            async with self._saver.stage.hold(configurable["thread_id"], holder):
                outcome = await loop.call(self._consume(request, conduit.push, timeout_s, failures))
        finally:
            conduit.close()
        # Told when it is known to be the graph's own: one of the database's, or a lost lease, is not the run's end.
        if failures:
            audience.publish([(emitted.event, emitted.data) for emitted in failures])
        return outcome

    async def read(self, work: Callable[[Graphs], Awaitable[T]]) -> T:
        """Do something with the graphs on a graph loop: read a state, update it, describe a graph."""

        async def reading() -> T:
            return await work(self.graphs)

        return await self._loops[0].call(reading())

    async def close(self) -> None:
        """Close the database and stop the loops; what blocks them is left behind."""
        await asyncio.wait([asyncio.create_task(self._loops[0].call(self._db.close()))], timeout=CLOSED_WITHIN_S)
        for loop in self._loops:
            loop.close()

    async def _consume(
        self, request: RunRequest, push: Callable[[tuple[str, bytes]], None], timeout_s: float, failures: list[Emitted]
    ) -> Outcome:
        execution = self._executor.execute(request)
        emitted: Emitted
        async with _no_longer_than(timeout_s):
            async for emitted in execution:
                if emitted.event == "error":
                    failures.append(emitted)
                else:
                    push((emitted.event, emitted.data))
        assert execution.outcome is not None  # noqa: S101 - the protocol promises it after the end
        return execution.outcome


@contextlib.asynccontextmanager
async def _no_longer_than(timeout_s: float) -> AsyncIterator[None]:
    """Raise RanTooLong at the limit; a TimeoutError of something inside stays what it is."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if limit.expired():
            raise RanTooLong from exc
        raise


async def _settle(*work: concurrent.futures.Future[Any]) -> None:
    """Wait until cancelled work has stopped; work that blocks for too long is reported and left alone."""
    running = [future for future in work if not future.done()]
    if not running:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    left = len(running)

    def count(_future: concurrent.futures.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            loop.call_soon_threadsafe(over.set)

    for future in running:
        future.add_done_callback(count)
    await _in_time(over)


async def _in_time(over: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(over.wait(), STOP_WITHIN_S)
    except TimeoutError:
        log.warning("cancelled work still runs: a node blocks its thread")
