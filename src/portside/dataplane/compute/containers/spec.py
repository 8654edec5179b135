"""The resource spec of a revision, as far as containers on one machine can honour it.

A field of the spec that they cannot honour fails the revision with a reason and is never ignored: the field (a
cluster's volume, a sidecar) could be what makes the server work.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portside.dataplane.failures import DeployFailed

_CLUSTER_ONLY = {
    "init_containers": "init_containers run on Kubernetes only; do their work in the image",
    "sidecars": "sidecars run on Kubernetes only; deploy each of them separately",
    "service_account_name": "service_account_name names an account of Kubernetes; remove it",
    "image_pull_secrets": (
        "image_pull_secrets name secrets of Kubernetes; log in to the registry on the listener's machine instead "
        "(podman login, docker login)"
    ),
}
_MAX_LABEL = 4096


@dataclass(frozen=True)
class ScratchVolume:
    """An empty folder that is removed with its container: the volume type `emptyDir`."""

    path: str
    is_read_only: bool


@dataclass(frozen=True)
class ContainerSpec:
    """The number of containers and the limits of each; None means no limit."""

    replicas: int
    cpu_limit: float | None
    memory_limit_mb: int | None
    labels: dict[str, str]
    scratch: list[ScratchVolume]


def read_spec(resources: Mapping[str, Any]) -> ContainerSpec:
    """Read a resource spec that has its defaults. Raises DeployFailed for a field that this compute cannot honour."""
    for name, reason in _CLUSTER_ONLY.items():
        if resources.get(name):
            raise DeployFailed(f"resource_spec: {reason}")

    executors = read_executors(resources)
    return ContainerSpec(
        replicas=_count_replicas(resources),
        cpu_limit=_read_limit(resources, "cpu_limit", executors),
        memory_limit_mb=_read_limit(resources, "memory_limit_mb", executors),
        labels=_check_labels({**(resources.get("annotations") or {}), **(resources.get("labels") or {})}),
        scratch=_read_scratch_volumes(resources),
    )


@dataclass(frozen=True)
class ContainerExecutors:
    """The executors in each container of a deployment that asks for orchestrators and executors."""

    least: int
    most: int
    memory_limit_mb: int | None

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the server in a container starts them."""
        variables = {"EXECUTORS": str(self.least), "EXECUTORS_MAX": str(self.most)}
        if self.memory_limit_mb is not None:
            # The setting counts in millions of bytes.
            variables["EXECUTOR_MAX_MEMORY_MB"] = str(self.memory_limit_mb * 2**20 // 1_000_000)

        return variables


def read_executors(resources: Mapping[str, Any]) -> ContainerExecutors | None:
    """Return the executors of each container, its share of those in the spec; None if servers execute the graphs."""
    # The control plane completes a spec that has any field of orchestrators or executors.
    if "orchestrator_max_scale" not in resources:
        return None

    replicas = _count_replicas(resources)
    least = max(1, math.ceil(int(resources.get("queue_min_scale", 1)) / replicas))
    most = max(least, math.ceil(int(resources.get("queue_max_scale", 1)) / replicas))
    return ContainerExecutors(least, most, resources.get("executor_memory_limit_mb"))


def _count_replicas(resources: Mapping[str, Any]) -> int:
    """Return the number of containers: each answers requests, and is an orchestrator too."""
    servers = int(resources.get("min_scale", 1))
    orchestrators = int(resources.get("orchestrator_min_scale", 1))
    return max(1, servers, orchestrators)


def _read_limit(resources: Mapping[str, Any], name: str, executors: ContainerExecutors | None) -> Any:
    """Return a limit of a container: that of an orchestrator and its executors, or of a server with its graphs."""
    if executors is None:
        return resources.get(name)

    orchestrator_limit = resources.get(f"orchestrator_{name}")
    executor_limit = resources.get(f"executor_{name}")
    if orchestrator_limit is None or executor_limit is None:
        return None

    return orchestrator_limit + executors.most * executor_limit


def _check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without those that are the platform's own. Raises DeployFailed for an impossible one."""
    for name, value in labels.items():
        if not name or "=" in name or "\n" in name + value or len(name) + len(value) > _MAX_LABEL:
            raise DeployFailed(
                f"resource_spec: a container cannot have the label {name[:80]!r}: too long, or '=' in its name"
            )

    return {name: value for name, value in labels.items() if not name.startswith("portside.")}


def _read_scratch_volumes(resources: Mapping[str, Any]) -> list[ScratchVolume]:
    """Return the volumes of a spec. Raises DeployFailed for one that only Kubernetes has."""
    for volume in resources.get("volumes") or []:
        kinds = [key for key, value in volume.items() if key != "name" and value is not None]
        if kinds not in ([], ["emptyDir"]):
            raise DeployFailed(
                f"resource_spec: the volume {volume['name']!r} is of type {kinds[0]}, which exists only on Kubernetes; "
                "use emptyDir for containers on one machine"
            )

    mounts = resources.get("volume_mounts") or []
    names = [mount["name"] for mount in mounts]
    for mount in mounts:
        special = [key for key in ("subPath", "subPathExpr", "mountPropagation") if mount.get(key)]
        path = mount["mountPath"]

        if special or names.count(mount["name"]) > 1:
            unsupported = special[0] if special else "a second mount"
            raise DeployFailed(
                f"resource_spec: the volume {mount['name']!r} uses {unsupported}, which only Kubernetes supports"
            )

        is_absolute = path.startswith("/") and path != "/" and ".." not in path.split("/")
        if not is_absolute or any(character in path for character in ',:"\n'):
            raise DeployFailed(
                f"resource_spec: mountPath {path!r} must be an absolute path without '..', commas and colons"
            )

    return [ScratchVolume(mount["mountPath"], bool(mount.get("readOnly"))) for mount in mounts]
