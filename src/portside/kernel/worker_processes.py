"""Processes that serve together (`WorkerProcesses`), and how many of them the load needs (`WorkerDemand`)."""

import contextlib
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from portside.kernel import control_groups
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, describe_exit

log = get_logger(__name__)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RETIRE = signal.SIGUSR1
"""Asks a process to take no more work, finish what it has, however long that takes, and exit."""
# How often the load is measured, and for how long it must be high before another process starts.
LOOK_EVERY_S = 1.0
GROW_AFTER_S = 5.0


@dataclass(frozen=True)
class WorkerProcess:
    """One of the processes that serve together, as it sees itself: its number, from 0 to `count` - 1."""

    number: int
    count: int
    # The end of a pipe that is closed when the supervisor is gone.
    supervisor_fd: int
    _ready_fd: int

    def report_ready(self) -> None:
        """Tell the supervisor that this process serves."""
        os.write(self._ready_fd, bytes([self.number]))


@dataclass(frozen=True)
class Scaling:
    """When processes that serve together become more or fewer.

    One is added, up to `most`, after each of them has used `busy` of a core, on average, for `GROW_AFTER_S`. One ends
    after the others would have used less than half of that, on average, for `idle_s` seconds.
    """

    most: int
    busy: float
    idle_s: float


class WorkerDemand:
    """Decides whether processes must become more or fewer, from the CPU time that each has used."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self.forget()

    def forget(self) -> None:
        """Begin to measure again."""
        self._at = 0.0
        self._cpu_seconds = dict[int, float]()
        self._busy_since = math.inf
        self._quiet_since = math.inf

    def decide(self, at: float, cpu_seconds: Mapping[int, float]) -> int:
        """Return 1 if a process is missing, -1 if one is not needed, else 0.

        `cpu_seconds` maps process ids to the CPU time used so far. Call this about every second, with the monotonic
        time.
        """
        if cpu_seconds.keys() != self._cpu_seconds.keys():
            self.forget()
            self._at = at
            self._cpu_seconds = dict(cpu_seconds)
            return 0

        last_at = self._at
        delta = sum(seconds - self._cpu_seconds[pid] for pid, seconds in cpu_seconds.items())
        cores = delta / max(at - last_at, 1e-3)
        self._at = at
        self._cpu_seconds = dict(cpu_seconds)

        count = len(cpu_seconds)
        is_busy = cores >= self._scaling.busy * count
        is_quiet = count > 1 and cores < self._scaling.busy / 2 * (count - 1)
        self._busy_since = min(self._busy_since, last_at) if is_busy else math.inf
        self._quiet_since = min(self._quiet_since, last_at) if is_quiet else math.inf

        if at - self._busy_since >= GROW_AFTER_S:
            return 1
        if at - self._quiet_since >= self._scaling.idle_s:
            return -1

        return 0


class WorkerProcesses:
    """Processes that serve together, forked from this one, which supervises them and does nothing else.

    A process that ends is started again with a back-off. SIGTERM is passed on, and asks all to stop gracefully; SIGINT,
    or a second signal of either kind, is passed on as SIGINT: stop at once. A worker process must ignore a second
    SIGTERM, because service managers send the signal to all processes of a service.

    With a `Scaling` the first process starts alone. Others start while the load needs them, and get the signal `RETIRE`
    when it does not.
    """

    def __init__(
        self,
        count: int | Scaling,
        work: Callable[[WorkerProcess], int],
        *,
        on_ready: Callable[[], None],
        on_end: Callable[[int], None],
        on_stop: Callable[[], None],
    ) -> None:
        """Prepare `count` processes, or as many as the load needs, each of which exits with what `work` returns.

        `on_ready` is called once all of them serve, or the first one if the load decides; `on_end` with the number of
        each process that has ended, and `on_stop` when all are asked to stop.
        """
        self._demand: WorkerDemand | None = None
        if isinstance(count, Scaling):
            self._demand = WorkerDemand(count)
            count = count.most

        self._count = count
        self._work = work
        self._on_ready = on_ready
        self._on_end = on_end
        self._on_stop = on_stop

        self._pids: dict[int, int] = {}
        self._started_at = [0.0] * count
        self._backoffs = [Backoff() for _ in range(count)]

        # When to start each process that has ended again, by the monotonic clock.
        self._due: dict[int, float] = {}
        self._look_at = 0.0

        # The numbers of the processes that serve, and of those that were asked to retire.
        self._serving: set[int] = set()
        self._retiring: set[int] = set()
        self._has_served = False
        self._is_announced = False
        self._is_stopping = False
        self._exit_code = 0

        # The first pipe closes when this process ends, even by SIGKILL; by the second one workers say that they serve.
        self._life = os.pipe()
        self._ready = os.pipe()

    def run(self) -> int:
        """Run until all have stopped, and return the exit code: that of the first process if it could not start, or 0.

        The others start when the first one serves, so that a mistake is reported once.
        """
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

        for stop_signal in _STOP_SIGNALS:
            signal.signal(stop_signal, self._pass_on)

        # With a handler, because an ignored signal would not wake `select`.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._due = {0: 0.0}
        while self._pids or not self._is_stopping:
            now = time.monotonic()
            if not self._is_stopping:
                for number in [number for number, due in self._due.items() if due <= now]:
                    del self._due[number]
                    self._start(number)

            readers = [woken.fileno(), self._ready[0]]
            readable, _, _ = select.select(readers, [], [], self._wait_s(now))
            if woken.fileno() in readable:
                woken.recv(4096)

            if self._ready[0] in readable:
                self._note_ready(os.read(self._ready[0], self._count))

            self._reap()
            self._follow_load()

        return self._exit_code

    def _wait_s(self, now: float) -> float | None:
        """Return for how long only signals and the pipe can need attention; None for ever."""
        if self._is_stopping:
            return None

        times = list(self._due.values())
        if self._demand is not None:
            times.append(self._look_at)

        return max(0.0, min(times) - now) if times else None

    def _follow_load(self) -> None:
        now = time.monotonic()
        if self._demand is None or self._is_stopping or now < self._look_at:
            return

        self._look_at = now + LOOK_EVERY_S
        active = self._serving - self._retiring

        if self._due or self._pids.keys() - self._serving:
            # A process is being started, and the CPU time of its start says nothing about the load.
            self._demand.forget()
            return

        # A process that has just ended keeps its entry in /proc until it is reaped.
        pids = [self._pids[number] for number in active]
        decision = self._demand.decide(now, {pid: read_cpu_seconds(pid) for pid in pids})

        free = [number for number in range(self._count) if number not in self._pids]
        if decision > 0 and free:
            log.info("starting a worker process: the others are busy", worker=free[0])
            self._due[free[0]] = now
        elif decision < 0:
            self._retire(max(active - {0}))

    def _retire(self, number: int) -> None:
        log.info("ending a worker process that the load does not need", worker=number)
        self._retiring.add(number)
        os.kill(self._pids[number], RETIRE)

    def _start(self, number: int) -> None:
        self._started_at[number] = time.monotonic()
        # A signal between the fork and the next lines would be passed on by both processes, or miss the new one.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)

        pid = os.fork()
        if pid == 0:
            self._become_worker(number)

        self._pids[number] = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    def _become_worker(self, number: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            os.close(self._life[1])

            process = WorkerProcess(number, self._count, supervisor_fd=self._life[0], _ready_fd=self._ready[1])
            code = self._work(process)
        finally:
            # Not `sys.exit`: it would run the clean-up of the parent, which may run a database, in this process too.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _note_ready(self, numbers: bytes) -> None:
        is_first = not self._has_served
        # A process may have ended since it said so.
        self._serving |= self._pids.keys() & set(numbers)
        self._has_served = True

        if is_first and self._demand is None:
            self._due |= dict.fromkeys(range(1, self._count), 0.0)

        needed_count = self._count if self._demand is None else 1
        is_complete = len(self._serving) >= needed_count
        if is_complete and not self._is_announced and not self._is_stopping:
            self._is_announced = True
            self._on_ready()

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            # Not `waitpid(-1)`: other children of this process, such as Postgres, are not ours to reap.
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid == 0:
                continue

            del self._pids[number]
            self._on_end(number)
            has_retired = number in self._retiring
            self._serving.discard(number)
            self._retiring.discard(number)
            if not has_retired and not self._is_stopping:
                self._restart(number, os.waitstatus_to_exitcode(status))

    def _restart(self, number: int, code: int) -> None:
        if not self._has_served:
            # A program that fails at its first start needs somebody to correct something, so it is not repeated.
            self._exit_code = code if code > 0 else 1
            self._stop(signal.SIGTERM)
            return

        now = time.monotonic()
        delay_s = self._backoffs[number].next(now - self._started_at[number])
        reason = describe_exit(code)
        if self._demand is not None and number > 0:
            # Memory may be short. Another one starts if the load still needs it after the delay.
            log.warning("a worker process ended", worker=number, reason=reason)
            self._look_at = now + delay_s
            return

        log.warning("a worker process ended and is started again", worker=number, reason=reason, again_in_s=delay_s)
        self._due[number] = now + delay_s

    def _pass_on(self, number: int, _frame: object) -> None:
        is_urgent = number == signal.SIGINT or self._is_stopping
        self._stop(signal.SIGINT if is_urgent else signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._on_stop()

        for pid in self._pids.values():
            # This may run in a signal handler, between the reaping of a process and the removal of its id.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def count_usable_cores() -> int:
    """Return how many cores this process may use: those it is pinned to, or fewer if its control group has a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(ValueError):
        for limit in control_groups.read_limits("cpu.max"):
            quota, period = limit.split()
            if quota != "max":
                cores = min(cores, math.ceil(int(quota) / int(period)))

    return max(1, cores)


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used. Raises OSError if it is gone, or the system has no /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
