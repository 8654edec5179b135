"""The listener: polls the desired state and reconciles each deployment with it.

The listener connects to the control plane, never the other way round. While the control plane is away, everything
keeps running. A lock file lets one listener work in a home folder at a time; a second one waits for a while and then
gives up. On a cluster a Lease does the same for a compute id, wherever its listeners run: a second one waits.

Each deployment has a reconciler, which works in order: the database, the active revision, then the revisions in
progress by number. Deployments do not wait for each other. When the desired state changes, the reconciler cancels work
that is no longer wanted and continues everything else. An active revision that cannot be restored is retried forever
with back-off; meanwhile the deployment's status says why nothing runs, and a newer revision may replace it.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.builds.build import discard_unfinished
from portside.dataplane.builds.bytecode import CompiledModules
from portside.dataplane.builds.caches import is_cache_too_large, limit_cache, modules_folder
from portside.dataplane.builds.commands import kill_strays
from portside.dataplane.compute.interface import Compute
from portside.dataplane.compute.replica import kill_replicas
from portside.dataplane.compute.start_queue import count_start_slots
from portside.dataplane.failures import (
    ComputeFailed,
    ControlPlaneRefused,
    ControlPlaneUnreachable,
    CreateFailed,
    RevisionFailed,
)
from portside.dataplane.masking import mask_values
from portside.dataplane.rollout import ListenerContext, Rollout, describe_failure
from portside.dataplane.settings import ListenerSettings
from portside.kernel import interruption
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir
from portside.kernel.logs import get_logger
from portside.kernel.settings import load_settings
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.kernel.transient_errors import is_transient
from portside.kernel.version import full_version
from portside.listener_api import (
    ABANDONED,
    IN_PROGRESS,
    Connect,
    DeploymentReport,
    Desired,
    DesiredDeployment,
    DesiredRevision,
)

log = get_logger(__name__)
_KNOWN_FAILURES = (ComputeFailed, ControlPlaneRefused, ControlPlaneUnreachable, RevisionFailed, TimeoutError)
_WAIT_S = 25
_LOCK_WAIT_S = 30.0
_PARENT_CHECK_S = 1.0
_REPORT_METRICS_EVERY_S = 5.0
# Also after each build; while builds run more often.
_LIMIT_CACHE_EVERY_S = 3600.0
_LOOK_AT_CACHE_EVERY_S = 60.0
_RESTORE_FIRST_S = 1.0
_RESTORE_LIMIT_S = 300.0
# What a new deployment needs could not be created: it may work later, after somebody has mended the compute.
_PROVISION_FIRST_S = 5.0
_PROVISION_LIMIT_S = 300.0
# A control plane that is stopping answers at once, whatever it was asked to wait for.
_POLL_EVERY_S = 1.0
_STARTS_WITHIN_S = 120.0
_STARTS_POLL_S = 0.2


def open_compute(kind: str, settings: ListenerSettings) -> Compute:
    """Return the compute that `portside listener --compute` names. Raises UserMistake when it lacks something."""
    # Each kind is imported only when it is used: the cluster's client is an optional dependency.
    if kind == "process":
        from portside.dataplane.compute.machine import MachineCompute

        return MachineCompute(settings)

    from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

    try:
        from portside.dataplane.compute.kubernetes.target import KubernetesCompute
    except ImportError as exc:
        raise UserMistake(
            f"compute kubernetes needs {exc.name}: install the wheel with its extra [kubernetes]"
        ) from exc

    return KubernetesCompute.from_environment(settings, load_settings(KubernetesSettings, os.environ))


async def run_listener(settings: ListenerSettings, stop: asyncio.Event, compute: Compute) -> None:
    """Run a listener for a compute until `stop` is set; returns when none of its processes is left.

    Raises UserMistake when another listener works in the same home.
    """
    parent = os.getppid()
    make_private_dir(settings.folder)
    async with _lock_home(settings.folder / "listener.lock", stop):
        # Replicas that were adopted are not children of this process.
        interruption.at_once(lambda: kill_all_processes(settings.folder))
        await asyncio.to_thread(discard_unfinished, settings.folder / "deployments")
        control = ControlPlane(
            settings.control_plane_url, settings.control_plane_api_key, settings.control_plane_api_key_file
        )
        starts = FirstStarts()
        modules = CompiledModules(modules_folder(settings.folder))
        context = ListenerContext(
            settings=settings,
            control=control,
            compute=compute,
            build_slots=BuildSlots(count_start_slots()),
            wait_for_starts=starts.wait,
            modules=modules,
        )

        reconcilers = ReconcilerSet(context, starts)

        # The listener stops as soon as one of these ends.
        tasks = [
            asyncio.create_task(reconcilers.run()),
            asyncio.create_task(reconcilers.report_metrics()),
            asyncio.create_task(reconcilers.limit_cache()),
            asyncio.create_task(compute.keep_claim()),
            asyncio.create_task(stop.wait()),
        ]

        if settings.exit_with_parent:
            tasks.append(asyncio.create_task(_wait_for_parent_exit(parent)))

        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*tasks)
            await reconcilers.close()
            await modules.close()
            await compute.close()
            await control.close()

        for task in tasks:
            if not task.cancelled():
                task.result()


def kill_all_processes(dataplane: Path) -> None:
    """Kill all builds and replicas of a data plane's folder, whichever listener started them."""
    kill_strays(dataplane / "deployments")
    kill_replicas(dataplane)


class FirstStarts:
    """What builds wait for after a start of the listener: agents that served before are started first.

    Both take the machine's processors, and somebody may wait for an agent. One that cannot be started holds up nobody.
    """

    def __init__(self) -> None:
        self._reconcilers: list[Reconciler] | None = None
        self._deadline = time.monotonic() + _STARTS_WITHIN_S

    def expect(self, reconcilers: list["Reconciler"]) -> None:
        """Name the deployments of the first desired state; later calls change nothing."""
        if self._reconcilers is None:
            self._reconcilers = reconcilers

    async def wait(self) -> None:
        """Wait until they serve, cannot, or take too long."""
        while self._has_starting() and time.monotonic() < self._deadline:  # noqa: ASYNC110 - many tasks change it
            await asyncio.sleep(_STARTS_POLL_S)

    def _has_starting(self) -> bool:
        return any(reconciler.is_starting for reconciler in self._reconcilers or ())


class ReconcilerSet:
    """Polls the desired state and runs one reconciler for each deployment."""

    def __init__(self, context: ListenerContext, starts: FirstStarts | None = None) -> None:
        self._context = context
        self._starts = starts or FirstStarts()
        self._reconcilers: dict[UUID, Reconciler] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._listener_id: UUID | None = None
        self._generation = 0

    async def run(self) -> None:
        """Poll the control plane forever."""
        backoff = Backoff(first_s=0.5, limit_s=10)

        async def poll_forever() -> None:
            while True:
                started_at = time.monotonic()
                generation_before = self._generation
                self._apply(await self._poll())
                backoff.reset()

                if self._generation == generation_before:
                    await asyncio.sleep(max(0.0, started_at + _POLL_EVERY_S - time.monotonic()))

        def reconnect(_failure: Exception, _delay_s: float) -> None:
            # A control plane that was set up again does not know the old listener id, and refuses it.
            self._listener_id = None

        expected = (ControlPlaneUnreachable, ControlPlaneRefused)
        supervision = Supervision(
            "polls of the control plane", backoff=backoff, expected=expected, on_failure=reconnect
        )

        await supervision.run(poll_forever)

    async def report_metrics(self) -> None:
        """Report the metrics of all deployments every few seconds, forever."""

        async def report_forever() -> None:
            while True:
                await asyncio.sleep(_REPORT_METRICS_EVERY_S)

                for reconciler in list(self._reconcilers.values()):
                    # A report that fails is repeated in a moment anyway.
                    with contextlib.suppress(ControlPlaneUnreachable, ControlPlaneRefused):
                        await reconciler.report_metrics()

        await Supervision("metrics of deployments").run(report_forever)

    async def limit_cache(self) -> None:
        """Keep the package cache of builds within its size limit, forever."""
        settings = self._context.settings
        slots = self._context.build_slots

        async def limit_forever() -> None:
            while True:
                if await is_cache_too_large(settings.folder, settings.build_cache_max_bytes):
                    async with slots.alone("the package caches are above BUILD_CACHE_MAX_BYTES and are emptied first"):
                        await limit_cache(settings.folder, settings.build_cache_max_bytes)

                await slots.wait_for_end(_LOOK_AT_CACHE_EVERY_S if slots.has_builds else _LIMIT_CACHE_EVERY_S)

        await Supervision("size of the build cache").run(limit_forever)

    async def close(self) -> None:
        """Stop all work and all servers; returns when no process is left."""
        await cancel_and_wait(*self._tasks.values())
        await asyncio.gather(*(reconciler.close() for reconciler in self._reconcilers.values()))

    async def _poll(self) -> Desired:
        control = self._context.control
        if self._listener_id is None:
            compute = self._context.compute
            introduction = Connect(
                compute_type=compute.compute_type,
                compute_id=self._context.settings.compute_id,
                version=full_version(),
                size_limits=compute.size_limits,
            )
            self._listener_id = await control.connect(introduction)
            self._generation = 0
            await self._context.compute.claim(self._listener_id)

            log.info("connected to the control plane", listener=str(self._listener_id))

        desired = await control.get_desired(self._listener_id, self._generation, _WAIT_S)
        self._generation = desired.generation
        return desired

    def _apply(self, desired: Desired) -> None:
        for deployment in desired.deployments:
            reconciler = self._reconcilers.get(deployment.id)
            if reconciler is not None and not reconciler.is_finished:
                reconciler.update(deployment)
                continue

            reconciler = Reconciler(self._context, deployment)
            self._reconcilers[deployment.id] = reconciler
            supervision = Supervision(f"deployment {deployment.id}")
            self._tasks[deployment.id] = asyncio.create_task(supervision.run(reconciler.run))

        self._starts.expect(list(self._reconcilers.values()))

        listed_ids = {deployment.id for deployment in desired.deployments}
        for deployment_id in self._reconcilers.keys() - listed_ids:
            self._drop(deployment_id)

    def _drop(self, deployment_id: UUID) -> None:
        """Stop the servers of a deployment that the control plane no longer lists; its data stays."""
        reconciler = self._reconcilers[deployment_id]
        task = self._tasks[deployment_id]
        if reconciler.is_finished:
            del self._reconcilers[deployment_id]
            del self._tasks[deployment_id]
        elif not reconciler.is_closing:
            reconciler.is_closing = True
            log.warning(
                "the control plane no longer lists a deployment that was not deleted", deployment=str(deployment_id)
            )
            task.cancel()

            self._tasks[deployment_id] = asyncio.create_task(_close(reconciler, task))


async def _close(reconciler: "Reconciler", task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)
    await reconciler.close()
    reconciler.is_finished = True


class Reconciler:
    """Reconciles one deployment: `update` sets the desired state, `run` brings it about."""

    def __init__(self, context: ListenerContext, desired: DesiredDeployment) -> None:
        self._context = context
        self._desired = desired
        self._rollout = Rollout(context, desired.id)
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._working_on: UUID | None = None
        self._rolled_out: set[UUID] = set()

        self._was_provisioned = False
        self._provision_backoff = Backoff(_PROVISION_FIRST_S, _PROVISION_LIMIT_S)

        self._was_restored = False
        self._restore_backoff = Backoff(_RESTORE_FIRST_S, _RESTORE_LIMIT_S)
        # The earliest time of the next attempt (monotonic clock).
        self._restore_at = 0.0

        # Whether nothing is left to do: the deployment was deleted, or its servers were stopped for good.
        self.is_finished = False
        self.is_closing = False

    def update(self, desired: DesiredDeployment) -> None:
        """Set the desired state, and cancel work that is no longer wanted."""
        if desired == self._desired:
            return

        is_deletion = desired.status == "AWAITING_DELETE" and self._desired.status != "AWAITING_DELETE"
        # Status and address echo this listener's own reports, so a change of those is not a reason to retry at once.
        echo = msgspec.structs.replace(desired, status=self._desired.status, custom_url=self._desired.custom_url)
        if echo != self._desired:
            self._restore_backoff.reset()
            self._restore_at = 0.0
            self._provision_backoff.reset()

        self._desired = desired
        self._changed.set()

        if self._work is not None and (is_deletion or self._is_work_abandoned()):
            self._work.cancel()

    async def run(self) -> None:
        """Reconcile until the deployment is deleted. After a cancellation, `close` stops its servers."""
        backoff = Backoff(first_s=0.5)
        while not self.is_finished:
            self._changed.clear()
            failed = await self._reconcile_logged()
            if not failed:
                backoff.reset()

            if not self.is_finished:
                await self._wait_for_change(backoff.next() if failed else self._get_delay())

    async def _wait_for_change(self, within_s: float | None) -> None:
        await wait_at_most(within_s, self._changed.wait())

    def _get_delay(self) -> float | None:
        """Return in how many seconds there is work that waits for nothing but time; None if there is none."""
        if not self._was_provisioned:
            return self._provision_backoff.next()

        return None if self._was_restored else max(0.0, self._restore_at - time.monotonic())

    @property
    def is_starting(self) -> bool:
        """Whether the active revision served before this listener, and still has to be started."""
        if self.is_finished or self._desired.active_revision_id is None or self._desired.status == "AWAITING_DELETE":
            return False

        has_failed = time.monotonic() < self._restore_at
        return self._rollout.target.is_starting or not (self._was_restored or has_failed)

    async def report_metrics(self) -> None:
        """Report what the deployment uses. Raises ControlPlaneUnreachable and ControlPlaneRefused."""
        if not self.is_finished and self._desired.status in {"READY", "UNKNOWN"}:
            await self._rollout.report_metrics()
            if self._rollout.has_unused_builds:
                self._changed.set()

    async def close(self) -> None:
        """Stop all servers of the deployment; returns when none is left."""
        await self._rollout.target.close()

    def _is_work_abandoned(self) -> bool:
        if self._working_on is None:
            return False

        revision = self._desired.revision(self._working_on)
        return revision is None or revision.status in ABANDONED

    async def _reconcile_logged(self) -> bool:
        """Reconcile once, log an error, and return whether there was one. A cancellation by `update` is none."""
        self._work = asyncio.create_task(self._reconcile())
        try:
            await asyncio.wait({self._work})
        finally:
            await cancel_and_wait(self._work)

        error = None if self._work.cancelled() else self._work.exception()
        if error is not None:
            # A kind of failure that is known repeats for as long as its cause stays: its reason is enough.
            is_known = isinstance(error, _KNOWN_FAILURES) or is_transient(error)
            log.error(
                "a deployment is not in its desired state",
                deployment=str(self._desired.id),
                reason=self._describe(error),
                exc_info=None if is_known else error,
            )
            await self._report_unfinished(error)

        return error is not None

    async def _reconcile(self) -> None:
        if self._desired.status == "AWAITING_DELETE":
            await self._rollout.destroy(self._desired)
            self.is_finished = True
            return

        self._was_provisioned = await self._provision()
        if not self._was_provisioned:
            return

        await self._restore_when_due()
        await self._rollout.rollback(self._desired)
        await self._rollout.update(self._desired)

        while (revision := self._next_revision()) is not None:
            await self._roll_out(revision)

    def _next_revision(self) -> DesiredRevision | None:
        revisions = [revision for revision in self._desired.revisions if revision.status in IN_PROGRESS]
        waiting_revisions = [revision for revision in revisions if revision.id not in self._rolled_out]
        return min(waiting_revisions, key=lambda revision: revision.number, default=None)

    async def _provision(self) -> bool:
        """Create what every revision needs. False when that failed for good, which ends the waiting revisions."""
        target = self._rollout.target
        is_new = self._desired.status == "AWAITING_DATABASE"
        if not is_new and await target.is_provisioned():
            return True

        try:
            await target.provision(self._desired, is_new=is_new)
        except CreateFailed as exc:
            while (revision := self._next_revision()) is not None:
                self._rolled_out.add(revision.id)
                await self._rollout.fail(revision, exc)

            if self._desired.active_revision_id is not None:
                raise

            return False

        if is_new:
            await self._context.control.report_deployment(self._desired.id, DeploymentReport("READY"))

        return True

    async def _restore_when_due(self) -> None:
        """After a start of the listener, restore the active revision; after a failure wait for the back-off."""
        if self._was_restored or self._rollout.target.is_running:
            self._was_restored = True
            return

        active = self._desired.revision(self._desired.active_revision_id)
        if active is not None:
            if time.monotonic() < self._restore_at:
                return

            try:
                await self._rollout.restore(self._desired, active)
            except (RevisionFailed, OSError, UserMistake) as exc:
                delay_s = self._restore_backoff.next()
                self._restore_at = time.monotonic() + delay_s
                log.error(  # noqa: TRY400 - the reason is enough
                    "an active revision cannot be restored yet",
                    revision=str(active.id),
                    reason=describe_failure(active, exc),
                    again_in_s=delay_s,
                )

                await self._report_down(exc, f"in {delay_s:g} s")
                return

        self._was_restored = True

    async def _report_unfinished(self, error: BaseException) -> None:
        """Report why the deployment is not deleted yet, or why nothing of it runs."""
        if self._desired.status != "AWAITING_DELETE":
            await self._report_down(error, "soon")
            return

        # A control plane of an earlier version refuses reports about a deployment that is being deleted.
        with contextlib.suppress(ControlPlaneRefused):
            await self._rollout.report_down(
                f"It could not be deleted yet, which is tried again soon. {self._describe(error)}"
            )

    def _describe(self, error: BaseException) -> str:
        """Return why something failed, without secrets."""
        revisions = self._desired.revisions
        secrets = [secret.value for revision in revisions for secret in revision.secrets]
        return mask_values(str(error) or type(error).__name__, secrets)

    async def _report_down(self, error: BaseException, next_attempt: str) -> None:
        """Report why nothing runs of a deployment that has an active revision."""
        active = self._desired.revision(self._desired.active_revision_id)
        if active is None or self._desired.status == "AWAITING_DELETE" or self._rollout.target.is_running:
            return

        with contextlib.suppress(ControlPlaneRefused):
            reason = describe_failure(active, error)
            await self._rollout.report_down(
                f"Nothing of this deployment runs. The next attempt is {next_attempt}. {reason}"
            )

    async def _roll_out(self, revision: DesiredRevision) -> None:
        self._working_on = revision.id
        try:
            await self._rollout.run(self._desired, revision)
        except ControlPlaneRefused as exc:
            log.warning("the control plane has given up a revision", revision=str(revision.id), reason=str(exc))
        finally:
            self._rolled_out.add(revision.id)
            self._working_on = None


@asynccontextmanager
async def _lock_home(lock: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break

            if stop.is_set() or time.monotonic() > deadline:
                raise UserMistake(
                    f"another listener uses {lock.parent}; stop it, or set PORTSIDE_HOME to another folder"
                )

            await asyncio.sleep(0.1)

        yield
    finally:
        os.close(descriptor)


async def _wait_for_parent_exit(parent: int) -> None:
    while True:
        await asyncio.sleep(_PARENT_CHECK_S)
        if os.getppid() != parent:
            return
