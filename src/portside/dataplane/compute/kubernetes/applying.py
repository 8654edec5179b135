"""Applies the objects of a deployment to the cluster, and deletes them.

Applying is idempotent. Objects to remove are found by their owner's labels, in the namespaces that this listener may
use; other objects are never touched. `repairs.py` knows how one object is applied that somebody has changed.

A rollout ends with the first object that the cluster refuses. The repair of a deployment that serves goes on with the
others, and returns what was refused.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from portside.dataplane.compute.kubernetes.api import ClusterDenied, ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.manifests import Objects
from portside.dataplane.compute.kubernetes.objects import (
    ALL_KINDS,
    OPTIONAL_KINDS,
    Json,
    KubernetesScope,
    is_data,
    owned_by,
)
from portside.dataplane.compute.kubernetes.repairs import OnNote, apply_object
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_DELETE_POLL_S = 1.0


@dataclass
class Repair:
    """What a repair found: the objects as they are now, what was changed back, and what the cluster refused."""

    objects: list[Json] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


async def apply_stores(api: KubernetesApi, objects: Objects, on_note: OnNote) -> None:
    """Apply the objects of the stores. Raises ClusterUnavailable and ClusterRefused."""
    for manifest in objects.stores:
        await apply_object(api, manifest, on_note)


async def apply_servers(api: KubernetesApi, objects: Objects, on_note: OnNote) -> None:
    """Apply the objects of the servers; the number of replicas that an autoscaler has set stays.

    Raises ClusterUnavailable and ClusterRefused.
    """
    for manifest in objects.servers:
        await _apply_scaled(api, objects, manifest, on_note)


async def repair(api: KubernetesApi, objects: Objects) -> Repair:
    """Apply every object on its own, and remove those that are no longer needed. Raises ClusterUnavailable.

    A Deployment is left as it is when the cluster refused a Secret that its new pods would need.
    """
    result = Repair()
    lacks_secret = False
    for manifest in (*objects.stores, *objects.servers):
        kind = manifest["kind"]
        if kind == "Deployment" and lacks_secret:
            continue

        try:
            result.objects.append(await _apply_scaled(api, objects, manifest, result.notes.append))
        except (ClusterDenied, ClusterRefused) as exc:
            result.refusals.append(str(exc))
            lacks_secret |= kind == "Secret"

    try:
        await prune(api, objects.scope, objects.names)
    except (ClusterDenied, ClusterRefused) as exc:
        result.refusals.append(str(exc))

    result.refusals += _describe_failed_controllers(result.objects)
    return result


async def _apply_scaled(api: KubernetesApi, objects: Objects, manifest: Json, on_note: OnNote) -> Json:
    name = manifest["metadata"]["name"]
    bounds = objects.bounds.get(name)
    if manifest["kind"] == "Deployment" and bounds is not None:
        manifest = await _with_live_replicas(api, manifest, bounds)
    elif manifest["kind"] == "ScaledObject":
        # KEDA scales nothing that another autoscaler has.
        await api.delete("HorizontalPodAutoscaler", objects.scope.namespace, name)

    return await apply_object(api, manifest, on_note)


async def _with_live_replicas(api: KubernetesApi, manifest: Json, bounds: tuple[int, int]) -> Json:
    metadata = manifest["metadata"]
    live = await api.get("Deployment", metadata["namespace"], metadata["name"])
    replicas = manifest["spec"]["replicas"] if live is None else live.get("spec", {}).get("replicas", 1)
    replicas = min(max(replicas, bounds[0]), bounds[1])
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


def _describe_failed_controllers(objects: Iterable[Json]) -> Iterator[str]:
    """Yield why the cluster creates no pods for a workload, such as a quota."""
    for live in objects:
        for condition in (live.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                yield f"{live['kind']} {live['metadata']['name']}: its pods cannot be created: {condition['message']}"


async def prune(api: KubernetesApi, scope: KubernetesScope, names: Collection[tuple[str, str]]) -> None:
    """Delete the deployment's objects except those with these kinds and names, and except its data."""
    for manifest in await list_owned_objects(api, scope.namespace, scope.deployment_id):
        kind = manifest["kind"]
        name = manifest["metadata"]["name"]
        # What has an owner was made by an operator of the cluster, for an object that is listed by itself.
        is_operators = bool(manifest["metadata"].get("ownerReferences"))
        if (kind, name) not in names and not is_data(manifest) and not is_operators:
            await api.delete(kind, scope.namespace, name)


async def delete_all(api: KubernetesApi, namespaces: Iterable[str], own_namespace: str, deployment_id: UUID) -> None:
    """Delete all objects of a deployment with its data, and wait until they are gone.

    It may have been in another namespace once. One of those that does not exist, or that the listener may no longer
    use, keeps nothing from being deleted: only the deployment's own must answer.
    """
    for namespace in namespaces:
        try:
            await _delete_in(api, namespace, deployment_id)
        except (ClusterDenied, ClusterRefused) as exc:
            if namespace == own_namespace:
                raise ClusterDenied(
                    f"the namespace {namespace} of a deleted deployment cannot be searched for objects: {exc}; give "
                    "the listener its Role there, or if the namespace is gone, take it out of KUBERNETES_NAMESPACES"
                ) from exc

            log.warning(
                "a namespace cannot be searched for objects of a deleted deployment",
                deployment=str(deployment_id),
                namespace=namespace,
                error=str(exc),
            )


async def _delete_in(api: KubernetesApi, namespace: str, deployment_id: UUID) -> None:
    while True:
        objects = await list_owned_objects(api, namespace, deployment_id)
        for manifest in objects:
            if "deletionTimestamp" not in manifest["metadata"]:
                await api.delete(manifest["kind"], namespace, manifest["metadata"]["name"])

        if not objects and not await api.list("Pod", namespace, owned_by(deployment_id)):
            return

        await asyncio.sleep(_DELETE_POLL_S)


async def list_owned_objects(api: KubernetesApi, namespace: str, deployment_id: UUID) -> list[Json]:
    """Return all objects of a deployment in a namespace. Raises ClusterUnavailable and ClusterRefused."""
    objects = []

    # In reverse, so that entry points are deleted first: no request may reach servers that terminate.
    for kind in reversed(ALL_KINDS):
        try:
            objects += await api.list(kind, namespace, owned_by(deployment_id))
        except ClusterRefused as exc:
            # The cluster does not know the kind, so it has no such object.
            if exc.status != 404:
                raise
        except ClusterDenied:
            # Without the right to the kind of an operator, the listener made no such object.
            if kind not in OPTIONAL_KINDS:
                raise

    return objects
