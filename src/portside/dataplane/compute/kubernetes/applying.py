"""Making a deployment's objects true on the cluster, and removing what is not wanted any more.

Applying may be repeated at any time. What is removed is found by its owner's labels, in the namespaces that this
listener may use; other people's objects are never looked at.
"""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from portside.dataplane.compute.kubernetes.api import ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.environment import Passwords
from portside.dataplane.compute.kubernetes.manifests import Objects
from portside.dataplane.compute.kubernetes.objects import KINDS, Place, is_data, owned_by
from portside.dataplane.compute.kubernetes.stores import PASSWORD, store_name

Json = dict[str, Any]

_GONE_POLL_S = 1.0


async def read_passwords(api: KubernetesApi, place: Place) -> Passwords:
    """Return the passwords that the deployment's Secrets hold, new ones where there are none.

    Raises ClusterAway and ClusterRefused.
    """
    found = []
    for component in ("postgres", "redis"):
        secret = await api.get("Secret", place.namespace, store_name(place, component))
        found.append(_password(secret) or secrets.token_urlsafe(24))
    return Passwords(*found)


async def apply_stores(api: KubernetesApi, objects: Objects) -> None:
    """Make the stores as they are wanted. Raises ClusterAway and ClusterRefused."""
    for manifest in objects.stores:
        await api.apply(manifest)


async def apply_servers(api: KubernetesApi, objects: Objects) -> None:
    """Make the servers as they are wanted; an autoscaler's number of replicas stays. As `apply_stores`."""
    scaled = {manifest["metadata"]["name"]: manifest["spec"] for manifest in objects.of_kind("HorizontalPodAutoscaler")}
    for manifest in objects.servers:
        bounds = scaled.get(manifest["metadata"]["name"])
        if manifest["kind"] == "Deployment" and bounds is not None:
            await api.apply(await _as_scaled(api, manifest, bounds))
        else:
            await api.apply(manifest)


async def prune(api: KubernetesApi, place: Place, kept: Iterable[tuple[str, str]]) -> None:
    """Remove the deployment's objects but those kept, by kind and name; its data stays. As `apply_stores`."""
    kept = set(kept)
    for manifest in await owned_objects(api, place.namespace, place.deployment_id):
        name = manifest["metadata"]["name"]
        if (manifest["kind"], name) not in kept and not is_data(manifest):
            await api.delete(manifest["kind"], place.namespace, name)


async def remove_all(api: KubernetesApi, namespaces: Iterable[str], deployment_id: UUID) -> None:
    """Remove everything of a deployment with its data, and wait until it is gone. As `apply_stores`."""
    for namespace in namespaces:
        while True:
            found = await owned_objects(api, namespace, deployment_id)
            for manifest in found:
                if "deletionTimestamp" not in manifest["metadata"]:
                    await api.delete(manifest["kind"], namespace, manifest["metadata"]["name"])
            if not found and not await api.list("Pod", namespace, owned_by(deployment_id)):
                break
            await asyncio.sleep(_GONE_POLL_S)


async def owned_objects(api: KubernetesApi, namespace: str, deployment_id: UUID) -> list[Json]:
    """Return all objects of a deployment in a namespace. As `apply_stores`."""
    found = []
    # What is in front goes first: no request must reach servers that are leaving.
    for kind in reversed(KINDS):
        try:
            found += await api.list(kind, namespace, owned_by(deployment_id))
        except ClusterRefused as exc:
            # An older cluster does not know the kind, so there is nothing of it.
            if exc.status != 404:
                raise
    return found


async def _as_scaled(api: KubernetesApi, manifest: Json, bounds: Json) -> Json:
    """Return the Deployment with the replicas that its autoscaler has given it."""
    metadata = manifest["metadata"]
    live = await api.get("Deployment", metadata["namespace"], metadata["name"])
    replicas = manifest["spec"]["replicas"] if live is None else live.get("spec", {}).get("replicas", 1)
    within = min(max(replicas, bounds["minReplicas"]), bounds["maxReplicas"])
    return {**manifest, "spec": {**manifest["spec"], "replicas": within}}


def _password(secret: Json | None) -> str | None:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(PASSWORD, ""), validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError):
        return None
