"""One release as processes: a group of replicas for each tier, their output, what they use, and their number.

Every two seconds the fleet looks at what its replicas use and at what waits in the queue. By that it scales and holds
memory limits, and that is what is told of the deployment.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import msgspec

from portside.dataplane.compute.group import Group, Yard, together
from portside.dataplane.compute.interface import OnUp
from portside.dataplane.compute.limits import KILL_BEYOND, applied
from portside.dataplane.compute.output import Follower, parse_line
from portside.dataplane.compute.process import Replica
from portside.dataplane.compute.scale import Bounds, Load, Scaler, Tier, scale_of
from portside.dataplane.compute.sockets import get
from portside.dataplane.compute.usage import Used, read_usage
from portside.dataplane.failures import DeployFailed
from portside.dataplane.processes import ProcessMark
from portside.dataplane.types import DesiredDeployment, DesiredRevision, Measures

_LOOK_EVERY_S = 2.0
_MB = 2**20


class _Queue(msgspec.Struct):
    n_pending: int | None = None
    n_running: int | None = None


class _Told(msgspec.Struct):
    """What a server tells of the queue of its database, which all replicas share."""

    queue: _Queue = msgspec.field(default_factory=_Queue)


class ProcessFleet:
    """Runs one release from its first start to its end."""

    def __init__(self, yard: Yard, revision: DesiredRevision, scale: dict[Tier, Bounds], down_after_s: float) -> None:
        self._yard, self._revision, self._down_after_s = yard, revision, down_after_s
        self._output = Follower(yard.plan.output, self._take_line)
        self._groups: dict[Tier, Group] = {}
        self._parting: list[Group] = []
        self._tiers = scale.keys()
        self._regrouping: asyncio.Task[None] | None = None
        self._scalers: dict[Tier, Scaler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._used: tuple[float, dict[int, Used]] = (time.monotonic(), {})
        self._cores: dict[Tier, float] = {}
        self._measures: Measures | None = None
        self._add_groups(scale)

    @property
    def revision_id(self) -> UUID:
        """The revision that is served."""
        return self._revision.id

    async def start(self) -> None:
        """Bring up the least number of replicas; none serves before all could. Raises DeployFailed."""
        self._yard.log.add(applied(self._yard.plan.cpus, self._yard.plan.memory))
        groups = list(self._groups.values())
        try:
            await together([group.prepare() for group in groups])
            await together([group.hand_over() for group in groups])
        except BaseException as exc:
            if isinstance(exc, DeployFailed):
                self._yard.log.add(str(exc), "ERROR")
            await self.stop(0)
            raise

    def keep(self, on_up: OnUp | None = None) -> None:
        """Replace what dies from here on, and scale. What an earlier listener left of this release is adopted."""
        self._spawn(self._keep(on_up))

    def follow(self, deployment: DesiredDeployment) -> None:
        """Take note of the bounds that are desired now; another division into tiers is changed to in the background."""
        scale = scale_of(deployment, self._revision)
        for tier, bounds in scale.items():
            if tier in self._scalers:
                self._scalers[tier].bounds = bounds
        if scale.keys() != self._tiers:
            self._tiers = scale.keys()
            if self._regrouping is not None:
                self._regrouping.cancel()
            self._regrouping = self._spawn(self._regroup(scale))

    def measures(self) -> Measures | None:
        """Return what was measured last."""
        return self._measures

    def replicas(self) -> set[ProcessMark]:
        """Return the processes that this fleet runs."""
        return {replica.mark for group in self._all_groups() for replica in group.replicas}

    async def withdraw(self) -> None:
        """Accept no more requests; those under way go on."""
        await self._stop_tasks()
        await asyncio.gather(*(group.withdraw() for group in self._all_groups()))

    async def end(self, grace_s: float) -> None:
        """After `withdraw`: wait for the replicas to finish, at most the grace, then leave nothing behind."""
        try:
            await asyncio.gather(*(group.end(grace_s) for group in self._all_groups()))
        finally:
            await self._output.close()
            await self._yard.log.close()

    def interrupt(self) -> None:
        """Ask the replicas to hand their runs back and go, even if they drain already."""
        for group in self._all_groups():
            group.interrupt()

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: runs are handed back, and replicas that take too long are killed."""
        await self._stop_tasks()
        self.interrupt()
        await self.end(kill_after_s)

    async def _keep(self, on_up: OnUp | None) -> None:
        groups = list(self._groups.values())
        for group in groups:
            if not group.is_up.is_set():
                await group.adopt()
            group.keep()
        self._spawn(self._look())
        await asyncio.gather(*(group.is_up.wait() for group in groups))
        if on_up is not None:
            await on_up()

    async def _regroup(self, scale: dict[Tier, Bounds]) -> None:
        """Bring up the tiers that are new, then let go of those that are not wanted any more."""
        for group in self._add_groups({tier: scale[tier] for tier in scale.keys() - self._groups.keys()}):
            group.keep()
        await asyncio.gather(*(self._groups[tier].is_up.wait() for tier in scale))
        for tier in self._groups.keys() - scale.keys():
            del self._scalers[tier]
            group = self._groups.pop(tier)
            group.want(0)
            self._parting.append(group)  # its replicas may drain for long

    async def _look(self) -> None:
        while True:
            await self._measure()
            self._scale()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _measure(self) -> None:
        """Look at the processes and at the queue, and let go of replicas that outgrew their memory."""
        replicas = self._all_replicas()
        used = await asyncio.to_thread(read_usage, {replica.mark.pid for replica in replicas})
        queue = await _queue_of(replicas)
        self.hold_memory(used)
        before_at, before = self._used
        now = time.monotonic()
        self._used = now, used
        since_s = max(now - before_at, 0.001)
        cores = {pid: max(0.0, used[pid].cpu_s - before[pid].cpu_s) / since_s for pid in used.keys() & before.keys()}
        groups = self._groups.values()
        self._cores = {group.tier: _average(cores, group.replicas) for group in groups}
        executing = self._groups.get("queue")
        self._measures = Measures(
            replicas=sum(len(group.replicas) for group in groups if group.tier != "queue"),
            queue_replicas=len(executing.replicas) if executing else 0,
            cpu=round(sum(cores.values()), 3) if used else None,
            memory_mb=round(sum(one.memory for one in used.values()) / _MB, 1) if used else None,
            restarts=sum(group.restarts for group in groups),
            pending_runs=queue.n_pending,
            active_runs=queue.n_running,
            problem=next((group.problem for group in groups if group.problem), None),
        )

    def _scale(self) -> None:
        measures = self._measures
        if measures is None:
            return
        spec = self._revision.resource_spec
        for tier, scaler in self._scalers.items():
            cpu = self._cores.get(tier, 0.0) / float(spec.get("queue_cpu" if tier == "queue" else "cpu", 1))
            # Replicas that only answer do nothing for runs that wait.
            pending = None if tier == "api" else measures.pending_runs
            group = self._groups[tier]
            group.want(scaler.decide(Load(len(group.replicas), cpu, pending)))

    def hold_memory(self, used: dict[int, Used]) -> None:
        """Let go of replicas that use more than their limit."""
        limit = self._yard.plan.memory
        for group in self._groups.values() if limit else ():
            for replica in list(group.replicas):
                held = used[replica.mark.pid].memory if replica.mark.pid in used else 0
                if limit is None or held <= limit:
                    continue
                words = f"a server uses {held // _MB} MB of memory, more than its limit of {limit // _MB} MB"
                group.replace(replica, f"{words}; another one takes its place")
                if held > KILL_BEYOND * limit:
                    replica.mark.kill_group()

    def _all_groups(self) -> list[Group]:
        return [*self._groups.values(), *self._parting]

    def _all_replicas(self) -> list[Replica]:
        return [replica for group in self._groups.values() for replica in group.replicas]

    def _add_groups(self, scale: dict[Tier, Bounds]) -> list[Group]:
        fresh = [Group(self._yard, tier, bounds.least) for tier, bounds in scale.items()]
        self._groups |= {group.tier: group for group in fresh}
        self._scalers |= {tier: Scaler(bounds, self._down_after_s) for tier, bounds in scale.items()}
        return fresh

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_line(self, line: str) -> None:
        entry = parse_line(line, int(time.time() * 1000))
        self._yard.log.add(entry.message, entry.level, entry.timestamp)


def _average(cores: dict[int, float], replicas: list[Replica]) -> float:
    """Return how many cores each of the replicas uses."""
    return sum(cores.get(replica.mark.pid, 0.0) for replica in replicas) / max(1, len(replicas))


async def _queue_of(replicas: list[Replica]) -> _Queue:
    """Ask one replica for the queue that all share; nothing is known when none tells."""
    for replica in replicas:
        answer = await get(replica.port, "/metrics?format=json")
        if answer is not None and answer[0] == 200:
            try:
                return msgspec.json.decode(answer[1], type=_Told).queue
            except msgspec.MsgspecError:
                return _Queue()
    return _Queue()
