import asyncio

import pytest

from portside.kernel.reconcile import Driver, Status, Task
from tests.conftest import eventually


class Chore(Task):
    """Counts its activations; `plan` holds what each one does, and the last goes on for ever."""

    def __init__(self, *plan: Status | Exception) -> None:
        super().__init__()
        self.plan = list(plan) or [Status()]
        self.at_once = self.most_at_once = 0

    async def activate(self) -> Status:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        step = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        if isinstance(step, Exception):
            raise step
        return step


class Rare(Chore):
    every_s = 3600.0


class Often(Chore):
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


async def reached(task: Task, activations: int) -> None:
    async def is_there() -> bool:
        return task.report.activations >= activations

    await eventually(is_there, 5)


class Configured(Task):
    every_s = 3600.0

    async def activate(self) -> Status:
        return Status()


async def test_a_period_that_is_configured_counts(run) -> None:
    task = Configured(every_s=0.005)
    run(task)
    await reached(task, 5)
    assert (task.report.every_s, Configured().report.every_s) == (0.005, 3600.0)


async def test_a_task_runs_at_the_start_then_on_its_period(run) -> None:
    task = Often(Status({"freed": 3}))
    run(task)
    await reached(task, 5)
    assert task.report.did == {"freed": 3}
    assert task.most_at_once == 1


async def test_a_signal_wakes_a_task_before_its_period(run) -> None:
    task = Rare()
    run(task)
    await reached(task, 1)
    task.signal.set()
    await reached(task, 2)


async def test_a_signal_that_comes_while_the_task_works_is_not_lost(run) -> None:
    gate = asyncio.Event()

    class Slow(Rare):
        async def activate(self) -> Status:
            await gate.wait()
            return Status()

    task = Slow()
    run(task)
    await reached(task, 1)
    task.signal.set()
    gate.set()
    await reached(task, 2)


async def test_again_asks_for_the_next_activation_at_once(run) -> None:
    task = Rare(Status(again=True), Status(again=True), Status({"left": 0}))
    run(task)
    await reached(task, 3)
    assert task.report.did == {"left": 0}


async def test_a_failure_is_reported_and_stops_neither_the_task_nor_its_neighbours(run) -> None:
    failing, neighbour = Often(ValueError("disk full"), Status()), Often()
    driver = run(failing, neighbour)
    await reached(failing, 3)
    await reached(neighbour, 3)
    report = next(report for report in driver.reports() if report.failures)
    assert (report.failures, report.last_error) == (1, "ValueError: disk full")


async def test_closing_cancels_what_is_under_way(run) -> None:
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
    await reached(task, 1)
    await driver.close()
    assert ended.is_set()
