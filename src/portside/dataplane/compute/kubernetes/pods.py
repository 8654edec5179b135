"""The pods of a deployment's servers: API and queue, which differ in their tier and their size alone."""

import math
from dataclasses import dataclass
from typing import Any

from portside.dataplane.compute.kubernetes.addresses import API_PORT
from portside.dataplane.compute.kubernetes.environment import Surroundings, container_environment
from portside.dataplane.compute.kubernetes.objects import Place
from portside.dataplane.compute.kubernetes.resources import Resources, compute_of
from portside.dataplane.failures import DeployFailed
from portside.dataplane.types import DesiredRevision

Json = dict[str, Any]

CONTAINER = "api-server"
# Requests still arrive while the word goes round the cluster that a pod is leaving.
_LEAVING_S = 5
_MARGIN_S = 30
_STARTUP_PERIOD_S = 2


@dataclass(frozen=True)
class Part:
    """One of the two deployments of servers: `tier` is what its pods do; scale is (least, most) replicas."""

    component: str
    tier: str
    scale: tuple[int, int]
    compute: Json


def parts_of(resources: Resources) -> list[Part]:
    """Return the API, and the queue where it has pods of its own."""
    size = compute_of(resources.cpu, resources.cpu_limit, resources.memory_mb, resources.memory_limit_mb)
    scale = (resources.min_scale, max(resources.min_scale, resources.max_scale))
    if not resources.has_queue:
        return [Part("api", "all", scale, size)]
    queue = compute_of(
        resources.queue_cpu, resources.queue_cpu_limit, resources.queue_memory_mb, resources.queue_memory_limit_mb
    )
    return [Part("api", "api", scale, size), Part("queue", "queue", resources.queue_replicas, queue)]


@dataclass(frozen=True)
class Pods:
    """What the pods of all parts share; `secret` names the Secret with their variables."""

    place: Place
    revision: DesiredRevision
    resources: Resources
    surroundings: Surroundings
    secret: str


def pod_template(pods: Pods, part: Part) -> Json:
    """Return the template of a part's pods. Raises DeployFailed for what cannot be a pod."""
    place, revision, resources, surroundings = pods.place, pods.revision, pods.resources, pods.surroundings
    metadata: Json = {"labels": place.labels_of(part.component, revision.id)}
    if place.annotations:
        metadata["annotations"] = dict(place.annotations)
    sidecars = [_container(sidecar) for sidecar in resources.sidecars or []]
    spec: Json = {
        # One that restarts by itself is Kubernetes' own kind of sidecar: up before the server, down after it.
        "initContainers": [
            *(sidecar for sidecar in sidecars if sidecar.get("restartPolicy") == "Always"),
            *(_container(container) for container in resources.init_containers or []),
        ],
        "containers": [
            _server(pods, part),
            *(sidecar for sidecar in sidecars if sidecar.get("restartPolicy") != "Always"),
        ],
        "volumes": resources.volumes,
        "imagePullSecrets": resources.image_pull_secrets,
        "serviceAccountName": resources.service_account_name,
        # Agents have no business with the API server, but for those that were given an account to speak to it.
        "automountServiceAccountToken": resources.service_account_name is not None,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(surroundings.grace_s + _LEAVING_S + _MARGIN_S),
        "topologySpreadConstraints": [_spread(place, part.component)],
    }
    return {"metadata": metadata, "spec": {name: value for name, value in spec.items() if value not in (None, [])}}


def _server(pods: Pods, part: Part) -> Json:
    if not pods.revision.image_uri:
        raise DeployFailed("the revision names no image")
    probe = {
        "httpGet": {"path": "/ok", "port": "http"},
        "periodSeconds": 15,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
    }
    container: Json = {
        "name": CONTAINER,
        "image": pods.revision.image_uri,
        "ports": [{"name": "http", "containerPort": API_PORT, "protocol": "TCP"}],
        "envFrom": [{"secretRef": {"name": pods.secret}}],
        "env": container_environment(pods.revision, pods.surroundings, part.tier),
        "resources": part.compute,
        "volumeMounts": pods.resources.volume_mounts,
        "livenessProbe": probe,
        "readinessProbe": probe,
        # Liveness waits for as long as a start takes; readiness of a short start must not wait for a long period.
        "startupProbe": {
            **probe,
            "periodSeconds": _STARTUP_PERIOD_S,
            "failureThreshold": math.ceil(pods.surroundings.starting_s / _STARTUP_PERIOD_S),
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVING_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {name: value for name, value in container.items() if value not in (None, [], {})}


def _container(given: Json) -> Json:
    """Return a container of the user's. Raises DeployFailed when it takes our own's name."""
    if given.get("name") == CONTAINER:
        raise DeployFailed(f"source_config.resource_spec: no other container may be named {CONTAINER}")
    return given


def _spread(place: Place, component: str) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": place.selector_of(component)},
    }
