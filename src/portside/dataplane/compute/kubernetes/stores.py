"""The Postgres and the Redis of a deployment: one pod each, behind a Service that only its own servers reach.

The data of Postgres is in a separate claim, not in one that the StatefulSet creates, so that it can grow later. Redis
carries notifications and events, none of which has to last.
"""

from portside.dataplane.compute.kubernetes.environment import encode_values
from portside.dataplane.compute.kubernetes.objects import COMPONENT, DEPLOYMENT, Json, KubernetesScope
from portside.dataplane.compute.kubernetes.resources import Resources, build_container_resources
from portside.dataplane.compute.kubernetes.security import (
    TMP_MOUNT,
    TMP_VOLUME,
    build_container_security,
    build_pod_security,
)
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

POSTGRES_PORT = 5432
REDIS_PORT = 6379
PASSWORD = "password"  # noqa: S105 - the key's name
# The user `postgres` of the official image and what is made from it, and `redis` of the other.
POSTGRES_USER = 999
_REDIS_USER = 999
# A store is alone behind its Service: while it is not ready, connections are refused. A busy node gets half a minute.
STORE_PROBE_TIMES: Json = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 6}
# Where the server puts its socket; the image is not written to.
POSTGRES_RUN_MOUNT: Json = {"name": "run", "mountPath": "/var/run/postgresql"}
POSTGRES_RUN_VOLUME: Json = {"name": "run", "emptyDir": {}}
_MB = 1024 * 1024


def store_name(scope: KubernetesScope, component: str) -> str:
    """Return the name of a store's objects, and its host name."""
    return f"{scope.name}-{component}"


def build_postgres(
    scope: KubernetesScope, resources: Resources, settings: KubernetesSettings, password: str
) -> list[Json]:
    """Return the objects of the deployment's Postgres."""
    name = store_name(scope, "postgres")
    secret = {"type": "Opaque", "data": encode_values({PASSWORD: password})}
    claim: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{resources.db_storage_gi or 10}Gi"}},
    }

    if settings.kubernetes_storage_class:
        claim["storageClassName"] = settings.kubernetes_storage_class

    return [
        scope.manifest("Secret", name, "postgres", secret),
        scope.manifest("PersistentVolumeClaim", name, "postgres", {"spec": claim}),
        *_build_network(scope, "postgres", POSTGRES_PORT),
        _build_stateful_set(scope, "postgres", _build_postgres_pod(name, resources, settings)),
    ]


def build_redis(
    scope: KubernetesScope, resources: Resources, settings: KubernetesSettings, password: str
) -> list[Json]:
    """Return the objects of the deployment's Redis."""
    name = store_name(scope, "redis")
    memory_mb = resources.redis_memory_limit_mb or resources.redis_memory_mb
    lines = [f"requirepass {password}", 'save ""', "appendonly no", "dir /tmp"]
    if memory_mb is not None:
        # Redis does not count the buffers of its subscribers, which need the rest.
        lines.append(f"maxmemory {memory_mb * _MB * 3 // 4}")

    secret = {"type": "Opaque", "data": encode_values({PASSWORD: password, "redis.conf": "\n".join(lines) + "\n"})}
    return [
        scope.manifest("Secret", name, "redis", secret),
        *_build_network(scope, "redis", REDIS_PORT),
        _build_stateful_set(scope, "redis", _build_redis_pod(name, resources, settings)),
    ]


def _build_network(scope: KubernetesScope, component: str, port: int) -> list[Json]:
    """Return the Service of a store, and the policy that admits only the deployment's own servers."""
    return [
        build_store_service(scope, component, port, scope.build_selector(component)),
        build_store_policy(scope, component, port),
    ]


def build_store_service(scope: KubernetesScope, component: str, port: int, selector: dict[str, str]) -> Json:
    """Return the Service of a store, whose pods have these labels."""
    service = {"selector": selector, "ports": [_build_port(component, port=port)]}
    return scope.manifest("Service", store_name(scope, component), component, {"spec": service})


def build_store_policy(scope: KubernetesScope, component: str, port: int) -> Json:
    """Return the policy that admits only the deployment's own servers to a store."""
    servers = {
        "matchLabels": {DEPLOYMENT: str(scope.deployment_id)},
        "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": ["api", "queue", "orchestrator"]}],
    }

    policy = {
        "podSelector": {"matchLabels": scope.build_selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": servers}], "ports": [{"protocol": "TCP", "port": port}]}],
    }

    return scope.manifest("NetworkPolicy", store_name(scope, component), component, {"spec": policy})


def _build_port(name: str, **number: int) -> Json:
    # Older API servers merge ports by port and protocol without filling in a default protocol.
    return {"name": name, "protocol": "TCP", **number}


def _build_stateful_set(scope: KubernetesScope, component: str, pod: Json) -> Json:
    name = store_name(scope, component)
    metadata: Json = {"labels": scope.build_labels(component)}
    if scope.annotations:
        metadata["annotations"] = dict(scope.annotations)

    spec = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": scope.build_selector(component)},
        "template": {"metadata": metadata, "spec": {"automountServiceAccountToken": False, **pod}},
    }

    return scope.manifest("StatefulSet", name, component, {"spec": spec})


def _build_postgres_pod(name: str, resources: Resources, settings: KubernetesSettings) -> Json:
    compute = build_container_resources(
        resources.db_cpu, resources.db_cpu_limit, resources.db_memory_mb, resources.db_memory_limit_mb
    )

    container: Json = {
        "name": "postgres",
        "image": settings.kubernetes_postgres_image,
        "args": ["postgres", "-c", f"max_connections={resources.db_max_connections or 100}"],
        "ports": [_build_port("postgres", containerPort=POSTGRES_PORT)],
        "env": [
            {"name": "POSTGRES_USER", "value": "portside"},
            {"name": "POSTGRES_DB", "value": "portside"},
            {"name": "POSTGRES_PASSWORD", "valueFrom": {"secretKeyRef": {"name": name, "key": PASSWORD}}},
            # A folder below the mount: a new file system has a lost+found, and initdb refuses a folder with files.
            {"name": "PGDATA", "value": "/var/lib/postgresql/data/pgdata"},
        ],
        "readinessProbe": {
            "exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "portside", "-d", "portside"]},
            **STORE_PROBE_TIMES,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/postgresql/data"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - in Postgres' own pod
            POSTGRES_RUN_MOUNT,
            TMP_MOUNT,
        ],
        "securityContext": build_container_security(),
        **({"resources": compute} if compute else {}),
    }

    return {
        "securityContext": build_pod_security(None if settings.kubernetes_arbitrary_uids else POSTGRES_USER),
        **_build_pull_secrets(settings),
        **settings.scheduling,
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
            POSTGRES_RUN_VOLUME,
            TMP_VOLUME,
        ],
    }


def _build_redis_pod(name: str, resources: Resources, settings: KubernetesSettings) -> Json:
    compute = build_container_resources(
        resources.redis_cpu, resources.redis_cpu_limit, resources.redis_memory_mb, resources.redis_memory_limit_mb
    )

    container: Json = {
        "name": "redis",
        "image": settings.kubernetes_redis_image,
        # The password is in the file, because everybody who may list processes can read arguments.
        "command": ["redis-server", "/etc/portside/redis.conf"],
        "ports": [_build_port("redis", containerPort=REDIS_PORT)],
        "readinessProbe": {"tcpSocket": {"port": "redis"}, **STORE_PROBE_TIMES},
        "securityContext": build_container_security(),
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/portside", "readOnly": True}, TMP_MOUNT],
        **({"resources": compute} if compute else {}),
    }

    items = [{"key": "redis.conf", "path": "redis.conf"}]
    return {
        "securityContext": build_pod_security(None if settings.kubernetes_arbitrary_uids else _REDIS_USER),
        **_build_pull_secrets(settings),
        **settings.scheduling,
        "containers": [container],
        "volumes": [{"name": "configuration", "secret": {"secretName": name, "items": items}}, TMP_VOLUME],
    }


def _build_pull_secrets(settings: KubernetesSettings) -> Json:
    names = [{"name": name} for name in settings.image_pull_secrets]
    return {"imagePullSecrets": names} if names else {}
