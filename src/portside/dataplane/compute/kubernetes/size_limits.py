"""The largest sizes that a release may ask for: those of the operator, and of the cluster's nodes where it shows them.

A pod that fits no node waits for ever, and the database of a deployment that serves stops first. So a release that is
too large is refused before anything of it is applied. Nodes are asked only where the listener may list them, which the
Role of `portside manifests` does not allow.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.manifests import Objects
from portside.dataplane.compute.kubernetes.objects import Json
from portside.dataplane.compute.kubernetes.resources import Resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import DeployFailed
from portside.kernel.quantities import parse_quantity
from portside.size_limits import find_excess

_SPEC = "source_config.resource_spec"
_MB = 1024 * 1024


def check_sizes(resources: Resources, settings: KubernetesSettings) -> None:
    """Check a spec against the operator's limits. Raises DeployFailed, which names the field and the limit."""
    excess = find_excess(msgspec.structs.asdict(resources), settings.size_limits)
    if excess is not None:
        raise DeployFailed(f"{_SPEC}.{_to_text(excess.path)} {excess.reason}")


def _to_text(path: Iterable[str | int]) -> str:
    """Return a path as people write it: `sidecars[0].resources`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


async def check_nodes(api: KubernetesApi, objects: Objects) -> None:
    """Check that a node can hold each pod of a release, if the listener may list nodes. Raises DeployFailed."""
    nodes: list[Json] = []
    with contextlib.suppress(ClusterUnavailable, ClusterRefused):
        nodes = await api.list_nodes()

    check_fit([*objects.of_kind("StatefulSet"), *objects.of_kind("Deployment")], nodes)


def check_fit(workloads: Iterable[Json], nodes: Iterable[Json]) -> None:
    """Check that pods of these workloads fit on one of the nodes; no nodes are no knowledge. Raises DeployFailed."""
    sizes = [_read_node(node) for node in nodes if not (node.get("spec") or {}).get("unschedulable")]
    if not sizes:
        return

    for workload in workloads:
        containers = workload["spec"]["template"]["spec"]["containers"]
        requested = {
            name: sum(_read_request(container, name) for container in containers) for name in ("cpu", "memory")
        }
        if not any(all(size[name] >= amount for name, amount in requested.items()) for size in sizes):
            largest = max(sizes, key=lambda size: (size["cpu"], size["memory"]))
            raise DeployFailed(
                f"{_SPEC}: no node of the cluster can hold a pod of {workload['kind']} {workload['metadata']['name']}, "
                f"which requests {_describe(requested)}; the largest node has {_describe(largest)}. Request less, or "
                "add a larger node"
            )


def _read_node(node: Json) -> dict[str, float]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: parse_quantity(allocatable.get(name, "0")) for name in ("cpu", "memory")}


def _read_request(container: Json, name: str) -> float:
    resources: dict[str, Any] = container.get("resources") or {}
    # A limit without a request is the request as well.
    value = (resources.get("requests") or {}).get(name) or (resources.get("limits") or {}).get(name) or "0"
    try:
        return parse_quantity(value)
    except ValueError:
        return 0.0


def _describe(size: dict[str, float]) -> str:
    return f"{size['cpu']:g} CPUs and {size['memory'] / _MB:.0f} MB"
