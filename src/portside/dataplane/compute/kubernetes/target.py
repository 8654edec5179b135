"""Deployments on a Kubernetes cluster: the `Compute` and `Target` of `interface`.

A release is applied and watched, and counts as serving only then. A release that fails is undone: the cluster returns
to the previous release, whose pods served all the while. The serving release is applied again every few minutes, in
case somebody changed its objects. Nothing on the cluster depends on the listener, which may be away for any time.

Applying is idempotent. Objects to remove are found by their owner's labels, in the namespaces that this listener may
use; other objects are never touched.

A follower lists the pods every few seconds, ships their output to the deploy logs, and reads the deployment's metrics
from them. Pods that ran when the listener started are followed from then on, all others from their first line. A log
that breaks off while its container runs is followed again; lines of the second of the break may appear twice.
"""

import asyncio
import base64
import binascii
import contextlib
import math
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.environment import Passwords
from portside.dataplane.compute.kubernetes.manifests import (
    CONTAINER,
    ClusterSettings,
    Objects,
    build_objects,
    build_scope,
)
from portside.dataplane.compute.kubernetes.objects import (
    COMPONENT,
    KINDS,
    REVISION,
    Json,
    KubernetesScope,
    Resources,
    build_address,
    is_data,
    owned_by,
    read_resources,
)
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.stores import PASSWORD, store_name
from portside.dataplane.compute.kubernetes.watching import (
    PollTiming,
    WorkloadWatch,
    container_statuses,
    pod_problems,
    retry_while_unavailable,
)
from portside.dataplane.compute.server_metrics import ASK_IDLE_EVERY_S, QueueMetrics, ServerMetrics, join_problems
from portside.dataplane.compute.server_output import parse_line
from portside.dataplane.failures import CreateFailed, DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.timeouts import timeout
from portside.listener_api import IN_PROGRESS, ComputeType, DesiredDeployment, MetricsReport

log = get_logger(__name__)
_APPLY_AGAIN_S = 120.0
_APPLY_LIMIT_S = 60.0
_DELETE_LIMIT_S = 600.0
_DELETE_POLL_S = 1.0


class KubernetesCompute:
    """The cluster that this listener deploys to."""

    compute_type: ComputeType = "k8s"
    builds_sources = False

    def __init__(self, cluster: ClusterSettings, api: KubernetesApi, timing: PollTiming = PollTiming()) -> None:  # noqa: B008 - frozen
        self.cluster = cluster
        self.api = api
        self.timing = timing

    @classmethod
    def from_environment(cls, listener: ListenerSettings, settings: KubernetesSettings) -> "KubernetesCompute":
        """Find the cluster. Raises UserMistake."""
        return cls(ClusterSettings(listener, settings), KubernetesApi.from_environment(settings))

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "KubernetesTarget":
        """Return the target of a deployment."""
        return KubernetesTarget(self, deployment_id, open_log)

    async def close(self) -> None:
        """Close the connections to the cluster."""
        await self.api.close()


class KubernetesTarget:
    """One deployment on the cluster."""

    def __init__(self, compute: KubernetesCompute, deployment_id: UUID, open_log: OpenLog) -> None:
        self._compute = compute
        self._deployment_id = deployment_id
        self._open_log = open_log
        self._api = compute.api
        self._cluster = compute.cluster
        self._serving: Release | None = None

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

    def revisions(self) -> set[UUID]:
        """Return nothing: no build is made for a cluster, so none must be kept."""
        return set()

    def earlier(self) -> set[UUID]:
        """Return nothing: the code of an image ends with its pods."""
        return set()

    def forget_unused(self) -> bool:
        """Do nothing: there are no earlier revisions."""
        return False

    async def provision(self, *, is_new: bool) -> None:  # noqa: ARG002 - a cluster keeps its databases itself
        """Check that the listener may work in its namespaces. Raises CreateFailed and ClusterUnavailable."""
        for namespace in self._cluster.kubernetes.namespaces:
            try:
                await owned_objects(self._api, namespace, self._deployment_id)
            except ClusterRefused as exc:
                raise CreateFailed(
                    f"the cluster refuses this listener in namespace {namespace}: {exc}; check the role of its "
                    "service account"
                ) from exc

    async def switch(self, release: Release) -> None:
        """Apply a release and wait until it serves. Raises DeployFailed, and then the previous one keeps serving."""
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

    def _build_scope(self, release: Release) -> KubernetesScope:
        return build_scope(release.deployment, read_resources(release.revision.resource_spec), self._cluster.kubernetes)

    def _address_in(self, scope: KubernetesScope, deployment: DesiredDeployment) -> str:
        return build_address(scope.name, scope.namespace, deployment.custom_url, self._cluster.kubernetes).url

    def metrics(self) -> MetricsReport | None:
        """Return what the pods showed last; the cluster's own metrics have their resource usage."""
        return None if self._follower is None else self._follower.metrics

    async def destroy(self) -> None:
        """Delete all objects of the deployment with its data. Raises TimeoutError when they stay."""
        await self.close()
        async with timeout(_DELETE_LIMIT_S):
            await delete_all(self._api, self._cluster.kubernetes.namespaces, self._deployment_id)

    async def close(self) -> None:
        """Stop applying and following; the deployment keeps running without the listener."""
        await self._stop_applier()
        if self._follower is not None:
            await self._follower.close()
            self._follower = None

    async def _roll_out(self, release: Release) -> None:
        revision_log = self._open_log(release.revision.id)
        try:
            objects = await self._objects(release)
            self._unfinished = objects.scope
            self._follow_pods(objects.scope, from_now=self._serving is not None)
            watch = WorkloadWatch(self._api, objects.scope, revision_log.add, self._compute.timing)
            api_limit_s = self._cluster.limits["api"]

            await retry_while_unavailable(lambda: apply_stores(self._api, objects), _APPLY_LIMIT_S)

            for store in objects.of_kind("StatefulSet"):
                await watch.until_ready(store, api_limit_s)

            await retry_while_unavailable(lambda: apply_servers(self._api, objects), _APPLY_LIMIT_S)
            await self._wait_until_serving(objects, watch)
            self._url = objects.address.url
            await retry_while_unavailable(lambda: prune(self._api, objects.scope, objects.names), _APPLY_LIMIT_S)
        finally:
            await revision_log.close()

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

    async def _objects(self, release: Release) -> Objects:
        resources = read_resources(release.revision.resource_spec)
        scope = build_scope(release.deployment, resources, self._cluster.kubernetes)
        passwords = await retry_while_unavailable(lambda: read_passwords(self._api, scope), _APPLY_LIMIT_S)
        return build_objects(release, self._cluster, passwords)

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
                await retry_while_unavailable(lambda: prune(self._api, scope, ()), _APPLY_LIMIT_S)

    def _keep_applied(self, release: Release) -> None:
        self._serving = release
        if self._applier is None:
            self._applier = asyncio.create_task(Supervision("applying to the cluster").run(self._apply_forever))

    async def _stop_applier(self) -> None:
        if self._applier is not None:
            self._applier.cancel()
            await asyncio.gather(self._applier, return_exceptions=True)
            self._applier = None

    async def _apply_forever(self) -> None:
        """Apply the serving release whenever it has changed, and every few minutes."""
        backoff = Backoff(first_s=1.0, limit_s=60.0)
        wait_s = _APPLY_AGAIN_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with timeout(wait_s):
                    await self._changed.wait()

            self._changed.clear()
            wait_s = _APPLY_AGAIN_S
            try:
                await self.apply_serving()
                backoff.reset()
            except (ClusterUnavailable, ClusterRefused, DeployFailed) as exc:
                wait_s = backoff.next()
                log.warning("a deployment cannot be applied again", deployment=str(self._deployment_id), error=str(exc))

    async def apply_serving(self) -> None:
        """Apply the serving release once. Raises ClusterUnavailable, ClusterRefused and DeployFailed."""
        if self._serving is None:
            return

        objects = await self._objects(self._serving)
        await apply_stores(self._api, objects)
        await apply_servers(self._api, objects)
        await prune(self._api, objects.scope, objects.names)

    def _follow_pods(self, scope: KubernetesScope, *, from_now: bool) -> None:
        if self._follower is None:
            self._follower = PodFollower(self._api, scope, self._open_log, from_now=from_now)


def _is_in_progress(deployment: DesiredDeployment) -> bool:
    return any(revision.status in IN_PROGRESS for revision in deployment.revisions)


# The functions below raise ClusterUnavailable and ClusterRefused.


async def read_passwords(api: KubernetesApi, scope: KubernetesScope) -> Passwords:
    """Return the passwords in the deployment's Secrets, and new ones for those that are missing."""
    passwords = []
    for component in ("postgres", "redis"):
        secret = await api.get("Secret", scope.namespace, store_name(scope, component))
        passwords.append(_password_in(secret) or secrets.token_urlsafe(24))

    return Passwords(*passwords)


def _password_in(secret: Json | None) -> str | None:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(PASSWORD, ""), validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError):
        return None


async def apply_stores(api: KubernetesApi, objects: Objects) -> None:
    """Apply the objects of the stores."""
    for manifest in objects.stores:
        await api.apply(manifest)


async def apply_servers(api: KubernetesApi, objects: Objects) -> None:
    """Apply the objects of the servers; the number of replicas that an autoscaler has set stays."""
    scaled = {manifest["metadata"]["name"]: manifest["spec"] for manifest in objects.of_kind("HorizontalPodAutoscaler")}
    for manifest in objects.servers:
        bounds = scaled.get(manifest["metadata"]["name"])
        if manifest["kind"] == "Deployment" and bounds is not None:
            await api.apply(await _with_live_replicas(api, manifest, bounds))
        else:
            await api.apply(manifest)


async def _with_live_replicas(api: KubernetesApi, manifest: Json, bounds: Json) -> Json:
    metadata = manifest["metadata"]
    live = await api.get("Deployment", metadata["namespace"], metadata["name"])
    replicas = manifest["spec"]["replicas"] if live is None else live.get("spec", {}).get("replicas", 1)
    replicas_in_bounds = min(max(replicas, bounds["minReplicas"]), bounds["maxReplicas"])
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas_in_bounds}}


async def prune(api: KubernetesApi, scope: KubernetesScope, kept: Iterable[tuple[str, str]]) -> None:
    """Delete the deployment's objects except those with these kinds and names, and except its data."""
    kept = set(kept)
    for manifest in await owned_objects(api, scope.namespace, scope.deployment_id):
        name = manifest["metadata"]["name"]
        if (manifest["kind"], name) not in kept and not is_data(manifest):
            await api.delete(manifest["kind"], scope.namespace, name)


async def delete_all(api: KubernetesApi, namespaces: Iterable[str], deployment_id: UUID) -> None:
    """Delete all objects of a deployment with its data, and wait until they are gone."""
    for namespace in namespaces:
        while True:
            objects = await owned_objects(api, namespace, deployment_id)
            for manifest in objects:
                if "deletionTimestamp" not in manifest["metadata"]:
                    await api.delete(manifest["kind"], namespace, manifest["metadata"]["name"])

            if not objects and not await api.list("Pod", namespace, owned_by(deployment_id)):
                break

            await asyncio.sleep(_DELETE_POLL_S)


async def owned_objects(api: KubernetesApi, namespace: str, deployment_id: UUID) -> list[Json]:
    """Return all objects of a deployment in a namespace."""
    objects = []

    # In reverse, so that entry points are deleted first: no request may reach servers that terminate.
    for kind in reversed(KINDS):
        try:
            objects += await api.list(kind, namespace, owned_by(deployment_id))
        except ClusterRefused as exc:
            # An old cluster does not know the kind, so it has no such object.
            if exc.status != 404:
                raise

    return objects


# Pod, container, and how often the container was restarted.
ContainerRun = tuple[str, str, int]

_POLL_S = 5.0
_MAX_FOLLOWED = 200
# The log of a container that died ends a moment before the cluster shows the death.
_FOLLOW_AGAIN_S = 5.0
_SERVERS = frozenset({"api", "queue", "orchestrator", "executor"})


# The components whose servers know the queue, and whether the platform or a webhook refuses their requests.
_ASKED = ("api", "queue", "orchestrator")


def build_metrics(pods: Iterable[Mapping[str, Any]], answers: Sequence[ServerMetrics] = ()) -> MetricsReport:
    """Return the metrics that pods show without the cluster's metrics server: replicas, restarts, the first problem.

    `answers` are the metrics of servers in them, which have the queue, and what is wrong for lack of another problem.
    """
    ready = dict.fromkeys(_SERVERS, 0)
    restarts = 0

    problem = None
    for pod in pods:
        component = pod["metadata"]["labels"].get(COMPONENT)
        if component not in ready or "deletionTimestamp" in pod["metadata"]:
            continue

        status = pod.get("status") or {}
        ready[component] += _is_ready(pod)
        restarts += sum(container.get("restartCount", 0) for container in status.get("containerStatuses") or ())
        problem = problem or next((pod_problem.text for pod_problem in pod_problems(pod)), None)

    queue = answers[0].queue if answers else QueueMetrics()
    return MetricsReport(
        replicas=ready["api"],
        queue_replicas=ready["queue"] + ready["executor"],
        restarts=restarts,
        problem=problem or join_problems(answers),
        pending_runs=queue.n_pending,
        active_runs=queue.n_running,
        oldest_wait_s=queue.pending_unblocked_runs_wait_time_max_secs,
    )


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


class PodFollower:
    """Follows the server pods of one deployment until it is closed."""

    def __init__(self, api: KubernetesApi, scope: KubernetesScope, open_log: OpenLog, *, from_now: bool) -> None:
        self._api = api
        self._scope = scope
        self._open_log = open_log
        self._from_now = from_now
        self._logs: dict[UUID, RevisionLog] = {}
        self._followers: dict[ContainerRun, asyncio.Task[None]] = {}

        # When the log of a container ended, as a time of the monotonic clock.
        self._ended_at: dict[ContainerRun, float] = {}
        self.metrics: MetricsReport | None = None
        self._answers: list[ServerMetrics] = []
        self._asked_at = -ASK_IDLE_EVERY_S
        supervision = Supervision("following of pods", expected=(ClusterUnavailable, ClusterRefused))
        self._task = asyncio.create_task(supervision.run(self._run))

    async def close(self) -> None:
        """Stop following, and ship the lines that were read."""
        tasks = [self._task, *self._followers.values()]
        for task in tasks:
            task.cancel()

        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(revision_log.close() for revision_log in self._logs.values()))

    async def _run(self) -> None:
        while True:
            pods = await self._api.list("Pod", self._scope.namespace, owned_by(self._scope.deployment_id))
            if time.monotonic() - self._asked_at >= ASK_IDLE_EVERY_S:
                self._answers = await self._ask_servers(pods)
                self._asked_at = time.monotonic()

            self.metrics = build_metrics(pods, self._answers)
            self._follow(pods)
            await self._close_logs(pods)
            self._from_now = False

            await asyncio.sleep(_POLL_S)

    async def _ask_servers(self, pods: list[Json]) -> list[ServerMetrics]:
        """Return the metrics of a ready server of each tier. Those that cannot be read are left out."""
        metrics: list[ServerMetrics] = []
        for component in _ASKED:
            ready = (pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) == component and _is_ready(pod))
            if (pod := next(ready, None)) is not None:
                # A Role of an earlier version does not allow it, and an image may have another server.
                with contextlib.suppress(ClusterUnavailable, ClusterRefused, msgspec.MsgspecError):
                    metrics.append(msgspec.json.decode(await self._api.read_metrics(pod), type=ServerMetrics))

        return metrics

    def _follow(self, pods: list[Json]) -> None:
        servers = [pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) in _SERVERS]
        runs = {run: pod for pod in servers for run in _container_runs(pod)}
        for run in [run for run, task in self._followers.items() if task.done() and run not in runs]:
            del self._followers[run]
            self._ended_at.pop(run, None)

        for run, pod in runs.items():
            if run not in self._followers and len(self._followers) < _MAX_FOLLOWED:
                self._followers[run] = asyncio.create_task(self._ship(run, pod, 1 if self._from_now else None))
            elif run in self._ended_at and _is_running(pod, run):
                # A connection that follows a log may be cut, by a load balancer for example.
                missed_s = time.monotonic() - self._ended_at[run]
                if missed_s >= _FOLLOW_AGAIN_S:
                    del self._ended_at[run]
                    self._followers[run] = asyncio.create_task(self._ship(run, pod, math.ceil(missed_s)))

    async def _ship(self, run: ContainerRun, pod: Json, since_s: int | None) -> None:
        container = run[1]
        revision_id = UUID(pod["metadata"]["labels"][REVISION])
        revision_log = self._logs.get(revision_id)
        if revision_log is None:
            revision_log = self._logs[revision_id] = self._open_log(revision_id)

        prefix = "" if container == CONTAINER else f"[{container}] "
        try:
            async for line in self._api.follow_log(pod, container, since_s=since_s):
                entry = parse_line(line, int(time.time() * 1000))
                revision_log.add(prefix + entry.message, entry.level, entry.timestamp)
        except (ClusterUnavailable, ClusterRefused) as exc:
            revision_log.add(f"The log of {pod['metadata']['name']} breaks off: {exc}", "WARNING")

        self._ended_at[run] = time.monotonic()

    async def _close_logs(self, pods: list[Json]) -> None:
        """Close the logs of revisions that have no pod any more."""
        alive = {pod["metadata"]["labels"].get(REVISION) for pod in pods}
        for revision_id in [logged_id for logged_id in self._logs if str(logged_id) not in alive]:
            await self._logs.pop(revision_id).close()


def _container_runs(pod: Json) -> Iterator[ContainerRun]:
    for container in container_statuses(pod):
        if "waiting" not in (container.get("state") or {"waiting": {}}):
            yield _to_run(pod, container)


def _is_running(pod: Json, run: ContainerRun) -> bool:
    return any(
        "running" in (container.get("state") or {}) and _to_run(pod, container) == run
        for container in container_statuses(pod)
    )


def _to_run(pod: Json, container: Json) -> ContainerRun:
    return pod["metadata"]["uid"], container["name"], container.get("restartCount", 0)
