"""The objects of a deployment on its cluster: kinds, names, labels, owner, address and resource spec.

Every object carries the two labels of `owned_by`. The listener never changes or removes any other object.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import DeployFailed
from portside.listener_api import Scale

Json = dict[str, Any]

# Kind -> API group, version, plural.
KINDS: dict[str, tuple[str, str, str]] = {
    "Secret": ("", "v1", "secrets"),
    "PersistentVolumeClaim": ("", "v1", "persistentvolumeclaims"),
    "Service": ("", "v1", "services"),
    "NetworkPolicy": ("networking.k8s.io", "v1", "networkpolicies"),
    "StatefulSet": ("apps", "v1", "statefulsets"),
    "Deployment": ("apps", "v1", "deployments"),
    "HorizontalPodAutoscaler": ("autoscaling", "v2", "horizontalpodautoscalers"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "Ingress": ("networking.k8s.io", "v1", "ingresses"),
}
# Objects with a deployment's data, which are only deleted together with the deployment.
DATA_KINDS = frozenset({"Secret", "PersistentVolumeClaim"})
DATA_COMPONENTS = frozenset({"postgres"})

MANAGER = "portside"
MANAGED_BY, COMPONENT, INSTANCE = (f"app.kubernetes.io/{name}" for name in ("managed-by", "component", "instance"))
DEPLOYMENT = "portside/deployment"
REVISION = "portside/revision"
_MAX_SLUG = 24


def owned_by(deployment_id: UUID) -> dict[str, str]:
    """Return the labels that identify the owner of an object."""
    return {MANAGED_BY: MANAGER, DEPLOYMENT: str(deployment_id)}


def object_name(name: str, deployment_id: UUID) -> str:
    """Return the name of a deployment's objects: a unique DNS label of at most 37 characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_MAX_SLUG].strip("-")
    if not slug[:1].isalpha():
        slug = f"agent-{slug}"[:_MAX_SLUG].strip("-")

    # The end of the id, because its beginning is a timestamp that deployments created together share.
    return f"{slug}-{deployment_id.hex[-12:]}"


@dataclass(frozen=True)
class KubernetesScope:
    """The name, the namespace, the labels and the annotations that all objects of a deployment share."""

    deployment_id: UUID
    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def build_labels(self, component: str, revision_id: UUID | None = None) -> dict[str, str]:
        """Return all labels of an object; the user's labels never replace those of the owner."""
        labels = {**owned_by(self.deployment_id), INSTANCE: self.name, COMPONENT: component}
        if revision_id is not None:
            labels[REVISION] = str(revision_id)

        return {**self.labels, **labels}

    def build_selector(self, component: str) -> dict[str, str]:
        """Return the labels that select a component's pods, the same for all revisions."""
        return {DEPLOYMENT: str(self.deployment_id), COMPONENT: component}

    def manifest(self, kind: str, name: str, component: str, body: Json) -> Json:
        """Return an object of the deployment; `body` has everything but its metadata."""
        group, version, _ = KINDS[kind]
        metadata: Json = {"name": name, "namespace": self.namespace, "labels": self.build_labels(component)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)

        return {"apiVersion": f"{group}/{version}" if group else version, "kind": kind, "metadata": metadata, **body}


def is_data(manifest: Mapping[str, Any]) -> bool:
    """Whether an object has data that only the deletion of its deployment may remove."""
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] in DATA_KINDS and labels.get(COMPONENT) in DATA_COMPONENTS


API_PORT = 8000
CORE_API_PORT = 50054


@dataclass(frozen=True)
class Address:
    """The address of a deployment; `host` is None without an Ingress, `path` is "" or the prefix of all routes."""

    service: str
    host: str | None = None
    path: str = ""
    url: str = ""


def build_address(name: str, namespace: str, custom_url: str | None, settings: KubernetesSettings) -> Address:
    """Return the address of the deployment with this object name.

    A deployment keeps a custom URL that it already has. Without Ingresses the operator has to route that URL.
    """
    service = f"http://{name}.{namespace}.svc.{settings.kubernetes_cluster_domain}:{API_PORT}"
    has_own = custom_url is not None and not custom_url.startswith(f"http://{name}.{namespace}.svc.")
    if settings.kubernetes_ingress_url is None:
        address = _public(service, custom_url or "") if has_own else Address(service, url=service)
        return replace(address, host=None)

    if has_own:
        return _public(service, custom_url or "")

    pattern = settings.kubernetes_ingress_url.rstrip("/")
    url = pattern.replace("*", name, 1) if "//*." in pattern else f"{pattern}/{name}"
    return _public(service, url)


def _public(service: str, url: str) -> Address:
    parts = urlsplit(url)
    return Address(service, parts.hostname, parts.path.rstrip("/"), url.rstrip("/"))


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
        return msgspec.convert({**_given(spec), **_given(msgspec.structs.asdict(scale))}, Resources)
    except msgspec.ValidationError as exc:
        raise DeployFailed(f"source_config.resource_spec: {exc}") from exc


def _given(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def container_resources(
    cpu: float | None, cpu_limit: float | None, memory: int | None, memory_limit: int | None
) -> Json:
    """Return a container's `resources`: CPU in cores, memory in MB; None sets nothing."""
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
