"""Frees the stores from pods that can never start.

The controller of a StatefulSet replaces no pod that is not ready. A pod that fits no node, or whose image cannot be
pulled, therefore stays after the spec was set back ("forced rollback" in Kubernetes' documentation): it has to be
deleted. Only a pod of an earlier spec than the StatefulSet's is deleted, and never one that runs.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.objects import COMPONENT, Json, KubernetesScope
from portside.dataplane.compute.kubernetes.repairs import OnNote

_HASH = "controller-revision-hash"
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_SEEN_POLLS = 10


async def free_stores(
    api: KubernetesApi, scope: KubernetesScope, stores: Iterable[Json], on_note: OnNote, poll_s: float
) -> None:
    """Delete stuck pods of StatefulSets that were just applied. Raises ClusterUnavailable and ClusterRefused."""
    for manifest in stores:
        name = manifest["metadata"]["name"]
        live = await _wait_until_seen(api, scope, name, poll_s)
        if live is None:
            continue

        component = manifest["metadata"]["labels"][COMPONENT]
        pods = await api.list("Pod", scope.namespace, scope.build_selector(component))
        for pod in find_stuck_pods(live, pods):
            pod_name = pod["metadata"]["name"]
            await api.delete("Pod", scope.namespace, pod_name)
            on_note(f"The pod {pod_name} could not start and had an earlier spec; it was deleted to be made anew.")


async def _wait_until_seen(api: KubernetesApi, scope: KubernetesScope, name: str, poll_s: float) -> Json | None:
    """Return a StatefulSet once its controller has seen its spec; None if that takes long, or it is gone."""
    for _ in range(_SEEN_POLLS):
        live = await api.get("StatefulSet", scope.namespace, name)
        if live is None:
            return None

        if _is_seen(live):
            return live

        await asyncio.sleep(poll_s)

    return None


def find_stuck_pods(stateful_set: Mapping[str, Any], pods: Iterable[Json]) -> list[Json]:
    """Return the pods that cannot start and that the controller does not replace by itself."""
    newest_hash = (stateful_set.get("status") or {}).get("updateRevision")
    if not newest_hash or not _is_seen(stateful_set):
        return []

    return [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and (pod["metadata"].get("labels") or {}).get(_HASH, newest_hash) != newest_hash
        and _cannot_start(pod)
    ]


def _is_seen(stateful_set: Mapping[str, Any]) -> bool:
    status = stateful_set.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= stateful_set["metadata"].get("generation", 0))


def _cannot_start(pod: Json) -> bool:
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True

    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waits = [(container.get("state") or {}).get("waiting") for container in containers]
    return status.get("phase") == "Failed" or any(wait and wait.get("reason") not in _STARTING for wait in waits)
