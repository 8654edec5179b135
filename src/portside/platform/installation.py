"""The platform on a Kubernetes cluster, as objects: itself, its Postgres, its listener and what that may do.

Pure. No secret is among the objects: they refer to the Secrets `SECRET` and `LISTENER_SECRET`, made beforehand.
"""

from typing import Any

import msgspec

from portside.dataplane.compute.kubernetes.objects import KINDS

Json = dict[str, Any]

PORT = 8700
SECRET, LISTENER_SECRET = "portside", "portside-listener"
HOME = "/var/lib/portside"
POSTGRES_IMAGE = "pgvector/pgvector:pg15"
_USER = 10001
_POSTGRES_GROUP = 999
_LISTENER = "portside-listener"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation may choose. With `own_postgres` false the Secret's `database-url` names one elsewhere."""

    namespace: str = "portside"
    image: str
    host: str | None = None
    ingress_class: str | None = None
    tls_secret: str | None = None
    own_postgres: bool = True
    storage_gi: int = 20
    storage_class: str | None = None
    listener: bool = True
    compute_id: str = "kubernetes"
    agents_namespaces: tuple[str, ...] = ("agents",)
    agents_url: str | None = None


def installation(wanted: Installation) -> list[Json]:
    """Return all objects in the order in which they are applied."""
    found = [_namespace(name) for name in dict.fromkeys((wanted.namespace, *_agents(wanted)))]
    if wanted.own_postgres:
        found += _postgres(wanted)
    found += _platform(wanted)
    if wanted.listener:
        found += _listener(wanted)
    return found


def listener_rights(namespace: str, account_namespace: str) -> list[Json]:
    """Return the Role that a listener has in a namespace with deployments, and the binding: what its work needs."""
    rules: list[Json] = [
        {"apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "create", "patch", "delete"]}
        for group, _, plural in KINDS.values()
    ]
    rules += [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    ]
    group = "rbac.authorization.k8s.io"
    metadata = {"name": _LISTENER, "namespace": namespace, "labels": _labels("listener")}
    subject = {"kind": "ServiceAccount", "name": _LISTENER, "namespace": account_namespace}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": _LISTENER},
            "subjects": [subject],
        },
    ]


def _agents(wanted: Installation) -> tuple[str, ...]:
    return wanted.agents_namespaces if wanted.listener else ()


def _postgres(wanted: Installation) -> list[Json]:
    name = "portside-postgres"
    container = {
        "name": "postgres",
        "image": POSTGRES_IMAGE,
        "ports": [{"name": "postgres", "containerPort": 5432, "protocol": "TCP"}],
        "env": [
            {"name": "POSTGRES_USER", "value": "portside"},
            {"name": "POSTGRES_DB", "value": "portside"},
            _from_secret("POSTGRES_PASSWORD", SECRET, "postgres-password"),
            {"name": "PGDATA", "value": "/var/lib/postgresql/data/pgdata"},
        ],
        "readinessProbe": {"exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "portside"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/postgresql/data"}],
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}},
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {"fsGroup": _POSTGRES_GROUP},
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
    }
    return [
        _claim(wanted, name, "postgres"),
        _service(wanted, name, "postgres", 5432),
        _object(
            wanted, "StatefulSet", name, "postgres", {"serviceName": name, "replicas": 1, **_pods("postgres", pod)}
        ),
    ]


def _platform(wanted: Installation) -> list[Json]:
    container = {
        **_program(wanted, "platform", ["up", "--no-example"]),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": [
            {"name": "PORTSIDE_HOME", "value": HOME},
            {"name": "PORTSIDE_HOST", "value": "0.0.0.0"},  # noqa: S104 - a pod's own address
            {"name": "PORTSIDE_OWN_LISTENER", "value": "false"},
            {"name": "LOG_LEVEL", "value": "INFO"},
            {"name": "LOG_JSON", "value": "true"},
            _from_secret("DATABASE_URL", SECRET, "database-url"),
            _from_secret("PORTSIDE_API_KEY", SECRET, "api-key"),
        ],
        "startupProbe": {**_probe(), "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": _probe(),
        "livenessProbe": _probe(),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    }
    pod = _restricted(container, {"persistentVolumeClaim": {"claimName": "portside-home"}})
    found = [
        _claim(wanted, "portside-home", "platform"),
        # One at a time: the home folder, with the key that seals secrets, belongs to one platform.
        _object(wanted, "Deployment", "portside", "platform", {**_recreated(), **_pods("platform", pod)}),
        _service(wanted, "portside", "platform", PORT, "http"),
    ]
    return [*found, _ingress(wanted, wanted.host)] if wanted.host else found


def _listener(wanted: Installation) -> list[Json]:
    values = {
        "PORTSIDE_HOME": HOME,
        "CONTROL_PLANE_URL": f"http://portside.{wanted.namespace}.svc:{PORT}",
        "COMPUTE_ID": wanted.compute_id,
        "KUBERNETES_NAMESPACES": ",".join(wanted.agents_namespaces),
        "KUBERNETES_INGRESS_URL": wanted.agents_url,
        "KUBERNETES_INGRESS_CLASS": wanted.ingress_class if wanted.agents_url else None,
        "KUBERNETES_STORAGE_CLASS": wanted.storage_class,
    }
    container = {
        **_program(wanted, "listener", ["listener", "--compute", "kubernetes"]),
        "env": [
            *({"name": name, "value": value} for name, value in values.items() if value),
            _from_secret("CONTROL_PLANE_API_KEY", LISTENER_SECRET, "api-key"),
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }
    pod = {
        **_restricted(container, {"emptyDir": {}}),
        "serviceAccountName": _LISTENER,
        "automountServiceAccountToken": True,
    }
    metadata = {"name": _LISTENER, "namespace": wanted.namespace, "labels": _labels("listener")}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        *(right for name in wanted.agents_namespaces for right in listener_rights(name, wanted.namespace)),
        _object(wanted, "Deployment", _LISTENER, "listener", {**_recreated(), **_pods("listener", pod)}),
    ]


def _program(wanted: Installation, name: str, arguments: list[str]) -> Json:
    return {
        "name": name,
        "image": wanted.image,
        "command": ["portside"],
        "args": arguments,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "home", "mountPath": HOME}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _restricted(container: Json, home: Json) -> Json:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "home", **home}, {"name": "tmp", "emptyDir": {}}],
    }


def _recreated() -> Json:
    return {"replicas": 1, "strategy": {"type": "Recreate"}}


def _pods(component: str, pod: Json) -> Json:
    template = {"metadata": {"labels": _labels(component)}, "spec": pod}
    return {"selector": {"matchLabels": _labels(component)}, "template": template}


def _service(wanted: Installation, name: str, component: str, port: int, port_name: str = "postgres") -> Json:
    ports = [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}]
    return _object(wanted, "Service", name, component, {"selector": _labels(component), "ports": ports})


def _claim(wanted: Installation, name: str, component: str) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{wanted.storage_gi}Gi"}},
    }
    if wanted.storage_class:
        spec["storageClassName"] = wanted.storage_class
    return _object(wanted, "PersistentVolumeClaim", name, component, spec)


def _ingress(wanted: Installation, host: str) -> Json:
    backend = {"service": {"name": "portside", "port": {"name": "http"}}}
    spec: Json = {
        "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if wanted.ingress_class:
        spec["ingressClassName"] = wanted.ingress_class
    if wanted.tls_secret:
        spec["tls"] = [{"hosts": [host], "secretName": wanted.tls_secret}]
    return _object(wanted, "Ingress", "portside", "platform", spec)


def _object(wanted: Installation, kind: str, name: str, component: str, spec: Json) -> Json:
    group, version, _ = KINDS[kind]
    metadata = {"name": name, "namespace": wanted.namespace, "labels": _labels(component)}
    return {
        "apiVersion": f"{group}/{version}" if group else version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "portside", "app.kubernetes.io/component": component}


def _from_secret(variable: str, secret: str, key: str) -> Json:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _probe() -> Json:
    return {"httpGet": {"path": "/ok", "port": "http"}, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 6}
