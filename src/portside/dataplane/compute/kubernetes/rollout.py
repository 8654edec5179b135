"""How far pods have come: judged from what the API server shows, and never from anything else.

A trouble is hopeless when waiting would not mend it: an image that cannot be pulled, a container that keeps dying. It
must have lasted for a while, because a first attempt may fail for reasons that pass.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

_HOPELESS = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
_NO_TROUBLE = frozenset({"ContainerCreating", "PodInitializing"})
_RESTARTS = 3
_SHOWN_TROUBLES = 4


@dataclass(frozen=True)
class Trouble:
    """What keeps a pod from being ready."""

    text: str
    is_hopeless: bool = False


@dataclass(frozen=True)
class Progress:
    """How far a workload is; `troubles` are why it is not further."""

    is_ready: bool
    replicas: str
    troubles: tuple[Trouble, ...] = ()

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting would not help."""
        return any(trouble.is_hopeless for trouble in self.troubles)

    def __str__(self) -> str:
        texts = list(dict.fromkeys(trouble.text for trouble in self.troubles))[:_SHOWN_TROUBLES]
        return "; ".join([f"{self.replicas} replicas are ready", *texts])


def judge(workload: Json, pods: Iterable[Json]) -> Progress:
    """Judge a Deployment or a StatefulSet by its status and the pods of its newest revision."""
    wanted = workload.get("spec", {}).get("replicas", 1)
    status = workload.get("status") or {}
    is_seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    up = status.get("availableReplicas" if workload["kind"] == "Deployment" else "readyReplicas", 0)
    updated = status.get("updatedReplicas", 0)
    # While pods of the revision before are there, requests may still reach them.
    others = status.get("replicas", 0) - updated
    replicas = f"{max(0, min(up - others, updated))} of {wanted}"
    if is_seen and updated >= wanted and up >= wanted and others == 0:
        return Progress(is_ready=True, replicas=replicas)
    troubles = [*_conditions(status), *(trouble for pod in pods for trouble in pod_troubles(pod))]
    return Progress(is_ready=False, replicas=replicas, troubles=tuple(troubles))


def pod_troubles(pod: Json) -> Iterator[Trouble]:
    """Say what is wrong with a pod."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        yield Trouble(f"pod {name} failed: {_said(status)}")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Trouble(f"pod {name} cannot be scheduled: {_said(condition)}")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _container_troubles(f"container {container.get('name')} of pod {name}", container)


def crashed_containers(pod: Json) -> list[str]:
    """Return the names of the containers that have died, whose last words are worth reading."""
    status = pod.get("status") or {}
    found = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return [container["name"] for container in found if _death(container) is not None]


def _container_troubles(what: str, container: Json) -> Iterator[Trouble]:
    state, restarts = container.get("state") or {}, container.get("restartCount", 0)
    death = _death(container)
    if death is not None:
        yield Trouble(f"{what} {death}, {restarts} restarts", is_hopeless=restarts >= _RESTARTS)
    waiting = state.get("waiting")
    if waiting and waiting.get("reason") not in _NO_TROUBLE and death is None:
        yield Trouble(f"{what}: {_said(waiting)}", is_hopeless=waiting.get("reason") in _HOPELESS)
    elif "running" in state and not container.get("ready") and death is None:
        yield Trouble(f"{what} is not ready yet")


def _death(container: Json) -> str | None:
    """Say how a container ended last, if it did and was not meant to."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        end = state.get("terminated")
        if end and end.get("reason") == "OOMKilled":
            return "was killed because it used more memory than its limit (OOMKilled)"
        if end and end.get("exitCode", 0) != 0:
            return f"ended with exit code {end.get('exitCode')} ({end.get('reason') or 'Error'})"
    return None


def _conditions(status: Json) -> Iterator[Trouble]:
    """Say what the controller itself could not do; beyond a quota, for example."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            yield Trouble(f"its pods cannot be made: {_said(condition)}", is_hopeless=True)


def _said(told: Json) -> str:
    return ": ".join(str(part) for part in (told.get("reason"), told.get("message")) if part) or "no reason is given"
