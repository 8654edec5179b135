"""The Postgres and the Redis of a deployment: one pod each, behind a Service that only its own servers reach.

Postgres keeps its data in a claim of its own rather than one made by the StatefulSet, so that it may grow later. Redis
carries hints and events and nothing that has to last.
"""

from typing import Any

from portside.dataplane.compute.kubernetes.environment import encoded
from portside.dataplane.compute.kubernetes.objects import COMPONENT, DEPLOYMENT, Place
from portside.dataplane.compute.kubernetes.resources import Resources, compute_of
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

Json = dict[str, Any]

POSTGRES_PORT, REDIS_PORT = 5432, 6379
PASSWORD = "password"  # noqa: S105 - the key's name
_POSTGRES_GROUP, _REDIS_USER = 999, 999
_MB = 1024 * 1024


def store_name(place: Place, component: str) -> str:
    """Return the name of a store's objects, and its host name."""
    return f"{place.name}-{component}"


def postgres(place: Place, resources: Resources, settings: KubernetesSettings, password: str) -> list[Json]:
    """Return the objects of the deployment's Postgres."""
    name = store_name(place, "postgres")
    secret = {"type": "Opaque", "data": encoded({PASSWORD: password})}
    claim: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{resources.db_storage_gi or 10}Gi"}},
    }
    if settings.kubernetes_storage_class:
        claim["storageClassName"] = settings.kubernetes_storage_class
    return [
        place.manifest("Secret", name, "postgres", secret),
        place.manifest("PersistentVolumeClaim", name, "postgres", {"spec": claim}),
        *_guarded(place, "postgres", POSTGRES_PORT),
        _stateful_set(place, "postgres", _postgres_pod(name, resources, settings)),
    ]


def redis(place: Place, resources: Resources, settings: KubernetesSettings, password: str) -> list[Json]:
    """Return the objects of the deployment's Redis."""
    name = store_name(place, "redis")
    memory_mb = resources.redis_memory_limit_mb or resources.redis_memory_mb
    lines = [f"requirepass {password}", 'save ""', "appendonly no", "dir /tmp"]
    if memory_mb is not None:
        # The rest is for buffers of subscribers, which Redis does not count.
        lines.append(f"maxmemory {memory_mb * _MB * 3 // 4}")
    secret = {"type": "Opaque", "data": encoded({PASSWORD: password, "redis.conf": "\n".join(lines) + "\n"})}
    return [
        place.manifest("Secret", name, "redis", secret),
        *_guarded(place, "redis", REDIS_PORT),
        _stateful_set(place, "redis", _redis_pod(name, resources, settings)),
    ]


def _guarded(place: Place, component: str, port: int) -> list[Json]:
    """Return the Service of a store, and the policy that lets the deployment's own servers in and nobody else."""
    name = store_name(place, component)
    service = {"selector": place.selector_of(component), "ports": [_port(component, port=port)]}
    servers = {
        "matchLabels": {DEPLOYMENT: str(place.deployment_id)},
        "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": ["api", "queue"]}],
    }
    policy = {
        "podSelector": {"matchLabels": place.selector_of(component)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": servers}], "ports": [{"protocol": "TCP", "port": port}]}],
    }
    return [
        place.manifest("Service", name, component, {"spec": service}),
        place.manifest("NetworkPolicy", name, component, {"spec": policy}),
    ]


def _port(name: str, **number: int) -> Json:
    # The protocol is part of a port's key, which older API servers do not fill in when they merge.
    return {"name": name, "protocol": "TCP", **number}


def _stateful_set(place: Place, component: str, pod: Json) -> Json:
    name = store_name(place, component)
    metadata: Json = {"labels": place.labels_of(component)}
    if place.annotations:
        metadata["annotations"] = dict(place.annotations)
    spec = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": place.selector_of(component)},
        "template": {"metadata": metadata, "spec": {"automountServiceAccountToken": False, **pod}},
    }
    return place.manifest("StatefulSet", name, component, {"spec": spec})


def _postgres_pod(name: str, resources: Resources, settings: KubernetesSettings) -> Json:
    compute = compute_of(resources.db_cpu, resources.db_cpu_limit, resources.db_memory_mb, resources.db_memory_limit_mb)
    container: Json = {
        "name": "postgres",
        "image": settings.kubernetes_postgres_image,
        "args": ["postgres", "-c", f"max_connections={resources.db_max_connections or 100}"],
        "ports": [_port("postgres", containerPort=POSTGRES_PORT)],
        "env": [
            {"name": "POSTGRES_USER", "value": "portside"},
            {"name": "POSTGRES_DB", "value": "portside"},
            {"name": "POSTGRES_PASSWORD", "valueFrom": {"secretKeyRef": {"name": name, "key": PASSWORD}}},
            # Below the mount: file systems of their own have a lost+found, which initdb takes for somebody's data.
            {"name": "PGDATA", "value": "/var/lib/postgresql/data/pgdata"},
        ],
        "readinessProbe": {
            "exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "portside", "-d", "portside"]},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/postgresql/data"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - Postgres' own place in its pod
        ],
        **({"resources": compute} if compute else {}),
    }
    return {
        "securityContext": {"fsGroup": _POSTGRES_GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
        ],
    }


def _redis_pod(name: str, resources: Resources, settings: KubernetesSettings) -> Json:
    compute = compute_of(
        resources.redis_cpu, resources.redis_cpu_limit, resources.redis_memory_mb, resources.redis_memory_limit_mb
    )
    container: Json = {
        "name": "redis",
        "image": settings.kubernetes_redis_image,
        # The password stands in the file: arguments can be read by whoever may list processes.
        "command": ["redis-server", "/etc/portside/redis.conf"],
        "ports": [_port("redis", containerPort=REDIS_PORT)],
        "readinessProbe": {"tcpSocket": {"port": "redis"}, "periodSeconds": 5, "timeoutSeconds": 5},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/portside", "readOnly": True}],
        **({"resources": compute} if compute else {}),
    }
    items = [{"key": "redis.conf", "path": "redis.conf"}]
    return {
        "securityContext": {"runAsUser": _REDIS_USER, "runAsGroup": _REDIS_USER, "fsGroup": _REDIS_USER},
        "containers": [container],
        "volumes": [{"name": "configuration", "secret": {"secretName": name, "items": items}}],
    }
