"""Images and containers of one deployment, and what all deployments of a listener share for them.

A revision is pinned to an image id, because a tag may move while a revision that is served again must not change. The
pins are kept in the deployment's folder, together with whether the image was pulled for this deployment and is removed
with it, or when its revision is neither the active one nor the one before.

The container runtime is looked up when the first image is to run, and again until one is found: a listener that only
builds from source needs none.

Each container has its own supervisor task, which replaces it with back-off when it dies; meanwhile connections go to
the other containers or wait. Containers outlive a listener that is killed. The next listener adopts those that match
its own plan and removes the others.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.compute.activation import NO_QUEUE, Slot
from portside.dataplane.compute.containers import commands
from portside.dataplane.compute.containers.commands import (
    SERVER_PORT,
    WATCHED_DISK,
    ContainerPlan,
    read_executors,
    read_spec,
)
from portside.dataplane.compute.containers.container import (
    ContainerReplica,
    belongs_to,
    find_containers,
    matches,
    remove_container,
)
from portside.dataplane.compute.containers.runtime import Runtime, RuntimeCommandFailed, find_runtime
from portside.dataplane.compute.interface import STARTING, OnServing, OpenLog, Release
from portside.dataplane.compute.replica import run_together
from portside.dataplane.compute.server_metrics import ASK_IDLE_EVERY_S, ServerMetrics, join_problems, read_metrics
from portside.dataplane.compute.server_output import OutputFollower, parse_line
from portside.dataplane.compute.sockets import PortForwards, TcpRelay, to_port
from portside.dataplane.failures import DeployFailed, without_output
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.kernel.files import write_private
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.listener_api import DesiredDeployment, DesiredRevision, MetricsReport

log = get_logger(__name__)
_PINS_FILE = "images.json"


class ImagePin(msgspec.Struct, frozen=True):
    """The image that a revision is pinned to."""

    image: str
    id: str
    was_pulled: bool


class ImageStore:
    """The images of one deployment."""

    def __init__(self, folder: Path, pull_timeout_s: float) -> None:
        self._file = folder / _PINS_FILE
        self._pull_timeout_s = pull_timeout_s
        self._pins = _read_pins(self._file)

    @property
    def is_empty(self) -> bool:
        """Whether the deployment never had an image."""
        return not self._pins

    async def pin(self, runtime: Runtime, revision: DesiredRevision, log: RevisionLog) -> str:
        """Return the id of a revision's image after making sure that it is on this machine. Raises DeployFailed."""
        served_before = revision.built_from if revision.built_from in self._pins else revision.id
        pin = self._pins.get(served_before)
        if pin is None or await _image_id(runtime, pin.id) is None:
            pin = await self._pull(runtime, revision.image_uri or "", log)

        if self._pins.get(revision.id) != pin:
            self._pins[revision.id] = pin
            await asyncio.to_thread(self._save)

        return pin.id

    async def remove_unused(self, runtime: Runtime, used_ids: set[UUID]) -> None:
        """Forget the images of earlier revisions, and remove those that were pulled and that no container uses.

        An image that a container still uses is tried again with the next call. Ids of revisions grow with time: one
        that is newer than all that are kept is being rolled out.
        """
        earlier = [revision_id for revision_id in self._pins if used_ids and revision_id < max(used_ids)]
        for revision_id in set(earlier) - used_ids:
            pin = self._pins[revision_id]
            sharers = [other for other in used_ids & self._pins.keys() if self._pins[other].id == pin.id]
            if sharers and pin.was_pulled:
                # It was pulled for this deployment all the same.
                self._pins[sharers[0]] = msgspec.structs.replace(self._pins[sharers[0]], was_pulled=True)

            if sharers or not pin.was_pulled or await _remove_image(runtime, pin):
                del self._pins[revision_id]

        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        write_private(self._file, msgspec.json.encode(self._pins).decode())

    async def remove_pulled(self, runtime: Runtime) -> None:
        """Remove the images that were pulled for the deployment, except those that others use."""
        pulled = [pin for pin in self._pins.values() if pin.was_pulled]
        # Both fail for an image that is gone already or that a container uses.
        for name in {pin.image for pin in pulled}:
            with contextlib.suppress(RuntimeCommandFailed):
                await runtime.run(commands.remove_image(name))

        # Left are images whose name moved on to a newer one. An image with another name belongs to somebody else.
        for image_id in {pin.id for pin in pulled}:
            with contextlib.suppress(RuntimeCommandFailed):
                if not await runtime.run(commands.image_names(image_id)):
                    await runtime.run(commands.remove_image(image_id))

    async def _pull(self, runtime: Runtime, image: str, log: RevisionLog) -> ImagePin:
        pull = commands.pull(runtime.isolation.kind, image)
        present = await _image_id(runtime, image)
        if present is not None and not commands.has_registry(image):
            log.add(f"Using the image {image} of this machine, {present}")
            return ImagePin(image, present, was_pulled=False)

        log.add(f"Pulling {image}")
        try:
            await runtime.run(pull, within_s=self._pull_timeout_s)
        except RuntimeCommandFailed as exc:
            if present is None:
                raise DeployFailed(f"the image {image} cannot be pulled: {exc}") from exc
            log.add(f"The image cannot be pulled; using the one on this machine. {exc}", "WARNING")

        image_id = await _image_id(runtime, image)
        if image_id is None:
            raise DeployFailed(f"the image {image} was pulled, but this machine does not have it")

        log.add(f"The image is {image_id}")
        return ImagePin(image, image_id, was_pulled=present is None)


def _read_pins(file: Path) -> dict[UUID, ImagePin]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[UUID, ImagePin])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError:
        log.exception("a deployment's file of image pins is damaged; its images are pulled again", path=str(file))
        return {}


async def _remove_image(runtime: Runtime, pin: ImagePin) -> bool:
    """Remove an image; return whether it is gone, or belongs to somebody else, who gave it another name."""
    with contextlib.suppress(RuntimeCommandFailed):
        if await runtime.run(commands.list_containers_using(pin.id)):
            return False

        # Its name may have moved on to a newer image.
        if await _image_id(runtime, pin.image) == pin.id:
            await runtime.run(commands.remove_image(pin.image))

    try:
        if await runtime.run(commands.image_names(pin.id)):
            return True
        await runtime.run(commands.remove_image(pin.id))
    except RuntimeCommandFailed:
        return await _image_id(runtime, pin.id) is None

    return True


async def _image_id(runtime: Runtime, image: str) -> str | None:
    try:
        return await runtime.run(commands.image_id(image)) or None
    except RuntimeCommandFailed:
        return None


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
    hidden: Sequence[str] = ()
    slot: Slot = NO_QUEUE


class ContainerReplicaSet:
    """Runs the containers of one release from their first start to their removal."""

    def __init__(self, release: ContainerRelease, public: socket.socket, log: RevisionLog) -> None:
        self._release = release
        self._log = log
        self._relay = TcpRelay(public)
        self._output = OutputFollower(release.output, self._log_line, release.hidden)
        self._containers: list[ContainerReplica] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._signals: set[asyncio.Task[None]] = set()

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
            self._prepared = prepared = await self._release.prepare(self._log)
            await self._remove_leftovers(prepared)
            await run_together([self._start_one(prepared) for _ in range(prepared.plan.spec.replicas)])

            for container in self._containers:
                await self._serve(container)
        except BaseException as exc:
            if isinstance(exc, DeployFailed):
                self._log.add(without_output(exc), "ERROR")

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

    def ports(self) -> list[int]:
        """Return the ports of the containers; empty while one is missing."""
        ports = [container.port for container in self._containers if container.id in self._serving]
        return ports if self._prepared is not None and len(ports) == self._prepared.plan.spec.replicas else []

    def processes(self) -> set[ProcessIdentity]:
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
        task = asyncio.create_task(self._signal("INT"))
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)

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
            for supervisor in supervisors:
                supervisor.cancel()

            await asyncio.gather(*supervisors, return_exceptions=True)

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


class ContainerHost:
    """What the image deployments of one listener share: the container runtime and the forwarded ports."""

    def __init__(self, settings: ListenerSettings) -> None:
        self.settings = settings
        # The file keeps the name that older listeners gave it.
        self.port_forwards = PortForwards(settings.folder / "passages.json")
        self._runtime: Runtime | None = None
        self._lookup = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """Return the container runtime of this machine. Raises DeployFailed when it has none."""
        async with self._lookup:
            if self._runtime is None:
                self._runtime = await find_runtime(self.settings)
            return self._runtime

    def close(self) -> None:
        """Close the forwarded ports."""
        self.port_forwards.close()


class ContainerManager:
    """The containers and images of one deployment."""

    def __init__(self, host: ContainerHost, deployment_id: UUID, folder: DeploymentFolder) -> None:
        self._host = host
        self._deployment_id = deployment_id
        self._folder = folder
        self._images = ImageStore(folder.path, host.settings.build_timeout_s)

    def replica_set(
        self, release: Release, database_url: str, public: socket.socket, open_log: OpenLog, slot: Slot = NO_QUEUE
    ) -> ContainerReplicaSet:
        """Return the replica set of a release; starts nothing yet. Each start of a container waits for a `slot`."""
        revision_id = release.revision.id

        async def prepare(log: RevisionLog) -> PreparedContainers:
            return await self._prepare(release, database_url, log)

        output = self._folder.server_log(revision_id)
        timeout_s = self._host.settings.deployment_start_timeout_s
        log = open_log(revision_id)
        hidden = [secret.value for secret in release.revision.secrets]

        log.hide(hidden)
        return ContainerReplicaSet(ContainerRelease(revision_id, prepare, output, timeout_s, hidden, slot), public, log)

    async def remove_unused_images(self, used_ids: set[UUID]) -> None:
        """Remove the images that were pulled for other revisions than the kept ones. Raises DeployFailed."""
        if not self._images.is_empty:
            await self._images.remove_unused(await self._host.runtime(), used_ids)

    async def clear(self) -> None:
        """Remove all containers of the deployment, and the images that were pulled for it."""
        if self._images.is_empty:
            return

        runtime = await self._host.runtime()
        for description in await find_containers(runtime, self._deployment_id):
            await remove_container(runtime, description)

        await self._images.remove_pulled(runtime)

    async def _prepare(self, release: Release, database_url: str, log: RevisionLog) -> PreparedContainers:
        """Make the plan of a release, and fetch its image. Raises DeployFailed."""
        revision = release.revision
        if revision.secret_references:
            raise DeployFailed(
                "secret_references name secrets of Kubernetes, which this machine does not have; give the deployment "
                "secrets with values instead"
            )

        spec = read_spec(revision.resource_spec)
        runtime = await self._host.runtime()
        image = await self._images.pin(runtime, revision, log)
        env = await self._environment(release, database_url, runtime)

        for limit in sorted({"cpu", "memory"} - runtime.isolation.limits):
            log.add(f"This machine cannot limit the {limit} of containers; the limit is not applied", "WARNING")

        plan = ContainerPlan(
            self._deployment_id, revision.id, image, spec, env, runtime.isolation, self._watched_folder(runtime)
        )

        return PreparedContainers(runtime, plan)

    async def _environment(self, release: Release, database_url: str, runtime: Runtime) -> dict[str, str]:
        """Return the variables of a release's containers; later entries win. Raises DeployFailed.

        Nothing of the listener's own environment is in it.
        """
        forwards = self._host.port_forwards
        revision = release.revision

        async def reachable(url: str) -> str:
            return await forwards.reachable_url(url, runtime.host, runtime.gateway)

        database = await reachable(database_url)
        return {
            # The only folder that is certainly writable. An image that needs another one sets HOME in its command.
            **({"HOME": "/tmp"} if runtime.isolation.is_read_only else {}),  # noqa: S108 - a file system of its own
            **{name: await reachable(value) for name, value in release.deployment.environment.items()},
            **revision.secret_values,
            "PYTHONUNBUFFERED": "1",
            "LOG_JSON": "true",
            "DATABASE_URI": database,
            "POSTGRES_URI": database,
            "PORT": str(SERVER_PORT),
            # All addresses of the container; its port is published on this machine's loopback interface only.
            "GRAPH_SERVER_HOST": "0.0.0.0",  # noqa: S104
            "LANGSMITH_HOST_REVISION_ID": str(revision.id),
            **self._disk_environment(runtime),
            **({} if (executors := read_executors(revision.resource_spec)) is None else executors.environment),
        }

    def _watched_folder(self, runtime: Runtime) -> str | None:
        """Return the folder that containers see to watch this machine's disk; None if they cannot."""
        folder = str(self._host.settings.watched_folder)
        # A mount is given as fields between commas.
        return None if runtime.has_own_files or "," in folder else folder

    def _disk_environment(self, runtime: Runtime) -> dict[str, str]:
        if self._watched_folder(runtime) is None:
            return {}
        return {**self._host.settings.disk_environment, "DISK_FOLDER": WATCHED_DISK}
