"""The objects of a deployment on its cluster: kinds, names, labels, owner and address.

Every object carries the two labels of `owned_by`. The listener never changes or removes any other object.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

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
# Kinds of operators that a cluster may lack. A listener without the right to them makes none.
OPTIONAL_KINDS: dict[str, tuple[str, str, str]] = {
    "Cluster": ("postgresql.cnpg.io", "v1", "clusters"),
    "ScheduledBackup": ("postgresql.cnpg.io", "v1", "scheduledbackups"),
    "ScaledObject": ("keda.sh", "v1alpha1", "scaledobjects"),
    "HTTPRoute": ("gateway.networking.k8s.io", "v1", "httproutes"),
}
ALL_KINDS = {**OPTIONAL_KINDS, **KINDS}
# Objects with a deployment's data, which are only deleted together with the deployment.
DATA_KINDS = frozenset({"Secret", "PersistentVolumeClaim", "Cluster"})
DATA_COMPONENTS = frozenset({"postgres"})
MANAGER = "portside"
MANAGED_BY, COMPONENT, INSTANCE = (f"app.kubernetes.io/{name}" for name in ("managed-by", "component", "instance"))
DEPLOYMENT = "portside/deployment"
REVISION = "portside/revision"
# An operator sets it on a Secret, a ConfigMap, a claim or a service account, which that workspace may name then.
WORKSPACE = "portside/workspace"
_MAX_SLUG = 24
API_PORT = 8000
CORE_API_PORT = 50054


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
        group, version, _ = ALL_KINDS[kind]
        metadata: Json = {"name": name, "namespace": self.namespace, "labels": self.build_labels(component)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)

        return {"apiVersion": f"{group}/{version}" if group else version, "kind": kind, "metadata": metadata, **body}


def is_data(manifest: Mapping[str, Any]) -> bool:
    """Whether an object has data that only the deletion of its deployment may remove."""
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] in DATA_KINDS and labels.get(COMPONENT) in DATA_COMPONENTS


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
        address = _to_address(service, custom_url or "") if has_own else Address(service, url=service)
        return replace(address, host=None)

    if has_own:
        return _to_address(service, custom_url or "")

    pattern = settings.kubernetes_ingress_url.rstrip("/")
    url = pattern.replace("*", name, 1) if "//*." in pattern else f"{pattern}/{name}"
    return _to_address(service, url)


def _to_address(service: str, url: str) -> Address:
    """Return the address of a deployment that has this public URL."""
    parts = urlsplit(url)
    return Address(service, host=parts.hostname, path=parts.path.rstrip("/"), url=url.rstrip("/"))
