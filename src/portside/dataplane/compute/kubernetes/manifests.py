"""From a release to all that its deployment has on the cluster. Pure: the same release is the same objects.

They are applied in two steps: what has to be there first (`stores`), and what needs it (`servers`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.addresses import Address, address_of
from portside.dataplane.compute.kubernetes.environment import (
    CUSTOM_POSTGRES,
    CUSTOM_REDIS,
    Passwords,
    Surroundings,
    grace_of,
    has_own,
    postgres_url,
    redis_url,
    secret_environment,
)
from portside.dataplane.compute.kubernetes.objects import Place, object_name
from portside.dataplane.compute.kubernetes.pods import Pods
from portside.dataplane.compute.kubernetes.resources import Resources, read_resources
from portside.dataplane.compute.kubernetes.servers import entrances, environment_of, scaling, workloads
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.stores import postgres, redis, store_name
from portside.dataplane.failures import DeployFailed
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.types import DesiredDeployment

Json = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """The settings by which deployments are put on a cluster."""

    listener: ListenerSettings
    kubernetes: KubernetesSettings

    @property
    def limits(self) -> Mapping[str, float]:
        """How many seconds the pods of each part may take to become ready."""
        return {"api": self.listener.deployment_start_timeout_s, "queue": self.kubernetes.kubernetes_queue_timeout_s}


@dataclass(frozen=True)
class Objects:
    """All objects of a deployment as one release wants them."""

    place: Place
    address: Address
    # Not shown: among them are Secrets.
    stores: list[Json] = field(repr=False)
    servers: list[Json] = field(repr=False)

    @property
    def names(self) -> set[tuple[str, str]]:
        """Kind and name of each."""
        return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in (*self.stores, *self.servers)}

    def of_kind(self, kind: str) -> list[Json]:
        """Return the objects of a kind."""
        return [manifest for manifest in (*self.stores, *self.servers) if manifest["kind"] == kind]


def place_of(deployment: DesiredDeployment, resources: Resources, settings: KubernetesSettings) -> Place:
    """Return where the deployment's objects are. Raises DeployFailed for a namespace that this listener may not use."""
    namespace = deployment.k8s_namespace or settings.namespaces[0]
    if namespace not in settings.namespaces:
        raise DeployFailed(
            f"source_config.listener_config.k8s_namespace: this listener deploys to {', '.join(settings.namespaces)}, "
            f"not to {namespace}"
        )
    name = object_name(deployment.name, deployment.id)
    return Place(deployment.id, name, namespace, resources.labels or {}, resources.annotations or {})


def objects_of(release: Release, cluster: Cluster, passwords: Passwords) -> Objects:
    """Return every object that the release's deployment shall have. Raises DeployFailed for what cannot be."""
    deployment, revision, settings = release.deployment, release.revision, cluster.kubernetes
    resources = read_resources(revision.resource_spec, deployment.scale)
    place = place_of(deployment, resources, settings)
    address = address_of(place.name, place.namespace, deployment.custom_url, settings)
    stores: list[Json] = []
    urls: dict[str, str | None] = {"postgres": None, "redis": None}
    if not has_own(revision, CUSTOM_POSTGRES):
        stores += postgres(place, resources, settings, passwords.postgres)
        urls["postgres"] = postgres_url(store_name(place, "postgres"), passwords.postgres)
    if settings.kubernetes_redis and not has_own(revision, CUSTOM_REDIS):
        stores += redis(place, resources, settings, passwords.redis)
        urls["redis"] = redis_url(store_name(place, "redis"), passwords.redis)
    surroundings = Surroundings(
        address,
        urls["postgres"],
        urls["redis"],
        settings.kubernetes_platform_url or cluster.listener.control_plane_url,
        grace_of(revision, cluster.listener.stop_grace_s),
        max(cluster.limits.values()),
    )
    environment = environment_of(place, secret_environment(deployment, revision, surroundings), passwords)
    pods = Pods(place, revision, resources, surroundings, environment["metadata"]["name"])
    servers = [
        environment,
        *entrances(place, address, settings),
        *workloads(pods, cluster.limits),
        *scaling(place, resources, settings),
    ]
    return Objects(place, address, stores, servers)
