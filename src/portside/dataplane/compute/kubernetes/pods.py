"""Follows the pods of a deployment: their output and their metrics.

A follower lists the pods every few seconds, ships their output to the deploy logs, and reads the deployment's metrics
from them. Pods that ran when the listener started are followed from then on, all others from their first line. A log
that breaks off while its container runs is followed again; lines of the second of the break may appear twice.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.dataplane.compute.interface import OpenLog
from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.manifests import CONTAINER
from portside.dataplane.compute.kubernetes.objects import COMPONENT, REVISION, Json, KubernetesScope, owned_by
from portside.dataplane.compute.kubernetes.watching import container_statuses, find_refused_stores, pod_problems
from portside.dataplane.compute.server_metrics import ASK_IDLE_EVERY_S, QueueMetrics, ServerMetrics, join_problems
from portside.dataplane.compute.server_output import parse_line
from portside.dataplane.logs import RevisionLog
from portside.kernel.clock import now
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.listener_api import MetricsReport

# Pod, container, and how often the container was restarted.
ContainerRun = tuple[str, str, int]
_POLL_S = 5.0
_MAX_FOLLOWED = 200
# The log of a container that died ends a moment before the cluster shows the death.
_FOLLOW_AGAIN_S = 5.0
_SERVERS = frozenset({"api", "queue", "orchestrator", "executor"})
_STORES = frozenset({"postgres", "redis"})
# An API server that starts again is silent for less.
_HIDDEN_AFTER_S = 60.0
# The components whose servers know the queue, and whether the platform or a webhook refuses their requests.
_ASKED = ("api", "queue", "orchestrator")


def build_metrics(
    pods: Iterable[Mapping[str, Any]], answers: Sequence[ServerMetrics] = (), refused_stores: str | None = None
) -> MetricsReport:
    """Return the metrics that pods show without the cluster's metrics server: replicas, restarts, the first problem.

    `answers` are the metrics of servers in them, which have the queue, and what is wrong for lack of another problem.
    `refused_stores` says why a store has no pod at all.
    """
    ready = dict.fromkeys(_SERVERS, 0)
    restarts = 0
    problem = None
    store_problem = refused_stores

    for pod in pods:
        component = pod["metadata"]["labels"].get(COMPONENT)
        is_ending = "deletionTimestamp" in pod["metadata"]
        if component in _STORES and not is_ending:
            store_problem = store_problem or next((pod_problem.text for pod_problem in pod_problems(pod)), None)

        if component not in ready or is_ending:
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
        # Servers without their database are not ready either, and it is the reason.
        problem=store_problem or problem or join_problems(answers),
        pending_runs=queue.n_pending,
        active_runs=queue.n_running,
        oldest_wait_s=queue.pending_unblocked_runs_wait_time_max_secs,
    )


def add_problems(metrics: MetricsReport, refusals: Sequence[str]) -> MetricsReport:
    """Return the metrics of a release that should serve, with what else is wrong: refusals, or no replica."""
    problems = []
    if metrics.replicas == 0:
        problems.append("No replica of this deployment is ready.")

    if metrics.problem:
        problems.append(metrics.problem)

    if refusals:
        problems.append(f"The cluster refuses changes of this deployment: {'; '.join(refusals)}")

    return msgspec.structs.replace(metrics, problem="\n".join(problems) or None)


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
        self._refused_stores: str | None = None
        self._asked_at = -ASK_IDLE_EVERY_S
        # When the pods were seen last, by the clock that never jumps and by the one that people read.
        self._seen_at = time.monotonic()
        self._seen_time = now()
        supervision = Supervision(
            "following of pods", expected=(ClusterUnavailable, ClusterRefused), on_failure=self._note_failure
        )
        self._task = asyncio.create_task(supervision.run(self._run))

    async def close(self) -> None:
        """Stop following, and ship the lines that were read."""
        tasks = [self._task, *self._followers.values()]
        await cancel_and_wait(*tasks)
        await asyncio.gather(*(revision_log.close() for revision_log in self._logs.values()))

    async def _run(self) -> None:
        while True:
            pods = await self._api.list("Pod", self._scope.namespace, owned_by(self._scope.deployment_id))
            if time.monotonic() - self._asked_at >= ASK_IDLE_EVERY_S:
                self._answers = await self._ask_servers(pods)
                # What the cluster does not say of stores must not hide what it says of pods.
                with contextlib.suppress(ClusterUnavailable, ClusterRefused):
                    self._refused_stores = await find_refused_stores(self._api, self._scope, pods)
                self._asked_at = time.monotonic()

            self.metrics = build_metrics(pods, self._answers, self._refused_stores)
            self._seen_at = time.monotonic()
            self._seen_time = now()
            self._follow(pods)
            await self._close_logs(pods)
            self._from_now = False

            await asyncio.sleep(_POLL_S)

    def _note_failure(self, failure: Exception, _delay_s: float) -> None:
        """After a while replace metrics that are no longer true: nobody knows which replicas there are."""
        if time.monotonic() - self._seen_at >= _HIDDEN_AFTER_S:
            problem = (
                f"The cluster has not shown the pods of this deployment since {self._seen_time:%Y-%m-%d %H:%M} UTC; it "
                f"may still be running. {failure}"
            )
            self.metrics = MetricsReport(problem=problem)

    async def _ask_servers(self, pods: list[Json]) -> list[ServerMetrics]:
        """Return the metrics of a ready server of each tier. Those that cannot be read are left out."""
        metrics: list[ServerMetrics] = []
        for component in _ASKED:
            tier_pods = [pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) == component]
            pod = next(filter(_is_ready, tier_pods), None)
            if pod is None:
                continue

            # A Role of an earlier version does not allow it, and an image may have another server.
            with contextlib.suppress(ClusterUnavailable, ClusterRefused, msgspec.MsgspecError):
                metrics.append(msgspec.json.decode(await self._api.read_metrics(pod), type=ServerMetrics))

        return metrics

    def _follow(self, pods: list[Json]) -> None:
        servers = [pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) in _SERVERS]
        runs = {run: pod for pod in servers for run in _container_runs(pod)}
        ended_runs = [run for run, task in self._followers.items() if task.done() and run not in runs]
        for run in ended_runs:
            del self._followers[run]
            self._ended_at.pop(run, None)

        for run, pod in runs.items():
            if run not in self._followers and len(self._followers) < _MAX_FOLLOWED:
                since_s = 1 if self._from_now else None
                self._followers[run] = asyncio.create_task(self._ship(run, pod, since_s))
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
            revision_log = self._open_log(revision_id)
            self._logs[revision_id] = revision_log

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
        ids_with_pods = {pod["metadata"]["labels"].get(REVISION) for pod in pods}
        ended_ids = [revision_id for revision_id in self._logs if str(revision_id) not in ids_with_pods]
        for revision_id in ended_ids:
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
