"""The resource spec of a revision on a cluster, and the `resources` of a container."""

import msgspec

from portside.dataplane.compute.kubernetes.objects import Json
from portside.dataplane.failures import DeployFailed
from portside.listener_api import Scale

_NO_OVERRIDE = Scale()


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """The resource spec of a deployment, as the control plane sends it with every default.

    CPU is in cores, memory in MB, storage in GiB (spec: ResourceSpec). Containers and volumes have Kubernetes'
    own form. Orchestrators and executors have fields only if the graphs are executed apart from the servers.
    """

    min_scale: int = 1
    max_scale: int = 1
    cpu: float | None = None
    cpu_limit: float | None = None
    memory_mb: int | None = None
    memory_limit_mb: int | None = None
    queue_min_scale: int | None = None
    queue_max_scale: int | None = None
    queue_cpu: float | None = None
    queue_cpu_limit: float | None = None
    queue_memory_mb: int | None = None
    queue_memory_limit_mb: int | None = None
    orchestrator_min_scale: int | None = None
    orchestrator_max_scale: int | None = None
    orchestrator_cpu: float | None = None
    orchestrator_cpu_limit: float | None = None
    orchestrator_memory_mb: int | None = None
    orchestrator_memory_limit_mb: int | None = None
    executor_cpu: float | None = None
    executor_cpu_limit: float | None = None
    executor_memory_mb: int | None = None
    executor_memory_limit_mb: int | None = None
    redis_cpu: float | None = 1
    redis_cpu_limit: float | None = None
    redis_memory_mb: int | None = 2048
    redis_memory_limit_mb: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    service_account_name: str | None = None
    image_pull_secrets: list[Json] | None = None
    volumes: list[Json] | None = None
    volume_mounts: list[Json] | None = None
    init_containers: list[Json] | None = None
    sidecars: list[Json] | None = None
    db_cpu: float | None = None
    db_cpu_limit: float | None = None
    db_memory_mb: int | None = None
    db_memory_limit_mb: int | None = None
    db_storage_gi: int | None = 10
    db_max_connections: int | None = 100

    @property
    def queue_replicas(self) -> tuple[int, int]:
        """The minimum and maximum number of queue replicas; (0, 0) when the API's replicas execute the runs."""
        minimum = self.min_scale if self.queue_min_scale is None else self.queue_min_scale
        maximum = self.max_scale if self.queue_max_scale is None else self.queue_max_scale
        return minimum, max(minimum, maximum)

    @property
    def has_queue(self) -> bool:
        """Whether separate pods execute the runs."""
        return self.queue_replicas[1] > 0

    @property
    def has_executors(self) -> bool:
        """Whether orchestrators and executors take the place of the queue."""
        return self.has_queue and self.orchestrator_max_scale is not None


def read_resources(spec: Json, scale: Scale = _NO_OVERRIDE) -> Resources:
    """Return the spec of a revision; `scale` overrides its replica bounds. Raises DeployFailed for an invalid spec."""
    try:
        fields = {**_without_nulls(spec), **_without_nulls(msgspec.structs.asdict(scale))}
        return msgspec.convert(fields, Resources)
    except msgspec.ValidationError as exc:
        raise DeployFailed(f"source_config.resource_spec: {exc}") from exc


def _without_nulls(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def build_container_resources(
    cpu: float | None, cpu_limit: float | None, memory: int | None, memory_limit: int | None
) -> Json:
    """Return a container's `resources`: CPU in cores, memory in MB; None sets nothing."""
    requests = _build_quantities(cpu, memory)
    limits = _build_quantities(cpu_limit, memory_limit)
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _build_quantities(cpu: float | None, memory_mb: int | None) -> dict[str, str]:
    amounts = {}
    if cpu is not None:
        amounts["cpu"] = f"{round(cpu * 1000)}m"

    if memory_mb is not None:
        amounts["memory"] = f"{memory_mb}Mi"

    return amounts
