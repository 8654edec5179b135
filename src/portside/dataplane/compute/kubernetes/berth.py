"""Deployments on a Kubernetes cluster: what `interface` asks of a compute.

A release is applied, watched and only then taken for what serves; one that fails is undone, so that the cluster goes on
with the release before it, whose pods have served all the while. What serves is applied again now and then, because
somebody may have changed it. Nothing on the cluster depends on the listener: it may be gone for as long as it likes.
"""

import asyncio
import contextlib
from uuid import UUID

from portside.dataplane.backoff import Backoff
from portside.dataplane.compute.interface import LogOf, Release
from portside.dataplane.compute.kubernetes.addresses import address_of
from portside.dataplane.compute.kubernetes.api import ClusterAway, ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.applying import (
    apply_servers,
    apply_stores,
    owned_objects,
    prune,
    read_passwords,
    remove_all,
)
from portside.dataplane.compute.kubernetes.following import PodFollower
from portside.dataplane.compute.kubernetes.manifests import Cluster, Objects, objects_of, place_of
from portside.dataplane.compute.kubernetes.objects import COMPONENT, Place
from portside.dataplane.compute.kubernetes.resources import Resources, read_resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.watching import Pace, Watch, insist
from portside.dataplane.failures import CreateFailed, DeployFailed
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.types import IN_PROGRESS, DesiredDeployment, Measures
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_APPLY_AGAIN_S = 120.0
_APPLY_LIMIT_S = 60.0
_REMOVE_LIMIT_S = 600.0


class Kubernetes:
    """The cluster that this listener deploys to."""

    compute_type = "k8s"
    takes_builds = False

    def __init__(self, cluster: Cluster, api: KubernetesApi, pace: Pace = Pace()) -> None:  # noqa: B008 - frozen
        self.cluster, self.api, self.pace = cluster, api, pace

    @classmethod
    def from_environment(cls, listener: ListenerSettings, settings: KubernetesSettings) -> "Kubernetes":
        """Find the cluster. Raises UserMistake."""
        return cls(Cluster(listener, settings), KubernetesApi.from_environment(settings))

    def berth(self, deployment_id: UUID, log_of: LogOf) -> "KubernetesBerth":
        """Return the place of a deployment."""
        return KubernetesBerth(self, deployment_id, log_of)

    async def close(self) -> None:
        """Close the connections to the cluster."""
        await self.api.close()


class KubernetesBerth:
    """One deployment on the cluster."""

    # Postgres comes with the first release: how large it is, and whether there is one, is in its resource_spec.
    is_provisioned = True

    def __init__(self, compute: Kubernetes, deployment_id: UUID, log_of: LogOf) -> None:
        self._compute, self._deployment_id, self._log_of = compute, deployment_id, log_of
        self._api, self._cluster = compute.api, compute.cluster
        self._serving: Release | None = None
        self._unfinished: Place | None = None
        self._was_swept = False
        self._url: str | None = None
        self._dirty = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._follower: PodFollower | None = None

    @property
    def url(self) -> str | None:
        """The deployment's address, once a release is known."""
        return self._url

    @property
    def is_running(self) -> bool:
        """Whether a release serves."""
        return self._serving is not None

    def revisions(self) -> set[UUID]:
        """Nothing is built for a cluster, so nothing of a build must stay."""
        return set()

    async def provision(self) -> None:
        """See that the cluster lets this listener work in its namespaces. Raises CreateFailed and ClusterAway."""
        for namespace in self._cluster.kubernetes.namespaces:
            try:
                await owned_objects(self._api, namespace, self._deployment_id)
            except ClusterRefused as exc:
                raise CreateFailed(f"the cluster refuses the listener: {exc}") from exc

    async def switch(self, release: Release) -> None:
        """Roll a release out and see it through. Raises DeployFailed, and then the one before serves on."""
        await self._stop_keeping()
        try:
            await self._roll_out(release)
        except (DeployFailed, ClusterAway, ClusterRefused) as exc:
            await self._go_back(release.deployment)
            raise exc if isinstance(exc, DeployFailed) else DeployFailed(str(exc)) from exc
        self._unfinished = None
        self._keep(release)

    async def restore(self, release: Release) -> None:
        """Take over what an earlier listener applied; see to it that it stays so."""
        place = place_of(release.deployment, read_resources(release.revision.resource_spec), self._cluster.kubernetes)
        self._url = self._address(release, place)
        self._follow_pods(place, from_now=True)
        self._keep(release)
        if not _has_work(release.deployment):
            self._dirty.set()

    async def follow(self, deployment: DesiredDeployment) -> None:
        """Apply what has changed of the release that serves; undo one that was given up on its way."""
        if _has_work(deployment):
            return
        active = deployment.revision(deployment.active_revision_id)
        if active is None and not self._was_swept:
            # A listener before this one may have left what it was working on when that was given up.
            self._unfinished = self._unfinished or place_of(deployment, Resources(), self._cluster.kubernetes)
        if self._unfinished is not None:
            await self._go_back(deployment)
        self._was_swept = True
        if active is not None and self._serving is not None:
            release = Release(deployment, active, None)
            if release != self._serving:
                self._keep(release)
                self._dirty.set()

    def measures(self) -> Measures | None:
        """Return what the pods said last; what they use is told by the cluster's own metrics."""
        return None if self._follower is None else self._follower.measures

    async def withdraw(self) -> None:
        """Remove everything of the deployment with its data. Raises TimeoutError when it does not go."""
        await self.close()
        async with asyncio.timeout(_REMOVE_LIMIT_S):
            await remove_all(self._api, self._cluster.kubernetes.namespaces, self._deployment_id)

    async def close(self) -> None:
        """Stop looking after the deployment; it goes on by itself."""
        await self._stop_keeping()
        if self._follower is not None:
            await self._follower.close()
            self._follower = None

    async def _roll_out(self, release: Release) -> None:
        revision_log = self._log_of(release.revision.id)
        try:
            objects = await self._objects(release)
            self._unfinished = objects.place
            self._follow_pods(objects.place, from_now=self._serving is not None)
            watch = Watch(self._api, objects.place, revision_log.add, self._compute.pace)
            api_limit_s = self._cluster.limits["api"]
            await insist(lambda: apply_stores(self._api, objects), _APPLY_LIMIT_S)
            for store in objects.of_kind("StatefulSet"):
                await watch.until_ready(store, api_limit_s)
            await insist(lambda: apply_servers(self._api, objects), _APPLY_LIMIT_S)
            await self._see_through(objects, watch)
            self._url = objects.address.url
            await insist(lambda: prune(self._api, objects.place, objects.names), _APPLY_LIMIT_S)
        finally:
            await revision_log.close()

    async def _see_through(self, objects: Objects, watch: Watch) -> None:
        limits = self._cluster.limits
        try:
            async with asyncio.TaskGroup() as group:
                for manifest in objects.of_kind("Deployment"):
                    limit_s = limits[manifest["metadata"]["labels"][COMPONENT]]
                    group.create_task(watch.until_ready(manifest, limit_s))
        except ExceptionGroup as group_of_failures:
            raise group_of_failures.exceptions[0] from None
        address = {"service": objects.address.service + objects.address.path, "ingress": objects.address.url}
        gate = address.get(self._cluster.kubernetes.kubernetes_health_check)
        if gate is not None:
            await watch.until_healthy(gate, limits["api"])

    async def _objects(self, release: Release) -> Objects:
        resources = read_resources(release.revision.resource_spec)
        place = place_of(release.deployment, resources, self._cluster.kubernetes)
        passwords = await insist(lambda: read_passwords(self._api, place), _APPLY_LIMIT_S)
        return objects_of(release, self._cluster, passwords)

    def _address(self, release: Release, place: Place) -> str:
        custom_url = release.deployment.custom_url
        return address_of(place.name, place.namespace, custom_url, self._cluster.kubernetes).url

    async def _go_back(self, deployment: DesiredDeployment) -> None:
        """Undo what a release left: apply the active one again, or leave only the data when there is none."""
        active = deployment.revision(deployment.active_revision_id)
        place, self._unfinished = self._unfinished, None
        if active is not None:
            self._keep(Release(deployment, active, None))
            self._dirty.set()
        elif place is not None:
            with contextlib.suppress(ClusterAway, ClusterRefused):
                await insist(lambda: prune(self._api, place, ()), _APPLY_LIMIT_S)

    def _keep(self, release: Release) -> None:
        self._serving = release
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_applying())

    async def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _keep_applying(self) -> None:
        """Apply what serves whenever it has changed, and now and then."""
        backoff = Backoff(first_s=1.0, limit_s=60.0)
        wait_s = _APPLY_AGAIN_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), wait_s)
            self._dirty.clear()
            wait_s = _APPLY_AGAIN_S
            try:
                await self._apply_serving()
                backoff.reset()
            except (ClusterAway, ClusterRefused, DeployFailed) as exc:
                wait_s = backoff.next()
                log.warning("a deployment cannot be applied again", deployment=str(self._deployment_id), error=str(exc))

    async def _apply_serving(self) -> None:
        if self._serving is None:
            return
        objects = await self._objects(self._serving)
        await apply_stores(self._api, objects)
        await apply_servers(self._api, objects)
        await prune(self._api, objects.place, objects.names)

    def _follow_pods(self, place: Place, *, from_now: bool) -> None:
        if self._follower is None:
            self._follower = PodFollower(self._api, place, self._log_of, from_now=from_now)


def _has_work(deployment: DesiredDeployment) -> bool:
    return any(revision.status in IN_PROGRESS for revision in deployment.revisions)
