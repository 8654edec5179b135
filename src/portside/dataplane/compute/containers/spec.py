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
        replicas=_replicas(resources),
        cpu_limit=_limit(resources, "cpu_limit", executors),
        memory_limit_mb=_limit(resources, "memory_limit_mb", executors),
        labels=_labels({**(resources.get("annotations") or {}), **(resources.get("labels") or {})}),
        scratch=_scratch(resources),
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

    replicas = _replicas(resources)
    least, most = (math.ceil(int(resources.get(f"queue_{name}_scale", 1)) / replicas) for name in ("min", "max"))
    return ContainerExecutors(max(1, least), max(1, least, most), resources.get("executor_memory_limit_mb"))


def _replicas(resources: Mapping[str, Any]) -> int:
    """Return the number of containers: each answers requests, and is an orchestrator too."""
    return max(1, *(int(resources.get(name, 1)) for name in ("min_scale", "orchestrator_min_scale")))


def _limit(resources: Mapping[str, Any], name: str, executors: ContainerExecutors | None) -> Any:
    """Return a limit of a container: that of an orchestrator and its executors, or of a server with its graphs."""
    if executors is None:
        return resources.get(name)

    own = resources.get(f"orchestrator_{name}")
    each = resources.get(f"executor_{name}")
    return None if own is None or each is None else own + executors.most * each


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not name or "=" in name or "\n" in name + value or len(name) + len(value) > _MAX_LABEL:
            raise DeployFailed(
                f"resource_spec: a container cannot have the label {name[:80]!r}: too long, or '=' in its name"
            )

    return {name: value for name, value in labels.items() if not name.startswith("portside.")}


def _scratch(resources: Mapping[str, Any]) -> list[ScratchVolume]:
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

        if not path.startswith("/") or path == "/" or any(c in path for c in ',:"\n') or ".." in path.split("/"):
            raise DeployFailed(
                f"resource_spec: mountPath {path!r} must be an absolute path without '..', commas and colons"
            )

    return [ScratchVolume(mount["mountPath"], bool(mount.get("readOnly"))) for mount in mounts]
