"""What a revision asks of its containers, and what containers on one machine cannot give.

A field that nothing on this compute acts on ends the revision with a reason, rather than being ignored: what it asks
for (volumes of a cluster, containers beside the server) could be what makes the server work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portside.dataplane.failures import DeployFailed

_CLUSTER_ONLY = {
    "init_containers": "init_containers run on Kubernetes only; do their work in the image",
    "sidecars": "sidecars run on Kubernetes only; deploy them by themselves",
    "service_account_name": "service_account_name names an account of Kubernetes; leave it out",
    "image_pull_secrets": (
        "image_pull_secrets name secrets of Kubernetes; log in to the registry on the listener's machine instead "
        "(podman login, docker login)"
    ),
}
_MAX_LABEL = 4096


@dataclass(frozen=True)
class Scratch:
    """An empty folder of a container, gone with it: the volume type `emptyDir`."""

    path: str
    is_read_only: bool


@dataclass(frozen=True)
class ContainerSpec:
    """How many containers, and how large each may grow; None where there is no limit."""

    replicas: int
    cpu_limit: float | None
    memory_limit_mb: int | None
    labels: dict[str, str]
    scratch: list[Scratch]


def read_spec(resources: Mapping[str, Any]) -> ContainerSpec:
    """Read a resource spec with its defaults filled in. Raises DeployFailed for what this compute cannot give."""
    for name, reason in _CLUSTER_ONLY.items():
        if resources.get(name):
            raise DeployFailed(f"resource_spec: {reason}")
    return ContainerSpec(
        replicas=max(1, int(resources.get("min_scale", 1))),
        cpu_limit=resources.get("cpu_limit"),
        memory_limit_mb=resources.get("memory_limit_mb"),
        labels=_labels({**(resources.get("annotations") or {}), **(resources.get("labels") or {})}),
        scratch=_scratch(resources),
    )


def _labels(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\n" in name + value or len(name) + len(value) > _MAX_LABEL:
            raise DeployFailed(f"resource_spec: the label {name[:80]!r} cannot be set on a container")
    return {name: value for name, value in given.items() if not name.startswith("portside.")}


def _scratch(resources: Mapping[str, Any]) -> list[Scratch]:
    for volume in resources.get("volumes") or []:
        kinds = [key for key, value in volume.items() if key != "name" and value is not None]
        if kinds not in ([], ["emptyDir"]):
            raise DeployFailed(
                f"resource_spec: the volume {volume['name']!r} is of type {kinds[0]}, which Kubernetes gives; "
                "containers on one machine have emptyDir volumes only"
            )
    mounts = resources.get("volume_mounts") or []
    names = [mount["name"] for mount in mounts]
    for mount in mounts:
        special = [key for key in ("subPath", "subPathExpr", "mountPropagation") if mount.get(key)]
        path = mount["mountPath"]
        if special or names.count(mount["name"]) > 1:
            what = special[0] if special else "a second mount of it"
            raise DeployFailed(f"resource_spec: the volume {mount['name']!r} is mounted with {what}, as Kubernetes can")
        if not path.startswith("/") or path == "/" or any(c in path for c in ',:"\n') or ".." in path.split("/"):
            raise DeployFailed(f"resource_spec: {path!r} is no path that a volume can be mounted at")
    return [Scratch(mount["mountPath"], bool(mount.get("readOnly"))) for mount in mounts]
