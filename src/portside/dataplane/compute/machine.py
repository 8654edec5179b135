"""Compute of type `process`: deployments on this machine, each with a database, a socket and a replica set.

A switch starts the new replica set beside the old one. The new one takes over the socket only once all its replicas
answer; then the old one drains in the background.

A listener that dies leaves its replicas running. The next listener adopts those that run exactly what it would start;
the others are orphans, which keep serving until a replica set serves, and are then drained and reaped. Orphans are
found by a variable of their environment, even when the state file that names them is lost.
"""

import asyncio
import contextlib
import dataclasses
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec

from portside.dataplane.builds.environment import python_path
from portside.dataplane.builds.node import node_settings
from portside.dataplane.builds.wheel import read_server_version
from portside.dataplane.compute.activation import SleepCycle, WakeQueue
from portside.dataplane.compute.containers.manager import ContainerHost, ContainerManager
from portside.dataplane.compute.databases import UNREACHABLE, Databases
from portside.dataplane.compute.interface import STARTING, Build, OpenLog, Release, ReplicaSet
from portside.dataplane.compute.replica import ReplicaPlan, binary_folders, build_revision_pin, find_replicas
from portside.dataplane.compute.replica_set import HAND_BACK_S, ProcessReplicaSet, ReplicaContext
from portside.dataplane.compute.resource_usage import choose_cores
from portside.dataplane.compute.scaling import find_tier_bounds
from portside.dataplane.compute.server_environment import (
    RuntimeEnvironment,
    executor_memory,
    server_environment,
    split_environment,
)
from portside.dataplane.compute.sockets import StableSocket, open_stable_socket, to_url
from portside.dataplane.compute.start_queue import LATER, NOW, WORK, StartQueue, Urgency
from portside.dataplane.failures import DeployFailed, NoConnectionsLeft
from portside.dataplane.masking import mask_values
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder, SleepRecord
from portside.kernel.errors import UserMistake
from portside.kernel.files import write_private
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.kernel.version import full_version
from portside.listener_api import ComputeType, DesiredDeployment, MetricsReport
from portside.size_limits import SizeLimits

log = get_logger(__name__)
SERVE = ("-P", "-m", "portside", "serve")
_MAX_START_S = 3600
_KILL_AFTER_S = 15.0
_NOTE_USE_EVERY_S = 300.0
# Metrics of an idle server are read every 20 s, and its count of threads may be 5 s old.
_COUNTED_WITHIN_S = 40.0


class MachineCompute:
    """The machine that the listener runs on. `serve_arguments` follow the server's interpreter."""

    compute_type: ComputeType = "process"
    builds_sources = True
    size_limits: SizeLimits | None = None

    def __init__(self, settings: ListenerSettings, serve_arguments: Sequence[str] = SERVE) -> None:
        self.settings = settings
        self.serve_arguments = serve_arguments

        if settings.provision_database_url is None:
            raise UserMistake(
                "setting PROVISION_DATABASE_URL is not set; with compute process, set it to a Postgres whose role may "
                "create roles and databases"
            )

        self.wake_queue = WakeQueue()
        self.databases = Databases(settings.provision_database_url, self.wake_queue.asleep)
        self.wake_queue.admit = self.databases.admit_awake
        self.containers = ContainerHost(settings)
        self.starts = StartQueue()

        # Searched once and before anything starts: every replica that runs now belongs to an earlier listener.
        self.orphans = find_replicas(settings.folder)

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "MachineTarget":
        """Return the target of a deployment."""
        return MachineTarget(self, deployment_id, open_log)

    async def claim(self, listener_id: UUID) -> None:
        """Return at once: the lock of the home folder lets one listener work on a machine."""

    async def keep_claim(self) -> None:
        """Never return: nobody can take the lock."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the ports that are forwarded to containers."""
        self.containers.close()


class MachineTarget:
    """One deployment on this machine."""

    def __init__(self, machine: MachineCompute, deployment_id: UUID, open_log: OpenLog) -> None:
        self._machine = machine
        self._deployment_id = deployment_id
        self._open_log = open_log
        self.folder = DeploymentFolder(machine.settings.folder, deployment_id)
        self._containers = ContainerManager(machine.containers, deployment_id, self.folder)
        self._drain_grace_s = machine.settings.stop_grace_s + HAND_BACK_S
        self._socket: StableSocket | None = None

        # Unknown until the first look. A database that was missing counts as missing until `provision` succeeds: one
        # that an operator creates belongs to another role.
        self._has_database: bool | None = None
        self.current: ReplicaSet | None = None
        self._draining: dict[asyncio.Task[None], ReplicaSet] = {}
        self._drained_at = time.monotonic()

        # The builds that threads continue with, and for how many hours after their replacement.
        self._builds: dict[UUID, Build] = {}
        self._pin_threads = 0.0

        # Replicas of earlier listeners: those that the state names, and those that were found by their environment.
        records = self.folder.state.replicas
        processes = {record.process for record in records}
        orphans = machine.orphans.pop(deployment_id, [])
        self._orphans = [*records, *(record for record in orphans if record.process not in processes)]
        self._reaping: asyncio.Task[None] | None = None

        # The release that serves or sleeps.
        self._release: Release | None = None
        self._is_restoring = False
        # Whether the release that is being restored has runs that wait.
        self._has_work = False
        # What the servers said last about the time since they were used.
        self._idle_s: float | None = None
        self._cycle = machine.wake_queue.cycles[deployment_id] = SleepCycle(self)
        self._last_metrics = MetricsReport()

    @property
    def url(self) -> str | None:
        """The address of the stable socket, which opens with the first release."""
        return to_url(self._machine.settings.deployment_host, self.socket.port) if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether a release serves, is being restored, or sleeps."""
        return self.current is not None or self._cycle.is_asleep

    @property
    def is_starting(self) -> bool:
        """Whether a release is being restored and does not serve yet, and no start of it has failed."""
        if self.current is None or not self._is_restoring:
            return False

        metrics = self.current.metrics()
        return metrics is None or metrics.problem in {None, STARTING}

    async def is_provisioned(self) -> bool:
        """Whether the database was created before, and is still there when this listener first looks."""
        if not self.folder.password_file.exists():
            return False

        if self._has_database is None:
            self._has_database = await self._machine.databases.exists(self._deployment_id)

        return self._has_database

    @property
    def socket(self) -> StableSocket:
        """The stable socket, which `open_socket` has opened."""
        assert self._socket is not None  # noqa: S101 - it opens before the first release serves or sleeps
        return self._socket

    async def open_socket(self) -> None:
        """Open the stable socket, unless it is open. Raises UserMistake."""
        if self._socket is not None:
            return

        state = self.folder.state
        self._socket = await open_stable_socket(self._machine.settings.deployment_host, state.port, self.folder.path)
        state.port = self._socket.port
        self.folder.save()

    def list_revisions(self) -> set[UUID]:
        """Return the revisions that serve, drain or served last."""
        replica_sets = list(self._draining.values())
        if self.current is not None:
            replica_sets.append(self.current)

        state = self.folder.state
        revision_ids = {replica_set.revision_id for replica_set in replica_sets}
        revision_ids.update(filter(None, (state.active_revision_id, state.previous_revision_id)))
        if self._pin_threads:
            revision_ids |= state.earlier.keys()

        return revision_ids

    def list_earlier_revisions(self) -> set[UUID]:
        """Return the revisions whose code threads may continue with: those that were replaced, and the active one."""
        state = self.folder.state
        revision_ids = set(state.earlier)
        if state.active_revision_id is not None:
            revision_ids.add(state.active_revision_id)

        return revision_ids

    def forget_unused(self) -> bool:
        """Forget earlier revisions that no thread used when the servers that began threads with them had ended."""
        metrics = self.metrics()
        # Before a deployment falls asleep its threads may change once more after they were counted.
        is_settled = not self._draining and not self._orphans and not self._cycle.is_asleep
        if not is_settled or metrics is None or metrics.threads_by_revision is None:
            return False
        if time.monotonic() - self._drained_at < _COUNTED_WITHIN_S:
            return False

        unused = self.folder.state.earlier.keys() - metrics.threads_by_revision.keys()
        self.folder.forget_earlier(unused)
        for revision_id in unused & self._builds.keys():
            del self._builds[revision_id]

        return bool(unused)

    async def provision(self, deployment: DesiredDeployment, *, is_new: bool) -> None:  # noqa: ARG002 - all on one server
        """Create the role, and the database of a new deployment. Raises CreateFailed, also for a lost database."""
        if is_new:
            # If no other deployment can sleep, the next step fails with the better reason.
            with contextlib.suppress(NoConnectionsLeft):
                await self._machine.wake_queue.make_room(self._deployment_id)

        await self._machine.databases.ensure(self._deployment_id, self.folder.password_file, is_new=is_new)
        self._has_database = True

    async def switch(self, release: Release) -> None:
        """Serve another release. Raises DeployFailed, and then the previous release keeps serving."""
        await self.open_socket()
        replica_set = self._replica_set(release)
        # The servers that drain and the new ones read the same file.
        self._pin(release)
        try:
            await self.switch_to(replica_set, release)
        except BaseException:
            self._builds.pop(release.revision.id, None)
            self._write_pins(release.deployment)
            raise

        if not release.deployment.pin_threads:
            self.folder.forget_earlier(list(self.folder.state.earlier))

        self._write_pins(release.deployment)

    async def withdraw(self, deployment: DesiredDeployment) -> None:
        """Serve nothing any more. Requests and runs in flight end first; new ones find nothing that listens."""
        await self._cycle.close()
        current = self.current
        self.current = None
        self._release = None

        self.folder.deactivate()
        self._write_pins(deployment)

        if current is not None:
            await self._retire(current)

        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def restore(self, release: Release) -> None:
        """Serve the active release again, in the background. One that slept continues sleeping."""
        await self.open_socket()
        self._pin(release)
        self._release = release
        sleep = self.folder.state.sleep
        self._cycle.set_after(release.deployment.sleep_after_s)

        # Servers that run now were started to wake it.
        if sleep is not None and release.deployment.sleep_after_s and not self._orphans:
            self._cycle.start(sleep)
            return

        if sleep is not None:
            self.folder.state.sleep = None
            self.folder.save()

        with contextlib.suppress(*UNREACHABLE):
            due_at = await self.next_due()
            self._has_work = due_at is not None and due_at <= time.time()

        self.restore_with(self._replica_set(release))

    def _pin(self, release: Release) -> None:
        """Let threads continue with the builds of a release, and of earlier ones."""
        builds = {**release.earlier, release.revision.id: release.build}
        # The server of a combined build is code of the project's environment, and runs nothing of another one.
        self._builds = {revision_id: build for revision_id, build in builds.items() if build and build.is_split}
        self._write_pins(release.deployment)

    def _write_pins(self, deployment: DesiredDeployment) -> None:
        """Write the revisions that threads continue with for the servers (setting PINNED_REVISIONS)."""
        self._pin_threads = deployment.pin_threads
        replaced = self.folder.state.earlier
        limit_s = self._pin_threads * 3600

        pins = []
        for revision_id, build in self._builds.items() if limit_s else ():
            until = replaced[revision_id] + limit_s if revision_id in replaced else None
            pins.append(build_revision_pin(revision_id, build, self.folder, until))

        file = self.folder.pinned_revisions
        content = msgspec.json.encode(pins).decode()
        current_content = file.read_text() if file.exists() else None
        is_needed = bool(pins) or current_content is not None

        if is_needed and content != current_content:
            write_private(file, content)

    async def update(self, deployment: DesiredDeployment) -> None:
        """Apply changed replica bounds, variables and pins of threads, and after which time the deployment sleeps."""
        if self._release is not None:
            self._release = dataclasses.replace(self._release, deployment=deployment)

        self._cycle.set_after(deployment.sleep_after_s)
        self._write_pins(deployment)
        if self.current is not None:
            self.current.update(deployment)

    def metrics(self) -> MetricsReport | None:
        """Return the latest metrics of the current replica set, or that the deployment sleeps."""
        metrics = self._build_metrics_asleep() if self._cycle.is_asleep else self._read_current_metrics()
        if metrics is None or metrics.problem is None:
            return metrics

        # A server that failed may have written a secret.
        secrets = [] if self._release is None else [secret.value for secret in self._release.revision.secrets]
        return msgspec.structs.replace(metrics, problem=mask_values(metrics.problem, secrets))

    def _read_current_metrics(self) -> MetricsReport | None:
        metrics = None if self.current is None else self.current.metrics()
        if self.current is None or metrics is None:
            return None

        self._note_use(self.current.idle_s)
        self._last_metrics = metrics
        return metrics

    def _build_metrics_asleep(self) -> MetricsReport:
        # The version of the server that would be started.
        is_split = self._release is not None and self._release.is_split
        version = full_version() if is_split else self._last_metrics.server_version

        return MetricsReport(
            replicas=0,
            queue_replicas=0,
            cpu=0.0,
            memory_mb=0.0,
            restarts=self._last_metrics.restarts,
            problem=self._cycle.problem,
            server_version=version,
            is_asleep=self._cycle.problem is None,
            threads_by_revision=self._last_metrics.threads_by_revision,
        )

    async def destroy(self, deployment: DesiredDeployment) -> None:  # noqa: ARG002 - the state on disk has all of it
        """Stop the replicas; delete the containers, their images, the database and its role."""
        await self.close()
        await self._containers.clear()
        await self._machine.databases.drop(self._deployment_id)

    async def close(self) -> None:
        """Stop all replicas quickly and close the socket; returns when no process is left."""
        await self._cycle.close()
        self._machine.wake_queue.cycles.pop(self._deployment_id, None)
        current = self.current
        self.current = None
        stopping = [] if current is None else [current.stop(_KILL_AFTER_S)]
        await asyncio.gather(*stopping, self._stop_draining())
        await self._stop_orphans()

        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def switch_to(self, replica_set: ReplicaSet, release: Release | None = None) -> None:
        """Start a replica set, then drain the current one; once this returns, no new request reaches the latter.

        Raises DeployFailed, and then the current replica set keeps serving.
        """
        await replica_set.start()
        self._cycle.stop()
        previous = self.current
        self.current = replica_set
        self._release = release

        replica_set.supervise()
        self.folder.activate(replica_set.revision_id)
        self._cycle.set_after(release.deployment.sleep_after_s if release else 0)
        self._cycle.start()
        await self._drain_orphans()

        if previous is not None:
            await self._retire(previous)

    def restore_with(self, replica_set: ReplicaSet) -> None:
        """Let a replica set adopt or start its replicas in the background."""
        self.current = replica_set
        self._is_restoring = True

        async def on_serving() -> None:
            self._is_restoring = False
            await self._drain_orphans()

        replica_set.supervise(on_serving)
        self._cycle.start()

    def list_ports(self) -> list[int]:
        """Return the private ports of all replicas; empty while one is missing."""
        return [] if self.current is None else self.current.list_ports()

    def is_stopping(self) -> bool:
        """Whether replicas of earlier replica sets still finish their work."""
        return bool(self._draining or self._orphans)

    def idle_s(self) -> float | None:
        """For how many seconds nobody has used the deployment, as its servers said last, if they did."""
        return None if self.current is None else self.current.idle_s

    async def next_due(self) -> float | None:
        """Return when the agent has something to do. Raises what asyncpg raises."""
        return await self._machine.databases.next_due(self._deployment_id, self.folder.password_file)

    async def fall_asleep(self) -> None:
        """Drain the current replica set; returns when it accepts no connection."""
        current = self.current
        self.current = None
        if current is not None:
            await self._retire(current)

    def remember(self, due_at: float | None) -> None:
        """Keep on disk that the deployment sleeps."""
        self.folder.state.sleep = SleepRecord(due_at)
        self.folder.state.used_at = time.time()
        self.folder.save()

    async def wake(self) -> None:
        """Start the release again. Raises DeployFailed and OSError."""
        assert self._release is not None  # noqa: S101 - a deployment sleeps after it has served one
        async with self._machine.wake_queue.admitted(self._deployment_id):
            replica_set = self._replica_set(self._release)
            await replica_set.start()
            self.current = replica_set

        replica_set.supervise()
        # The desired state may have changed during the start, when there was no current replica set to update.
        replica_set.update(self._release.deployment)
        self.folder.activate(replica_set.revision_id)

    def _note_use(self, idle_s: float | None) -> None:
        """Keep on disk when the agent was used last, now and then: those used last start first."""
        was_used = idle_s is not None and self._idle_s is not None and idle_s < self._idle_s
        self._idle_s = idle_s

        state = self.folder.state
        if was_used and time.time() - state.used_at > _NOTE_USE_EVERY_S:
            state.used_at = time.time()
            self.folder.save()

    def _urgency(self) -> Urgency:
        """Return how urgent a start of a replica is; only those of a restored release can wait."""
        if not self._is_restoring or _has_waiting_connection(self.socket):
            return Urgency(NOW)
        return Urgency(WORK if self._has_work else LATER, -self.folder.state.used_at)

    async def _retire(self, replica_set: ReplicaSet) -> None:
        """Drain a replica set in the background; returns when it accepts no new requests."""
        stopped_accepting = asyncio.Event()
        task = asyncio.create_task(self._drain(replica_set, stopped_accepting))
        self._draining[task] = replica_set
        task.add_done_callback(self._draining.pop)
        await stopped_accepting.wait()

    async def _drain(self, replica_set: ReplicaSet, stopped_accepting: asyncio.Event) -> None:
        try:
            await replica_set.stop_accepting()
        finally:
            stopped_accepting.set()
            await replica_set.drain(self._drain_grace_s)
            self._drained_at = time.monotonic()

        try:
            await self._containers.remove_unused_images(self.list_revisions())
        except (DeployFailed, OSError) as exc:
            log.warning("images of replaced revisions stay", deployment=str(self._deployment_id), reason=str(exc))

    async def _stop_draining(self) -> None:
        for replica_set in self._draining.values():
            replica_set.interrupt()

        tasks = list(self._draining)
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=_KILL_AFTER_S)
            await cancel_and_wait(*late)

    async def _drain_orphans(self) -> None:
        """Drain the replicas of earlier listeners in the background, except those that were adopted."""
        adopted = self.current.list_processes() if self.current is not None else set()
        self._orphans = [orphan for orphan in self._orphans if orphan.process not in adopted]
        if self._orphans and self._reaping is None:
            reap = partial(self._reap_orphans, signal.SIGTERM, self._drain_grace_s)
            self._reaping = asyncio.create_task(Supervision("end of earlier replicas").run(reap))

    async def _stop_orphans(self) -> None:
        await cancel_and_wait(self._reaping)

        await self._reap_orphans(signal.SIGINT, _KILL_AFTER_S)

    async def _reap_orphans(self, number: signal.Signals, grace_s: float) -> None:
        for orphan in self._orphans:
            orphan.process.signal(number)

        await wait_at_most(grace_s, asyncio.gather(*(orphan.process.wait() for orphan in self._orphans)))

        for orphan in self._orphans:
            orphan.process.kill_group()
            self.folder.remove_replica(orphan.process)

        self._orphans = []
        self._drained_at = time.monotonic()

    def _replica_set(self, release: Release) -> ReplicaSet:
        url = self._machine.databases.url(self._deployment_id, self.folder.password_file)
        slot = partial(self._machine.starts.slot, self._urgency)
        if release.build is None:
            return self._containers.replica_set(release, url, self.socket.public, self._open_log, slot)

        settings = self._machine.settings
        revision = release.revision
        plan = self._build_plan(release, release.build, url)
        log = self._open_log(revision.id)

        log.hide(secret.value for secret in revision.secrets)
        admit = partial(self._machine.databases.admit, self._deployment_id)
        files = None if release.build.files is None else _BuildFiles(release)
        context = ReplicaContext(
            plan=plan,
            stable=self.socket,
            folder=self.folder,
            log=log,
            grace_s=settings.stop_grace_s,
            admit=admit,
            files=files,
            slot=slot,
        )

        bounds = find_tier_bounds(release.deployment, revision)
        return ProcessReplicaSet(context, revision, bounds, settings.scale_down_after_s)

    def _build_plan(self, release: Release, build: Build, database_url: str) -> ReplicaPlan:
        settings = self._machine.settings
        revision = release.revision
        python = python_path(build.folder)
        spec = revision.resource_spec

        runtime = RuntimeEnvironment(
            database_url=database_url,
            port=self.socket.port,
            home=self.folder.home(),
            binaries=binary_folders(build),
            commit=build.commit,
            settings={**settings.disk_environment, **node_settings(build.folder)},
        )

        environment = server_environment(release.deployment, revision, runtime, os.environ)
        server = str(python)
        version = read_server_version(build.folder / "venv")

        if build.server_code:
            graphs_file = self.folder.known_graphs(revision.id, build.describing_code)
            limit_s = min(settings.deployment_start_timeout_s, _MAX_START_S)

            overrides = {
                "EXECUTOR_PYTHON": str(python),
                "EXECUTOR_KNOWN_GRAPHS": str(graphs_file),
                "PINNED_REVISIONS": str(self.folder.pinned_revisions),
            }

            limits = executor_memory(spec.get("memory_limit_mb"), environment.get("EXECUTORS"))
            environment = {"EXECUTOR_START_SECS": f"{limit_s:g}", **limits, **environment}
            environment = split_environment(environment, revision.secret_values, overrides)
            server = sys.executable
            version = full_version()

        return ReplicaPlan(
            revision_id=revision.id,
            serve_command=[server, *self._machine.serve_arguments],
            config=build.config,
            env=environment,
            output=self.folder.server_log(revision.id),
            start_timeout_s=settings.deployment_start_timeout_s,
            queue_start_timeout_s=settings.queue_start_timeout_s,
            cpus=choose_cores(self._deployment_id, spec.get("cpu_limit")),
            memory=spec["memory_limit_mb"] * 2**20 if "memory_limit_mb" in spec else None,
            server_version=version,
            folder=build.folder,
            server_code=build.server_code,
        )


def _has_waiting_connection(stable: StableSocket) -> bool:
    """Whether a connection waits in the backlog of a socket."""
    poll = select.poll()
    poll.register(stable.public, select.POLLIN)
    return bool(poll.poll(0))


class _BuildFiles:
    """The files that a server needs in the build of its release, and in earlier builds whose executors it starts."""

    def __init__(self, release: Release) -> None:
        builds = [] if release.build is None else [release.build]
        builds += release.earlier.values()

        # The release itself has a build with files, which comes first.
        self._own, *self._earlier = [build.files for build in builds if build.files is not None]

    async def update(self) -> None:
        """Install what this version's servers need. Raises DeployFailed for the build of the release alone."""
        await self._own.update()

        for files in self._earlier:
            try:
                await files.update()
            except DeployFailed as exc:
                # Only the threads of that revision fail until this succeeds; the server must start for all others.
                log.error("the executor of an earlier revision could not be updated to this version", reason=str(exc))  # noqa: TRY400

    async def restore_previous(self) -> None:
        """Install again the executors that the servers from before the update need."""
        for files in (self._own, *self._earlier):
            await files.restore_previous()
