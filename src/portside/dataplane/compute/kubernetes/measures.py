"""What a deployment's pods say of it: how many serve, how often they died, and why one is missing."""

from collections.abc import Iterable, Mapping
from typing import Any

from portside.dataplane.compute.kubernetes.objects import COMPONENT
from portside.dataplane.compute.kubernetes.rollout import pod_troubles
from portside.dataplane.types import Measures

Json = Mapping[str, Any]


def measure(pods: Iterable[Json]) -> Measures:
    """Return what can be told without the cluster's metrics: replicas, restarts, and the first trouble."""
    ready = {"api": 0, "queue": 0}
    restarts, problem = 0, None
    for pod in pods:
        component = pod["metadata"]["labels"].get(COMPONENT)
        if component not in ready or "deletionTimestamp" in pod["metadata"]:
            continue
        status = pod.get("status") or {}
        ready[component] += _is_ready(status)
        restarts += sum(one.get("restartCount", 0) for one in status.get("containerStatuses") or ())
        problem = problem or next((trouble.text for trouble in pod_troubles(pod)), None)
    return Measures(replicas=ready["api"], queue_replicas=ready["queue"], restarts=restarts, problem=problem)


def _is_ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
