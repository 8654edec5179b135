"""Applies one object, also when somebody has changed it in a way that the cluster does not apply over.

Server-side apply leaves fields that others have added, and refuses what cannot be changed. So a refused object is
overwritten, and one that still cannot be changed is created anew:

- a claim never, and neither is the Secret of a database: both are data. A claim keeps its storage class, and its size
  if it is larger than the spec's;
- a StatefulSet or a Deployment without its pods, which run on and belong to the new one;
- a Service with a note that its address has changed.

Before anything is deleted, the cluster is asked whether it would create the object: a spec that it refuses costs
nothing.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from portside.dataplane.compute.kubernetes.api import ClusterRefused, ClusterUnavailable, KubernetesApi
from portside.dataplane.compute.kubernetes.objects import Json, is_data
from portside.kernel.quantities import parse_quantity

OnNote = Callable[[str], None]
_INVALID = 422
_CLAIM = "PersistentVolumeClaim"
_OWNERS_OF_PODS = frozenset({"Deployment", "StatefulSet"})
_GONE_WITHIN_S = 30.0
_GONE_POLL_S = 0.2
# Of a pod. They have no defaults that the cluster would fill in, but for an empty securityContext.
_POD_SECURITY = ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace")


async def apply_object(api: KubernetesApi, manifest: Json, on_note: OnNote) -> Json:
    """Apply an object and return it; `on_note` gets a line for each change that was not expected.

    Raises ClusterUnavailable and ClusterRefused.
    """
    if manifest["kind"] == _CLAIM:
        manifest = await _keep_claim(api, manifest, on_note)

    try:
        live = await api.apply(manifest)
    except ClusterRefused as exc:
        if exc.status != _INVALID:
            raise

        live = await _apply_over(api, manifest, exc, on_note)

    if manifest["kind"] in _OWNERS_OF_PODS:
        live = await _reset_security(api, manifest, live, on_note)

    return live


async def _keep_claim(api: KubernetesApi, manifest: Json, on_note: OnNote) -> Json:
    """Return the claim with what an existing one cannot change: its class, its modes, and a size above the spec's."""
    metadata = manifest["metadata"]
    live = await api.get(_CLAIM, metadata["namespace"], metadata["name"])
    if live is None:
        return manifest

    spec = {**manifest["spec"]}
    spec.pop("storageClassName", None)
    kept_names = ("accessModes", "storageClassName")
    spec |= {name: live["spec"][name] for name in kept_names if name in live["spec"]}

    requested = spec["resources"]["requests"]["storage"]
    existing = live["spec"]["resources"]["requests"]["storage"]
    if parse_quantity(existing) > parse_quantity(requested):
        spec["resources"] = {"requests": {"storage": existing}}
        on_note(f"The claim {metadata['name']} keeps its {existing}: claims cannot become smaller.")

    return {**manifest, "spec": spec}


async def _apply_over(api: KubernetesApi, manifest: Json, refusal: ClusterRefused, on_note: OnNote) -> Json:
    """Apply an object that the cluster refused to change. Raises the refusal when nothing helps."""
    kind = manifest["kind"]
    metadata = manifest["metadata"]
    live = await api.get(kind, metadata["namespace"], metadata["name"])
    if live is None:
        raise refusal

    try:
        await api.overwrite(manifest)
        applied = await api.apply(manifest)
    except ClusterRefused as exc:
        is_kept = kind == _CLAIM or is_data(manifest)
        if exc.status != _INVALID or is_kept or not await _is_valid(api, manifest):
            raise refusal from exc
    else:
        on_note(f"{kind} {metadata['name']} had been changed by hand and was set back: {refusal}")
        return applied

    await api.delete(kind, metadata["namespace"], metadata["name"], keep_owned=kind in _OWNERS_OF_PODS)
    await _wait_until_gone(api, live)
    applied = await api.apply(manifest)
    move = _describe_move(live, applied)
    on_note(f"{kind} {metadata['name']} could not be changed, and was created anew: {refusal}{move}")
    return applied


def _describe_move(before: Json, after: Json) -> str:
    addresses = [live.get("spec", {}).get("clusterIP") for live in (before, after)]
    if before["kind"] != "Service" or addresses[0] == addresses[1]:
        return ""

    return f". Its address changed from {addresses[0]} to {addresses[1]}; whoever uses its name notices nothing"


async def _is_valid(api: KubernetesApi, manifest: Json) -> bool:
    """Whether the cluster would create the object, under a name that is free."""
    metadata = manifest["metadata"]
    candidate = {**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-check"}}
    try:
        await api.check(candidate)
    except ClusterRefused:
        return False

    return True


async def _wait_until_gone(api: KubernetesApi, live: Json) -> None:
    metadata = live["metadata"]
    deadline = time.monotonic() + _GONE_WITHIN_S
    while time.monotonic() < deadline:
        current = await api.get(live["kind"], metadata["namespace"], metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return

        await asyncio.sleep(_GONE_POLL_S)

    raise ClusterUnavailable(f"{live['kind']} {metadata['name']} is being deleted, which takes long")


async def _reset_security(api: KubernetesApi, manifest: Json, live: Json, on_note: OnNote) -> Json:
    """Remove what somebody added to the security settings of a workload's pods."""
    patch = build_security_patch(manifest["spec"]["template"]["spec"], live["spec"]["template"]["spec"])
    if not patch:
        return live

    metadata = manifest["metadata"]
    changed = await api.merge(manifest, {"spec": {"template": {"spec": patch}}})
    on_note(
        f"{manifest['kind']} {metadata['name']} had security settings that were added by hand, and were removed: "
        f"{', '.join(sorted(_list_leaves(patch)))}"
    )
    return changed


def build_security_patch(pod: Mapping[str, Any], live: Mapping[str, Any]) -> Json:
    """Return the strategic merge that removes added security settings from a pod's spec; empty if there are none."""
    patch: Json = {name: None for name in _POD_SECURITY if live.get(name) is not None and name not in pod}
    added = _find_added(pod.get("securityContext") or {}, live.get("securityContext") or {})
    if added:
        patch["securityContext"] = added

    for kind in ("initContainers", "containers"):
        ours = {container["name"]: container for container in pod.get(kind) or ()}
        containers = []
        for container in live.get(kind) or ():
            if container["name"] not in ours:
                continue

            context = ours[container["name"]].get("securityContext") or {}
            added = _find_added(context, container.get("securityContext") or {})
            if added:
                containers.append({"name": container["name"], "securityContext": added})

        if containers:
            patch[kind] = containers

    return patch


def _find_added(ours: Mapping[str, Any], live: Mapping[str, Any]) -> Json:
    """Return a null for each field that only the live object has, and the whole value of a list that differs."""
    added: Json = {}
    for name, value in live.items():
        own = ours.get(name)
        if own is None:
            added[name] = None
        elif isinstance(value, dict):
            inner = _find_added(own, value)
            if inner:
                added[name] = inner
        elif isinstance(value, list) and value != own:
            added[name] = own

    return added


def _list_leaves(patch: Any, path: str = "") -> Iterator[str]:
    if isinstance(patch, dict):
        for name, value in patch.items():
            if name != "name":
                yield from _list_leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(patch, list) and patch and isinstance(patch[0], dict):
        for item in patch:
            yield from _list_leaves(item, f"{path}[{item['name']}]")
    else:
        yield path
