"""A few servers start at once, the most urgent first; an idle deployment gives its connections to one that wakes."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from portside.dataplane.compute.activation import LATER, NOW, WORK, SleepCycle, StartQueue, Urgency
from tests.conftest import eventually


class Starts:
    """Starts that hold their slots until `finish` is called for them."""

    def __init__(self, queue: StartQueue) -> None:
        self.queue, self.begun, self.most = queue, list[str](), 0
        self.holding: dict[str, asyncio.Event] = {}
        self.urgency: dict[str, Urgency] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, name: str, urgency: Urgency) -> None:
        self.urgency[name] = urgency
        self.tasks[name] = asyncio.create_task(self._start(name, self.queue.slot(partial(self.urgency.get, name, NOW))))

    async def finish(self, name: str) -> None:
        self.holding[name].set()
        await self.tasks[name]

    async def _start(self, name: str, slot: AbstractAsyncContextManager[None]) -> None:
        async with slot:
            self.begun.append(name)
            self.holding[name] = asyncio.Event()
            self.most = max(self.most, sum(not held.is_set() for held in self.holding.values()))
            await self.holding[name].wait()


async def begun(starts: Starts, number: int) -> None:
    await eventually(lambda: asyncio.sleep(0, len(starts.begun) == number))


async def test_starts_are_bounded_and_in_order():
    starts = Starts(StartQueue(2))
    starts.add("first", Urgency(LATER, -1.0))
    starts.add("second", Urgency(LATER, -2.0))
    await begun(starts, 2)
    starts.add("used long ago", Urgency(LATER, -10.0))
    starts.add("used lately", Urgency(LATER, -99.0))
    starts.add("runs wait", Urgency(WORK))
    starts.add("a request waits", Urgency(NOW))
    starts.add("a request comes", Urgency(LATER))
    for number in range(3, 8):
        if number == 4:
            # It waits for a slot already.
            starts.urgency["used long ago"] = Urgency(NOW)
        await starts.finish(starts.begun[-1])
        await begun(starts, number)
    for held in starts.holding.values():
        held.set()
    await asyncio.gather(*starts.tasks.values())
    assert starts.begun == [
        "first", "second", "a request waits", "used long ago", "runs wait", "used lately", "a request comes",
    ]  # fmt: skip
    assert starts.most == 2


async def test_cancelled_and_failed_starts_give_their_slots_back():
    starts = Starts(StartQueue(1))
    for name in ("holds", "is cancelled", "waits", "comes last"):
        starts.add(name, Urgency(LATER))
    await begun(starts, 1)
    starts.tasks["is cancelled"].cancel()
    starts.tasks["holds"].cancel()
    await begun(starts, 2)
    starts.tasks["waits"].cancel()
    await begun(starts, 3)
    await starts.finish("comes last")
    assert starts.begun == ["holds", "waits", "comes last"]


@pytest.mark.timeout(60)
async def test_start_that_hangs_holds_up_no_other():
    starts = Starts(StartQueue(1, slot_for_s=0.01))
    starts.add("hangs", Urgency(LATER))
    starts.add("next", Urgency(LATER))
    await begun(starts, 2)
    await starts.finish("hangs")
    starts.add("last", Urgency(LATER))
    await begun(starts, 3)
    for name in ("next", "last"):
        await starts.finish(name)


class BusyDeployment:
    """A deployment that nobody has used for a minute, but whose servers are unknown: it cannot fall asleep."""

    def ports(self) -> list[int]:
        return []

    def is_stopping(self) -> bool:
        return False

    def idle_s(self) -> float:
        return 60.0


@pytest.mark.timeout(60)
async def test_two_deployments_that_ask_the_same_one_to_sleep_are_both_answered():
    cycle = SleepCycle(BusyDeployment())  # type: ignore[arg-type]
    cycle.set_after(3600)
    cycle.start()
    try:
        assert await asyncio.gather(cycle.give_way(), cycle.give_way()) == [False, False]
    finally:
        await cycle.close()


async def test_caller_that_no_longer_waits_leaves_the_answer_to_the_other():
    cycle = SleepCycle(BusyDeployment())  # type: ignore[arg-type]
    first, second = asyncio.create_task(cycle.give_way()), asyncio.create_task(cycle.give_way())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    cycle.stop()
    assert await second is False
