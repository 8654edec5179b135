"""Deployments on a Kubernetes cluster: the `Compute` and `Target` of `interface`.

A release is applied and watched, and counts as serving only then. A release that fails is undone: the cluster returns
to the previous release, whose pods served all the while. The serving release is applied again every few minutes, in
case somebody changed its objects. Nothing on the cluster depends on the listener, which may be away for any time.
"""

import asyncio
import contextlib
from uuid import UUID

from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.compute.kubernetes.api import (
    ClusterDenied,
    ClusterRefused,
    ClusterUnavailable,
    KubernetesApi,
)
from portside.dataplane.compute.kubernetes.applying import (
    apply_servers,
    apply_stores,
    delete_all,
    list_owned_objects,
    prune,
    repair,
)
from portside.dataplane.compute.kubernetes.cloudnative_pg import describe_backups, has_operator
from portside.dataplane.compute.kubernetes.lease import Lease, LeaseTiming, read_identity
from portside.dataplane.compute.kubernetes.manifests import ClusterSettings, Objects, build_objects, build_scope
from portside.dataplane.compute.kubernetes.objects import COMPONENT, KubernetesScope, build_address
from portside.dataplane.compute.kubernetes.passwords import find_passwords
from portside.dataplane.compute.kubernetes.pods import PodFollower, add_problems
from portside.dataplane.compute.kubernetes.repairs import OnNote
from portside.dataplane.compute.kubernetes.resources import Resources, read_resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.size_limits import check_nodes, check_sizes
from portside.dataplane.compute.kubernetes.stuck_pods import free_stores
from portside.dataplane.compute.kubernetes.watching import PollTiming, WorkloadWatch, retry_while_unavailable
from portside.dataplane.compute.kubernetes.workspace_rules import (
    check_named_objects,
    check_release,
    list_named_objects,
)
from portside.dataplane.failures import CreateFailed, DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most
from portside.listener_api import IN_PROGRESS, ComputeType, DesiredDeployment, MetricsReport
from portside.size_limits import SizeLimits

log = get_logger(__name__)
_APPLY_AGAIN_S = 120.0
_DELETE_LIMIT_S = 600.0


class KubernetesCompute:
    """The cluster that this listener deploys to."""

    compute_type: ComputeType = "k8s"
    builds_sources = False

    def __init__(self, cluster: ClusterSettings, api: KubernetesApi, timing: PollTiming = PollTiming()) -> None:  # noqa: B008 - frozen
        self.cluster = cluster
        self.api = api
        self.timing = timing
        self.size_limits: SizeLimits | None = cluster.kubernetes.size_limits
        self._lease: Lease | None = None
        self._claimed_id: UUID | None = None

    @classmethod
    def from_environment(cls, listener: ListenerSettings, settings: KubernetesSettings) -> "KubernetesCompute":
        """Find the cluster. Raises UserMistake, also for a setting that is not valid."""
        _ = (settings.gateways, settings.scheduling)
        return cls(ClusterSettings(listener, settings), KubernetesApi.from_environment(settings))

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "KubernetesTarget":
        """Return the target of a deployment."""
        return KubernetesTarget(self, deployment_id, open_log)

    async def claim(self, listener_id: UUID) -> None:
        """Wait until no other listener with this id works on the cluster."""
        if listener_id == self._claimed_id:
            return

        lease = self._lease
        self._lease = None
        self._claimed_id = None
        if lease is not None:
            await lease.release()

        identity = read_identity(self.cluster.listener.folder)
        lease = Lease(self.api, self.cluster.kubernetes.namespaces[0], listener_id, identity)
        await lease.acquire()
        self._lease = lease
        self._claimed_id = listener_id

    async def keep_claim(self) -> None:
        """Renew the Lease of this listener for ever. Raises UserMistake when another listener has taken it."""
        while True:
            await asyncio.sleep(LeaseTiming().renew_s)
            if self._lease is not None:
                await self._lease.renew()

    async def close(self) -> None:
        """Give the Lease back, and close the connections to the cluster."""
        if self._lease is not None:
            await self._lease.release()

        await self.api.close()


class KubernetesTarget:
    """One deployment on the cluster."""

    def __init__(self, compute: KubernetesCompute, deployment_id: UUID, open_log: OpenLog) -> None:
        self._compute = compute
        self._deployment_id = deployment_id
        self._open_unmasked_log = open_log
        self._secrets: set[str] = set()
        self._api = compute.api
        self._cluster = compute.cluster
        self._serving: Release | None = None

        # What the cluster refused when the serving release was applied last.
        self._refusals: list[str] = []
        self._last_note = ""
        # The objects of a release that was applied and did not serve yet.
        self._unfinished: KubernetesScope | None = None
        self._was_swept = False
        self._url: str | None = None
        self._changed = asyncio.Event()
        self._applier: asyncio.Task[None] | None = None
        self._follower: PodFollower | None = None

    @property
    def url(self) -> str | None:
        """The deployment's address, known from the first release on."""
        return self._url

    @property
    def is_running(self) -> bool:
        """Whether a release serves."""
        return self._serving is not None

    @property
    def is_starting(self) -> bool:
        """Return False: the cluster starts servers, and this machine builds nothing."""
        return False

    async def is_provisioned(self) -> bool:
        """Always: the first release creates Postgres, because its resource_spec says whether and how large."""
        return True

    def list_revisions(self) -> set[UUID]:
        """Return nothing: no build is made for a cluster, so none must be kept."""
        return set()

    def list_earlier_revisions(self) -> set[UUID]:
        """Return nothing: the code of an image ends with its pods."""
        return set()

    def forget_unused(self) -> bool:
        """Do nothing: there are no earlier revisions."""
        return False

    async def provision(self, deployment: DesiredDeployment, *, is_new: bool) -> None:  # noqa: ARG002 - a cluster keeps its databases itself
        """Check that the listener may work in the deployment's namespace. Raises CreateFailed and ClusterUnavailable.

        Another namespace that is missing keeps only its own deployments from being created.
        """
        namespace = self._find_namespace(deployment)
        try:
            await retry_while_unavailable(
                lambda: list_owned_objects(self._api, namespace, self._deployment_id), self._compute.timing.retry_s
            )
        except (ClusterDenied, ClusterRefused) as exc:
            raise CreateFailed(
                f"the cluster refuses this listener in namespace {namespace}: {exc}; check that the namespace exists, "
                "and the role of the listener's service account in it"
            ) from exc

    async def switch(self, release: Release) -> None:
        """Apply a release and wait until it serves. Raises DeployFailed, and then the previous one keeps serving."""
        self._note_secrets(release.deployment)
        await self._stop_applier()
        try:
            await self._roll_out(release)
        except (DeployFailed, ClusterUnavailable, ClusterRefused) as exc:
            await self._undo(release.deployment)
            raise exc if isinstance(exc, DeployFailed) else DeployFailed(str(exc)) from exc

        self._unfinished = None
        self._keep_applied(release)

    async def withdraw(self, deployment: DesiredDeployment) -> None:
        """Delete everything of the release but the data."""
        await self._stop_applier()

        if self._serving is not None:
            self._unfinished = self._build_scope(self._serving)
            self._serving = None
            await self._undo(deployment)

    async def restore(self, release: Release) -> None:
        """Take over the release that an earlier listener applied, and keep it applied."""
        self._note_secrets(release.deployment)
        scope = self._build_scope(release)
        self._url = self._address_in(scope, release.deployment)
        self._follow_pods(scope, from_now=True)
        self._keep_applied(release)

        if not _is_in_progress(release.deployment):
            self._changed.set()

    async def update(self, deployment: DesiredDeployment) -> None:
        """Apply changes of the serving release, and undo a release that was given up before it served."""
        if _is_in_progress(deployment):
            return

        active = deployment.revision(deployment.active_revision_id)
        if active is None and not self._was_swept:
            # An earlier listener may have left the objects of a release that was given up while it was away.
            self._unfinished = self._unfinished or build_scope(deployment, Resources(), self._cluster.kubernetes)

        if self._unfinished is not None:
            await self._undo(deployment)

        self._was_swept = True

        if active is not None and self._serving is not None:
            release = Release(deployment, active, None)
            if release != self._serving:
                self._url = self._address_in(self._build_scope(release), deployment)
                self._keep_applied(release)
                self._changed.set()

    def _note_secrets(self, deployment: DesiredDeployment) -> None:
        """Have the logs mask the secrets of these revisions, beside those of earlier ones whose pods may still end."""
        self._secrets |= {secret.value for revision in deployment.revisions for secret in revision.secrets}

    def _open_log(self, revision_id: UUID) -> RevisionLog:
        """Open a log in which no secret appears that a server prints."""
        revision_log = self._open_unmasked_log(revision_id)
        revision_log.hide(self._secrets)
        return revision_log

    def _build_scope(self, release: Release) -> KubernetesScope:
        return build_scope(release.deployment, read_resources(release.revision.resource_spec), self._cluster.kubernetes)

    def _address_in(self, scope: KubernetesScope, deployment: DesiredDeployment) -> str:
        return build_address(scope.name, scope.namespace, deployment.custom_url, self._cluster.kubernetes).url

    def metrics(self) -> MetricsReport | None:
        """Return what the pods showed last, and what is wrong; the cluster's own metrics have their resource usage."""
        metrics = None if self._follower is None else self._follower.metrics
        if metrics is None or self._serving is None:
            return metrics

        return add_problems(metrics, self._refusals)

    async def destroy(self, deployment: DesiredDeployment) -> None:
        """Delete all objects of the deployment with its data. Raises TimeoutError when they stay."""
        await self.close()
        async with timeout(_DELETE_LIMIT_S):
            await delete_all(
                self._api,
                self._cluster.kubernetes.namespaces,
                self._find_namespace(deployment),
                self._deployment_id,
            )

    async def close(self) -> None:
        """Stop applying and following; the deployment keeps running without the listener."""
        await self._stop_applier()
        if self._follower is not None:
            await self._follower.close()
            self._follower = None

    async def _roll_out(self, release: Release) -> None:
        revision_log = self._open_log(release.revision.id)
        try:
            await self._check_rules(release)
            objects = await self._build_objects(release, revision_log.add)
            await check_nodes(self._api, objects)
            self._unfinished = objects.scope
            self._follow_pods(objects.scope, from_now=self._serving is not None)
            watch = WorkloadWatch(self._api, objects.scope, revision_log.add, self._compute.timing)
            api_limit_s = self._cluster.limits["api"]

            retry_s = self._compute.timing.retry_s

            await retry_while_unavailable(lambda: apply_stores(self._api, objects, revision_log.add), retry_s)
            stores = objects.of_kind("StatefulSet")
            await retry_while_unavailable(lambda: self._free_stores(objects, revision_log.add), retry_s)

            backups = describe_backups(objects.stores)
            if backups is not None:
                revision_log.add(backups)

            for store in (*stores, *objects.of_kind("Cluster")):
                await watch.until_ready(store, api_limit_s)

            await retry_while_unavailable(lambda: apply_servers(self._api, objects, revision_log.add), retry_s)
            await self._wait_until_serving(objects, watch)
            self._url = objects.address.url
            await retry_while_unavailable(lambda: prune(self._api, objects.scope, objects.names), retry_s)
        finally:
            await revision_log.close()

    async def _check_rules(self, release: Release) -> None:
        """Check what the release names and asks for. Raises DeployFailed and ClusterUnavailable."""
        settings = self._cluster.kubernetes
        resources = read_resources(release.revision.resource_spec)
        check_sizes(resources, settings)
        check_release(release.revision, resources, settings)

        namespace = self._build_scope(release).namespace
        workspace_id = release.deployment.tenant_id
        named_objects = list_named_objects(release.revision, resources)
        await retry_while_unavailable(
            lambda: check_named_objects(self._api, namespace, workspace_id, named_objects, settings),
            self._compute.timing.retry_s,
        )

    async def _wait_until_serving(self, objects: Objects, watch: WorkloadWatch) -> None:
        limits = self._cluster.limits
        try:
            async with asyncio.TaskGroup() as group:
                for manifest in objects.of_kind("Deployment"):
                    limit_s = limits[manifest["metadata"]["labels"][COMPONENT]]
                    group.create_task(watch.until_ready(manifest, limit_s))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

        urls = {"service": objects.address.service + objects.address.path, "ingress": objects.address.url}
        url = urls.get(self._cluster.kubernetes.kubernetes_health_check)
        if url is not None:
            await watch.until_healthy(url, limits["api"])

    async def _build_objects(self, release: Release, on_note: OnNote) -> Objects:
        resources = read_resources(release.revision.resource_spec)
        scope = build_scope(release.deployment, resources, self._cluster.kubernetes)
        has_redis = self._cluster.kubernetes.kubernetes_redis
        passwords = await retry_while_unavailable(
            lambda: find_passwords(self._api, scope, release, on_note, has_redis=has_redis),
            self._compute.timing.retry_s,
        )
        is_by_operator = await retry_while_unavailable(
            lambda: has_operator(self._api, scope, self._cluster.kubernetes), self._compute.timing.retry_s
        )
        return build_objects(release, self._cluster, passwords, has_operator=is_by_operator)

    async def _free_stores(self, objects: Objects, on_note: OnNote) -> None:
        stores = objects.of_kind("StatefulSet")
        await free_stores(self._api, objects.scope, stores, on_note, self._compute.timing.poll_s)

    def _find_namespace(self, deployment: DesiredDeployment) -> str:
        return deployment.k8s_namespace or self._cluster.kubernetes.namespaces[0]

    async def _undo(self, deployment: DesiredDeployment) -> None:
        """Undo an unfinished release: apply the active one again, or without one delete everything but the data."""
        active = deployment.revision(deployment.active_revision_id)
        scope = self._unfinished
        self._unfinished = None

        if active is not None:
            self._keep_applied(Release(deployment, active, None))
            self._changed.set()
        elif scope is not None:
            with contextlib.suppress(ClusterUnavailable, ClusterRefused):
                await retry_while_unavailable(lambda: prune(self._api, scope, ()), self._compute.timing.retry_s)

    def _keep_applied(self, release: Release) -> None:
        self._serving = release
        if self._applier is None:
            self._applier = asyncio.create_task(Supervision("applying to the cluster").run(self._apply_forever))

    async def _stop_applier(self) -> None:
        await cancel_and_wait(self._applier)
        self._applier = None

    async def _apply_forever(self) -> None:
        """Apply the serving release whenever it has changed, and every few minutes."""
        backoff = Backoff(first_s=1.0, limit_s=60.0)
        wait_s = _APPLY_AGAIN_S
        while True:
            await wait_at_most(wait_s, self._changed.wait())

            self._changed.clear()
            try:
                await self.apply_serving()
            except (ClusterUnavailable, ClusterRefused, DeployFailed) as exc:
                self._refusals = [str(exc)]

            if not self._refusals:
                wait_s = _APPLY_AGAIN_S
                backoff.reset()
                continue

            wait_s = backoff.next()
            log.warning(
                "a deployment cannot be applied again",
                deployment=str(self._deployment_id),
                errors=self._refusals,
                again_in_s=wait_s,
            )

    async def apply_serving(self) -> None:
        """Apply the serving release once; `metrics` then shows what the cluster refused.

        Raises ClusterUnavailable, ClusterRefused and DeployFailed.
        """
        if self._serving is None:
            return

        objects = await self._build_objects(self._serving, self._note)
        result = await repair(self._api, objects)
        for note in result.notes:
            self._note(note)

        try:
            await self._free_stores(objects, self._note)
        except (ClusterDenied, ClusterRefused) as exc:
            result.refusals.append(str(exc))

        self._refusals = result.refusals

    def _note(self, text: str) -> None:
        """Write what was changed on the cluster to the log of the listener, once in a row."""
        if text == self._last_note:
            return

        self._last_note = text
        log.warning("the cluster differed from a deployment", deployment=str(self._deployment_id), change=text)

    def _follow_pods(self, scope: KubernetesScope, *, from_now: bool) -> None:
        if self._follower is None:
            self._follower = PodFollower(self._api, scope, self._open_log, from_now=from_now)


def _is_in_progress(deployment: DesiredDeployment) -> bool:
    return any(revision.status in IN_PROGRESS for revision in deployment.revisions)
