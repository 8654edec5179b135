"""Supervision of background work.

Background work does not end because of an error.
"""

import asyncio
import os
import signal
import threading
from itertools import pairwise

import asyncpg
import pytest
import structlog

from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.worker_processes import (
    Scaling,
    WorkerDemand,
    WorkerProcesses,
    count_usable_cores,
    read_cpu_seconds,
)
from tests.conftest import eventually


def quick() -> Backoff:
    return Backoff(first_s=0.001, limit_s=0.002)


class Work:
    """Raises the given failures, then returns 7."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def run(self) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return 7

    def run_in_thread(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


UNEXPECTED = (OSError(24, "Too many open files"), OSError(28, "No space left on device"), KeyError("a bug"))


def test_backoff_doubles_to_its_limit_and_resets():
    backoff = Backoff(first_s=0.2, limit_s=1, reset_after_s=60)
    assert [backoff.next() for _ in range(4)] == [0.2, 0.4, 0.8, 1]
    assert backoff.next(healthy_for_s=59) == 1
    assert backoff.next(healthy_for_s=60) == 0.2


async def test_work_is_retried_until_it_returns():
    reported: list[tuple[str, float]] = []
    supervision = Supervision(
        "the work", backoff=quick(), on_failure=lambda failure, delay_s: reported.append((str(failure), delay_s))
    )
    assert await supervision.run(Work(*UNEXPECTED).run) == 7
    assert [text for text, _ in reported] == [str(failure) for failure in UNEXPECTED]
    assert [delay_s for _, delay_s in reported] == [0.001, 0.002, 0.002]


async def test_cancellation_ends_the_work():
    task = asyncio.create_task(Supervision("the work").run(asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_run_in_thread_retries_until_stopped():
    work = Work(*UNEXPECTED)
    Supervision("the work", backoff=quick()).run_in_thread(work.run_in_thread, threading.Event())
    assert work.failures == []


async def test_stop_interrupts_the_delay_of_a_thread():
    stop = threading.Event()
    supervision = Supervision("the work", backoff=Backoff(3600, 3600))
    failing = Work(*UNEXPECTED)
    thread = threading.Thread(target=supervision.run_in_thread, args=(failing.run_in_thread, stop))

    thread.start()

    async def has_failed() -> bool:
        return len(failing.failures) == 2

    await eventually(has_failed)
    stop.set()
    thread.join()


@pytest.mark.parametrize(
    ("failure", "level", "has_traceback"),
    [
        (KeyError("a bug"), "error", True),
        (ValueError("known"), "warning", False),
        (asyncpg.CannotConnectNowError("starting up"), "warning", False),
    ],
)
async def test_only_unexpected_failures_log_a_traceback(failure: Exception, level: str, *, has_traceback: bool):
    with structlog.testing.capture_logs() as lines:
        await Supervision("the work", backoff=quick(), expected=(ValueError,)).run(Work(failure).run)

    (line,) = lines
    assert (line["log_level"], line["work"], "exc_info" in line) == (level, "the work", has_traceback)


SCALING = Scaling(most=4, busy=0.8, idle_s=60)


def decisions(*cores: tuple[float, ...]) -> list[int]:
    """Return what is decided each second while the processes use these shares of a core."""
    demand = WorkerDemand(SCALING)
    used = dict[int, float]()
    found = list[int]()
    for second, shares in enumerate([cores[0], *cores]):
        used = {pid: used.get(pid, 0.0) + share for pid, share in enumerate(shares)}
        found.append(demand.decide(float(second), used))

    return found[1:]


def test_a_process_is_added_after_five_busy_seconds():
    assert decisions(*[(0.81,)] * 6) == [0, 0, 0, 0, 1, 1]
    assert decisions(*[(0.79,)] * 10) == [0] * 10

    # It is the average that counts.
    assert decisions(*[(1.0, 0.7)] * 5)[-1] == 1
    assert decisions(*[(1.0, 0.5)] * 5)[-1] == 0


def test_a_quiet_second_begins_the_five_again():
    assert decisions(*[(1.0,)] * 4, (0.5,), *[(1.0,)] * 5) == [0] * 9 + [1]


def test_a_process_ends_when_the_others_would_have_enough_time_left():
    assert decisions(*[(0.3, 0.0)] * 60) == [0] * 59 + [-1]
    # What one process would have to do, it must do with half of the share that adds one.
    assert decisions(*[(0.3, 0.2)] * 60) == [0] * 60
    assert decisions(*[(0.2, 0.2, 0.3)] * 60)[-1] == -1

    # The last one stays.
    assert decisions(*[(0.0,)] * 100) == [0] * 100


def test_a_new_process_is_measured_before_anything_is_decided():
    demand = WorkerDemand(SCALING)
    assert [demand.decide(float(second), {1: float(second)}) for second in range(5)] == [0] * 5
    both = [demand.decide(float(second), {1: float(second), 2: float(second)}) for second in range(5, 11)]
    assert both == [0, 0, 0, 0, 0, 1]


def test_a_signal_reaches_the_processes_that_are_left(monkeypatch):
    """A signal may arrive between the reaping of a process and the removal of its id."""
    sent: list[int] = []

    def kill(pid: int, _number: int) -> None:
        if pid == 1111:
            raise ProcessLookupError
        sent.append(pid)

    monkeypatch.setattr(os, "kill", kill)
    stopped: list[bool] = []
    processes = WorkerProcesses(
        2, lambda _: 0, on_ready=lambda: None, on_end=lambda _: None, on_stop=lambda: stopped.append(True)
    )
    processes._pids = {0: 1111, 1: 2222}

    processes._pass_on(signal.SIGTERM, None)
    assert (sent, stopped) == ([2222], [True])


def test_cores_and_cpu_time_of_a_process_are_read():
    assert 1 <= count_usable_cores() <= len(os.sched_getaffinity(0))
    before = read_cpu_seconds(os.getpid())
    while read_cpu_seconds(os.getpid()) <= before:
        sum(a * b for a, b in pairwise(range(10_000)))
