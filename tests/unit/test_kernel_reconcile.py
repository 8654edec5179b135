"""Background tasks run periodically and on signals, and one that fails does not stop the others."""

import asyncio

import pytest
from structlog.testing import capture_logs

from portside.kernel.reconcile import Driver, Status, Task, get_pause
from tests.conftest import eventually


class CountingTask(Task):
    """Counts its activations. `plan` has the result of each one; the last is repeated."""

    def __init__(self, *plan: Status | Exception) -> None:
        super().__init__()
        self.plan = list(plan) or [Status()]
        self.concurrent = self.max_concurrent = 0

    async def activate(self) -> Status:
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        await asyncio.sleep(0)
        self.concurrent -= 1

        step = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        if isinstance(step, Exception):
            raise step

        return step


class Rare(CountingTask):
    every_s = 3600.0


class Often(CountingTask):
    every_s = 0.005


@pytest.fixture
async def run():
    drivers = []

    def start(*tasks: Task) -> Driver:
        drivers.append(Driver(list(tasks)))
        drivers[-1].start()
        return drivers[-1]

    yield start

    for driver in drivers:
        await driver.close()


async def wait_for_activations(task: Task, activations: int) -> None:
    async def is_there() -> bool:
        return task.report.activations >= activations

    await eventually(is_there)


class Configured(Task):
    every_s = 3600.0

    async def activate(self) -> Status:
        return Status()


async def test_configured_period_overrides_the_class(run) -> None:
    task = Configured(every_s=0.005)
    run(task)
    await wait_for_activations(task, 5)
    assert (task.report.every_s, Configured().report.every_s) == (0.005, 3600.0)


async def test_task_runs_at_start_and_periodically(run) -> None:
    task = Often(Status({"freed": 3}))
    run(task)
    await wait_for_activations(task, 5)
    assert task.report.did == {"freed": 3}
    assert task.max_concurrent == 1


async def test_log_says_what_a_task_deleted(run) -> None:
    """Each time that it deleted something, and what other tasks do is no line."""

    class Deletes(Often):
        deletes = True

    task = Deletes(Status({"traces": 2, "files": 0}), Status({"traces": 0}))
    other = Often(Status({"freed": 3}))
    with capture_logs() as logged:
        run(task, other)
        await wait_for_activations(task, 3)
        await wait_for_activations(other, 3)

    assert logged == [{"event": "expired data was deleted", "task": task.report.name, "traces": 2, "log_level": "info"}]


async def test_signal_activates_a_task_early(run) -> None:
    task = Rare()
    run(task)
    await wait_for_activations(task, 1)
    task.signal.set()
    await wait_for_activations(task, 2)


async def test_signal_during_an_activation_is_not_lost(run) -> None:
    gate = asyncio.Event()

    class Slow(Rare):
        async def activate(self) -> Status:
            await gate.wait()
            return Status()

    task = Slow()
    run(task)
    await wait_for_activations(task, 1)
    task.signal.set()
    gate.set()
    await wait_for_activations(task, 2)


async def test_again_starts_the_next_activation_immediately(run) -> None:
    task = Rare(Status(again=True), Status(again=True), Status({"left": 0}))
    run(task)
    await wait_for_activations(task, 3)
    assert task.report.did == {"left": 0}


def test_again_without_anything_done_pauses_a_moment() -> None:
    """A batch of rows that cannot be deleted must not keep a processor busy, nor a search in parts take for ever."""
    assert 0 < get_pause(Status({"deleted": 0}, again=True)) <= 0.05
    assert 0 < get_pause(Status(again=True)) <= 0.05
    assert get_pause(Status({"deleted": 5}, again=True)) == 0


async def test_failure_is_reported_and_stops_no_task(run) -> None:
    failing = Often(ValueError("disk full"), Status())
    neighbour = Often()
    driver = run(failing, neighbour)
    await wait_for_activations(failing, 3)
    await wait_for_activations(neighbour, 3)

    report = next(report for report in driver.reports() if report.failures)
    assert (report.failures, report.last_error) == (1, "ValueError: disk full")


async def test_close_cancels_running_activations(run) -> None:
    ended = asyncio.Event()

    class Endless(Rare):
        async def activate(self) -> Status:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

            return Status()

    task = Endless()
    driver = run(task)
    await wait_for_activations(task, 1)
    await driver.close()
    assert ended.is_set()


def test_task_that_is_listed_twice_is_refused():
    task = CountingTask()
    with pytest.raises(ValueError, match="twice: CountingTask; name each once"):
        Driver([task, Often(), task])

    Driver([CountingTask(), CountingTask()])
