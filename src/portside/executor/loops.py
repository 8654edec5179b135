"""Runs graphs on event loops, each in its own thread, and stops calls there.

A stopped call is over when none of its code runs any more. Its task is cancelled, and with it every node, subgraph and
child task that awaits. Nodes that are not coroutines run in threads, which Python cannot stop: the loop waits for them
for a limited time, and then leaves them behind with a warning. Such a node continues in its thread: its result is
dropped, its effects on the world are not. The same holds for tasks that a node started and does not await, and for
graphs on other servers that it called.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import logging
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from portside.executor.errors import RunTimeout
from portside.kernel.timeouts import wait_at_most

log = logging.getLogger(__name__)
T = TypeVar("T")
STOP_WITHIN_S = 60.0
# Set once cancelled work did not stop. An executor is then replaced, because the work still takes its resources.
work_left_behind = threading.Event()
THREADS = 64
_Jobs = set[concurrent.futures.Future[Any]]
# The jobs that the current call runs in threads.
_jobs: ContextVar[_Jobs | None] = ContextVar("jobs", default=None)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, which is faster, or of the standard library where uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()

    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


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
        self._caller_loop = asyncio.get_running_loop()
        self._loop = loop
        self.result: asyncio.Future[T] = self._caller_loop.create_future()
        self._task: asyncio.Task[T] | None = None
        self._has_stopped = asyncio.Event()
        self._work = work

        loop.call_soon_threadsafe(self._start)

    async def stop(self) -> None:
        """Cancel the work and wait until it has stopped; work that blocks for too long is logged and left behind."""
        if not self._has_stopped.is_set():
            self._loop.call_soon_threadsafe(self._cancel)
            await _wait_for_stop(self._has_stopped)

    def _start(self) -> None:
        self._task = self._loop.create_task(_await_with_jobs(self._work))
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            # A task that was cancelled before its first step has not begun the work.
            self._work.close()

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


async def _await_with_jobs(work: Coroutine[Any, Any, T]) -> T:
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
        self._loop = new_event_loop()
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


async def _wait_for_jobs(*jobs: concurrent.futures.Future[Any]) -> None:
    """Wait until jobs in threads have ended; those that take too long are logged and left behind."""
    running_jobs = [future for future in jobs if not future.done()]
    if not running_jobs:
        return

    loop = asyncio.get_running_loop()
    all_ended = asyncio.Event()
    jobs_left = len(running_jobs)

    def count() -> None:
        nonlocal jobs_left
        jobs_left -= 1
        if jobs_left == 0:
            all_ended.set()

    def on_done(_future: concurrent.futures.Future[Any]) -> None:
        # Jobs end in their own threads, several at once: only the loop counts. It may be closed already.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(count)

    for future in running_jobs:
        future.add_done_callback(on_done)

    await _wait_for_stop(all_ended)


async def _wait_for_stop(has_stopped: asyncio.Event) -> None:
    if not await wait_at_most(STOP_WITHIN_S, has_stopped.wait()):
        log.warning("cancelled work still runs: a node blocks its thread")
        work_left_behind.set()
