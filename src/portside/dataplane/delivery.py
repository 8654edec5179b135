"""The way of one revision: build it, start it, let it take over, and say so at each step.

    CREATING → AWAITING_BUILD → BUILDING → AWAITING_DEPLOY → DEPLOYING → DEPLOYED

A revision that a restart caught on its way goes on where it can: a finished build is used, an unfinished one is built
anew. Whatever fails ends the revision with a reason and leaves the one before it serving.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from portside.dataplane.api import ControlPlane
from portside.dataplane.builds.environment import python_of
from portside.dataplane.builds.revision import BuildOrder, Built, build_revision, discard_build, find_build
from portside.dataplane.builds.source import Source
from portside.dataplane.compute.process import ReplicaPlan
from portside.dataplane.compute.serving import Serving
from portside.dataplane.compute.variables import Fixtures, server_environment
from portside.dataplane.databases import Databases
from portside.dataplane.failures import BuildFailed, DeployFailed, RevisionFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import (
    DeploymentReport,
    DesiredDeployment,
    DesiredRevision,
    LogKind,
    RevisionReport,
)
from portside.kernel.codec import storable
from portside.kernel.logs import get_logger

log = get_logger(__name__)
SERVE = ("-P", "-m", "portside", "serve")
_MAX_REASON = 4000
_SOURCE = "git_hosting"


@dataclass(frozen=True)
class Workplace:
    """What all deployments of a listener share. `build_slots` bounds how many builds run at once."""

    settings: ListenerSettings
    control: ControlPlane
    databases: Databases
    build_slots: asyncio.Semaphore
    serve_arguments: Sequence[str] = SERVE


class Delivery:
    """Delivers the revisions of one deployment."""

    def __init__(self, workplace: Workplace, deployment_id: UUID) -> None:
        self._workplace, self._deployment_id = workplace, deployment_id
        settings = workplace.settings
        self.folder = DeploymentFolder(settings.folder, deployment_id)
        self.serving = Serving(self.folder, settings.deployment_host, self._log("deploy"), settings.stop_grace_s)

    async def deliver(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Take a revision all the way, or end it with a reason. Raises Refused when it was given up meanwhile."""
        try:
            built = await self._build_where_needed(revision)
            await self._deploy(deployment, revision, built)
        except RevisionFailed as exc:
            await self.fail(revision, exc)

    async def restore(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Bring the active revision back from its build; one whose build was lost is built anew."""
        try:
            built = find_build(self.folder.revision(revision.id)) or await self._build(revision)
        except BuildFailed as exc:
            log.error("the active revision cannot be built again", revision=str(revision.id), reason=str(exc))  # noqa: TRY400
            return
        self.serving.restore(self._plan(deployment, revision, built))
        if deployment.custom_url != self.serving.url:
            await self._report_url()

    async def fail(self, revision: DesiredRevision, failure: RevisionFailed) -> None:
        """End a revision with the reason."""
        log.info("a revision failed", revision=str(revision.id), status=failure.status)
        # Cleared away first: once reported, the revision is nobody's any more and this work may be cancelled.
        await asyncio.to_thread(discard_build, self.folder.revision(revision.id))
        await self._report(revision, failure.status, reason=storable(str(failure)[:_MAX_REASON]))

    async def remove(self) -> None:
        """Leave nothing of the deployment: servers, database, folder; then say so."""
        await self.serving.stop()
        await self._workplace.databases.drop(self._deployment_id)
        await asyncio.to_thread(self.folder.remove)
        await self._workplace.control.forget_deployment(self._deployment_id)

    async def _build_where_needed(self, revision: DesiredRevision) -> Built:
        if revision.status in {"AWAITING_DEPLOY", "DEPLOYING"}:
            return await self._find_or_rebuild(revision)
        if revision.status == "CREATING":
            await self._report(revision, "AWAITING_BUILD")
        async with self._workplace.build_slots:
            if revision.status != "BUILDING":
                await self._report(revision, "BUILDING")
            built = await self._build(revision)
        await self._report(revision, "AWAITING_DEPLOY", commit=built.commit)
        return built

    async def _find_or_rebuild(self, revision: DesiredRevision) -> Built:
        built = find_build(self.folder.revision(revision.id))
        if built is not None:
            return built
        try:
            async with self._workplace.build_slots:
                return await self._build(revision)
        except BuildFailed as exc:
            raise DeployFailed(f"its build is lost and fails when repeated: {exc}") from exc

    async def _build(self, revision: DesiredRevision) -> Built:
        """Build with a log of its own, which has arrived when this returns. Raises BuildFailed."""
        build_log = self._log("build")(revision.id)
        try:
            return await build_revision(self._order(revision), build_log)
        except BuildFailed as exc:
            build_log.add(str(exc), "ERROR")
            raise
        except Exception as exc:
            log.exception("a build broke", revision=str(revision.id))
            build_log.add(f"The build broke: {exc}", "ERROR")
            raise BuildFailed(f"the build broke: {type(exc).__name__}: {exc}") from exc
        finally:
            await build_log.close()

    def _order(self, revision: DesiredRevision) -> BuildOrder:
        settings = self._workplace.settings
        if revision.source != _SOURCE or not revision.repo_url or not revision.graph_config_path:
            raise BuildFailed(f"source {revision.source!r} cannot be built by this listener")
        return BuildOrder(
            self.folder.revision(revision.id),
            Source(revision.repo_url, revision.repo_ref, revision.repo_commit_sha, settings.max_source_bytes),
            revision.graph_config_path,
            settings.folder / "wheels",
            settings.build_timeout_s,
        )

    async def _deploy(self, deployment: DesiredDeployment, revision: DesiredRevision, built: Built) -> None:
        if revision.status != "DEPLOYING":
            await self._report(revision, "DEPLOYING")
        try:
            await self.serving.switch(self._plan(deployment, revision, built))
        except (OSError, ValueError) as exc:
            log.exception("a deploy broke", revision=str(revision.id))
            raise DeployFailed(f"the deploy broke: {exc}") from exc
        await self._report_url()
        await self._report(revision, "DEPLOYED")
        await self._remove_old_revisions()

    def _plan(self, deployment: DesiredDeployment, revision: DesiredRevision, built: Built) -> ReplicaPlan:
        folder = self.folder.revision(revision.id)
        python = python_of(folder)
        fixtures = Fixtures(
            database_url=self._workplace.databases.url(self._deployment_id, self.folder.password_file),
            port=self.serving.port,
            home=self.folder.home(),
            binaries=python.parent,
            commit=built.commit,
        )
        return ReplicaPlan(
            revision.id,
            [str(python), *self._workplace.serve_arguments],
            folder / "source" / built.config,
            server_environment(deployment, revision, fixtures, os.environ),
            self.folder.server_log(revision.id),
            self._workplace.settings.deployment_start_timeout_s,
        )

    async def _remove_old_revisions(self) -> None:
        state = self.folder.state
        kept = {state.active_revision_id, state.previous_revision_id, *self.serving.revisions()} - {None}
        await asyncio.to_thread(self.folder.remove_revisions_except, {kept_id for kept_id in kept if kept_id})

    async def _report_url(self) -> None:
        report = DeploymentReport("READY", custom_url=self.serving.url)
        await self._workplace.control.report_deployment(self._deployment_id, report)

    async def _report(
        self, revision: DesiredRevision, status: str, *, reason: str | None = None, commit: str | None = None
    ) -> None:
        report = RevisionReport(status, reason, commit)
        await self._workplace.control.report_revision(self._deployment_id, revision.id, report)

    def _log(self, kind: LogKind) -> "_LogMaker":
        return _LogMaker(self._workplace.control, self._deployment_id, kind)


@dataclass(frozen=True)
class _LogMaker:
    """Makes the logs of one kind of a deployment's revisions."""

    control: ControlPlane
    deployment_id: UUID
    kind: LogKind

    def __call__(self, revision_id: UUID) -> RevisionLog:
        return RevisionLog(partial(self.control.add_logs, self.deployment_id, revision_id, self.kind))
