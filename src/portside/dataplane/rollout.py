"""The rollout of one revision: build it, start it, switch to it, and report each step.

    CREATING -> AWAITING_BUILD -> BUILDING -> AWAITING_DEPLOY -> DEPLOYING -> DEPLOYED

An image goes from CREATING straight to AWAITING_DEPLOY, and so does a revision that reuses an existing build. After a
restart of the listener a rollout continues where it can: a finished build is used, an unfinished one starts over. A
failure ends the revision with a reason, and the previous revision keeps serving.
"""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.builds.archive import ArchiveSource
from portside.dataplane.builds.build import (
    BuildPlaces,
    BuildRecord,
    BuildRequest,
    ExecutorFiles,
    build_revision,
    discard_build,
    find_build,
    wants_one_process,
)
from portside.dataplane.builds.bytecode import CompiledModules
from portside.dataplane.builds.caches import cache_folder, node_cache_folder
from portside.dataplane.builds.git import GitSource
from portside.dataplane.builds.javascript import Scripts
from portside.dataplane.builds.node import RUNTIMES, runtime_folder
from portside.dataplane.builds.sources import Source
from portside.dataplane.builds.wheel import is_behind, server_versions
from portside.dataplane.compute.interface import STARTING, Build, Compute, OpenLog, Release
from portside.dataplane.failures import BuildFailed, ControlPlaneRefused, DeployFailed, RevisionFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import mask_values
from portside.dataplane.settings import Layout, ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.kernel.logs import get_logger
from portside.kernel.shortening import shorten
from portside.kernel.user_json import storable
from portside.listener_api import (
    DeploymentReport,
    DesiredDeployment,
    DesiredRevision,
    LogType,
    MetricsReport,
    ReportedDeploymentStatus,
    ReportedRevisionStatus,
    RevisionReport,
)

log = get_logger(__name__)
_GIT = "git_hosting"
_ARCHIVE = "internal_source"
BUILT_SOURCES = frozenset({_GIT, _ARCHIVE})
_MAX_REASON = 4000
# Metrics that changed less than this are repeated only after so long: most deployments are idle, and there may be
# hundreds of them.
_REPEAT_METRICS_S = 60.0
_SAME_CORES = 0.02
_SAME_MB = 2.0
_CANNOT_PIN = (
    "pin_threads needs the split layout, and the build of this revision is combined, or an image; its build log says "
    "why. Change that, or set pin_threads to 0"
)


def describe_failure(revision: DesiredRevision, failure: BaseException) -> str:
    """Return why a revision failed, without its secrets: everybody who may read the deployment reads this."""
    text = mask_values(str(failure), [secret.value for secret in revision.secrets])
    return storable(shorten(text, _MAX_REASON))


async def _nothing_starts() -> None:
    """Return at once: no agent has to be started again."""


@dataclass(frozen=True)
class ListenerContext:
    """What all deployments of a listener share."""

    settings: ListenerSettings
    control: ControlPlane
    compute: Compute
    # Limits how many builds run at once.
    build_slots: BuildSlots
    # Waits until the agents that served before a restart of the listener are started again.
    wait_for_starts: Callable[[], Awaitable[None]] = _nothing_starts
    # What builds share of their packages' compiled modules; None means nothing.
    modules: CompiledModules | None = None


@dataclass(frozen=True)
class Builder:
    """Builds the revisions of one deployment in its folder.

    `builds/` knows how a build is made; this knows when, in which folder and with which log.
    """

    settings: ListenerSettings
    folder: DeploymentFolder
    places: BuildPlaces
    open_log: OpenLog
    # Downloads a revision's archive to a file.
    fetch_archive: Callable[[UUID, Path], Awaitable[None]]

    async def find(self, revision: DesiredRevision) -> Build | None:
        """Return the finished build of a revision, its own or the one that it reuses, or None.

        A split build gets the platform's version of the executor when a server starts. A combined build with an older
        agent server is not reused: the database may have been migrated since.
        """
        folder = self.folder.revision(revision.id)
        record = find_build(folder)
        if record is None:
            record = self._reuse_build(revision)

        return None if record is None else await self._to_build(folder, record)

    async def find_earlier(self, revision_id: UUID) -> Build | None:
        """Return the finished build of an earlier revision, or None."""
        folder = self.folder.revision(revision_id)
        record = await asyncio.to_thread(find_build, folder)
        return None if record is None else await self._to_build(folder, record)

    def _reuse_build(self, revision: DesiredRevision) -> BuildRecord | None:
        """Let a revision share the build that it reuses, and return it; None if there is none that can be reused."""
        if revision.built_from is None or not self._is_reusable(revision, self.folder.revision(revision.built_from)):
            return None

        self.folder.share_revision(revision.built_from, revision.id)
        return find_build(self.folder.revision(revision.id))

    @staticmethod
    def _is_reusable(revision: DesiredRevision, folder: Path) -> bool:
        record = find_build(folder)
        if record is not None and record.layout is Layout.SPLIT:
            return not wants_one_process(revision.secret_values)

        return not is_behind(folder / "venv")

    async def _to_build(self, folder: Path, record: BuildRecord) -> Build:
        """Return the build of a record, for servers of this platform's version."""
        config = folder / "source" / record.config
        build = Build(
            folder=folder,
            config=config,
            commit=record.commit,
            commit_author=record.commit_author,
            commit_subject=record.commit_subject,
        )
        if record.layout is not Layout.SPLIT:
            return build

        has_javascript = runtime_folder(folder).is_dir()
        server_code, describing_code = await asyncio.to_thread(server_versions, has_javascript=has_javascript)
        return replace(
            build,
            server_code=server_code,
            describing_code=describing_code,
            files=ExecutorFiles(folder, self.settings.folder),
        )

    async def build(self, revision: DesiredRevision, build_log: RevisionLog) -> Build:
        """Build a revision from scratch. Raises BuildFailed."""
        # Another build of the same commit may have other versions of libraries.
        self.folder.forget_graphs(revision.id)
        try:
            request = self._to_request(revision)
            record = await build_revision(request, build_log)
            return await self._to_build(request.folder, record)
        except BuildFailed as exc:
            # The log already has the output of the program that failed.
            build_log.add(str(exc).partition("\n")[0], "ERROR")
            raise
        except Exception as exc:
            log.exception("a build failed unexpectedly", revision=str(revision.id))
            build_log.add(f"The build failed unexpectedly: {exc}", "ERROR")
            raise BuildFailed(f"the build failed unexpectedly: {type(exc).__name__}: {exc}") from exc

    async def discard(self, revision_id: UUID) -> None:
        """Remove a revision's build and its source; a build that it only reuses stays."""
        if not self.folder.unshare_revision(revision_id):
            await asyncio.to_thread(discard_build, self.folder.revision(revision_id))
            await asyncio.to_thread(shutil.rmtree, self.folder.source(revision_id), ignore_errors=True)

    def _to_request(self, revision: DesiredRevision) -> BuildRequest:
        if not revision.graph_config_path:
            raise BuildFailed(
                "the revision names no graph configuration file; set source_revision_config.graph_config_path"
            )

        return BuildRequest(
            folder=self.folder.revision(revision.id),
            source=self._to_source(revision),
            config_path=revision.graph_config_path,
            places=self.places,
            timeout_s=self.settings.build_timeout_s,
            scripts=Scripts(install=revision.install_command, build=revision.build_command),
            secrets=revision.secret_values,
            reserve=self.settings.disk_reserve,
            layout=self.settings.deployment_layout,
            history_folder=self.folder.source(revision.id),
        )

    def _to_source(self, revision: DesiredRevision) -> Source:
        """Return what a revision is built from. Raises BuildFailed for a kind that is not known here."""
        if revision.source == _ARCHIVE:
            return ArchiveSource(
                download=partial(self.fetch_archive, revision.id), max_bytes=self.settings.max_source_bytes
            )

        if revision.source != _GIT or not revision.repo_url:
            raise BuildFailed(f"this listener cannot build the source {revision.source!r}")

        return GitSource(
            url=revision.repo_url,
            ref=revision.repo_ref,
            commit=revision.repo_commit_sha,
            max_bytes=self.settings.max_source_bytes,
            credential=revision.repo_credential,
            history=self.folder.find_source(revision.repo_commit_sha),
        )


class Rollout:
    """Rolls the revisions of one deployment out to its target."""

    def __init__(self, context: ListenerContext, deployment_id: UUID) -> None:
        self._context = context
        self._deployment_id = deployment_id
        self._folder = DeploymentFolder(context.settings.folder, deployment_id)
        fetch_archive = partial(context.control.fetch_archive, deployment_id)
        self._builder = Builder(
            settings=context.settings,
            folder=self._folder,
            places=_find_places(context),
            open_log=self._log_opener("build"),
            fetch_archive=fetch_archive,
        )

        # The release that serves or is being restored.
        self._release: Release | None = None
        # The status and the reason that were reported last.
        self._reported_status: tuple[str, str | None] | None = None
        # The metrics that were reported last, and when.
        self._reported_metrics: tuple[float, MetricsReport] | None = None

        # True from the moment that a release may serve until the control plane knows that it does. If it gives the
        # revision up before that, the previous release has to serve again.
        self._has_unreported_switch = False
        # True while the control plane does not know the target's new address.
        self._has_unreported_address = False

        self.has_unused_builds = False
        """Whether `update` has builds to remove, of earlier revisions that no thread uses any more."""

        self.target = context.compute.target(deployment_id, self._log_opener("deploy"))

    async def run(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Roll a revision out, or end it with a reason.

        Raises ControlPlaneRefused when the control plane gave the revision up meanwhile.
        """
        try:
            build = await self._prepare(revision)
            await self._deploy(await self._to_release(deployment, revision, build))
        except RevisionFailed as exc:
            await self.fail(revision, exc)

    async def restore(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Restore the active revision from its build; build it again when the build is lost.

        Raises RevisionFailed and OSError when it cannot; the caller then tries again later.
        """
        build = None
        if revision.source in BUILT_SOURCES:
            build = await self._builder.find(revision)
            if build is None:
                await self.report_down("Nothing of this deployment runs until its active revision is built again.")
                build = await self._rebuild(revision)

        if build is not None and not self._folder.state.has_servers:
            await self.report_down(STARTING)

        if deployment.pin_threads:
            # Before anything serves: a thread that goes on now would go on with newer code.
            await self._rebuild_earlier(deployment, revision)

        self._release = await self._to_release(deployment, revision, build)
        await self.target.restore(self._release)
        if deployment.custom_url != self.target.url:
            await self._report_status("READY", None)

    async def update(self, deployment: DesiredDeployment) -> None:
        """Apply changes of the serving revision, and report its address if they changed it.

        Raises ControlPlaneRefused and ControlPlaneUnreachable; the next call then reports it.
        """
        url_before = self.target.url
        if self._release is not None:
            self._release = replace(self._release, deployment=deployment)

        await self.target.update(deployment)

        if self.has_unused_builds:
            self.has_unused_builds = False
            revision_ids = self.target.list_revisions() | {revision.id for revision in deployment.revisions}
            await asyncio.to_thread(self._folder.remove_revisions_except, revision_ids)

        if self.target.url != url_before:
            self._has_unreported_address = True

        if self._has_unreported_address:
            await self._report_status("READY", None)

    async def report_down(self, message: str) -> None:
        """Report that nothing of the deployment runs, and why. Raises ControlPlaneRefused."""
        await self._report_status("UNKNOWN", storable(shorten(message, _MAX_REASON)))

    async def rollback(self, deployment: DesiredDeployment) -> None:
        """Switch back to the active revision after a switch to one that was given up before its report arrived.

        Without an active revision nothing serves afterwards. Raises RevisionFailed when it cannot; the caller then
        tries again later.
        """
        if not self._has_unreported_switch:
            return

        # The target writes which revision serves.
        self._folder.read_again()
        active = deployment.revision(deployment.active_revision_id)
        if active is not None and self._folder.state.active_revision_id != active.id:
            build = await self._find_or_rebuild(active) if active.source in BUILT_SOURCES else None
            release = await self._to_release(deployment, active, build)
            await self.target.switch(release)
            self._release = release

        if active is None and self.target.is_running:
            await self.target.withdraw(deployment)
            self._release = None

        self._has_unreported_switch = False

    async def fail(self, revision: DesiredRevision, failure: RevisionFailed) -> None:
        """End a revision with the reason."""
        log.info("a revision failed", revision=str(revision.id), status=failure.status)
        # Discard the build first: the report ends the revision, after which this task may be cancelled.
        await self._builder.discard(revision.id)
        await self._report_revision(revision, failure.status, reason=describe_failure(revision, failure))

    async def report_metrics(self) -> None:
        """Report what the deployment uses, and whether it answers.

        Raises ControlPlaneUnreachable and ControlPlaneRefused.
        """
        metrics = self.target.metrics()
        if metrics is None:
            return

        self.has_unused_builds |= self.target.forget_unused()
        # Nobody knows whether it serves when its compute does not show the replicas.
        is_down = metrics.problem is not None and not metrics.replicas
        problem = metrics.problem
        if not problem and self._release is not None and self._release.lacks_pins:
            problem = _CANNOT_PIN

        problem = None if problem is None else storable(shorten(problem, _MAX_REASON))

        metrics = msgspec.structs.replace(metrics, problem=problem)
        if self._reported_metrics is None or _is_due(metrics, *self._reported_metrics):
            await self._context.control.put_metrics(self._deployment_id, metrics)
            self._reported_metrics = time.monotonic(), metrics

        status: ReportedDeploymentStatus = "UNKNOWN" if is_down else "READY"
        if (status, problem) != self._reported_status:
            await self._report_status(status, problem)

    async def destroy(self, deployment: DesiredDeployment) -> None:
        """Delete the deployment (servers, database, folder), then report that."""
        await self.target.destroy(deployment)
        await asyncio.to_thread(self._folder.remove)
        await self._context.control.confirm_deleted(self._deployment_id)

    async def _prepare(self, revision: DesiredRevision) -> Build | None:
        """Bring the revision to AWAITING_DEPLOY, with a build unless it is an image."""
        if revision.source not in BUILT_SOURCES:
            if revision.status == "CREATING":
                await self._report_revision(revision, "AWAITING_DEPLOY")
            return None

        if revision.status in {"AWAITING_DEPLOY", "DEPLOYING"}:
            return await self._find_or_rebuild(revision)

        if revision.status == "CREATING":
            build = await self._builder.find(revision) if revision.built_from is not None else None
            if build is not None:
                await self._report_revision(revision, "AWAITING_DEPLOY", build=build)
                return build

            await self._report_revision(revision, "AWAITING_BUILD")

        return await self._build(revision)

    async def _build(self, revision: DesiredRevision) -> Build:
        if not self._context.compute.builds_sources:
            raise BuildFailed(
                "this listener's compute only serves container images and builds no sources; deploy an image, or use a "
                "listener with compute process"
            )

        await self._context.wait_for_starts()
        build_log = self._builder.open_log(revision.id)
        try:
            async with self._context.build_slots.take(lambda reason: build_log.add(f"Waiting: {reason}")):
                if revision.status != "BUILDING":
                    await self._report_revision(revision, "BUILDING")
                build = await self._builder.build(revision, build_log)
        finally:
            await build_log.close()

        await self._report_revision(revision, "AWAITING_DEPLOY", build=build)
        return build

    async def _find_or_rebuild(self, revision: DesiredRevision) -> Build:
        build = await self._builder.find(revision)
        if build is not None:
            return build

        try:
            return await self._rebuild(revision)
        except BuildFailed as exc:
            raise DeployFailed(f"the revision's build is lost, and building it again failed: {exc}") from exc

    async def _rebuild(self, revision: DesiredRevision) -> Build:
        build_log = self._builder.open_log(revision.id)
        try:
            async with self._context.build_slots.take(lambda reason: build_log.add(f"Waiting: {reason}")):
                return await self._builder.build(revision, build_log)
        finally:
            await build_log.close()

    async def _rebuild_earlier(self, deployment: DesiredDeployment, active: DesiredRevision) -> None:
        """Build the revisions again that threads may continue with, if a restore of a backup lost their builds."""
        for revision_id in self.target.list_earlier_revisions() - {active.id}:
            if find_build(self._folder.revision(revision_id)) is not None:
                continue

            try:
                earlier = await self._context.control.get_revision(deployment.id, revision_id)
                if earlier.source in BUILT_SOURCES:
                    await self.report_down(
                        f"Nothing runs until revision {revision_id} is built again, for its threads."
                    )
                    await self._rebuild(earlier)
            except (BuildFailed, ControlPlaneRefused, OSError) as exc:
                log.error("pinned threads cannot continue with it", revision=str(revision_id), reason=str(exc))  # noqa: TRY400

    async def _to_release(
        self, deployment: DesiredDeployment, revision: DesiredRevision, build: Build | None
    ) -> Release:
        """Return a release with the builds of the earlier revisions that threads may continue with."""
        revision_ids = self.target.list_earlier_revisions() - {revision.id} if deployment.pin_threads else set()
        earlier: dict[UUID, Build] = {}
        for revision_id in revision_ids:
            try:
                earlier_build = await self._builder.find_earlier(revision_id)
            except (BuildFailed, OSError) as exc:
                log.error("pinned threads cannot continue with it", revision=str(revision_id), reason=str(exc))  # noqa: TRY400
                continue

            if earlier_build is not None:
                earlier[revision_id] = earlier_build

        return Release(deployment, revision, build, earlier)

    async def _deploy(self, release: Release) -> None:
        revision = release.revision
        if release.lacks_pins:
            raise DeployFailed(_CANNOT_PIN)

        if revision.status != "DEPLOYING":
            await self._report_revision(revision, "DEPLOYING")

        self._has_unreported_switch = True
        try:
            await self.target.switch(release)
        except (DeployFailed, OSError, ValueError) as exc:
            self._has_unreported_switch = False
            if isinstance(exc, DeployFailed):
                raise

            log.exception("a deploy failed unexpectedly", revision=str(revision.id))
            raise DeployFailed(f"the deploy failed unexpectedly: {exc}") from exc

        self._release = release
        await self._report_status("READY", None)
        await self._report_revision(revision, "DEPLOYED")
        self._has_unreported_switch = False

        if release.build is not None and self._context.modules is not None:
            self._context.modules.keep(release.build.folder.resolve())

        await asyncio.to_thread(self._folder.remove_revisions_except, self.target.list_revisions())

    async def _report_status(self, status: ReportedDeploymentStatus, message: str | None) -> None:
        report = DeploymentReport(status, custom_url=self.target.url, reason=message)
        await self._context.control.report_deployment(self._deployment_id, report)
        self._has_unreported_address = False
        self._reported_status = status, message

    async def _report_revision(
        self,
        revision: DesiredRevision,
        status: ReportedRevisionStatus,
        *,
        reason: str | None = None,
        build: Build | None = None,
    ) -> None:
        report = RevisionReport(status, reason)
        if build is not None and build.commit:
            report = RevisionReport(
                status=status,
                reason=reason,
                repo_commit_sha=build.commit,
                repo_commit_author=build.commit_author,
                repo_commit_subject=build.commit_subject,
            )

        await self._context.control.report_revision(self._deployment_id, revision.id, report)

    def _log_opener(self, kind: LogType) -> OpenLog:
        add_logs = self._context.control.add_logs
        return lambda revision_id: RevisionLog(partial(add_logs, self._deployment_id, revision_id, kind))


def _find_places(context: ListenerContext) -> BuildPlaces:
    """Return the folders that all builds share, below the folder of the data plane."""
    folder = context.settings.folder
    return BuildPlaces(
        wheels=folder / "wheels",
        cache=cache_folder(folder),
        node_cache=node_cache_folder(folder),
        runtimes=folder / RUNTIMES,
        modules=context.modules,
    )


def _is_due(metrics: MetricsReport, reported_at: float, previous: MetricsReport) -> bool:
    """Whether metrics differ enough from the reported ones, or those are old."""
    if time.monotonic() - reported_at >= _REPEAT_METRICS_S:
        return True

    cores = abs((metrics.cpu or 0.0) - (previous.cpu or 0.0))
    memory = abs((metrics.memory_mb or 0.0) - (previous.memory_mb or 0.0))
    same_load = msgspec.structs.replace(previous, cpu=metrics.cpu, memory_mb=metrics.memory_mb)

    return metrics != same_load or cores > _SAME_CORES or memory > _SAME_MB
