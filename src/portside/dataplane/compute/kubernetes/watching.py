"""Waiting until applied objects serve, or until it is clear that they will not.

The watch polls the cluster every two seconds and judges only what the API server shows. A problem is permanent when
waiting cannot help: an image that cannot be pulled, a container that keeps dying. It must last for a while, because a
first attempt may fail for a transient reason. The error of a failed revision includes what the cluster said: the states
of the pods, the controller's conditions, the latest warnings, and the last output of a container that died.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.cloudnative_pg import CLUSTER
from portside.dataplane.compute.kubernetes.manifests import CONTAINER
from portside.dataplane.compute.kubernetes.objects import COMPONENT, REVISION, Json, KubernetesScope
from portside.dataplane.compute.kubernetes.stores import store_name
from portside.dataplane.failures import DeployFailed

OnStep = Callable[[str], None]
T = TypeVar("T")

# Reasons of a container that waits. A node alternates between the attempt that failed and the pause after it.
_PERMANENT = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
# Reasons of a container that ended without having run: its command does not exist, for example.
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError", "RunContainerError"})
_NORMAL = frozenset({"ContainerCreating", "PodInitializing"})
_MAX_RESTARTS = 3
_SHOWN_PROBLEMS = 4
_SHOWN_WARNINGS = 3
_SHOWN_LINES = 20
_HEALTH_TIMEOUT_S = 5.0
_TITLES = {
    "api": "Deployment",
    "queue": "Queue Deployment",
    "orchestrator": "Orchestrator Deployment",
    "executor": "Executor Deployment",
    "postgres": "Postgres",
    "redis": "Redis",
}


@dataclass(frozen=True)
class PodProblem:
    """A reason why a pod is not ready."""

    text: str
    is_permanent: bool = False


@dataclass(frozen=True)
class WorkloadProgress:
    """How many replicas of a workload are ready, and the problems of the others."""

    is_ready: bool
    replicas: str
    problems: tuple[PodProblem, ...] = ()

    @property
    def is_permanent(self) -> bool:
        """Whether waiting cannot help."""
        return any(problem.is_permanent for problem in self.problems)

    def __str__(self) -> str:
        texts = list(dict.fromkeys(problem.text for problem in self.problems))[:_SHOWN_PROBLEMS]
        return "; ".join([f"{self.replicas} replicas are ready", *texts])


def judge(
    workload: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], refusals: Iterable[PodProblem] = ()
) -> WorkloadProgress:
    """Judge a Deployment, a StatefulSet or a database by its status and the pods of its newest revision.

    `refusals` are those of pods that could not be created, where the status does not have them.
    """
    if workload["kind"] == "Cluster":
        return _judge_cluster(workload, pods)

    replica_count = workload.get("spec", {}).get("replicas", 1)
    status = workload.get("status") or {}

    # Until the controller has seen the latest change, its status is about the previous one.
    is_current = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    ready_field = "availableReplicas" if workload["kind"] == "Deployment" else "readyReplicas"
    ready_count = status.get(ready_field, 0)
    updated_count = status.get("updatedReplicas", 0)

    # While pods of the previous revision exist, requests may still reach them.
    previous_count = status.get("replicas", 0) - updated_count
    replicas = f"{max(0, min(ready_count - previous_count, updated_count))} of {replica_count}"
    is_complete = updated_count >= replica_count and ready_count >= replica_count and previous_count == 0
    if is_current and is_complete:
        return WorkloadProgress(is_ready=True, replicas=replicas)

    pods_problems = (problem for pod in pods for problem in pod_problems(pod))
    problems = [*_controller_problems(status), *refusals, *pods_problems]
    return WorkloadProgress(is_ready=False, replicas=replicas, problems=tuple(problems))


def _judge_cluster(cluster: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> WorkloadProgress:
    """Judge a database of CloudNativePG, whose status says in a sentence what its operator does."""
    instance_count = cluster["spec"]["instances"]
    status = cluster.get("status") or {}
    ready_count = status.get("readyInstances", 0)

    replicas = f"{ready_count} of {instance_count}"
    has_primary = bool(status.get("currentPrimary"))
    if ready_count >= instance_count and has_primary:
        return WorkloadProgress(is_ready=True, replicas=replicas)

    phase = ": ".join(status[name] for name in ("phase", "phaseReason") if status.get(name))
    text = phase or "CloudNativePG has not seen it yet; is its operator installed?"
    pods_problems = (problem for pod in pods for problem in pod_problems(pod))
    return WorkloadProgress(is_ready=False, replicas=replicas, problems=(PodProblem(text), *pods_problems))


def pod_problems(pod: Mapping[str, Any]) -> Iterator[PodProblem]:
    """Yield the problems of a pod."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        yield PodProblem(f"pod {name} failed: {_describe_reason(status)}")

    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield PodProblem(f"pod {name} cannot be scheduled: {_describe_reason(condition)}")

    for container in container_statuses(pod):
        yield from _container_problems(f"container {container.get('name')} of pod {name}", container)


def crashed_containers(pod: Mapping[str, Any]) -> list[str]:
    """Return the names of the containers that have died."""
    return [container["name"] for container in container_statuses(pod) if _describe_death(container) is not None]


def container_statuses(pod: Mapping[str, Any]) -> tuple[Json, ...]:
    """Return the statuses of all containers of a pod, init containers first."""
    status = pod.get("status") or {}
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def _container_problems(title: str, container: Mapping[str, Any]) -> Iterator[PodProblem]:
    state = container.get("state") or {}
    restarts = container.get("restartCount", 0)
    death = _describe_death(container)
    if death is not None:
        is_permanent = restarts >= _MAX_RESTARTS or _never_ran(container)
        yield PodProblem(f"{title} {death}, {restarts} restarts", is_permanent=is_permanent)

        return

    wait = state.get("waiting")
    if wait and wait.get("reason") not in _NORMAL:
        yield PodProblem(f"{title}: {_describe_reason(wait)}", is_permanent=wait.get("reason") in _PERMANENT)
    elif "running" in state and not container.get("ready"):
        yield PodProblem(f"{title} is not ready yet")


def _list_ends(container: Mapping[str, Any]) -> list[Json]:
    """Return how a container ended, the latest end first."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    return [state["terminated"] for state in states if state.get("terminated")]


def _never_ran(container: Mapping[str, Any]) -> bool:
    return any(end.get("reason") in _NEVER_RAN for end in _list_ends(container))


def _describe_death(container: Mapping[str, Any]) -> str | None:
    """Describe how a container died last; None when it never did."""
    for end in _list_ends(container):
        if end.get("reason") == "OOMKilled":
            return "was killed because it used more memory than its limit (OOMKilled)"
        if end.get("reason") in _NEVER_RAN:
            return f"could not be started ({end['reason']}): {end.get('message') or 'no reason given'}"
        if end.get("exitCode", 0) != 0:
            return f"ended with exit code {end.get('exitCode')} ({end.get('reason') or 'Error'})"

    return None


def _controller_problems(status: Mapping[str, Any]) -> Iterator[PodProblem]:
    """Yield what the controller itself could not do, for example because of a quota."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            yield PodProblem(f"its pods cannot be created: {_describe_reason(condition)}", is_permanent=True)


class RefusedPods:
    """What the events of a StatefulSet say about pods that could not be created; its status does not say so.

    An event is kept for an hour. One that is not repeated may be from before a quota was raised, so it is shown, and is
    no permanent problem.
    """

    def __init__(self) -> None:
        self._first_seen: dict[str, Json] | None = None

    def judge(self, events: Iterable[Json]) -> list[PodProblem]:
        """Return the refusals of events with the reason FailedCreate, the latest alone."""
        by_name = {event["metadata"]["name"]: event for event in events}
        if self._first_seen is None:
            self._first_seen = by_name

        refusal = _describe_refusal(by_name.values())
        if refusal is None:
            return []

        is_repeated = any(_count_event(event) != self._count_first(name) for name, event in by_name.items())
        return [PodProblem(refusal, is_permanent=is_repeated)]

    def _count_first(self, name: str) -> tuple[int, str]:
        event = (self._first_seen or {}).get(name)
        return (0, "") if event is None else _count_event(event)


async def list_refusals(api: KubernetesApi, kind: str, namespace: str, name: str) -> list[Json]:
    """Return the events about pods of a workload that could not be created.

    Raises ClusterUnavailable and ClusterRefused.
    """
    fields = {"involvedObject.kind": kind, "involvedObject.name": name, "reason": "FailedCreate"}
    return await api.list("Event", namespace, {}, fields)


async def find_refused_stores(api: KubernetesApi, scope: KubernetesScope, pods: Iterable[Json]) -> str | None:
    """Say why a store has no pod, such as a quota. Raises ClusterUnavailable and ClusterRefused."""
    components = {pod["metadata"]["labels"].get(COMPONENT) for pod in pods}
    for component in ("postgres", "redis"):
        name = store_name(scope, component)
        if component in components or await api.get("StatefulSet", scope.namespace, name) is None:
            continue

        refusal = _describe_refusal(await list_refusals(api, "StatefulSet", scope.namespace, name))
        if refusal is not None:
            return f"{_TITLES[component]}: {refusal}"

    return None


def _describe_refusal(events: Iterable[Json]) -> str | None:
    latest = max(events, key=_read_event_time, default=None)
    if latest is None:
        return None

    return f"its pods cannot be created: {latest.get('message') or 'no reason given'}"


def _count_event(event: Json) -> tuple[int, str]:
    """Return how often an event happened, and when it did last."""
    series = event.get("series") or {}
    return series.get("count") or event.get("count") or 1, _read_event_time(event)


def _read_event_time(event: Json) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _describe_reason(status: Mapping[str, Any]) -> str:
    return ": ".join(str(text) for text in (status.get("reason"), status.get("message")) if text) or "no reason given"


@dataclass(frozen=True)
class PollTiming:
    """How often the watch polls, and how long a permanent problem must last before the watch gives up; in seconds."""

    poll_s: float = 2.0
    permanent_after_s: float = 30.0
    # How long a call that the cluster does not answer, or not now, is repeated.
    retry_s: float = 60.0


@dataclass(frozen=True)
class WorkloadWatch:
    """Watches the workloads of one deployment; `on_step` gets a line for every step."""

    api: KubernetesApi
    scope: KubernetesScope
    on_step: OnStep
    timing: PollTiming = PollTiming()

    async def until_ready(self, manifest: Json, limit_s: float) -> None:
        """Wait until a Deployment or StatefulSet is ready. Raises DeployFailed with the reasons, and ClusterRefused."""
        component = manifest["metadata"]["labels"][COMPONENT]
        title = _TITLES[component]

        started_at = time.monotonic()
        permanent_since = None
        last_step = ""
        refused_pods = RefusedPods()
        while True:
            progress, pods = await self._poll(manifest, refused_pods, limit_s)
            if str(progress) != last_step:
                last_step = str(progress)
                self.on_step(f"{title}: {last_step}")

            if progress.is_ready:
                return

            now = time.monotonic()
            if not progress.is_permanent:
                permanent_since = None
            elif permanent_since is None:
                permanent_since = now

            if permanent_since is not None and now - permanent_since >= self.timing.permanent_after_s:
                raise DeployFailed(await self._add_details(f"{title} does not start: {progress}", pods))

            if now - started_at >= limit_s:
                late = f"{title} is not ready after {limit_s:g} seconds: {progress}"
                raise DeployFailed(await self._add_details(late, pods))

            await asyncio.sleep(self.timing.poll_s)

    async def until_healthy(self, url: str, limit_s: float) -> None:
        """Wait until GET {url}/ok answers 200. Raises DeployFailed."""
        started_at = time.monotonic()
        reason = ""
        async with httpx2.AsyncClient(timeout=_HEALTH_TIMEOUT_S) as client:
            while True:
                try:
                    response = await client.get(f"{url}/ok")
                    if response.status_code == 200:
                        return

                    reason = f"it answers {response.status_code}"
                except httpx2.HTTPError as exc:
                    reason = f"{type(exc).__name__}: {exc}"

                if time.monotonic() - started_at >= limit_s:
                    raise DeployFailed(
                        f"GET {url}/ok did not succeed within {limit_s:g} seconds: {reason}. If the listener cannot "
                        "reach this address, change its setting KUBERNETES_HEALTH_CHECK"
                    )

                await asyncio.sleep(self.timing.poll_s)

    async def _poll(
        self, manifest: Json, refused_pods: RefusedPods, limit_s: float
    ) -> tuple[WorkloadProgress, list[Json]]:
        metadata = manifest["metadata"]
        is_cluster = manifest["kind"] == "Cluster"
        labels = {CLUSTER: metadata["name"]} if is_cluster else self.scope.build_selector(metadata["labels"][COMPONENT])
        if REVISION in metadata["labels"]:
            labels[REVISION] = metadata["labels"][REVISION]

        async def read() -> tuple[Json | None, list[Json], list[Json]]:
            live = await self.api.get(manifest["kind"], metadata["namespace"], metadata["name"])
            pods = await self.api.list("Pod", metadata["namespace"], labels)

            # A Deployment has the refusals of its pods in its own status.
            if manifest["kind"] == "Deployment" or pods:
                return live, pods, []

            name = metadata["name"]
            return live, pods, await list_refusals(self.api, manifest["kind"], metadata["namespace"], name)

        live, pods, refusals = await retry_while_unavailable(read, limit_s)
        if live is None:
            raise DeployFailed(f"somebody deleted {manifest['kind']} {metadata['name']} during the deploy")

        pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return judge({**live, "kind": manifest["kind"]}, pods, refused_pods.judge(refusals)), pods

    async def _add_details(self, reason: str, pods: list[Json]) -> str:
        """Add the cluster's warnings and the last output of a container that died."""
        try:
            warnings = await self._list_warnings()
            lines = await self._read_last_output(pods)
        except (ClusterUnavailable, ClusterRefused):
            return reason

        return "\n".join([reason, *warnings, *lines])

    async def _list_warnings(self) -> list[str]:
        events = await self.api.list("Event", self.scope.namespace, {}, {"type": "Warning"})
        ours = [event for event in events if event["involvedObject"].get("name", "").startswith(self.scope.name)]
        ours.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        texts = [f"{event['involvedObject'].get('kind')}: {event.get('message', '')}" for event in ours]
        return list(dict.fromkeys(reversed(texts)))[:_SHOWN_WARNINGS]

    async def _read_last_output(self, pods: list[Json]) -> list[str]:
        for pod in pods:
            # The server's own container before sidecars.
            for container in sorted(crashed_containers(pod), key=lambda name: name != CONTAINER):
                lines = [line async for line in self.api.follow_log(pod, container, tail=_SHOWN_LINES, follow=False)]
                return [f"the last lines of {container}:", *lines]

        return []


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Repeat a call until the cluster answers. Raises ClusterUnavailable after the limit and ClusterRefused at once."""
    started_at = time.monotonic()
    delay = 0.5
    while True:
        try:
            return await call()
        except ClusterUnavailable:
            if time.monotonic() - started_at >= limit_s:
                raise

            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)
