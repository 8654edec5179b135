"""A few servers start at once, the most urgent first; an idle deployment gives its connections to one that wakes."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from uuid import UUID

import httpx2
import pytest
from structlog.testing import capture_logs

from portside.dataplane.compute import activation
from portside.dataplane.compute.activation import SleepCycle, WakeQueue
from portside.dataplane.compute.server_metrics import ServerMetrics
from portside.dataplane.compute.sockets import StableSocket
from portside.dataplane.compute.start_queue import LATER, NOW, WORK, StartQueue, Urgency
from portside.dataplane.failures import DeployFailed, NoConnectionsLeft
from portside.dataplane.state import SleepRecord
from portside.kernel.http.server import listen
from tests.conftest import eventually


class Starts:
    """Starts that hold their slots until `finish` is called for them."""

    def __init__(self, queue: StartQueue) -> None:
        self.queue = queue
        self.begun = list[str]()
        self.most = 0
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
        "first",
        "second",
        "a request waits",
        "used long ago",
        "runs wait",
        "used lately",
        "a request comes",
    ]

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


@pytest.mark.timeout(300)
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

    def list_ports(self) -> list[int]:
        return []

    def is_stopping(self) -> bool:
        return False

    def idle_s(self) -> float:
        return 60.0


@pytest.mark.timeout(300)
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
    first = asyncio.create_task(cycle.give_way())
    second = asyncio.create_task(cycle.give_way())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    cycle.stop()

    assert await second is False


class IdleDeployment:
    """A deployment with these servers, of which each answers for how many seconds it has been idle."""

    def __init__(self, *idle_times: float | None, due_in_s: float | OSError | None = None) -> None:
        self.answers = dict(enumerate(idle_times, 1))
        self._due_in_s = due_in_s
        self.is_draining = False
        self.is_growing = False

    def list_ports(self) -> list[int]:
        return list(self.answers)

    def is_stopping(self) -> bool:
        return self.is_draining

    async def read_metrics(self, ports: list[int]) -> ServerMetrics | None:
        (port,) = ports
        idle_s = self.answers[port]
        return None if idle_s is None else ServerMetrics(idle_s=idle_s)

    async def next_due(self) -> float | None:
        if self.is_growing:
            self.answers[len(self.answers) + 1] = 100.0
        if isinstance(self._due_in_s, OSError):
            raise self._due_in_s

        return None if self._due_in_s is None else time.time() + self._due_in_s


async def is_idle(deployment: IdleDeployment, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(activation, "read_metrics", deployment.read_metrics)
    return await SleepCycle(deployment)._is_idle(60.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        (IdleDeployment(60.0, 100.0), True),
        (IdleDeployment(100.0, 59.0), False),
        (IdleDeployment(100.0, None), False),
        (IdleDeployment(), False),
        (IdleDeployment(100.0, due_in_s=3600.0), True),
        (IdleDeployment(100.0, due_in_s=10.0), False),
        (IdleDeployment(100.0, due_in_s=-10.0), False),
        (IdleDeployment(100.0, due_in_s=OSError("Postgres is away")), False),
    ],
    ids=["all", "one is used", "one is silent", "none is known", "due later", "due soon", "due", "nobody knows"],
)
async def test_a_deployment_is_idle_when_all_its_servers_are_and_nothing_is_due_soon(
    deployment: IdleDeployment, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    assert await is_idle(deployment, monkeypatch) is expected


async def test_a_deployment_whose_servers_change_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    draining = IdleDeployment(100.0)
    draining.is_draining = True
    assert not await is_idle(draining, monkeypatch), "the earlier ones finish their work"

    growing = IdleDeployment(100.0)
    growing.is_growing = True
    assert not await is_idle(growing, monkeypatch), "nobody asked the new one"


@pytest.mark.parametrize(
    ("idle_s", "after_s", "expected"),
    [(60.0, 3600.0, 60.0), (4.9, 3600.0, None), (None, 3600.0, None), (60.0, 0.0, None)],
)
async def test_only_an_idle_deployment_that_may_sleep_gives_way(
    idle_s: float | None, after_s: float, expected: float | None
) -> None:
    deployment = BusyDeployment()
    deployment.idle_s = lambda: idle_s  # type: ignore[assignment,return-value]
    cycle = SleepCycle(deployment)  # type: ignore[arg-type]
    assert cycle.gives_way_after is None, "it does not serve yet"

    cycle.set_after(after_s)
    cycle.start()
    try:
        assert cycle.gives_way_after == expected
        cycle.is_asleep = True
        assert cycle.gives_way_after is None
    finally:
        await cycle.close()


@pytest.mark.parametrize(("after_s", "gives_way"), [(3600.0, True), (0.0, False)])
async def test_a_deployment_that_is_asked_sleeps_before_its_time_if_it_may_sleep_at_all(
    monkeypatch: pytest.MonkeyPatch, after_s: float, *, gives_way: bool
) -> None:
    async def fall_asleep() -> None:
        await asyncio.Event().wait()

    deployment = IdleDeployment(10.0)
    deployment.fall_asleep = fall_asleep  # type: ignore[attr-defined]
    monkeypatch.setattr(activation, "read_metrics", deployment.read_metrics)
    cycle = SleepCycle(deployment)  # type: ignore[arg-type]
    cycle.set_after(3600.0)
    cycle.start()
    await asyncio.sleep(0)  # it waits now
    cycle.set_after(after_s)
    try:
        assert await cycle.give_way() is gives_way
        assert cycle.is_asleep is gives_way
    finally:
        await cycle.close()


class Way:
    """The cycle of a deployment that has been idle for so long, and gives way if it still is."""

    is_ending = False
    is_asleep = False

    def __init__(self, name: str, idle_s: float | None, *, is_idle: bool = True) -> None:
        self.name = name
        self.gives_way_after = idle_s
        self.is_idle = is_idle
        self.asked: list[str] = []

    async def give_way(self) -> bool:
        self.asked.append(self.name)
        self.is_asleep = self.is_idle
        return self.is_idle


async def test_the_deployment_that_was_not_used_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "_ROOM_POLL_S", 0.0)
    monkeypatch.setattr(activation, "_ROOM_WITHIN_S", 3600.0)
    queue = WakeQueue()
    ways = [Way("lately", 10.0), Way("busy again", 600.0, is_idle=False), Way("long ago", 60.0), Way("used", None)]
    asked: list[str] = []
    for number, way in enumerate(ways, 1):
        way.asked = asked
        queue.cycles[UUID(int=number)] = way  # type: ignore[assignment]

    async def admit(_deployment_id: UUID) -> None:
        if not queue.asleep():
            raise NoConnectionsLeft("no connections left")

    queue.admit = admit
    async with queue.admitted(UUID(int=9)):
        assert asked == ["busy again", "long ago"]
        assert queue.asleep() == [UUID(int=3)]


async def test_a_deployment_that_wakes_counts_as_awake() -> None:
    queue = WakeQueue()
    way = Way("sleeps", None)
    way.is_asleep = True
    queue.cycles[UUID(int=1)] = way  # type: ignore[assignment]

    async def admit(_deployment_id: UUID) -> None: ...

    queue.admit = admit
    assert queue.asleep() == [UUID(int=1)]
    async with queue.admitted(UUID(int=1)):
        assert queue.asleep() == []

    assert queue.asleep() == [UUID(int=1)], "it could not be woken"


class UnwakeableDeployment:
    """A deployment that sleeps, and whose servers fail to start as `failures` say, in this order."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.socket = StableSocket(listen("127.0.0.1", 0), None)

    def is_stopping(self) -> bool:
        return False

    async def wake(self) -> None:
        if (failure := self._failures.pop(0)) is not None:
            raise failure


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (DeployFailed("its port is taken"), activation._FAILED),
        (OSError(28, "No space left on device"), activation._FAILED),
        (NoConnectionsLeft("Postgres has no connections left"), activation._NO_ROOM),
    ],
)
async def test_requests_to_an_agent_that_cannot_be_woken_are_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, detail: str
) -> None:
    # The agent is not tried again during the test.
    monkeypatch.setattr(activation, "_WAKE_AGAIN_S", 36000.0)
    monkeypatch.setattr(activation, "_REFUSE_WITHIN_S", 300.0)
    deployment = UnwakeableDeployment(failure)
    cycle = SleepCycle(deployment)  # type: ignore[arg-type]
    cycle.set_after(3600)
    cycle.start(SleepRecord(due_at=None))

    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=300) as client:
            # The first one wakes the agent, and gets the same answer as those that follow.
            for _ in range(2):
                response = await client.get(f"http://127.0.0.1:{deployment.socket.port}/ok")
                assert (response.status_code, response.json()) == (503, {"detail": detail})
                assert 0 < int(response.headers["retry-after"]) <= 36000

        assert cycle.problem == f"The agent sleeps and could not be woken: {failure}"
        assert cycle.is_asleep
    finally:
        await cycle.close()
        deployment.socket.close()


async def test_agent_that_cannot_be_woken_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "_WAKE_AGAIN_S", 0.001)
    failed = DeployFailed("its port is taken")
    no_room = NoConnectionsLeft("Postgres has no connections left")
    deployment = UnwakeableDeployment(failed, failed, failed, no_room, failed, None, failed)

    cycle = SleepCycle(deployment)  # type: ignore[arg-type]
    woken = list[bool]()
    problems = list[str | None]()
    try:
        with capture_logs() as logged:
            for _ in range(7):
                woken.append(await cycle._wake())
                problems.append(cycle.problem)
    finally:
        deployment.socket.close()

    assert woken == [False] * 5 + [True, False]
    assert [problem is None for problem in problems] == woken

    # A connection may be free soon, so that failure does not count; a success starts over.
    delays = [each["again_in_s"] for each in logged if each["event"] == "a deployment cannot be woken"]
    assert delays == [0.001, 0.002, 0.004, 0.001, 0.008, 0.001]
