"""The replicas of one kind of one revision, kept at a number.

There is one rule: start what is missing, and only when that serves let go of what is too much. A replica that dies is
missing, one that has outgrown its memory is too much, and one that an earlier listener started is there already. What
dies is replaced with back-off.
"""

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from portside.dataplane.backoff import Backoff
from portside.dataplane.compute.process import Replica, ReplicaPlan
from portside.dataplane.compute.scale import Tier
from portside.dataplane.compute.sockets import Stable
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.state import DeploymentFolder

# A server hands its runs back when its own grace is over; it is not killed while it does.
HAND_BACK_S = 5.0
# For as long after a death its reason is shown, even if all is well again.
_SHOWN_S = 60.0


@dataclass(frozen=True)
class Yard:
    """What replicas of one revision are made with."""

    plan: ReplicaPlan
    stable: Stable
    folder: DeploymentFolder
    log: RevisionLog
    grace_s: float


class Group:
    """Keeps `wanted` replicas of one tier."""

    def __init__(self, yard: Yard, tier: Tier, wanted: int) -> None:
        self._yard, self.tier, self._wanted = yard, tier, wanted
        self.replicas: list[Replica] = []
        self._fresh: list[Replica] = []
        self._too_large: set[Replica] = set()
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], Replica] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._wake, self.is_up = asyncio.Event(), asyncio.Event()
        self._backoff, self._again_at = Backoff(), 0.0
        self._last_death: tuple[float, str] | None = None
        self.restarts = 0

    @property
    def problem(self) -> str | None:
        """Why a replica is missing, or was a moment ago."""
        if self._last_death is None:
            return None
        moment, reason = self._last_death
        is_short = len(self.replicas) < self._wanted
        return reason if is_short or time.monotonic() - moment < _SHOWN_S else None

    def want(self, number: int) -> None:
        """Change how many replicas there are to be."""
        if number != self._wanted:
            word = "more" if number > self._wanted else "fewer"
            self._yard.log.add(f"{self._wanted} replicas of tier {self.tier} become {number}, {word} than before")
            self._wanted = number
            self._wake.set()

    def replace(self, replica: Replica, why: str) -> None:
        """Start a successor of a replica, then let it go."""
        if replica not in self._too_large:
            self._too_large.add(replica)
            self._note(why)
            self._wake.set()

    async def prepare(self) -> None:
        """Start what is missing and wait until it could serve. Raises DeployFailed after leaving nothing of it."""
        kept = sum(replica not in self._too_large for replica in self.replicas)
        starts = [self._start_one() for _ in range(self._wanted - kept)]
        try:
            await together(starts)
        except BaseException:
            await self._bury_all(self._fresh, 0)
            raise

    async def hand_over(self) -> None:
        """Let what was prepared serve. Raises DeployFailed after leaving nothing of it."""
        try:
            await together([replica.hand_over() for replica in self._fresh])
        except BaseException:
            await self._bury_all(self._fresh, 0)
            raise
        for replica in self._fresh:
            self._take(replica)
        self._fresh = []
        self.is_up.set()

    async def adopt(self) -> None:
        """Take over what an earlier listener started with the same plan, and what serves."""
        plan = self._yard.plan
        known = [record for record in self._yard.folder.state.replicas if record.revision_id == plan.revision_id]
        found = [await Replica.adopt(plan, record) for record in known if record.tier == self.tier]
        for replica in found:
            if replica is not None:
                self._take(replica)

    def keep(self) -> None:
        """Keep the number from here on."""
        self._keeper = asyncio.create_task(self._keep())

    async def withdraw(self) -> None:
        """Accept no more requests; those under way go on."""
        await self._stop_keeping()
        await asyncio.gather(*(replica.withdraw() for replica in self.replicas))

    async def end(self, grace_s: float) -> None:
        """After `withdraw`: wait for all replicas to finish, at most the grace, then leave nothing behind."""
        await self._stop_keeping()
        await asyncio.gather(self._bury_all(self.replicas, grace_s), self._bury_all(self._fresh, 0))
        if self._leaving:
            _done, late = await asyncio.wait(self._leaving, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def interrupt(self) -> None:
        """Ask the replicas to hand their runs back and go, even those that drain already."""
        for replica in (*self.replicas, *self._fresh, *self._leaving.values()):
            replica.mark.signal(signal.SIGINT)

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.prepare()
                await self.hand_over()
                self._let_go_of_surplus()
            except DeployFailed as exc:
                self._died(str(exc), 0.0)
            await self._wake.wait()
            await asyncio.sleep(max(0.0, self._again_at - time.monotonic()))

    def _let_go_of_surplus(self) -> None:
        surplus = len(self.replicas) - self._wanted
        # The ones that are too large first, then the youngest.
        order = sorted(self.replicas, key=lambda replica: (replica not in self._too_large, -replica.began))
        for replica in order[: max(0, surplus)]:
            self._forget(replica)
            task = asyncio.create_task(self._leave(replica))
            self._leaving[task] = replica
            task.add_done_callback(self._leaving.pop)

    async def _leave(self, replica: Replica) -> None:
        try:
            await replica.withdraw()
        finally:
            await self._bury(replica, self._yard.grace_s + HAND_BACK_S)

    async def _start_one(self) -> None:
        replica = await Replica.start(self._yard.plan, self._yard.stable, self.tier)
        self._fresh.append(replica)
        self._yard.folder.add_replica(replica.record)
        await replica.wait_until_ok()

    def _take(self, replica: Replica) -> None:
        self.replicas.append(replica)
        self._watches[replica] = asyncio.create_task(self._watch(replica))

    async def _watch(self, replica: Replica) -> None:
        """Wait for a replica to die, which it does not unless something is wrong."""
        how = await replica.wait()
        del self._watches[replica]
        self._forget(replica)
        await self._bury(replica, 0)
        self._died(f"the server {how}", time.monotonic() - replica.began)

    def _died(self, reason: str, healthy_s: float) -> None:
        delay = self._backoff.next(healthy_s)
        self._again_at = time.monotonic() + delay
        self.restarts += 1
        self._note(f"{reason}\nstarting another in {delay:g} s")
        self._wake.set()

    def _note(self, reason: str) -> None:
        self._last_death = time.monotonic(), reason
        self._yard.log.add(reason, "ERROR")

    def _forget(self, replica: Replica) -> None:
        self.replicas.remove(replica)
        self._too_large.discard(replica)
        if (watch := self._watches.pop(replica, None)) is not None:
            watch.cancel()

    async def _bury_all(self, replicas: list[Replica], grace_s: float) -> None:
        gone, replicas[:] = list(replicas), []
        for replica in gone:
            if (watch := self._watches.pop(replica, None)) is not None:
                watch.cancel()
        await asyncio.gather(*(self._bury(replica, grace_s) for replica in gone))

    async def _bury(self, replica: Replica, grace_s: float) -> None:
        try:
            await replica.end(grace_s)
        finally:
            self._yard.folder.drop_replica(replica.mark)

    async def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        # Whoever ends from here on does so because it was asked to.
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do several things at once, and raise what the first of them raised once none is left."""
    started = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*started)
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
