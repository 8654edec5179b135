"""The rights of a listener in a namespace with deployments, each with its reason.

The Role of `portside manifests` has these and no others. It is a Role in each namespace: no right is cluster-wide.
docs/guides/kubernetes.md has the same table, and a test compares both with a list of its own.
"""

from collections.abc import Iterable
from typing import NamedTuple

from portside.dataplane.compute.kubernetes.objects import KINDS, OPTIONAL_KINDS

_OWN = "get, list, create, patch, delete"


class Right(NamedTuple):
    """What a listener may do with a resource of an API group, and why."""

    group: str
    resource: str
    verbs: str
    reason: str


_REASONS = {
    "secrets": "variables of deployments and passwords of their stores; it can read every Secret there",
    "persistentvolumeclaims": "the disks of their databases",
    "services": "their addresses in the cluster",
    "networkpolicies": "who may connect to their stores",
    "statefulsets": "their Postgres and Redis",
    "deployments": "their servers",
    "horizontalpodautoscalers": "their autoscalers",
    "poddisruptionbudgets": "one of several replicas stays during maintenance",
    "ingresses": "their public addresses",
    "scaledobjects": "their autoscalers, with --keda only",
    "clusters": "their databases where CloudNativePG makes them",
    "scheduledbackups": "the backups of these",
    "httproutes": "their public addresses at a gateway of the Gateway API",
}

RIGHTS = (
    *(Right(group, plural, _OWN, _REASONS[plural]) for group, _, plural in KINDS.values()),
    Right("", "pods", "list, delete", "their state; a pod of a store that can never start is deleted"),
    Right("", "pods/log", "get", "the output of deployments in their logs"),
    Right("", "pods/proxy", "get", "the metrics of agent servers, such as the length of their queue"),
    Right("", "events", "list", "why pods do not start"),
    Right("", "configmaps", "get", "the label by which an operator lets a workspace name one"),
    Right("", "serviceaccounts", "get", "the same"),
    Right("coordination.k8s.io", "leases", "get, create, update", "one listener at a time works for a compute id"),
)


# Of operators that a cluster may lack; the Role has them only if that is asked for.
OPTIONAL_RIGHTS = {
    kind: Right(group, plural, _OWN, _REASONS[plural]) for kind, (group, _, plural) in OPTIONAL_KINDS.items()
}


def list_rights(operator_kinds: Iterable[str] = ()) -> list[Right]:
    """Return the rights of a listener that makes objects of these operators' kinds."""
    return [*RIGHTS, *(OPTIONAL_RIGHTS[kind] for kind in operator_kinds)]
