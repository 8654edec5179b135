"""The resource spec of image deployments: checks between its fields, and defaults.

The database stores the spec as the user sent it; `with_defaults` completes it whenever it is shown or used.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from portside.control.errors import BadCombination
from portside.control.types import Container, ResourceSpec

SCALE = 1
CPU = 1
MEMORY_MB = 2048
# The resources of built deployments by their type; without a type the defaults apply.
_SMALL = {"min_scale": 1, "max_scale": 1, "cpu": 1, "memory_mb": 1024}
_BY_TYPE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("dev", "dev_free", "dev_zero", "dev_free_zero"), _SMALL),
    "prod": {"min_scale": 1, "max_scale": 10, "cpu": 2, "memory_mb": 2048},
}
_WHERE = "source_config.resource_spec"
# The fields of servers that execute their graphs in separate executors. Each of them asks for such servers.
_EXECUTOR_PARTS = ("orchestrator_", "executor_")
_RANGES = (
    ("min_scale", "max_scale"),
    ("queue_min_scale", "queue_max_scale"),
    ("cpu", "cpu_limit"),
    ("memory_mb", "memory_limit_mb"),
    ("queue_cpu", "queue_cpu_limit"),
    ("queue_memory_mb", "queue_memory_limit_mb"),
    ("orchestrator_min_scale", "orchestrator_max_scale"),
    ("orchestrator_cpu", "orchestrator_cpu_limit"),
    ("orchestrator_memory_mb", "orchestrator_memory_limit_mb"),
    ("executor_cpu", "executor_cpu_limit"),
    ("executor_memory_mb", "executor_memory_limit_mb"),
    ("redis_cpu", "redis_cpu_limit"),
    ("redis_memory_mb", "redis_memory_limit_mb"),
    ("db_cpu", "db_cpu_limit"),
    ("db_memory_mb", "db_memory_limit_mb"),
)
_LIMITS = dict(_RANGES)
# Fields that only a container that keeps running can have, and their names in a request.
_OF_RUNNING_CONTAINERS = {
    "startup_probe": "startupProbe",
    "readiness_probe": "readinessProbe",
    "liveness_probe": "livenessProbe",
    "lifecycle": "lifecycle",
}
# The ports of the server's own container on a cluster, by their names.
_SERVER_PORTS = {"http": 8000, "grpc": 50054}


def check_resources(spec: ResourceSpec) -> None:
    """Check a spec's fields against each other. Raises BadCombination."""
    for name in ("min_scale", "queue_min_scale", "orchestrator_min_scale"):
        if getattr(spec, name) == 0:
            raise BadCombination(f"{_WHERE}.{name} must be at least 1: images are not scaled to zero.")

    complete = with_defaults(to_stored_fields(spec))
    if _has_executors(complete) and not complete["queue_max_scale"]:
        raise BadCombination(
            f"{_WHERE}.queue_max_scale must be at least 1 with orchestrator_* or executor_*: it bounds the executors."
        )

    for least, most in _RANGES:
        if least in complete and complete[least] > complete[most]:
            raise BadCombination(
                f"{_WHERE}.{least} must not be greater than {most}: {complete[least]} > {complete[most]}."
            )

    _check_pod(spec)


def to_stored_fields(spec: ResourceSpec) -> dict[str, Any]:
    """Return the fields of a spec that its row stores: no nulls, CPU counts rounded to one decimal."""
    fields = _without_nulls(msgspec.to_builtins(spec))
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in fields.items()}


def with_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Complete a spec: one replica with 1 CPU and 2 GB, queue like API, limits twice the requests.

    The default of a request is never greater than the limit that is given for it. Orchestrators and executors get
    defaults only if one of their fields is given.
    """
    spec = {"min_scale": SCALE, **fields}
    for name, default in (("cpu", CPU), ("memory_mb", MEMORY_MB)):
        spec.setdefault(name, min(default, spec.get(_LIMITS[name], default)))

    spec.setdefault("max_scale", max(SCALE, spec["min_scale"]))
    spec.setdefault("queue_max_scale", max(spec["max_scale"], spec.get("queue_min_scale", 0)))
    spec.setdefault("queue_min_scale", min(spec["min_scale"], spec["queue_max_scale"]))

    for name in ("cpu", "memory_mb"):
        limit = spec.get(_LIMITS[f"queue_{name}"], spec[name])
        spec.setdefault(f"queue_{name}", min(spec[name], limit))

    if _has_executors(spec):
        _complete_executors(spec)

    for name in ("cpu", "queue_cpu", "orchestrator_cpu", "executor_cpu", "redis_cpu", "db_cpu"):
        if name in spec:
            spec.setdefault(f"{name}_limit", round(2 * spec[name], 1))

    for part in ("", "queue_", *_EXECUTOR_PARTS, "db_"):
        if f"{part}memory_mb" in spec:
            spec.setdefault(f"{part}memory_limit_mb", 2 * spec[f"{part}memory_mb"])

    if "redis_memory_mb" in spec:
        spec.setdefault("redis_memory_limit_mb", spec["redis_memory_mb"])

    return spec


def _has_executors(spec: dict[str, Any]) -> bool:
    return any(name.startswith(_EXECUTOR_PARTS) for name in spec)


def _complete_executors(spec: dict[str, Any]) -> None:
    """Complete the fields of orchestrators and executors: one orchestrator, each as large as a replica of the queue."""
    spec.setdefault("orchestrator_max_scale", max(SCALE, spec.get("orchestrator_min_scale", SCALE)))
    spec.setdefault("orchestrator_min_scale", min(SCALE, spec["orchestrator_max_scale"]))

    for part in _EXECUTOR_PARTS:
        for name in ("cpu", "memory_mb"):
            queue_value = spec[f"queue_{name}"]
            limit = spec.get(_LIMITS[f"{part}{name}"], queue_value)
            spec.setdefault(f"{part}{name}", min(queue_value, limit))


def complete_resources(deployment_type: str | None, fields: dict[str, Any] | None) -> dict[str, Any]:
    """Return the complete spec to deploy with: an image's own, or that of a built deployment's type."""
    return with_defaults(fields or _BY_TYPE.get(deployment_type or "", {}))


def to_resource_spec(fields: dict[str, Any]) -> ResourceSpec:
    """Return a stored spec with its defaults, as the API shows it."""
    return msgspec.convert(with_defaults(fields), ResourceSpec)


def _check_pod(spec: ResourceSpec) -> None:
    """Check that names are unique in the pod and that mounts name existing volumes. Raises BadCombination."""
    containers = [*(spec.init_containers or []), *(spec.sidecars or [])]
    _check_unique("volumes", [volume.name for volume in spec.volumes or []])
    for volume in spec.volumes or []:
        sources = sorted(_without_nulls(msgspec.to_builtins(volume)).keys() - {"name"})
        if len(sources) > 1:
            raise BadCombination(
                f"{_WHERE}: the volume {volume.name} has more than one source: {', '.join(sources)}; keep one."
            )

    _check_unique("init_containers and sidecars", [container.name for container in containers])
    volumes = {volume.name for volume in spec.volumes or []}
    for mount in _list_mounts(spec, containers):
        if mount not in volumes:
            raise BadCombination(
                f"{_WHERE} mounts the volume {mount}, which is not in its volumes; add it there, or remove the mount."
            )

    _check_ports(containers)
    for container in spec.init_containers or []:
        _check_runs_to_its_end(container)

    for container in containers:
        for variable in container.env or []:
            if variable.value and variable.value_from is not None:
                raise BadCombination(f"{_WHERE}: the variable {variable.name} has both value and valueFrom; keep one.")


def _check_ports(containers: Iterable[Container]) -> None:
    """Check that a port is named once in the pod, and that none is the server's. Raises BadCombination."""
    names: list[str] = []
    for container in containers:
        for port in container.ports or []:
            if port.name in _SERVER_PORTS or port.container_port in _SERVER_PORTS.values():
                raise BadCombination(
                    f"{_WHERE}: the container {container.name} has the port {port.name or port.container_port}, which "
                    "is the server's: http 8000 and grpc 50054; choose another one."
                )

            if port.name is not None:
                names.append(port.name)

    _check_unique("ports", names)


def _check_runs_to_its_end(container: Container) -> None:
    """Refuse what only a container that keeps running can have. Raises BadCombination."""
    if container.restart_policy == "Always":
        return

    for name, shown_name in _OF_RUNNING_CONTAINERS.items():
        if getattr(container, name) is not None:
            raise BadCombination(
                f"{_WHERE}: the init container {container.name} has {shown_name}, which only a container that "
                "keeps running can have; make it a sidecar, or set its restartPolicy to Always."
            )


def _list_mounts(spec: ResourceSpec, containers: Iterable[Container]) -> Iterator[str]:
    yield from (mount.name for mount in spec.volume_mounts or [])
    for container in containers:
        yield from (mount.name for mount in container.volume_mounts or [])


def _check_unique(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadCombination(f"{_WHERE}: two {kind} are named {name}; rename one.")


def _without_nulls(value: Any) -> Any:
    """Remove null fields, recursively. Null means the same as absent in Kubernetes objects too."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]

    return value
