"""The containers that serve one revision of an image, behind the socket that their deployment keeps.

Each is kept alive by a keeper of its own: one that dies is replaced with back-off, and meanwhile connections go to the
others or wait. Containers outlive a listener that is killed; the next one takes over those that run exactly what it
would start, and removes the others.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from portside.dataplane.backoff import Backoff
from portside.dataplane.compute.containers.commands import ContainerPlan
from portside.dataplane.compute.containers.container import (
    Container,
    belongs_to,
    carries,
    find_containers,
    remove_container,
)
from portside.dataplane.compute.containers.relay import Relay, to_port
from portside.dataplane.compute.containers.runtime import CommandFailed, Runtime
from portside.dataplane.compute.interface import OnUp
from portside.dataplane.compute.output import Follower, parse_line
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessMark
from portside.dataplane.types import DesiredDeployment, Measures


@dataclass(frozen=True)
class Prepared:
    """What is known of a revision's containers once its image is there."""

    runtime: Runtime
    plan: ContainerPlan


@dataclass(frozen=True)
class Order:
    """A revision to serve: `prepare` fetches its image and may raise DeployFailed."""

    revision_id: UUID
    prepare: Callable[[RevisionLog], Awaitable[Prepared]]
    output: Path
    start_timeout_s: float


class ContainerFleet:
    """Runs one revision's containers from their first start to their end."""

    def __init__(self, order: Order, public: socket.socket, log: RevisionLog) -> None:
        self._order, self._log = order, log
        self._relay = Relay(public)
        self._output = Follower(order.output, self._take_line)
        self._containers: list[Container] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._signals: set[asyncio.Task[None]] = set()
        self._prepared: Prepared | None = None

    @property
    def revision_id(self) -> UUID:
        """The revision that is served."""
        return self._order.revision_id

    async def start(self) -> None:
        """Start all containers, gate them and let them serve. Raises DeployFailed after leaving nothing behind."""
        try:
            self._prepared = await self._order.prepare(self._log)
            await self._clear_attempts(self._prepared)
            await self._start_all(self._prepared)
            for container in self._containers:
                await self._relay.add(container.id, to_port(container.port))
        except DeployFailed as exc:
            self._log.add(str(exc), "ERROR")
            await self.end(0)
            raise
        except BaseException:
            await self.end(0)
            raise

    def keep(self, on_up: OnUp | None = None) -> None:
        """Keep all containers alive; without a `start` before it, take over what runs or come up in the background."""
        self._keepers.append(asyncio.create_task(self._keep_all(on_up)))

    def follow(self, deployment: DesiredDeployment) -> None:
        """The number of containers is the revision's."""

    def measures(self) -> Measures | None:
        """Return how many containers there are; what they use is the runtime's to tell."""
        return Measures(replicas=len(self._containers))

    def replicas(self) -> set[ProcessMark]:
        """Return nothing: containers are found by their labels, not by their processes."""
        return set()

    async def withdraw(self) -> None:
        """Accept no more requests; those under way go on."""
        await self._stop_keeping()
        for container in self._containers:
            self._relay.remove(container.id)
        await self._signal("TERM")

    async def end(self, grace_s: float) -> None:
        """Wait at most the grace for the containers to finish, then remove them."""
        try:
            ends = [container.end(grace_s) for container in self._containers]
            await asyncio.gather(*ends, *self._signals, return_exceptions=True)
            self._containers.clear()
        finally:
            self._relay.close()
            await self._output.close()
            await self._log.close()

    def interrupt(self) -> None:
        """Ask the servers to hand their runs back and go, even those that drain already."""
        task = asyncio.create_task(self._signal("INT"))
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: runs are handed back, and a container that takes too long is killed."""
        await self._stop_keeping()
        self.interrupt()
        await self.end(kill_after_s)

    async def _start_all(self, prepared: Prepared) -> None:
        starts = [asyncio.create_task(self._come_up(prepared)) for _replica in range(prepared.plan.spec.replicas)]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _clear_attempts(self, prepared: Prepared) -> None:
        """Remove what a start of this revision left behind that a crash of the listener cut short."""
        try:
            for found in await find_containers(prepared.runtime, prepared.plan.deployment_id):
                if belongs_to(found, self.revision_id):
                    await remove_container(prepared.runtime, found)
        except CommandFailed as exc:
            raise DeployFailed(f"the containers of this machine cannot be listed: {exc}") from exc

    async def _come_up(self, prepared: Prepared) -> Container:
        """Start a container and gate it. Raises DeployFailed after leaving nothing behind."""
        container = await Container.start(prepared.runtime, prepared.plan, self._order.output)
        self._containers.append(container)
        try:
            await container.wait_until_ok(self._order.start_timeout_s)
        except BaseException:
            await self._bury(container)
            raise
        return container

    async def _bury(self, container: Container) -> None:
        self._relay.remove(container.id)
        await container.end(0)
        self._containers.remove(container)

    async def _keep_all(self, on_up: OnUp | None) -> None:
        if self._prepared is None:
            self._prepared = await self._prepare_and_adopt()
        missing = max(0, self._prepared.plan.spec.replicas - len(self._containers))
        for container in [*self._containers, *[None] * missing]:
            self._keepers.append(asyncio.create_task(self._keep(self._prepared, container, on_up)))

    async def _prepare_and_adopt(self) -> Prepared:
        """Prepare for as long as it takes, and take over what an earlier listener left running."""
        backoff = Backoff(first_s=0.5)
        while True:
            try:
                prepared = await self._order.prepare(self._log)
                await self._adopt(prepared)
            except (DeployFailed, CommandFailed) as exc:
                delay = backoff.next()
                self._log.add(f"{exc}\ntrying again in {delay:g} s", "ERROR")
                await asyncio.sleep(delay)
            else:
                return prepared

    async def _adopt(self, prepared: Prepared) -> None:
        for found in await find_containers(prepared.runtime, prepared.plan.deployment_id):
            if carries(found, prepared.plan) and len(self._containers) < prepared.plan.spec.replicas:
                self._containers.append(Container.adopt(prepared.runtime, found, self._order.output))
                self._log.add("took over a container that an earlier listener left running")
            else:
                await remove_container(prepared.runtime, found)

    async def _keep(self, prepared: Prepared, container: Container | None, on_up: OnUp | None) -> None:
        backoff = Backoff()
        while True:
            healthy_s = 0.0
            try:
                container = container or await self._come_up(prepared)
                await self._relay.add(container.id, to_port(container.port))
                if on_up is not None:
                    await on_up()
                began = time.monotonic()
                reason = f"the container {await container.wait()}"
                healthy_s = time.monotonic() - began
                await self._bury(container)
            except DeployFailed as exc:
                reason = str(exc)
            container, delay = None, backoff.next(healthy_s)
            self._log.add(f"{reason}\nstarting another in {delay:g} s", "ERROR")
            await asyncio.sleep(delay)

    async def _stop_keeping(self) -> None:
        """Stop replacing what dies. Those that keep one container are known once the one that starts them has ended."""
        while self._keepers:
            keepers, self._keepers = self._keepers, []
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _signal(self, name: str) -> None:
        await asyncio.gather(*(container.signal(name) for container in self._containers))

    def _take_line(self, line: str) -> None:
        entry = parse_line(line, int(time.time() * 1000))
        self._log.add(entry.message, entry.level, entry.timestamp)
