"""The way of one revision: build it, start it, let it take over, and say so at each step.

    CREATING → AWAITING_BUILD → BUILDING → AWAITING_DEPLOY → DEPLOYING → DEPLOYED

An image, and a revision that serves an existing build again, go from CREATING to AWAITING_DEPLOY at once.
A revision that a restart caught on its way goes on where it can: a finished build is used, an unfinished one is built
anew. Whatever fails ends the revision with a reason and leaves the one before it serving.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec

from portside.dataplane.api import ControlPlane
from portside.dataplane.building import BUILT_SOURCES, Builder
from portside.dataplane.builds.output import masked
from portside.dataplane.compute.interface import Build, Compute, Release
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
_MAX_REASON = 4000


def reason_of(revision: DesiredRevision, failure: RevisionFailed) -> str:
    """Return why a revision failed, as whoever may read the deployment may read it: without its secrets."""
    return storable(masked(str(failure), [secret.value for secret in revision.secrets])[:_MAX_REASON])


@dataclass(frozen=True)
class Workplace:
    """What all deployments of a listener share. `build_slots` bounds how many builds run at once."""

    settings: ListenerSettings
    control: ControlPlane
    compute: Compute
    build_slots: asyncio.Semaphore


class Delivery:
    """Delivers the revisions of one deployment to its berth."""

    def __init__(self, workplace: Workplace, deployment_id: UUID) -> None:
        self._workplace, self._deployment_id = workplace, deployment_id
        self._folder = DeploymentFolder(workplace.settings.folder, deployment_id)
        fetch_archive = partial(workplace.control.fetch_archive, deployment_id)
        self._builder = Builder(workplace.settings, self._folder, self._log_of("build"), fetch_archive)
        self._told_problem: str | None = None
        # From when a release may serve until the control plane knows that it does.
        self._is_switching = False
        self.berth = workplace.compute.berth(deployment_id, self._log_of("deploy"))

    async def deliver(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Take a revision all the way, or end it with a reason. Raises Refused when it was given up meanwhile."""
        try:
            build = await self._prepare(revision)
            await self._deploy(Release(deployment, revision, build))
        except RevisionFailed as exc:
            await self.fail(revision, exc)

    async def restore(self, deployment: DesiredDeployment, revision: DesiredRevision) -> None:
        """Bring the active revision back from its build; one whose build was lost is built anew."""
        try:
            build = None
            if revision.source in BUILT_SOURCES:
                build = self._builder.find(revision) or await self._rebuild(revision)
            await self.berth.restore(Release(deployment, revision, build))
        except RevisionFailed as exc:
            log.error("the active revision cannot be brought back", revision=str(revision.id), reason=str(exc))  # noqa: TRY400
            return
        if deployment.custom_url != self.berth.url:
            await self._report_url()

    async def take_back(self, deployment: DesiredDeployment) -> None:
        """Let the active revision serve again where one took over that was given up before it was known to serve.

        Raises RevisionFailed where it cannot, and is then to be called again.
        """
        if not self._is_switching:
            return
        active = deployment.revision(deployment.active_revision_id)
        if active is not None and self._folder.state.active_revision_id != active.id:
            build = await self._find_or_rebuild(active) if active.source in BUILT_SOURCES else None
            await self.berth.switch(Release(deployment, active, build))
        self._is_switching = False

    async def fail(self, revision: DesiredRevision, failure: RevisionFailed) -> None:
        """End a revision with the reason."""
        log.info("a revision failed", revision=str(revision.id), status=failure.status)
        # Cleared away first: once reported, the revision is nobody's any more and this work may be cancelled.
        await self._builder.discard(revision.id)
        await self._report(revision, failure.status, reason=reason_of(revision, failure))

    async def tell_measures(self) -> None:
        """Tell what the deployment uses; a problem of its replicas becomes its reason. Raises Unreachable, Refused."""
        measures = self.berth.measures()
        if measures is None:
            return
        problem = None if measures.problem is None else storable(measures.problem[:_MAX_REASON])
        await self._workplace.control.put_metrics(
            self._deployment_id, msgspec.structs.replace(measures, problem=problem)
        )
        if problem != self._told_problem:
            await self._report_url(problem)

    async def remove(self) -> None:
        """Leave nothing of the deployment: servers, database, folder; then say so."""
        await self.berth.withdraw()
        await asyncio.to_thread(self._folder.remove)
        await self._workplace.control.forget_deployment(self._deployment_id)

    async def _prepare(self, revision: DesiredRevision) -> Build | None:
        """Bring the revision to AWAITING_DEPLOY, with a build where its source is one that is built."""
        if revision.source not in BUILT_SOURCES:
            if revision.status == "CREATING":
                await self._report(revision, "AWAITING_DEPLOY")
            return None
        if revision.status in {"AWAITING_DEPLOY", "DEPLOYING"}:
            return await self._find_or_rebuild(revision)
        if revision.status == "CREATING":
            if revision.built_from is not None and (found := self._builder.find(revision)) is not None:
                await self._report(revision, "AWAITING_DEPLOY", commit=found.commit or None)
                return found
            await self._report(revision, "AWAITING_BUILD")
        return await self._build(revision)

    async def _build(self, revision: DesiredRevision) -> Build:
        if not self._workplace.compute.takes_builds:
            raise BuildFailed("this listener's compute serves container images; it builds no sources")
        async with self._workplace.build_slots:
            if revision.status != "BUILDING":
                await self._report(revision, "BUILDING")
            build = await self._builder.make(revision)
        await self._report(revision, "AWAITING_DEPLOY", commit=build.commit or None)
        return build

    async def _find_or_rebuild(self, revision: DesiredRevision) -> Build:
        if (found := self._builder.find(revision)) is not None:
            return found
        try:
            return await self._rebuild(revision)
        except BuildFailed as exc:
            raise DeployFailed(f"its build is lost and fails when repeated: {exc}") from exc

    async def _rebuild(self, revision: DesiredRevision) -> Build:
        async with self._workplace.build_slots:
            return await self._builder.make(revision)

    async def _deploy(self, release: Release) -> None:
        revision = release.revision
        if revision.status != "DEPLOYING":
            await self._report(revision, "DEPLOYING")
        self._is_switching = True
        try:
            await self.berth.switch(release)
        except (DeployFailed, OSError, ValueError) as exc:
            self._is_switching = False
            if isinstance(exc, DeployFailed):
                raise
            log.exception("a deploy broke", revision=str(revision.id))
            raise DeployFailed(f"the deploy broke: {exc}") from exc
        await self._report_url()
        await self._report(revision, "DEPLOYED")
        self._is_switching = False
        await asyncio.to_thread(self._folder.remove_revisions_except, self.berth.revisions())

    async def _report_url(self, problem: str | None = None) -> None:
        report = DeploymentReport("READY", custom_url=self.berth.url, reason=problem)
        await self._workplace.control.report_deployment(self._deployment_id, report)
        self._told_problem = problem

    async def _report(
        self, revision: DesiredRevision, status: str, *, reason: str | None = None, commit: str | None = None
    ) -> None:
        report = RevisionReport(status, reason, commit)
        await self._workplace.control.report_revision(self._deployment_id, revision.id, report)

    def _log_of(self, kind: LogKind) -> "_LogMaker":
        return _LogMaker(self._workplace.control, self._deployment_id, kind)


@dataclass(frozen=True)
class _LogMaker:
    """Makes the logs of one kind of a deployment's revisions."""

    control: ControlPlane
    deployment_id: UUID
    kind: LogKind

    def __call__(self, revision_id: UUID) -> RevisionLog:
        return RevisionLog(partial(self.control.add_logs, self.deployment_id, revision_id, self.kind))
