"""A member of the pool of executors: its link, the work that it has, and its heartbeat.

`spawned_executor` has the members that this server starts, `core_api.listener` those that connect from other machines.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from portside.agent.queue.active_run import ActiveRun
from portside.executor import messages
from portside.executor.errors import FAILURE
from portside.executor.link import CallFailed, Link, LinkClosed
from portside.executor.messages import ExecutorHello, Leases, Pong
from portside.executor.requests import GraphFacts
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.value_sizes import LARGE_BYTES

log = get_logger(__name__)
PING_EVERY_S = 1.0
LOOP_BLOCKED_S = 10.0
# A silent JavaScript executor has this long to end a run that was cancelled, or is over its time limit.
ENDS_WITHIN_S = 5.0
# How much slower the clock of another machine may run than this one's.
CLOCK_DRIFT = 0.001
# Of the errors that this server raised for what an executor asked for during one call.
KEPT_FAILURES = 16
T = TypeVar("T")
# Calls that no caller waits for: asyncio itself keeps no strong reference to a task.
_detached: set[asyncio.Future[Any]] = set()


class ExecutorFailed(Exception):
    """An executor did not start, does not speak the protocol, or takes no calls; the message says why."""


class NotedFailure(NamedTuple):
    """An error that this server raised for what an executor asked for, and its number among those of one call."""

    number: int
    error: Exception


@dataclass(slots=True, eq=False)
class CallContext:
    """The context variables and the user of a call to an executor, for what the executor asks for during the call.

    It also keeps the latest errors that this server raised for what the executor asked for. The executor learns their
    names and texts. If one of them ends the call, the caller gets the error itself, as from a graph in this process.
    """

    context: contextvars.Context
    user: Any
    _failures: deque[NotedFailure] = field(default_factory=lambda: deque(maxlen=KEPT_FAILURES))
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def note_failure(self, error: Exception) -> int:
        """Keep an error, and return the number by which the executor may name it."""
        number = next(self._numbers)
        self._failures.append(NotedFailure(number, error))
        return number

    def find_failure(self, failure: CallFailed) -> Exception | None:
        """Return the error of this server that ended the call, by the executor's answer; None if none did."""
        number = failure.fields.get(FAILURE)
        return next((each.error for each in self._failures if each.number == number), None)


class Executor:
    """An executor that is ready. `runs` are the attempts of the runs that it executes, by the ids of the runs."""

    def __init__(self, link: Link, hello: ExecutorHello, *, name: str, heartbeat_s: float) -> None:
        self.link = link
        self.hello = hello
        self.name = name
        self.runs: dict[UUID, int] = {}
        self.large_runs: set[UUID] = set()
        """Those of its runs that sent or received LARGE_BYTES at once.

        While its process copies and encodes that, others wait, so small runs go to another executor.
        """
        self.runs_begun = 0
        self.calls = 0
        """How many runs and other calls it serves."""
        self.calls_before = 0
        """How often it was called before it joined its pool."""
        self.memory_bytes = 0
        self.joined_at = time.monotonic()
        self.is_reserved = False
        """Whether it gets no more runs until one run has had it for itself."""
        self.asks_for_replacement = False
        """Whether it asks to be replaced, because work that was cancelled still runs in it."""
        self.retiring = asyncio.Event()
        """Set when it gets no more work: it ends after its last call."""
        self.went_silent = asyncio.Event()
        """Set when it has not answered for `heartbeat_s` because a run blocks its only thread."""

        # By the numbers of the calls that it serves.
        self.callers: dict[int, CallContext] = {}
        self.deadlines: dict[int, float] = {}
        """When runs must have ended, by the clock of the event loop."""
        self.leased_runs: dict[int, ActiveRun] = {}

        self._clock = _ClockOffset()
        self._clock.observe(hello.clock_s)
        self._is_sending_leases = False
        self._cancelled_at: dict[int, float] = {}
        self._heartbeat_s = heartbeat_s
        self._lost_runs: frozenset[UUID] | None = None
        self._killed_because: str | None = None
        self._is_closed = False
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def has_ended_on_purpose(self) -> bool:
        """Whether its server ended it or stops, so that its runs are not to blame. Call this only when it has ended."""
        raise NotImplementedError

    @property
    def is_retiring(self) -> bool:
        """Whether it gets no more work, and ends after its last call."""
        return self.retiring.is_set()

    @property
    def has_free_slot(self) -> bool:
        """Whether it may begin another run."""
        return not self.hello.slots or len(self.runs) < self.hello.slots

    @property
    def has_been_used(self) -> bool:
        """Whether it was called since it joined."""
        return self.link.calls_made > self.calls_before

    def note_size(self, run_id: UUID, size: int) -> None:
        """Note how many bytes one of its runs sent or received at once."""
        if size > LARGE_BYTES and run_id in self.runs:
            self.large_runs.add(run_id)

    def measure(self) -> None:
        """Read how much memory it holds, if it runs on this machine; otherwise its last pong counts."""

    def watch(self, on_end: Callable[["Executor", str], None]) -> None:
        """Watch the executor. `on_end` is called once, when it has ended, with the reason."""
        beats = asyncio.create_task(self._beat())
        self._tasks = [beats, asyncio.create_task(self._wait(beats, on_end))]

    def ask_for_replacement(self) -> None:
        """Note that it asks to be replaced, once its successor is ready."""
        self.asks_for_replacement = True

    def retire(self) -> None:
        """Give it no more work, and end it after its last call."""
        self.retiring.set()
        self.end_if_idle()

    def end_if_idle(self) -> None:
        """End a retiring executor that has nothing left to do."""
        if self.is_retiring and not self.calls:
            self.link.close("retired")

    def kill(self, reason: str) -> None:
        """End the executor at once."""
        self._killed_because = self._killed_because or reason
        self.link.abort(reason)

    def lost_runs(self) -> frozenset[UUID]:
        """Return the runs that it executed when its link ended; call this only then."""
        if self._lost_runs is None:
            self._lost_runs = frozenset(self.runs)
        return self._lost_runs

    async def wait_ended(self) -> str:
        """Wait until the executor has ended, and return why, as in `its executor was killed by SIGKILL`."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the executor: it may close what it has open, within a few seconds."""
        raise NotImplementedError

    async def _wait(self, beats: asyncio.Task[None], on_end: Callable[["Executor", str], None]) -> None:
        await self.link.wait_closed()
        self.lost_runs()
        reason = await self.wait_ended()
        beats.cancel()
        on_end(self, reason)

    async def _beat(self) -> None:
        """Ping the executor, and kill it when it does not answer.

        Silence is counted in rounds of this loop instead of by a clock: a pause of this process is no silence.
        """
        while not self.link.is_closed:
            silent = 0.0
            ping = asyncio.ensure_future(self.link.ping())
            while not (await asyncio.wait([ping], timeout=PING_EVERY_S))[0]:
                # While this process does not read its frames, a pong cannot arrive.
                silent = 0.0 if self.link.is_reading_paused else silent + PING_EVERY_S
                if silent >= self._heartbeat_s and not self._is_busy():
                    ping.cancel()
                    self.kill(f"did not answer for {silent:g} s")
                    return

            try:
                pong = messages.read(Pong, ping.result())
            except LinkClosed:
                return
            except CallFailed as exc:
                self.kill(f"broke the protocol: {exc}")
                return

            self._clock.observe(pong.clock_s)
            self.memory_bytes = pong.memory_bytes

            if LOOP_BLOCKED_S <= pong.blocked_s < LOOP_BLOCKED_S + 2 * PING_EVERY_S:
                log.warning("a node blocks the graph loop of an executor", executor=self.name, s=pong.blocked_s)

            await asyncio.sleep(PING_EVERY_S)

    # Leases

    def clock_s(self, at: float) -> float:
        """Convert a moment of this process's clock to the executor's clock, rounded down; 0 if its clock is unknown.

        Rounded down, so that the executor never believes in a lease for longer than this process holds it.
        """
        return self._clock.at(at)

    def send_leases(self) -> None:
        """Send it the ends of its runs' leases: one message for all that are renewed in this turn of the loop."""
        if not self._is_sending_leases:
            self._is_sending_leases = True
            asyncio.get_running_loop().call_soon(self._send_leases)

    def _send_leases(self) -> None:
        self._is_sending_leases = False
        owned = [(number, self.clock_s(run.leased_until)) for number, run in self.leased_runs.items() if run.is_owned]
        if owned and owned[0][1] and not self.link.is_closed:
            _detach(asyncio.ensure_future(self.link.call(messages.LEASES, Leases(leases=owned))))

    def _is_busy(self) -> bool:
        """Whether a run may be the reason for its silence: all JavaScript code of an executor shares one thread.

        Such an executor answers nothing else, so the pool replaces it. It may go on computing until one of its runs has
        been cancelled, or is over its time limit, for some seconds.
        """
        latest = asyncio.get_running_loop().time() - min(self._heartbeat_s, ENDS_WITHIN_S)
        times = (*self.deadlines.values(), *self._cancelled_at.values())
        if not self.has_one_thread or not self.deadlines or any(at < latest for at in times):
            return False

        if not self.went_silent.is_set():
            log.warning("a node blocks an executor, which is replaced", executor=self.name, s=self._heartbeat_s)
            self.went_silent.set()
            self.retire()

        return True

    @property
    def has_one_thread(self) -> bool:
        """Whether its link is served by the thread that executes the graphs."""
        return self.hello.language.startswith("JavaScript")

    async def unless_silent(self, call: Coroutine[Any, Any, T], has_begun: Callable[[], bool] = lambda: False) -> T:
        """Await a call to the executor. Raises ExecutorFailed if a run blocks it before it has begun with the call."""
        if not self.has_one_thread:
            return await call

        answered = asyncio.ensure_future(call)
        silent = asyncio.ensure_future(self.went_silent.wait())
        try:
            await asyncio.wait([answered, silent], return_when=asyncio.FIRST_COMPLETED)
            if answered.done() or has_begun():
                return await asyncio.shield(answered)

            # The executor cancels the call as soon as its loop runs again.
            answered.cancel()
            _detach(answered)
            raise ExecutorFailed("is blocked by a node that does not yield to the event loop")
        except asyncio.CancelledError:
            self._cancelled_at[id(answered)] = asyncio.get_running_loop().time()
            answered.cancel()
            await asyncio.wait([answered])
            raise
        finally:
            silent.cancel()
            self._cancelled_at.pop(id(answered), None)


class _ClockOffset:
    """The least number of seconds by which an executor's clock is ahead of this process's."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None
        self._observed_at = 0.0

    def observe(self, clock_s: float) -> None:
        """Note what the clock showed. It shows more by now, because the message took a while to arrive."""
        if clock_s:
            now = time.monotonic()
            ahead_s = clock_s - now
            if self._ahead_s is not None:
                drift_s = CLOCK_DRIFT * (now - self._observed_at)
                ahead_s = max(ahead_s, self._ahead_s - drift_s)

            self._ahead_s = ahead_s
            self._observed_at = now

    def at(self, moment: float) -> float:
        return 0.0 if self._ahead_s is None else moment + self._ahead_s


def _detach(call: "asyncio.Future[Any]") -> None:
    """Keep a call running that no caller waits for, and ignore its result."""
    _detached.add(call)
    call.add_done_callback(_on_detached_done)


def _on_detached_done(call: "asyncio.Future[Any]") -> None:
    _detached.discard(call)
    if not call.cancelled():
        # Retrieved, so that asyncio does not log it.
        call.exception()


def read_hello(body: Any) -> ExecutorHello:
    """Read an executor's hello. Raises ExecutorFailed if it is malformed, and UserMistake if the project failed."""
    try:
        messages.check_protocol(body, sender="the executor", receiver="the server")
        hello = messages.read(ExecutorHello, body)
        hello.graphs = {name: messages.read(GraphFacts, facts) for name, facts in hello.graphs.items()}
    except CallFailed as exc:
        raise ExecutorFailed(f"an executor cannot be used: {exc}") from exc

    if hello.failure is not None:
        raise UserMistake(hello.failure)

    return hello
