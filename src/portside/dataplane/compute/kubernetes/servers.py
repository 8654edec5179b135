"""The objects of a deployment's servers: their Secret, Deployments, autoscalers, Service and Ingress."""

from collections.abc import Mapping
from typing import Any

from portside.dataplane.compute.kubernetes.addresses import API_PORT, Address
from portside.dataplane.compute.kubernetes.environment import Passwords, digest_of, encoded
from portside.dataplane.compute.kubernetes.objects import REVISION, Place
from portside.dataplane.compute.kubernetes.pods import Part, Pods, parts_of, pod_template
from portside.dataplane.compute.kubernetes.resources import Resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

Json = dict[str, Any]

# Contract: section 8, autoscaling.
TARGET_UTILIZATION, TARGET_PENDING = 75, 10
_SCALE_DOWN_AFTER_S = 1800


def environment_of(place: Place, values: dict[str, str], passwords: Passwords) -> Json:
    """Return the Secret with the variables of a revision's pods."""
    body = {"type": "Opaque", "immutable": True, "data": encoded(values)}
    return place.manifest("Secret", f"{place.name}-env-{digest_of(values, passwords)}", "environment", body)


def workloads(pods: Pods, limits: Mapping[str, float]) -> list[Json]:
    """Return the Deployment of each part. `limits` is how many seconds each may take to become ready."""
    place, found = pods.place, []
    for part in parts_of(pods.resources):
        template = pod_template(pods, part)
        spec = {
            "replicas": part.scale[0],
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": round(limits[part.component]),
            "selector": {"matchLabels": place.selector_of(part.component)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        }
        manifest = place.manifest("Deployment", part_name(place, part.component), part.component, {"spec": spec})
        manifest["metadata"]["labels"][REVISION] = str(pods.revision.id)
        found.append(manifest)
    return found


def scaling(place: Place, resources: Resources, settings: KubernetesSettings) -> list[Json]:
    """Return what holds the number of replicas between its bounds, and keeps one of several up during maintenance."""
    found = []
    for part in parts_of(resources):
        least, most = part.scale
        if most > max(least, 1):
            found.append(_autoscaler(place, part, settings))
        if least > 1:
            spec = {"minAvailable": 1, "selector": {"matchLabels": place.selector_of(part.component)}}
            name = part_name(place, part.component)
            found.append(place.manifest("PodDisruptionBudget", name, part.component, {"spec": spec}))
    return found


def entrances(place: Place, address: Address, settings: KubernetesSettings) -> list[Json]:
    """Return the Service of the API, and its Ingress where the deployment has a public address."""
    port = {"name": "http", "port": API_PORT, "targetPort": "http", "protocol": "TCP"}
    service = {"type": "ClusterIP", "selector": place.selector_of("api"), "ports": [port]}
    found = [place.manifest("Service", place.name, "api", {"spec": service})]
    if address.host is not None:
        backend = {"service": {"name": place.name, "port": {"name": "http"}}}
        path = {"path": address.path or "/", "pathType": "Prefix", "backend": backend}
        spec: Json = {"rules": [{"host": address.host, "http": {"paths": [path]}}]}
        if settings.kubernetes_ingress_class:
            spec["ingressClassName"] = settings.kubernetes_ingress_class
        if settings.kubernetes_ingress_tls_secret:
            spec["tls"] = [{"hosts": [address.host], "secretName": settings.kubernetes_ingress_tls_secret}]
        found.append(place.manifest("Ingress", place.name, "api", {"spec": spec}))
    return found


def part_name(place: Place, component: str) -> str:
    """Return the name of a part's Deployment: the API has the deployment's own."""
    return place.name if component == "api" else f"{place.name}-{component}"


def _autoscaler(place: Place, part: Part, settings: KubernetesSettings) -> Json:
    name = part_name(place, part.component)
    metrics = [
        {"type": "Resource", "resource": {"name": kind, "target": _utilization()}}
        for kind in ("cpu", "memory")
        if kind in part.compute.get("requests", {})
    ]
    if part.tier != "api" and settings.kubernetes_pending_runs_metric:
        metrics.append({"type": "External", "external": _pending(place, settings.kubernetes_pending_runs_metric)})
    least, most = part.scale
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": max(least, 1),
        "maxReplicas": most,
        **({"metrics": metrics} if metrics else {}),
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_AFTER_S}},
    }
    return place.manifest("HorizontalPodAutoscaler", name, part.component, {"spec": spec})


def _utilization() -> Json:
    return {"type": "Utilization", "averageUtilization": TARGET_UTILIZATION}


def _pending(place: Place, metric: str) -> Json:
    selector = {"matchLabels": {"portside_deployment": str(place.deployment_id)}}
    target = {"type": "AverageValue", "averageValue": str(TARGET_PENDING)}
    return {"metric": {"name": metric, "selector": selector}, "target": target}
