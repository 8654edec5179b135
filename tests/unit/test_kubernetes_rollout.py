"""What pods and workloads say of a rollout: ready, not yet and why, or hopeless."""

from typing import Any

import pytest

from portside.dataplane.compute.kubernetes.measures import measure
from portside.dataplane.compute.kubernetes.objects import COMPONENT
from portside.dataplane.compute.kubernetes.rollout import crashed_containers, judge, pod_troubles


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


def waiting(reason: str, **more: Any) -> dict[str, Any]:
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
def test_a_deployment_is_ready_when_only_new_replicas_are_there_and_all_serve(status: Any, *, expected: bool) -> None:
    assert judge(workload(**status), []).is_ready is expected


def test_a_deployment_of_no_replicas_is_ready() -> None:
    assert judge(workload(wanted=0, updatedReplicas=0), []).is_ready


def test_replicas_of_the_revision_before_are_not_counted_as_ready() -> None:
    progress = judge(workload(replicas=3, updatedReplicas=1, availableReplicas=2), [])
    assert str(progress).startswith("0 of 2 replicas")


def test_a_stateful_set_is_judged_by_what_is_ready() -> None:
    status = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
    assert judge(workload("StatefulSet", 1, **status), []).is_ready
    assert not judge(workload("StatefulSet", 1, **{**status, "readyReplicas": 0}), []).is_ready


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"])
def test_what_waiting_does_not_mend_is_hopeless(reason: str) -> None:
    progress = judge(workload(), [pod(waiting(reason))])
    assert progress.is_hopeless
    assert f"container api-server of pod hello-1: {reason}: because" in str(progress)


def test_a_first_failure_to_pull_may_pass() -> None:
    assert not judge(workload(), [pod(waiting("ErrImagePull"))]).is_hopeless


def test_a_container_that_keeps_dying_is_hopeless_and_says_how_it_died() -> None:
    death = {"terminated": {"exitCode": 3, "reason": "Error"}}
    twice, thrice = (waiting("CrashLoopBackOff", restartCount=count, lastState=death) for count in (2, 3))
    assert not judge(workload(), [pod(twice)]).is_hopeless
    progress = judge(workload(), [pod(thrice)])
    assert progress.is_hopeless
    assert "ended with exit code 3 (Error), 3 restarts" in str(progress)
    assert crashed_containers(pod(thrice)) == ["api-server"]


def test_too_much_memory_is_said_in_words() -> None:
    killed = container({"running": {}}, lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    (trouble,) = pod_troubles(pod(killed))
    assert "more memory than its limit (OOMKilled)" in trouble.text


def test_a_failing_init_container_is_named() -> None:
    failing = {**waiting("CrashLoopBackOff", restartCount=5), "name": "migrate"}
    failing["lastState"] = {"terminated": {"exitCode": 1}}
    (trouble,) = pod_troubles(pod(initContainerStatuses=[failing]))
    assert trouble.text.startswith("container migrate of pod hello-1 ended with exit code 1")
    assert trouble.is_hopeless


def test_a_pod_that_finds_no_node_may_find_one_later() -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    progress = judge(workload(), [pod(conditions=[unschedulable])])
    assert "cannot be scheduled: Unschedulable: 0/3 nodes" in str(progress)
    assert not progress.is_hopeless


def test_a_quota_is_a_reason() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    progress = judge(workload(conditions=[failure]), [])
    assert progress.is_hopeless
    assert "exceeded quota" in str(progress)


def test_what_is_on_its_way_is_no_trouble() -> None:
    quiet = [waiting("ContainerCreating"), waiting("PodInitializing"), container({"running": {}}, ready=True)]
    assert list(pod_troubles(pod(*quiet))) == []
    done = {**container({"terminated": {"exitCode": 0, "reason": "Completed"}}), "name": "first"}
    assert list(pod_troubles(pod(initContainerStatuses=[done]))) == []


def test_pods_say_how_many_serve_and_what_is_wrong() -> None:
    def of(component: str, one: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**one, "metadata": {**one["metadata"], "labels": {COMPONENT: component}, **more}}

    ready = {"type": "Ready", "status": "True"}
    up = pod(container({"running": {}}, ready=True, restartCount=2), conditions=[ready])
    found = measure(
        [
            of("api", up),
            of("api", up, deletionTimestamp="now"),
            of("queue", up),
            of("queue", pod(waiting("ImagePullBackOff"))),
            of("postgres", up),
        ]
    )
    assert (found.replicas, found.queue_replicas, found.restarts) == (1, 1, 4)
    assert found.problem == "container api-server of pod hello-1: ImagePullBackOff: because"
    assert measure([]).problem is None


def test_many_pods_with_one_trouble_tell_it_once() -> None:
    pods = [pod(waiting("ImagePullBackOff")) for _ in range(50)]
    assert len(str(judge(workload(), pods))) < 300
