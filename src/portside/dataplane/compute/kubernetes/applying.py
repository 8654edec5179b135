"""Applies the objects of a deployment to the cluster, and deletes them.

Applying is idempotent. Objects to remove are found by their owner's labels, in the namespaces that this listener may
use; other objects are never touched. All functions raise ClusterUnavailable and ClusterRefused.
"""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Collection, Iterable
from uuid import UUID

from portside.dataplane.compute.kubernetes.api import ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.environment import Passwords
from portside.dataplane.compute.kubernetes.manifests import Objects
from portside.dataplane.compute.kubernetes.objects import KINDS, Json, KubernetesScope, is_data, owned_by
from portside.dataplane.compute.kubernetes.stores import PASSWORD, store_name

_DELETE_POLL_S = 1.0


async def read_passwords(api: KubernetesApi, scope: KubernetesScope) -> Passwords:
    """Return the passwords in the deployment's Secrets, and new ones for those that are missing."""
    passwords = []
    for component in ("postgres", "redis"):
        secret = await api.get("Secret", scope.namespace, store_name(scope, component))
        passwords.append(_read_password(secret) or secrets.token_urlsafe(24))

    return Passwords(*passwords)


def _read_password(secret: Json | None) -> str | None:
    data = (secret or {}).get("data") or {}
    try:
        return base64.b64decode(data.get(PASSWORD, ""), validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError):
        return None


async def apply_stores(api: KubernetesApi, objects: Objects) -> None:
    """Apply the objects of the stores."""
    for manifest in objects.stores:
        await api.apply(manifest)


async def apply_servers(api: KubernetesApi, objects: Objects) -> None:
    """Apply the objects of the servers; the number of replicas that an autoscaler has set stays."""
    scaled = {manifest["metadata"]["name"]: manifest["spec"] for manifest in objects.of_kind("HorizontalPodAutoscaler")}
    for manifest in objects.servers:
        bounds = scaled.get(manifest["metadata"]["name"])
        if manifest["kind"] == "Deployment" and bounds is not None:
            await api.apply(await _with_live_replicas(api, manifest, bounds))
        else:
            await api.apply(manifest)


async def _with_live_replicas(api: KubernetesApi, manifest: Json, bounds: Json) -> Json:
    metadata = manifest["metadata"]
    live = await api.get("Deployment", metadata["namespace"], metadata["name"])
    replicas = manifest["spec"]["replicas"] if live is None else live.get("spec", {}).get("replicas", 1)
    replicas = min(max(replicas, bounds["minReplicas"]), bounds["maxReplicas"])
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


async def prune(api: KubernetesApi, scope: KubernetesScope, names: Collection[tuple[str, str]]) -> None:
    """Delete the deployment's objects except those with these kinds and names, and except its data."""
    for manifest in await list_owned_objects(api, scope.namespace, scope.deployment_id):
        kind = manifest["kind"]
        name = manifest["metadata"]["name"]
        if (kind, name) not in names and not is_data(manifest):
            await api.delete(kind, scope.namespace, name)


async def delete_all(api: KubernetesApi, namespaces: Iterable[str], deployment_id: UUID) -> None:
    """Delete all objects of a deployment with its data, and wait until they are gone."""
    for namespace in namespaces:
        while True:
            objects = await list_owned_objects(api, namespace, deployment_id)
            for manifest in objects:
                if "deletionTimestamp" not in manifest["metadata"]:
                    await api.delete(manifest["kind"], namespace, manifest["metadata"]["name"])

            if not objects and not await api.list("Pod", namespace, owned_by(deployment_id)):
                break

            await asyncio.sleep(_DELETE_POLL_S)


async def list_owned_objects(api: KubernetesApi, namespace: str, deployment_id: UUID) -> list[Json]:
    """Return all objects of a deployment in a namespace."""
    objects = []

    # In reverse, so that entry points are deleted first: no request may reach servers that terminate.
    for kind in reversed(KINDS):
        try:
            objects += await api.list(kind, namespace, owned_by(deployment_id))
        except ClusterRefused as exc:
            # An old cluster does not know the kind, so it has no such object.
            if exc.status != 404:
                raise

    return objects
