"""What a deployment asks of its cluster: the ResourceSpec, as the control plane hands it on with every default.

Units: CPU in cores, memory in MB, storage in GiB (spec: ResourceSpec). The fields that the contract marks "do not use"
are refused by the control plane and unknown here.
"""

from typing import Any

import msgspec

from portside.dataplane.failures import DeployFailed
from portside.dataplane.types import ScaleBounds

Json = dict[str, Any]
_AS_SPECIFIED = ScaleBounds()


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment's replicas, sizes and pod settings; containers and volumes are in Kubernetes' own form."""

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
        """The least and the most replicas of the queue; (0, 0) when the API's replicas execute the runs."""
        least = self.min_scale if self.queue_min_scale is None else self.queue_min_scale
        most = self.max_scale if self.queue_max_scale is None else self.queue_max_scale
        return least, max(least, most)

    @property
    def has_queue(self) -> bool:
        """Whether runs are executed by pods of their own."""
        return self.queue_replicas[1] > 0


def read_resources(spec: Json, scale: ScaleBounds = _AS_SPECIFIED) -> Resources:
    """Return the spec of a revision; `scale` wins over what it says of replicas.

    Raises DeployFailed for a spec that this listener does not understand.
    """
    try:
        return msgspec.convert({**_said(spec), **_said(msgspec.structs.asdict(scale))}, Resources)
    except msgspec.ValidationError as exc:
        raise DeployFailed(f"source_config.resource_spec: {exc}") from exc


def _said(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def compute_of(cpu: float | None, cpu_limit: float | None, memory: int | None, memory_limit: int | None) -> Json:
    """Return a container's `resources`: CPU in cores, memory in MB; what is None is left open."""
    requests = _quantities(cpu, memory)
    limits = _quantities(cpu_limit, memory_limit)
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _quantities(cpu: float | None, memory_mb: int | None) -> dict[str, str]:
    amounts = {}
    if cpu is not None:
        amounts["cpu"] = f"{round(cpu * 1000)}m"
    if memory_mb is not None:
        amounts["memory"] = f"{memory_mb}Mi"
    return amounts
