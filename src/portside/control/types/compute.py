"""What an image deployment may ask of its compute: ResourceSpec, ListenerConfig and the container types inside.

Field names and bounds follow the spec ("ResourceSpec", "Nested container types") and section 3.5 of the contract:
CPU counts may be fractions there. Rules between fields and defaults are not here; nothing runs images yet.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$(?!\n)"

Cpu = Annotated[int, Meta(ge=1, le=8)] | Annotated[float, Meta(ge=0.1, le=8)]
CpuLimit = Annotated[int, Meta(ge=1, le=16)] | Annotated[float, Meta(ge=0.1, le=16)]
DatabaseCpu = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=0.1)]
Count = Annotated[int, Meta(ge=0, le=1000)]
Amount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Label = Annotated[str, Meta(pattern=DNS_LABEL)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class LocalObjectReference(msgspec.Struct):
    """A secret of the same namespace, by name."""

    name: Text


class Volume(msgspec.Struct, rename="camel"):
    """A volume of the pod; its source is passed on as it is."""

    name: Label
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    persistent_volume_claim: dict[str, Any] | None = None
    nfs: dict[str, Any] | None = None
    projected: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")
    csi: dict[str, Any] | None = None


class VolumeMount(msgspec.Struct, rename="camel"):
    """Where a volume appears in a container."""

    name: Text
    mount_path: Text
    sub_path: str | None = None
    mount_propagation: str | None = None
    read_only: bool | None = None
    sub_path_expr: str | None = None


class EnvVar(msgspec.Struct, rename="camel"):
    """An environment variable of a container."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")]
    value: str = ""
    value_from: dict[str, Any] | None = None


class ResourceRequirements(msgspec.Struct):
    """The least and the most compute of a container."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class Container(msgspec.Struct, rename="camel"):
    """A container that runs before or beside the main one."""

    name: Label
    image: Text
    image_pull_policy: Literal["Always", "Never", "IfNotPresent"] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str | None = None
    env: list[EnvVar] | None = None
    env_from: list[dict[str, Any]] | None = None
    resources: ResourceRequirements | None = None
    volume_mounts: list[VolumeMount] | None = None
    security_context: dict[str, Any] | None = None
    restart_policy: Literal["Always", "OnFailure"] | None = None


class ResourceSpec(msgspec.Struct):
    """Replicas, CPU, memory and pod settings of an image deployment."""

    min_scale: Count | None = None
    max_scale: Count | None = None
    cpu: Cpu | None = None
    cpu_limit: CpuLimit | None = None
    memory_mb: Amount | None = None
    memory_limit_mb: Amount | None = None
    queue_min_scale: Count | None = None
    queue_max_scale: Count | None = None
    queue_cpu: Cpu | None = None
    queue_cpu_limit: CpuLimit | None = None
    queue_memory_mb: Amount | None = None
    queue_memory_limit_mb: Amount | None = None
    orchestrator_cpu: Cpu | None = None
    orchestrator_cpu_limit: CpuLimit | None = None
    orchestrator_memory_mb: Amount | None = None
    orchestrator_memory_limit_mb: Amount | None = None
    orchestrator_min_scale: Count | None = None
    orchestrator_max_scale: Count | None = None
    executor_cpu: Cpu | None = None
    executor_cpu_limit: CpuLimit | None = None
    executor_memory_mb: Amount | None = None
    executor_memory_limit_mb: Amount | None = None
    redis_cpu: Cpu | None = None
    redis_cpu_limit: CpuLimit | None = None
    redis_memory_mb: Amount | None = None
    redis_memory_limit_mb: Amount | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    service_account_name: Text | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None
    volumes: list[Volume] | None = None
    volume_mounts: list[VolumeMount] | None = None
    init_containers: list[Container] | None = None
    sidecars: list[Container] | None = None
    db_cpu: DatabaseCpu | None = None
    db_cpu_limit: DatabaseCpu | None = None
    db_memory_mb: Amount | None = None
    db_memory_limit_mb: Amount | None = None
    db_storage_gi: Amount | None = None
    db_max_connections: Amount | None = None


class ListenerConfig(msgspec.Struct):
    """Where a Kubernetes listener puts the deployment."""

    k8s_namespace: Label | None = None
