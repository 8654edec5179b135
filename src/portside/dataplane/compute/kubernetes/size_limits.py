"""The largest sizes that a release may ask for: those of the operator, and of the cluster's nodes where it shows them.

A pod that fits no node waits for ever, and the database of a deployment that serves stops first. So a release that is
too large is refused before anything of it is applied. Nodes are asked only where the listener may list them, which the
Role of `portside manifests` does not allow.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.manifests import Objects
from portside.dataplane.compute.kubernetes.objects import Json
from portside.dataplane.compute.kubernetes.quantities import parse_quantity
from portside.dataplane.compute.kubernetes.resources import Resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import DeployFailed

_SPEC = "source_config.resource_spec"
_MB = 1024 * 1024


class _Limit(NamedTuple):
    """The setting of a largest size, its value, and its unit."""

    setting: str
    value: float | None
    unit: str


def check_sizes(resources: Resources, settings: KubernetesSettings) -> None:
    """Check a spec against the operator's limits. Raises DeployFailed, which names the field and the limit."""
    cpu = _Limit("KUBERNETES_MAX_CPU", settings.kubernetes_max_cpu, "CPUs")
    memory = _Limit("KUBERNETES_MAX_MEMORY_MB", settings.kubernetes_max_memory_mb, "MB")
    storage = _Limit("KUBERNETES_MAX_STORAGE_GI", settings.kubernetes_max_storage_gi, "GiB")
    scale = _Limit("KUBERNETES_MAX_SCALE", settings.kubernetes_max_scale, "replicas")

    for name, value in msgspec.structs.asdict(resources).items():
        if name.endswith(("cpu", "cpu_limit")):
            _check(name, value, cpu)
        elif name.endswith(("memory_mb", "memory_limit_mb")):
            _check(name, value, memory)
        elif name.endswith("storage_gi"):
            _check(name, value, storage)
        elif name.endswith("scale"):
            _check(name, value, scale)

    for field, quantities in _list_container_sizes(resources):
        _check(f"{field}.cpu", _read(field, quantities, "cpu"), cpu)
        memory_bytes = _read(field, quantities, "memory")
        _check(f"{field}.memory", None if memory_bytes is None else memory_bytes / _MB, memory)


def _check(field: str, value: float | None, limit: _Limit) -> None:
    if value is not None and limit.value is not None and value > limit.value:
        raise DeployFailed(
            f"{_SPEC}.{field} is {value:g}, and this listener allows at most {limit.value:g} {limit.unit} "
            f"({limit.setting})"
        )


def _list_container_sizes(resources: Resources) -> Iterator[tuple[str, Json]]:
    """Yield the requests and the limits of the user's containers, with the names of their fields."""
    for kind in ("init_containers", "sidecars"):
        for number, container in enumerate(getattr(resources, kind) or []):
            for part in ("requests", "limits"):
                quantities = (container.get("resources") or {}).get(part)
                if isinstance(quantities, dict):
                    yield f"{kind}[{number}].resources.{part}", quantities


def _read(field: str, quantities: Json, name: str) -> float | None:
    value = quantities.get(name)
    if value is None:
        return None

    try:
        return parse_quantity(value)
    except ValueError as exc:
        raise DeployFailed(f"{_SPEC}.{field}.{name}: {exc}; write an amount such as 500m or 2Gi") from exc


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
