"""What the replica set of a build decides: how many replicas, which end first, which are replaced, and how soon.

Its replicas start no process here; `tests/db/test_dataplane_compute.py` has real ones.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from portside.dataplane.compute import replica_set as replica_sets
from portside.dataplane.compute.replica import ReplicaPlan
from portside.dataplane.compute.replica_set import ProcessReplicaSet, ReplicaContext, TierSupervisor
from portside.dataplane.compute.resource_usage import GroupUsage
from portside.dataplane.compute.scaling import ReplicaBounds, ServerTier
from portside.dataplane.compute.server_metrics import QueueMetrics, ServerMetrics
from portside.dataplane.failures import NoConnectionsLeft
from portside.dataplane.logs import RevisionLog
from portside.dataplane.state import DeploymentFolder
from portside.listener_api import DesiredDeployment, MetricsReport, Secret
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision

MB = 2**20
LIMIT = 100 * MB
BOTH_TIERS = {ServerTier.API: ReplicaBounds(1, 9), ServerTier.QUEUE: ReplicaBounds(1, 9)}


class FakeProcess:
    """The process of a replica, which runs nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_killed = False

    def kill_group(self) -> None:
        self.is_killed = True

    def signal(self, number: int) -> None: ...


class FakeReplica:
    """A replica that serves until it is told to end."""

    is_older = False
    version = "1"

    def __init__(self, pid: int, tier: ServerTier = ServerTier.ALL, started_at: float = 0.0) -> None:
        self.process = FakeProcess(pid)
        self.tier = tier
        self.port = pid
        self.started_at = started_at
        self.ended = asyncio.Event()

    async def wait(self) -> str:
        await self.ended.wait()
        return "was killed by SIGKILL"

    async def stop_accepting(self) -> None: ...

    async def reap(self, grace_s: float) -> None: ...


class Made:
    """A replica set with tiers of fake replicas, and what it logged."""

    def __init__(self, folder: Path, bounds: dict[ServerTier, ReplicaBounds], **spec: Any) -> None:
        self.lines: list[str] = []
        plan = ReplicaPlan(
            revision_id=UUID(int=1),
            serve_command=["serve"],
            config=folder / "langgraph.json",
            env={"LANGSMITH_API_KEY": "old", "MODEL": "mine"},
            output=folder / "output",
            start_timeout_s=1,
            memory=LIMIT,
        )
        self.context = ReplicaContext(
            plan=plan,
            stable=None,  # type: ignore[arg-type]
            folder=DeploymentFolder(folder, UUID(int=7)),
            log=RevisionLog(self._ship),
            grace_s=0,
        )
        revision = build_desired_revision(id=UUID(int=1), secrets=[Secret("MODEL", "mine")], resource_spec=spec)
        self.set = ProcessReplicaSet(self.context, revision, bounds, scale_down_after_s=1800)

    async def _ship(self, entries: Any) -> None:
        self.lines += [entry.message for entry in entries]

    def add(self, *replicas: FakeReplica) -> TierSupervisor:
        """Let the tier of these replicas have them."""
        tier = self.set._tiers[replicas[0].tier]
        for replica in replicas:
            tier._add(replica)  # type: ignore[arg-type]

        return tier

    def count_wanted(self) -> dict[ServerTier, int]:
        return {name: tier._wanted for name, tier in self.set._tiers.items()}


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    made = Made(tmp_path, {ServerTier.ALL: ReplicaBounds(1, 9)})
    yield made
    await made.set.stop(0)


@pytest.fixture
async def tiered(tmp_path: Path) -> AsyncIterator[Made]:
    made = Made(tmp_path, BOTH_TIERS, cpu=1, queue_cpu=2)
    made.add(FakeReplica(1, ServerTier.API))
    made.add(FakeReplica(2, ServerTier.QUEUE))
    yield made
    await made.set.stop(0)


@pytest.mark.parametrize(
    ("memory", "is_replaced", "is_killed"),
    [
        (LIMIT, False, False),
        (LIMIT + 1, True, False),
        (LIMIT * 5 // 4, True, False),
        (LIMIT * 5 // 4 + 1, True, True),
    ],
)
async def test_a_replica_above_its_limit_is_replaced_and_killed_only_far_above(
    made: Made, memory: int, *, is_replaced: bool, is_killed: bool
) -> None:
    replica = FakeReplica(11)
    other = FakeReplica(12)
    tier = made.add(replica, other)

    made.set.enforce_memory_limit({11: GroupUsage(memory=memory), 12: GroupUsage(memory=MB)})

    assert (replica in tier._to_replace, replica.process.is_killed) == (is_replaced, is_killed)
    assert (other in tier._to_replace, other.process.is_killed) == (False, False)


async def test_replicas_to_replace_end_first_and_then_the_youngest(made: Made) -> None:
    replicas = [FakeReplica(number, started_at=float(number)) for number in range(1, 5)]
    tier = made.add(*replicas)
    tier.replace(replicas[1], "its variables have changed")  # type: ignore[arg-type]

    tier.scale_to(2)
    tier._drain_surplus()

    assert tier.replicas == [replicas[0], replicas[2]]


async def test_pending_runs_scale_what_executes_them(tiered: Made) -> None:
    tiered.set._metrics = MetricsReport(pending_runs=41)
    tiered.set._scale()

    assert tiered.count_wanted() == {ServerTier.API: 1, ServerTier.QUEUE: 5}


async def test_each_tier_is_scaled_by_its_own_share_of_cpu(tiered: Made) -> None:
    """A queue replica has two cores here, and one that answers has one: 1.5 of them are 75 % and 150 %."""
    tiered.set._metrics = MetricsReport(pending_runs=0)
    tiered.set._cores = {ServerTier.API: 1.5, ServerTier.QUEUE: 1.5}
    tiered.set._scale()

    assert tiered.count_wanted() == {ServerTier.API: 2, ServerTier.QUEUE: 1}


def platform(**environment: str) -> DesiredDeployment:
    return build_desired_deployment(environment={"LANGSMITH_API_KEY": "old", **environment})


async def test_changed_variables_of_the_platform_replace_replicas_and_a_secret_of_the_same_name_stays(
    made: Made,
) -> None:
    replica = FakeReplica(1)
    tier = made.add(replica)

    made.set.update(platform(MODEL="the platform's"))
    assert tier._to_replace == set()
    assert made.context.plan.env["MODEL"] == "mine"

    made.set.update(platform(LANGSMITH_API_KEY="new"))
    assert tier._to_replace == {replica}
    assert made.context.plan.env == {"LANGSMITH_API_KEY": "new", "MODEL": "mine"}


async def test_a_request_to_roll_forward_is_followed_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    async def roll_forward(number: int) -> None:
        begun.append(number)

    monkeypatch.setattr(made.set, "_roll_forward", roll_forward)
    for number in (0, 3, 3, None, None, 4, 4):
        made.set.update(msgspec.structs.replace(platform(), roll_forward=number))
        await asyncio.sleep(0)

    assert begun == [3, -1, 4]


async def test_a_replica_that_postgres_has_no_connections_for_is_a_problem_and_no_restart(made: Made) -> None:
    async def refuse(_replicas: int) -> None:
        raise NoConnectionsLeft("Postgres has no connections left")

    made.context.admit = refuse
    tier = made.set._tiers[ServerTier.ALL]
    tier.supervise()

    await eventually(lambda: asyncio.sleep(0, tier.problem is not None))
    assert (tier.problem or "").startswith("Postgres has no connections left\n")
    assert tier.restarts == 0


async def test_a_replica_that_dies_again_and_again_is_started_later_and_later(made: Made) -> None:
    delays = []
    for number in range(3):
        replica = FakeReplica(number, started_at=time.monotonic())
        tier = made.add(replica)
        before = time.monotonic()
        watch = tier._watches[replica]  # type: ignore[index]
        replica.ended.set()
        await watch
        delays.append(tier._restart_at - before)

    assert delays[0] >= 0.2
    assert delays[1] >= 0.4
    assert delays[2] >= 0.8
    assert tier.restarts == 3
    assert tier.problem is not None
    assert tier.problem.startswith("the server was killed by SIGKILL\nstarting another in ")


@pytest.mark.parametrize(
    ("queue", "cores", "is_asked"),
    [
        (QueueMetrics(0, 0), {1: 0.01}, False),
        (QueueMetrics(0, 0), {1: 0.05}, True),
        (QueueMetrics(1, 0), {1: 0.0}, True),
        (QueueMetrics(0, 1), {1: 0.0}, True),
        (QueueMetrics(), {1: 0.0}, True),
        (QueueMetrics(0, 0), {}, True),
    ],
    ids=["idle", "uses its CPU", "a run waits", "a run is executed", "it does not say", "not measured twice yet"],
)
async def test_only_servers_without_runs_are_asked_less_often(
    made: Made, queue: QueueMetrics, cores: dict[int, float], monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    monkeypatch.setattr(replica_sets, "ASK_IDLE_EVERY_S", 3600.0)
    replica = FakeReplica(1)
    made.add(replica)
    made.set._answers = [ServerMetrics(queue=queue)]
    made.set._asked_at = time.monotonic()
    assert made.set._is_asked_again([replica], cores) is is_asked  # type: ignore[list-item]

    made.set._asked_at -= replica_sets.ASK_IDLE_EVERY_S
    assert made.set._is_asked_again([replica], cores)  # type: ignore[list-item]
