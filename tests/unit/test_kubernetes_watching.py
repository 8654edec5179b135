"""Judging a rollout by its pods and workloads: ready, not ready yet and why, or a permanent problem."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User

from portside.dataplane.compute.kubernetes import pods, watching
from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.objects import COMPONENT, REVISION
from portside.dataplane.compute.kubernetes.pods import PodFollower, add_problems, build_metrics
from portside.dataplane.compute.kubernetes.watching import (
    PollTiming,
    RefusedPods,
    WorkloadWatch,
    crashed_containers,
    find_refused_stores,
    judge,
    pod_problems,
)
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.listener_api import MetricsReport, NewLogEntry
from tests.conftest import eventually
from tests.kubernetes import ApiServer, objects
from tests.receiver import Receiver, serve


def workload(kind: str = "Deployment", wanted: int = 2, **status: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"name": "hello", "generation": 3},
        "spec": {"replicas": wanted},
        "status": {"observedGeneration": 3, **status},
    }


def pod(*containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "hello-1"}, "status": {"containerStatuses": list(containers), **status}}


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "api-server", "restartCount": 0, "ready": False, "state": state, **more}


def build_waiting_container(reason: str, **more: Any) -> dict[str, Any]:
    return container({"waiting": {"reason": reason, "message": "because"}}, **more)


UP = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (UP, True),
        ({**UP, "observedGeneration": 2}, False),
        ({**UP, "availableReplicas": 1}, False),
        ({**UP, "updatedReplicas": 1}, False),
        ({**UP, "replicas": 3}, False),
        ({}, False),
    ],
    ids=["up", "not seen yet", "not available", "not updated", "an old one is left", "nothing yet"],
)
def test_deployment_is_ready_when_only_new_replicas_serve(status: Any, *, expected: bool) -> None:
    assert judge(workload(**status), []).is_ready is expected


def test_database_of_an_operator_is_ready_with_a_primary_and_all_instances() -> None:
    cluster = {"kind": "Cluster", "metadata": {"name": "hello", "generation": 1}, "spec": {"instances": 2}}
    assert "is its operator installed?" in str(judge(cluster, []))
    setting_up = {"readyInstances": 1, "currentPrimary": "hello-1", "phase": "Creating a new replica"}
    progress = judge({**cluster, "status": setting_up}, [])
    assert not progress.is_ready
    assert "1 of 2 replicas are ready; Creating a new replica" in str(progress)
    assert judge({**cluster, "status": {**setting_up, "readyInstances": 2}}, []).is_ready


def test_deployment_without_replicas_is_ready() -> None:
    assert judge(workload(wanted=0, updatedReplicas=0), []).is_ready


def test_previous_replicas_are_not_counted() -> None:
    progress = judge(workload(replicas=3, updatedReplicas=1, availableReplicas=2), [])
    assert str(progress).startswith("0 of 2 replicas")


def test_stateful_set_is_judged_by_ready_replicas() -> None:
    status = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
    assert judge(workload("StatefulSet", 1, **status), []).is_ready
    assert not judge(workload("StatefulSet", 1, **{**status, "readyReplicas": 0}), []).is_ready


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    ],
)
def test_permanent_waiting_reasons(reason: str) -> None:
    progress = judge(workload(), [pod(build_waiting_container(reason))])
    assert progress.is_permanent
    assert f"container api-server of pod hello-1: {reason}: because" in str(progress)


@pytest.mark.parametrize("reason", ["RunContainerError", "CrashLoopBackOff"])
def test_command_that_does_not_exist_is_permanent_at_once(reason: str) -> None:
    end = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: no such file"}}
    progress = judge(workload(), [pod(build_waiting_container(reason, lastState=end))])
    assert progress.is_permanent
    assert "could not be started (StartError): exec: no such file, 0 restarts" in str(progress)


def build_refusal(count: int, message: str = "exceeded quota") -> dict[str, Any]:
    time = f"2026-01-01T00:00:{count:02}Z"
    return {"metadata": {"name": "event"}, "count": count, "lastTimestamp": time, "message": message}


def test_refused_pods_of_a_store_are_shown_and_permanent_once_repeated() -> None:
    refused_pods = RefusedPods()
    first = judge(workload("StatefulSet", 1), [], refused_pods.judge([build_refusal(1)]))
    assert "its pods cannot be created: exceeded quota" in str(first)
    assert not first.is_permanent

    again = judge(workload("StatefulSet", 1), [], refused_pods.judge([build_refusal(2)]))
    assert again.is_permanent
    assert str(again) == str(first)


async def test_store_without_a_pod_says_why() -> None:
    scope = objects().scope
    name = f"{scope.name}-redis"
    events = {"items": [build_refusal(1, "older"), build_refusal(2, "exceeded quota: q")], "metadata": {}}
    cluster = ApiServer({"events": events, f"statefulsets/{name}": {"metadata": {"name": name}}})
    postgres = {"metadata": {"labels": {COMPONENT: "postgres"}}}

    async with serve(cluster) as url:
        api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
        refused = await find_refused_stores(api, scope, [postgres])
        assert refused == "Redis: its pods cannot be created: exceeded quota: q"
        assert build_metrics([], (), refused).problem == refused

        # The user's own Postgres has no StatefulSet, so nothing of it is missing.
        redis = {"metadata": {"labels": {COMPONENT: "redis"}}}
        assert await find_refused_stores(api, scope, [redis]) is None
        await api.close()


def test_refusal_that_appears_during_the_watch_is_permanent() -> None:
    refused_pods = RefusedPods()
    assert refused_pods.judge([]) == []
    (problem,) = refused_pods.judge([build_refusal(1, "violates PodSecurity")])
    assert problem.is_permanent
    assert "violates PodSecurity" in problem.text


def test_crash_loop_is_permanent_and_describes_death() -> None:
    death = {"terminated": {"exitCode": 3, "reason": "Error"}}
    twice, thrice = (
        build_waiting_container("CrashLoopBackOff", restartCount=count, lastState=death) for count in (2, 3)
    )
    assert not judge(workload(), [pod(twice)]).is_permanent
    progress = judge(workload(), [pod(thrice)])
    assert progress.is_permanent
    assert "ended with exit code 3 (Error), 3 restarts" in str(progress)
    assert crashed_containers(pod(thrice)) == ["api-server"]


def test_out_of_memory_is_described() -> None:
    killed = container({"running": {}}, lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    (trouble,) = pod_problems(pod(killed))
    assert "more memory than its limit (OOMKilled)" in trouble.text


def test_failing_init_container_is_named() -> None:
    failing = {**build_waiting_container("CrashLoopBackOff", restartCount=5), "name": "migrate"}
    failing["lastState"] = {"terminated": {"exitCode": 1}}
    (trouble,) = pod_problems(pod(initContainerStatuses=[failing]))
    assert trouble.text.startswith("container migrate of pod hello-1 ended with exit code 1")
    assert trouble.is_permanent


def test_unschedulable_pod_is_not_permanent() -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    progress = judge(workload(), [pod(conditions=[unschedulable])])
    assert "cannot be scheduled: Unschedulable: 0/3 nodes" in str(progress)
    assert not progress.is_permanent


def test_exceeded_quota_is_permanent() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    progress = judge(workload(conditions=[failure]), [])
    assert progress.is_permanent
    assert "exceeded quota" in str(progress)


def test_starting_containers_are_no_problem() -> None:
    quiet = [
        build_waiting_container("ContainerCreating"),
        build_waiting_container("PodInitializing"),
        container({"running": {}}, ready=True),
    ]
    assert list(pod_problems(pod(*quiet))) == []
    done = {**container({"terminated": {"exitCode": 0, "reason": "Completed"}}), "name": "first"}
    assert list(pod_problems(pod(initContainerStatuses=[done]))) == []


def test_metrics_of_counts_replicas_and_first_problem() -> None:
    def of(component: str, one: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**one, "metadata": {**one["metadata"], "labels": {COMPONENT: component}, **more}}

    ready = {"type": "Ready", "status": "True"}
    up = pod(container({"running": {}}, ready=True, restartCount=2), conditions=[ready])
    found = build_metrics(
        [
            of("api", up),
            of("api", up, deletionTimestamp="now"),
            of("queue", up),
            of("queue", pod(build_waiting_container("ImagePullBackOff"))),
            of("postgres", up),
        ]
    )

    assert (found.replicas, found.queue_replicas, found.restarts) == (1, 1, 4)
    assert found.problem == "container api-server of pod hello-1: ImagePullBackOff: because"
    assert build_metrics([]).problem is None


def test_same_problem_is_shown_once() -> None:
    pods = [pod(build_waiting_container("ImagePullBackOff")) for _ in range(50)]
    assert len(str(judge(workload(), pods))) < 300


class Clock:
    """A clock that goes on with each look at the cluster."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Look(NamedTuple):
    """What the cluster shows at one look: the status of the workload, or None if it is gone, and its pods."""

    status: dict[str, Any] | None
    pods: tuple[dict[str, Any], ...] = ()


class Shown:
    """An API server that shows these looks one after the other, ten seconds apart, and the last one again and again."""

    def __init__(self, clock: Clock, *looks: Look, events: tuple[dict[str, Any], ...] = ()) -> None:
        self._clock = clock
        self._looks = list(looks)
        self._events = events

    async def get(self, _kind: str, _namespace: str, _name: str) -> dict[str, Any] | None:
        self._clock.now += 10.0
        status = self._looks[0].status
        return None if status is None else workload(**status)

    async def list(self, kind: str, *_: Any) -> list[dict[str, Any]]:
        if kind == "Event":
            return list(self._events)

        return list((self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]).pods)

    async def follow_log(self, _pod: Any, container: str, **_: Any) -> AsyncIterator[str]:
        yield f"the end of {container}"


MANIFEST = {
    "kind": "Deployment",
    "metadata": {"name": "hello", "namespace": "agents", "labels": {COMPONENT: "api"}},
}
BAD_IMAGE = pod(build_waiting_container("ErrImagePull"))
NOT_READY = pod(container({"running": {}}))
CRASHED = pod(container({"terminated": {"exitCode": 1, "reason": "Error"}}, restartCount=5))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    return clock


async def wait(shown: Shown, limit_s: float = 600, permanent_after_s: float = 15) -> list[str]:
    steps: list[str] = []
    timing = PollTiming(poll_s=0, permanent_after_s=permanent_after_s)
    watch = WorkloadWatch(shown, objects().scope, steps.append, timing)  # type: ignore[arg-type]
    await watch.until_ready(MANIFEST, limit_s)
    return steps


async def test_problem_that_goes_away_ends_no_rollout(clock: Clock) -> None:
    """A first attempt may fail for a transient reason, again and again."""
    looks = [Look({}, (BAD_IMAGE,)), Look({}, (NOT_READY,)), Look({}, (BAD_IMAGE,)), Look(UP)]
    steps = await wait(Shown(clock, *looks))
    assert steps[0].endswith("container api-server of pod hello-1: ErrImagePull: because")
    assert steps[-1] == "Deployment: 2 of 2 replicas are ready"


async def test_problem_that_lasts_ends_a_rollout(clock: Clock) -> None:
    with pytest.raises(DeployFailed, match=r"Deployment does not start: .* ErrImagePull"):
        await wait(Shown(clock, Look({}, (BAD_IMAGE,))))
    assert clock.now == 30.0

    with pytest.raises(DeployFailed, match=r"Deployment is not ready after 60 seconds: .* is not ready yet"):
        await wait(Shown(clock, Look({}, (NOT_READY,))), limit_s=60)


async def test_problems_of_pods_that_are_being_deleted_end_no_rollout(clock: Clock) -> None:
    ending = {**BAD_IMAGE, "metadata": {**BAD_IMAGE["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    await wait(Shown(clock, Look({}, (ending,)), Look({}, (ending,)), Look({}, (ending,)), Look(UP, (ending,))))


async def test_workload_that_somebody_deletes_ends_its_rollout(clock: Clock) -> None:
    with pytest.raises(DeployFailed, match="somebody deleted Deployment hello during the deploy"):
        await wait(Shown(clock, Look({}, (NOT_READY,)), Look(None, (NOT_READY,))))


async def test_failure_has_the_warnings_of_its_deployment_alone_and_the_last_lines_of_its_container(
    clock: Clock,
) -> None:
    name = objects().scope.name
    events = tuple(
        {"involvedObject": {"kind": "Pod", "name": of}, "message": message, "lastTimestamp": at}
        for of, message, at in (
            (f"{name}-1", "Back-off restarting", "2026-01-01T00:00:02Z"),
            (f"{name}-1", "Liveness probe failed", "2026-01-01T00:00:01Z"),
            ("other-1", "of somebody else", "2026-01-01T00:00:03Z"),
        )
    )
    with pytest.raises(DeployFailed) as failure:
        await wait(Shown(clock, Look({}, (CRASHED,)), events=events))

    first, *details = str(failure.value).splitlines()
    assert first.startswith("Deployment does not start: ")
    assert details == [
        "Pod: Back-off restarting",
        "Pod: Liveness probe failed",
        "the last lines of api-server:",
        "the end of api-server",
    ]


async def test_only_an_answer_of_200_is_healthy() -> None:
    server = Receiver()
    server.status = 404
    watch = WorkloadWatch(None, objects().scope, print, PollTiming(poll_s=0.01))  # type: ignore[arg-type]
    async with serve(server) as url:
        with pytest.raises(DeployFailed, match="it answers 404"):
            await watch.until_healthy(url, 0)

        server.status = 200
        await watch.until_healthy(url, 600)


def component_pod(component: str, *, is_ready: bool = True, **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    waiting = [] if is_ready else [build_waiting_container("ErrImagePull")]
    labels = {COMPONENT: component, REVISION: str(UUID(int=1))}
    return {
        "metadata": {"name": f"hello-{component}", "uid": component, "labels": labels, **metadata},
        "status": {"conditions": conditions, "containerStatuses": waiting},
    }


def test_replicas_that_execute_runs_are_those_of_the_queue_and_executors() -> None:
    found = build_metrics([component_pod(name) for name in ("api", "api", "queue", "executor", "orchestrator")])
    assert (found.replicas, found.queue_replicas, found.problem) == (2, 2, None)


def test_the_problem_of_a_store_is_the_reason_of_those_of_servers() -> None:
    servers = [component_pod("api", is_ready=False)]
    found = build_metrics([*servers, component_pod("postgres", is_ready=False)])
    assert found.problem is not None
    assert found.problem.startswith("container api-server of pod hello-postgres")

    ending = component_pod("postgres", is_ready=False, deletionTimestamp="2026-01-01T00:00:00Z")
    found = build_metrics([*servers, ending])
    assert found.problem is not None
    assert found.problem.startswith("container api-server of pod hello-api")


def test_a_deployment_without_a_ready_replica_says_so_beside_what_the_cluster_refuses() -> None:
    none_ready = build_metrics([component_pod("queue")])
    assert add_problems(none_ready, []).problem == "No replica of this deployment is ready."
    assert add_problems(none_ready, ["quota", "rights"]).problem == (
        "No replica of this deployment is ready.\nThe cluster refuses changes of this deployment: quota; rights"
    )
    assert add_problems(build_metrics([component_pod("api")]), []).problem is None

    # Nobody knows the replicas that the cluster does not show.
    assert add_problems(MetricsReport(problem="it does not answer"), []).problem == "it does not answer"


class PrintingPods:
    """An API server with these pods, each container of which prints a line and runs on."""

    def __init__(self, *running: dict[str, Any]) -> None:
        self.pods = list(running)
        self.followed: list[tuple[str, int | None]] = []

    async def list(self, kind: str, *_: Any) -> list[dict[str, Any]]:
        return list(self.pods) if kind == "Pod" else []

    async def get(self, *_: Any) -> None: ...

    async def read_metrics(self, _pod: Any) -> bytes:
        return b"{}"

    async def follow_log(self, _pod: Any, container: str, *, since_s: int | None) -> AsyncIterator[str]:
        self.followed.append((container, since_s))
        yield f"{container} says"
        await asyncio.Event().wait()


async def test_each_line_of_a_container_is_shipped_once_and_named_after_a_sidecar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listener that has just started knows nothing of what containers printed before, and ships it no second time."""
    monkeypatch.setattr(pods, "_POLL_S", 0.01)
    lines: list[str] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        lines.extend(entry.message for entry in entries)

    before = component_pod("api")
    before["status"]["containerStatuses"] = [container({"running": {}}), container({"running": {}}, name="proxy")]
    shown = PrintingPods(before)
    follower = PodFollower(shown, objects().scope, lambda _: RevisionLog(ship), from_now=True)  # type: ignore[arg-type]
    try:
        await eventually(lambda: asyncio.sleep(0, len(shown.followed) == 2))
        started = component_pod("queue")
        started["status"]["containerStatuses"] = [container({"running": {}}, name="later")]
        starting = component_pod("queue", uid="starts")
        starting["status"]["containerStatuses"] = [build_waiting_container("ContainerCreating")]
        shown.pods += [started, starting, component_pod("postgres")]
        await eventually(lambda: asyncio.sleep(0, len(shown.followed) == 3))
    finally:
        await follower.close()

    assert shown.followed == [("api-server", 1), ("proxy", 1), ("later", None)]
    assert sorted(lines) == ["[later] later says", "[proxy] proxy says", "api-server says"]
