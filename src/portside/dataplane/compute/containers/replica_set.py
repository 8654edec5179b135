"""The replica set of an image: containers behind the deployment's socket.

Each container has its own supervisor task, which replaces it with back-off when it dies; meanwhile connections go to
the other containers or wait. Containers outlive a listener that is killed. The next listener adopts those that match
its own plan and removes the others.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from portside.dataplane.compute.containers.commands import ContainerPlan
from portside.dataplane.compute.containers.container import (
    ContainerReplica,
    belongs_to,
    find_containers,
    matches,
    remove_container,
)
from portside.dataplane.compute.containers.runtime import Runtime, RuntimeCommandFailed
from portside.dataplane.compute.forwarding import TcpRelay, to_port
from portside.dataplane.compute.interface import STARTING, OnServing
from portside.dataplane.compute.replica import run_together
from portside.dataplane.compute.server_metrics import ASK_IDLE_EVERY_S, ServerMetrics, join_problems, read_metrics
from portside.dataplane.compute.server_output import OutputFollower, parse_line
from portside.dataplane.compute.start_queue import NO_QUEUE, Slot
from portside.dataplane.failures import DeployFailed, describe_without_output
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessIdentity
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.listener_api import DesiredDeployment, MetricsReport


@dataclass(frozen=True)
class PreparedContainers:
    """The runtime and the plan of a release whose image is on this machine."""

    runtime: Runtime
    plan: ContainerPlan


@dataclass(frozen=True)
class ContainerRelease:
    """A release of an image. `prepare` fetches the image and may raise DeployFailed."""

    revision_id: UUID
    prepare: Callable[[RevisionLog], Awaitable[PreparedContainers]]
    output: Path
    start_timeout_s: float
    # The values that are masked in the output.
    secrets: Sequence[str] = ()
    slot: Slot = NO_QUEUE


class ContainerReplicaSet:
    """Runs the containers of one release from their first start to their removal."""

    def __init__(self, release: ContainerRelease, public: socket.socket, log: RevisionLog) -> None:
        self._release = release
        self._log = log
        self._relay = TcpRelay(public)
        self._output = OutputFollower(release.output, self._log_line, release.secrets)
        self._containers: list[ContainerReplica] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._signals = TaskSet()

        self._prepared: PreparedContainers | None = None
        self._serving: set[str] = set()
        self._problem = STARTING
        self._answer = ServerMetrics()

    @property
    def revision_id(self) -> UUID:
        """The revision of the release."""
        return self._release.revision_id

    @property
    def idle_s(self) -> float | None:
        """For how long the container that was asked last has had nothing to do."""
        return self._answer.idle_s

    async def start(self) -> None:
        """Start all containers, check that they answer, and serve. Raises DeployFailed after removing all of them."""
        try:
            prepared = await self._release.prepare(self._log)
            self._prepared = prepared
            await self._remove_leftovers(prepared)
            await run_together([self._start_one(prepared) for _ in range(prepared.plan.spec.replicas)])

            for container in self._containers:
                await self._serve(container)
        except BaseException as exc:
            if isinstance(exc, DeployFailed):
                self._log.add(describe_without_output(exc), "ERROR")

            await self.drain(0)
            raise

    def supervise(self, on_serving: OnServing | None = None) -> None:
        """Replace containers that die. Without a `start` before, adopt or start them in the background."""
        self._supervisors.append(asyncio.create_task(self._supervise_all(on_serving)))
        asking = Supervision(f"metrics of revision {self.revision_id}").run(self._ask_servers)
        self._supervisors.append(asyncio.create_task(asking))

    def update(self, deployment: DesiredDeployment) -> None:
        """Do nothing: the revision sets the number of containers, and containers keep the variables of their start."""

    def metrics(self) -> MetricsReport | None:
        """Return how many containers serve, their runs and what is wrong; their resource usage is not measured."""
        target_count = 1 if self._prepared is None else self._prepared.plan.spec.replicas
        is_short = len(self._serving) < target_count
        return MetricsReport(
            replicas=len(self._serving),
            pending_runs=self._answer.queue.n_pending,
            oldest_wait_s=self._answer.queue.pending_unblocked_runs_wait_time_max_secs,
            active_runs=self._answer.queue.n_running,
            problem=self._problem if is_short else join_problems([self._answer]),
        )

    def list_ports(self) -> list[int]:
        """Return the ports of the containers; empty while one is missing."""
        ports = [container.port for container in self._containers if container.id in self._serving]
        return ports if self._prepared is not None and len(ports) == self._prepared.plan.spec.replicas else []

    def list_processes(self) -> set[ProcessIdentity]:
        """Return nothing: containers are found by their labels, not by their processes."""
        return set()

    async def stop_accepting(self) -> None:
        """Accept no new requests; requests and runs in flight continue."""
        await self._stop_supervising()
        for container in self._containers:
            self._relay.remove(container.id)

        await self._signal("TERM")

    async def drain(self, grace_s: float) -> None:
        """Wait up to the grace period for the containers to finish, then remove them."""
        try:
            ends = [container.reap(grace_s) for container in self._containers]
            await asyncio.gather(*ends, *self._signals, return_exceptions=True)
            self._containers.clear()
        finally:
            self._relay.close()
            await self._output.close()
            await self._log.close()

    def interrupt(self) -> None:
        """Ask the servers to hand their runs back and exit, also those that drain already."""
        self._signals.spawn(self._signal("INT"))

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: servers hand their runs back, and containers that take longer than this are killed."""
        await self._stop_supervising()
        self.interrupt()
        await self.drain(kill_after_s)

    async def _remove_leftovers(self, prepared: PreparedContainers) -> None:
        """Remove containers of this revision from a start that a crash of the listener cut short."""
        try:
            for description in await find_containers(prepared.runtime, prepared.plan.deployment_id):
                if belongs_to(description, self.revision_id):
                    await remove_container(prepared.runtime, description)
        except RuntimeCommandFailed as exc:
            raise DeployFailed(f"the containers of this machine cannot be listed: {exc}") from exc

    async def _start_one(self, prepared: PreparedContainers) -> ContainerReplica:
        """Start a container, when it has a slot, and wait until it answers. Raises DeployFailed after removing it."""
        async with self._release.slot():
            return await self._start_now(prepared)

    async def _start_now(self, prepared: PreparedContainers) -> ContainerReplica:
        container = await ContainerReplica.start(prepared.runtime, prepared.plan, self._release.output)
        self._containers.append(container)
        try:
            await container.wait_until_ok(self._release.start_timeout_s)
        except BaseException:
            await self._reap(container)
            raise

        return container

    async def _serve(self, container: ContainerReplica) -> None:
        await self._relay.add(container.id, to_port(container.port))
        self._serving.add(container.id)

    async def _reap(self, container: ContainerReplica) -> None:
        self._serving.discard(container.id)
        self._relay.remove(container.id)
        await container.reap(0)
        self._containers.remove(container)

    async def _supervise_all(self, on_serving: OnServing | None) -> None:
        if self._prepared is None:
            supervision = self._supervision("trying again", Backoff(first_s=0.5))
            self._prepared = await supervision.run(self._prepare_and_adopt)

        shortage = max(0, self._prepared.plan.spec.replicas - len(self._containers))
        for container in [*self._containers, *[None] * shortage]:
            supervisor = self._supervise(self._prepared, container, on_serving)
            self._supervisors.append(asyncio.create_task(supervisor))

    async def _prepare_and_adopt(self) -> PreparedContainers:
        """Prepare the release and adopt running containers. Raises DeployFailed and RuntimeCommandFailed."""
        prepared = await self._release.prepare(self._log)
        own_ids = {container.id for container in self._containers}
        for description in await find_containers(prepared.runtime, prepared.plan.deployment_id):
            if description["Id"] in own_ids:
                continue

            if matches(description, prepared.plan) and len(self._containers) < prepared.plan.spec.replicas:
                self._containers.append(ContainerReplica.adopt(prepared.runtime, description, self._release.output))
                self._log.add("Adopted a container that an earlier listener started")
            else:
                await remove_container(prepared.runtime, description)

        return prepared

    async def _supervise(
        self, prepared: PreparedContainers, adopted: ContainerReplica | None, on_serving: OnServing | None
    ) -> None:
        """Keep one container running: first the adopted one, and another one whenever one has ended."""
        first = [adopted] if adopted is not None else []

        async def serve_until_end() -> None:
            container = first.pop() if first else await self._start_one(prepared)
            try:
                await self._serve(container)
                if on_serving is not None:
                    await on_serving()

                how = await container.wait()
            except Exception:
                await self._reap(container)
                raise

            await self._reap(container)
            raise DeployFailed(f"the container {how}")

        await self._supervision("starting another", Backoff()).run(serve_until_end)

    def _supervision(self, next_step: str, backoff: Backoff) -> Supervision:
        def report(failure: Exception, delay_s: float) -> None:
            self._problem = f"{failure}\n{next_step} in {delay_s:g} s"
            self._log.add(self._problem, "ERROR")

        name = f"containers of revision {self.revision_id}"
        expected = (DeployFailed, RuntimeCommandFailed)
        return Supervision(name, backoff=backoff, expected=expected, on_failure=report)

    async def _stop_supervising(self) -> None:
        # The first supervisor starts the others, so more of them may be listed once it has ended.
        while self._supervisors:
            supervisors = self._supervisors
            self._supervisors = []
            await cancel_and_wait(*supervisors)

    async def _ask_servers(self) -> None:
        while True:
            ports = [container.port for container in self._containers if container.id in self._serving]
            self._answer = await read_metrics(ports) or ServerMetrics()
            await asyncio.sleep(ASK_IDLE_EVERY_S)

    async def _signal(self, name: str) -> None:
        await asyncio.gather(*(container.signal(name) for container in self._containers))

    def _log_line(self, line: str) -> None:
        entry = parse_line(line, int(time.time() * 1000))
        self._log.add(entry.message, entry.level, entry.timestamp)
