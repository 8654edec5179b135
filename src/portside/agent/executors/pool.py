"""The executors of this server: as many processes as configured, while there is work for them, and those that joined.

A run goes to the executor that has the fewest calls. The pool replaces a process that ends at once, but after a
back-off if it ended before it did any work; the status of the deployment then says so. It replaces a process that has
executed many runs, or holds much memory, once the new process is ready. It kills one that is far above its memory
limit. After a while without work the pool stops all processes, and starts some again with the next call. While there
are runs, it keeps spare processes ready to take over from one that ends. Executors on other machines join and leave by
themselves. The descriptions of the graphs stay available while no executor runs.

When an executor crashes, its runs lose their attempt. Any of them may be the cause, so from then on each of them gets
an executor to itself (`is_alone`).

A run with large values keeps the interpreter of its process busy, so it delays the others there. The pool gives small
runs and other calls another executor, a spare if need be, and leaves at least one to them.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from portside.agent.executors.member import Executor, ExecutorFailed
from portside.agent.executors.spawned_executor import Program, SpawnedExecutor
from portside.agent.problems import PROBLEMS
from portside.executor import messages
from portside.executor.link import Handler, Handlers
from portside.executor.requests import GraphFacts
from portside.kernel.errors import Unavailable, UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.kernel.timeouts import wait_at_most

log = get_logger(__name__)
LOOK_EVERY_S = 1.0
AVAILABLE_WITHIN_S = 120.0
# A run waits in the queue, and not here, while executors do not start.
RUN_WAITS_S = 10.0
SCALED_DOWN_AFTER_S = 300.0
# How long the first process may stay without work. It was started to describe the graphs, and after an upgrade every
# server of a machine starts one at the same time.
UNUSED_KEPT_S = 30.0
# A process that lives this long counts as a successful start, which resets the back-off.
STEADY_AFTER_S = 10.0
SPARES_KEPT_S = 300.0
# An earlier spare would compete for the processor with the executor that a run waits for, and with the first runs. And
# a server that is woken for one short run would import the project twice.
SPARES_BEGIN_AFTER_S = 10.0
# A process above its memory limit by this factor is killed: otherwise the OOM killer might choose the server.
KILL_ABOVE = 1.25
LONGEST_REASON = 500
Prepare = Callable[[Executor], Awaitable[None]]
MakeHandlers = Callable[[Callable[[], Executor]], Handlers]


@dataclass(frozen=True)
class PoolLimits:
    """How many executors there are, and when they are replaced or stopped; 0 is never.

    The pool starts more than `executors`, up to `most`, while each of them has `runs_each` runs.
    """

    executors: int = 1
    most: int = 0
    runs_each: int = 1
    max_runs: int = 0
    max_memory_bytes: int = 0
    idle_s: float = 0.0
    spares: int = 0
    """How many more processes are kept ready while there are runs."""


class _WithRetirement:
    """Other handlers, and one more for a process that asks to be replaced."""

    def __init__(self, handlers: Handlers, retire: Handler) -> None:
        self._handlers = handlers
        self._retire = retire

    def get(self, method: str, /) -> Handler | None:
        return self._retire if method == messages.RETIRE else self._handlers.get(method)


class ExecutorPool:
    """Starts, watches and assigns executors. `make_handlers` returns the handlers of one executor's calls.

    `prepare` is awaited before one that was started joins.
    """

    def __init__(
        self, program: Program, limits: PoolLimits, make_handlers: MakeHandlers, *, prepare: Prepare | None = None
    ) -> None:
        self.facts: dict[str, GraphFacts] = {}
        self.libraries: dict[str, str] = {}
        self.program = program
        self.make_handlers = make_handlers

        self._prepare = prepare
        self._on_join: list[Callable[[Executor], None]] = []
        self._on_change: list[Callable[[], None]] = []
        self._limits = limits
        self._target_size = limits.executors
        self._executors: list[Executor] = []
        self._starting = TaskSet()
        self._waiting_calls = 0
        self._is_closing = False

        # By the monotonic clock: when the pool last needed its size, had a call, and had a run.
        self._needed_at = time.monotonic()
        self._used_at = time.monotonic()
        self._run_at = -math.inf

        # Why the last process did not start, if none has started well since, and when the next one may start.
        self._failure: str | None = None
        self._backoff = Backoff()
        self._not_before = 0.0

        # `_changed` is replaced by a new event whenever it is set.
        self._changed = asyncio.Event()
        self._due = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    def subscribe(
        self,
        *,
        on_join: Callable[[Executor], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Call back with each executor that has joined, and when one has joined, left or begun to retire."""
        if on_join is not None:
            self._on_join.append(on_join)

        if on_change is not None:
            self._on_change.append(on_change)

    def report_change(self) -> None:
        """Tell subscribers that executors, or their slots, are not the same any more."""
        for on_change in self._on_change:
            on_change()

    async def start(self) -> None:
        """Start the first process, which describes the graphs, and then the others.

        If the graphs are known from an earlier start and executors end when idle, only the first work starts a process.
        Raises UserMistake if the project does not load or the process fails.
        """
        try:
            if self.facts and self._limits.idle_s:
                self._used_at -= self._limits.idle_s
            elif self._limits.executors:
                await self._start_one()
                self._used_at = time.monotonic() - max(0.0, self._limits.idle_s - UNUSED_KEPT_S)
        except ExecutorFailed as exc:
            raise UserMistake(str(exc)) from exc

        self._supervisor = asyncio.create_task(Supervision("executor processes").run(self._supervise))

    def replace_program(self, program: Program) -> None:
        """Use another program: give the present processes no more work, and start new ones."""
        self.program = program
        for executor in self._list_usable():
            executor.retire()

        self._due.set()

    def stop_starting(self) -> None:
        """Start no more processes."""
        self._is_closing = True

    async def close(self) -> None:
        """End all executors."""
        self._is_closing = True
        await cancel_and_wait(self._supervisor, *self._starting)
        await asyncio.gather(*(executor.close() for executor in list(self._executors)))

    @property
    def executors(self) -> list[Executor]:
        """The executors that take calls now."""
        return self._list_usable()

    # Assigning

    @asynccontextmanager
    async def for_run(
        self, run_id: UUID, attempt: int, *, is_alone: bool = False, is_large: bool = False
    ) -> AsyncIterator[Executor]:
        """Assign an attempt at a run to an executor, which has no other run with `is_alone`.

        With `is_large` the run is known to have large values. Raises Unavailable if no executor starts.
        """
        self._run_at = time.monotonic()
        executor = await self._wait_for_slot(is_alone=is_alone, is_large=is_large)
        executor.runs[run_id] = attempt
        if is_large:
            executor.large_runs.add(run_id)

        executor.runs_begun += 1
        executor.calls += 1

        try:
            yield executor
        finally:
            executor.calls -= 1
            executor.is_reserved = executor.is_reserved and not is_alone
            if executor.runs.get(run_id) == attempt:
                del executor.runs[run_id]
                executor.large_runs.discard(run_id)

            self._on_released(executor)

    @asynccontextmanager
    async def for_call(self) -> AsyncIterator[Executor]:
        """Assign a call that executes no run. Raises Unavailable if no executor starts."""
        with self._calling(await self._wait_for(self._find_for_call)) as executor:
            yield executor

    @contextmanager
    def for_call_now(self) -> Iterator[Executor | None]:
        """Assign a call without waiting; None if no executor is ready."""
        executor = self._find_for_call()
        self._used_at = time.monotonic()

        if executor is None:
            yield None
            return

        with self._calling(executor):
            yield executor

    @contextmanager
    def _calling(self, executor: Executor) -> Iterator[Executor]:
        executor.calls += 1
        try:
            yield executor
        finally:
            executor.calls -= 1
            self._on_released(executor)

    def _find_for_call(self) -> Executor | None:
        return self._find_least_loaded(self._list_for_small_work())

    async def _wait_for_slot(self, *, is_alone: bool, is_large: bool) -> Executor:
        if is_alone:
            return await self._reserve_empty()

        def find() -> Executor | None:
            executors = self._list_for_large_runs() if is_large else self._list_for_small_work()
            candidates = [executor for executor in executors if executor.has_free_slot and not executor.is_reserved]
            return self._find_least_loaded(candidates)

        return await self._wait_for(find, is_run=True)

    def _list_for_small_work(self) -> list[Executor]:
        """Return the executors without large runs: a spare if no other is left, and all if there is none."""
        in_service = self._list_in_service()
        if not any(executor.large_runs for executor in in_service):
            return in_service

        return (
            [executor for executor in in_service if _is_open_to_small_runs(executor)]
            or [executor for executor in self._list_usable() if _is_open_to_small_runs(executor)]
            or in_service
        )

    def _list_for_large_runs(self) -> list[Executor]:
        """Return the executors that large runs may have: one stays without, unless there is only one."""
        usable = self._list_usable()
        crowded = [executor for executor in usable if executor.large_runs and executor.has_free_slot]
        others = [executor for executor in usable if _is_open_to_small_runs(executor)]
        if len(others) > 1:
            # A spare is taken only if the executors in service, which come first, have other work.
            return crowded + others

        return crowded or self._list_in_service()

    async def _reserve_empty(self) -> Executor:
        """Wait for an executor without runs, and reserve it.

        The least loaded executor gets no more runs, so that it becomes empty. Its runs may take hours, so an executor
        that is empty before, such as one that has just started, is taken instead. With spares in the pool, all other
        runs keep at least one executor.
        """
        reserved: Executor | None = None

        def find() -> Executor | None:
            nonlocal reserved
            if reserved is not None and (reserved.is_retiring or reserved.link.is_closed):
                reserved = None

            unreserved = self._list_unreserved()
            if self._limits.spares and len(unreserved) == 1:
                unreserved = []

            candidates = [executor for executor in (reserved, *unreserved) if executor is not None]
            empty = next((executor for executor in candidates if not executor.runs), None)
            if empty is None and reserved is None:
                reserved = self._find_least_loaded(unreserved)

            if empty is not None and reserved is not None:
                reserved.is_reserved = False

            if (choice := empty or reserved) is not None:
                choice.is_reserved = True

            return empty

        try:
            return await self._wait_for(find, is_run=True)
        except BaseException:
            if reserved is not None:
                reserved.is_reserved = False

            self._notify()
            raise

    async def _wait_for(self, find: Callable[[], Executor | None], *, is_run: bool = False) -> Executor:
        self._used_at = time.monotonic()
        until: float | None = None
        while (executor := find()) is None:
            self._due.set()
            # The time limit is for executors that do not start. A slot may be free only when a run ends, hours later.
            if self._list_usable() or (is_run and self._starting and self._failure is None):
                until = None

            until = until or time.monotonic() + (RUN_WAITS_S if is_run else AVAILABLE_WITHIN_S)
            if time.monotonic() > until or self._is_closing:
                reason = self._failure or ("they are starting" if self._limits.executors else "none is connected")
                raise Unavailable(f"no executor is ready: {reason}; try again later")

            self._waiting_calls += 1
            try:
                await wait_at_most(LOOK_EVERY_S, self._changed.wait())
            finally:
                self._waiting_calls -= 1

        return executor

    def _list_usable(self) -> list[Executor]:
        return [executor for executor in self._executors if not executor.is_retiring and not executor.link.is_closed]

    def _list_processes(self) -> list[Executor]:
        """Return the processes of this server: those on other machines are started and replaced there."""
        return [executor for executor in self._list_usable() if isinstance(executor, SpawnedExecutor)]

    def _list_in_service(self) -> list[Executor]:
        """Return the executors that take work.

        A spare takes none until another process ends, except a run that must be alone.
        """
        if not self._limits.spares:
            return self._list_usable()

        unreserved = [executor for executor in self._list_processes() if not executor.is_reserved]
        spares = unreserved[self._target_size :]
        return [executor for executor in self._list_usable() if executor not in spares]

    def _list_unreserved(self) -> list[Executor]:
        return [executor for executor in self._list_usable() if not executor.is_reserved]

    @staticmethod
    def _find_least_loaded(executors: list[Executor]) -> Executor | None:
        return min(executors, key=lambda executor: executor.calls, default=None)

    def _on_released(self, executor: Executor) -> None:
        self._used_at = time.monotonic()
        if self._failure is not None and not executor.link.is_closed:
            self._note_good_start()

        executor.end_if_idle()
        self._notify()

    def _notify(self) -> None:
        """Wake all callers that wait for an executor."""
        self._changed.set()
        self._changed = asyncio.Event()

    # Supervising

    async def _supervise(self) -> None:
        while True:
            self._scale()
            self._check_processes()
            self._stop_idle()
            self._retire_replaced()
            self._start_missing()
            self._due.clear()

            await wait_at_most(None if self._is_at_rest else LOOK_EVERY_S, self._due.wait())

    @property
    def _is_at_rest(self) -> bool:
        """Whether the supervisor has nothing to do before the next call."""
        is_empty = not (self._executors or self._starting or self._waiting_calls)
        is_idle = self._limits.idle_s > 0 and time.monotonic() - self._used_at > self._limits.idle_s
        return is_empty and is_idle and self._target_size == self._limits.executors

    def _scale(self) -> None:
        """Raise the wanted number of executors when runs fill them; lower it when fewer were enough for a while."""
        limits = self._limits
        now = time.monotonic()
        runs = self._waiting_calls + sum(len(each.runs) for each in self._list_processes())
        needed = max(limits.executors, min(limits.most, math.ceil(runs / limits.runs_each)))

        surplus = self._target_size - needed
        if surplus <= 0:
            self._needed_at = now
        elif now - self._needed_at <= (limits.idle_s or SCALED_DOWN_AFTER_S):
            return

        if surplus:
            log.info("the number of executors changes", to=needed, runs=runs)

        self._target_size = needed

        for executor in sorted(self._list_processes(), key=lambda each: each.calls)[: max(0, surplus)]:
            executor.retire()

    def _check_processes(self) -> None:
        """Kill processes far above their memory limit; note whether there are runs, and whether processes start."""
        if any(self._waiting_calls or process.runs for process in self._executors):
            self._run_at = time.monotonic()

        limit = self._limits.max_memory_bytes
        for executor in self._executors:
            executor.measure()
            is_alive = isinstance(executor, SpawnedExecutor) and not executor.link.is_closed
            if limit and is_alive and executor.memory_bytes > KILL_ABOVE * limit:
                used_mb = executor.memory_bytes // 1_000_000
                allowed_mb = limit // 1_000_000
                executor.kill(f"used {used_mb} MB of memory, far more than EXECUTOR_MAX_MEMORY_MB ({allowed_mb} MB)")

        processes = self._list_processes()
        if self._failure is not None and not self._starting and len(processes) >= self._target_size:
            now = time.monotonic()
            if all(now - process.joined_at > STEADY_AFTER_S for process in processes):
                self._note_good_start()

    def _stop_idle(self) -> None:
        is_idle = not self._waiting_calls and not any(each.calls for each in self._executors)
        if self._limits.idle_s and is_idle and time.monotonic() - self._used_at > self._limits.idle_s:
            for executor in self._list_processes():
                executor.retire()

        if (
            self._limits.spares
            and not self._wanted_spares
            and not any(map(self._is_due_for_replacement, self._list_processes()))
        ):
            for executor in self._list_processes()[self._target_size :]:
                executor.retire()

    @property
    def _wanted_spares(self) -> int:
        """How many spares the pool should have: none before the first run, and none long after the last one."""
        is_recent = time.monotonic() - self._run_at <= (self._limits.idle_s or SPARES_KEPT_S)
        return self._limits.spares if is_recent else 0

    def _retire_replaced(self) -> None:
        """Retire the executors that are due for replacement, once their replacements are ready."""
        for executor in self._list_processes():
            if self._is_due_for_replacement(executor) and len(self._list_processes()) > self._target_size:
                log.info(
                    "an executor is replaced",
                    executor=executor.name,
                    runs=executor.runs_begun,
                    memory_mb=executor.memory_bytes // 1_000_000,
                )

                executor.retire()

    def _is_due_for_replacement(self, executor: Executor) -> bool:
        runs = self._limits.max_runs
        memory = self._limits.max_memory_bytes
        return executor.asks_for_replacement or bool(
            (runs and executor.runs_begun >= runs) or (memory and executor.memory_bytes > memory)
        )

    def _start_missing(self) -> None:
        usable = self._list_processes()
        if self._is_closing:
            return

        is_wanted = self._waiting_calls or any(executor.calls for executor in usable) or not self._limits.idle_s
        is_recent = time.monotonic() - self._used_at <= self._limits.idle_s
        if not (is_wanted or is_recent) or time.monotonic() < self._not_before:
            return

        replacements = sum(self._is_due_for_replacement(executor) for executor in usable)
        spares = self._wanted_spares if self._is_steady(usable) else 0

        missing_count = self._target_size + spares + replacements - len(usable) - len(self._starting)
        for _ in range(missing_count):
            self._starting.spawn(self._try_to_start())

    def _is_steady(self, usable: list[Executor]) -> bool:
        """Whether all wanted executors have had runs for longer than SPARES_BEGIN_AFTER_S.

        It is also True if other runs need a spare at once, because one has a suspect or large runs.
        """
        if any(executor.is_reserved or executor.large_runs for executor in usable):
            return True

        joined_before = self._run_at - SPARES_BEGIN_AFTER_S
        steady = [executor for executor in usable[: self._target_size] if executor.joined_at < joined_before]
        return len(steady) == self._target_size

    async def _try_to_start(self) -> None:
        try:
            await self._start_one()
        except (UserMistake, ExecutorFailed, OSError) as exc:
            self._note_failed_start(str(exc))

    def _note_failed_start(self, reason: str) -> None:
        """Note that a process did not start, or ended before it had work; start the next one after a back-off."""
        self._failure = reason
        delay_s = self._backoff.next()
        self._not_before = time.monotonic() + delay_s

        # No traceback: it would show this module, and the reason already names the user's code.
        log.warning("an executor did not start and is tried again", reason=reason, again_in_s=delay_s)
        executed = "graphs" if self.program.hello.handlers is None else "the project's handlers"
        PROBLEMS.note(
            f"executors {id(self)}",
            f"An executor of {executed} does not start, and is tried again: {reason[:LONGEST_REASON]}",
        )

    def _note_good_start(self) -> None:
        self._failure = None
        self._backoff.reset()
        PROBLEMS.forget(f"executors {id(self)}")

    async def _start_one(self) -> None:
        started_executors: list[Executor] = []
        began_at = time.monotonic()
        handlers = _WithRetirement(
            handlers=self.make_handlers(lambda: started_executors[0]),
            retire=lambda _body, _call: started_executors[0].ask_for_replacement(),
        )
        executor = await SpawnedExecutor.start(self.program, handlers)
        started_executors.append(executor)

        try:
            if self._prepare is not None:
                await self._prepare(executor)
        except BaseException:
            await executor.close()
            raise

        self.join(executor, took_s=round(time.monotonic() - began_at, 2))

    def join(self, executor: Executor, **fields: Any) -> None:
        """Add an executor that is ready; it leaves when it ends. `fields` are logged."""
        self.facts.clear()
        self.facts.update(executor.hello.graphs)
        self.libraries.update(executor.hello.libraries)
        executor.calls_before = executor.link.calls_made

        executor.watch(self._on_end)
        self._executors.append(executor)
        log.info(
            "executor ready",
            executor=executor.name,
            of="graphs" if executor.hello.graphs else "handlers",
            language=executor.hello.language,
            **fields,
        )

        for on_join in self._on_join:
            on_join(executor)

        self.report_change()
        self._due.set()
        self._notify()

    def _on_end(self, executor: Executor, reason: str) -> None:
        self._executors.remove(executor)
        lost_runs = len(executor.lost_runs())
        if executor.has_ended_on_purpose or (executor.is_retiring and not lost_runs):
            log.info("executor ended", executor=executor.name)
        else:
            log.error("an executor was lost", executor=executor.name, reason=reason, runs=lost_runs)
            if not (self._is_closing or executor.has_been_used) and isinstance(executor, SpawnedExecutor):
                self._note_failed_start(f"an executor {reason} before it had work")

        self.report_change()
        self._due.set()
        self._notify()


def _is_open_to_small_runs(executor: Executor) -> bool:
    return executor.has_free_slot and not executor.is_reserved and not executor.large_runs
