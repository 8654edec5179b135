"""Objects of a deployment on its cluster: their kinds, names, labels and owner.

Everything that is made carries the two labels of `owned_by`; nothing else is ever changed or removed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

Json = dict[str, Any]

# Kind → API group, version, plural.
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
# What holds a deployment's data: it goes with the deployment and never before.
DATA_KINDS = frozenset({"Secret", "PersistentVolumeClaim"})
DATA_COMPONENTS = frozenset({"postgres"})

MANAGER = "portside"
MANAGED_BY, COMPONENT, INSTANCE = (f"app.kubernetes.io/{name}" for name in ("managed-by", "component", "instance"))
DEPLOYMENT, REVISION = "portside/deployment", "portside/revision"
_MAX_SLUG = 24


def owned_by(deployment_id: UUID) -> dict[str, str]:
    """Return the labels that say whose an object is."""
    return {MANAGED_BY: MANAGER, DEPLOYMENT: str(deployment_id)}


def object_name(name: str, deployment_id: UUID) -> str:
    """Return what the objects of a deployment are called: a DNS label of at most 37 characters, unique to it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_MAX_SLUG].strip("-")
    if not slug[:1].isalpha():
        slug = f"agent-{slug}"[:_MAX_SLUG].strip("-")
    # The end of the id: its beginning is the time, which deployments made together share.
    return f"{slug}-{deployment_id.hex[-12:]}"


@dataclass(frozen=True)
class Place:
    """Where a deployment's objects are and what they share."""

    deployment_id: UUID
    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def labels_of(self, component: str, revision_id: UUID | None = None) -> dict[str, str]:
        """Return all labels of an object; the user's never replace those that say whose it is."""
        own = {**owned_by(self.deployment_id), INSTANCE: self.name, COMPONENT: component}
        if revision_id is not None:
            own[REVISION] = str(revision_id)
        return {**self.labels, **own}

    def selector_of(self, component: str) -> dict[str, str]:
        """Return the labels by which a component's pods are found, the same for all revisions."""
        return {DEPLOYMENT: str(self.deployment_id), COMPONENT: component}

    def manifest(self, kind: str, name: str, component: str, body: Json) -> Json:
        """Return an object of the deployment."""
        group, version, _ = KINDS[kind]
        metadata: Json = {"name": name, "namespace": self.namespace, "labels": self.labels_of(component)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        return {"apiVersion": f"{group}/{version}" if group else version, "kind": kind, "metadata": metadata, **body}


def is_data(manifest: Mapping[str, Any]) -> bool:
    """Whether an object holds what only the end of its deployment may remove."""
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] in DATA_KINDS and labels.get(COMPONENT) in DATA_COMPONENTS
