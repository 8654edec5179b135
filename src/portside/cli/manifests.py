"""`portside manifests`: the Kubernetes objects of a platform: server, Postgres, listener, and the listener's roles.

The objects hold no secrets: they refer to the Secrets `SECRET` and `LISTENER_SECRET`, which the operator creates first.
"""

from typing import Any

import click
import msgspec

from portside import __version__
from portside.cli.output import show_text

Json = dict[str, Any]

PORT = 8700
SECRET = "portside"  # noqa: S105 - the name of an object
LISTENER_SECRET = "portside-listener"  # noqa: S105 - the same
VOLUME = "/var/lib/portside"
# A folder in the volume: its root belongs to root, and others may enter it.
HOME = f"{VOLUME}/home"
TEMPORARY_FOLDER = "/tmp"  # noqa: S108 - an own volume of the pod
POSTGRES_IMAGE = "pgvector/pgvector:pg15"
_USER = 10001
_POSTGRES_GROUP = 999
_LISTENER = "portside-listener"
NOTES = """\
# Portside {version} for Kubernetes: portside manifests | kubectl apply -f -
# Create these first; secrets do not belong in this file:
#   kubectl create namespace {namespace}
#   kubectl -n {namespace} create secret generic portside {literals}
#   kubectl -n {namespace} create secret generic portside-listener --from-literal=api-key=KEY
# The api-key of portside becomes the platform's first API key. The listener's may be the same at first; a key of
# `portside keys create --permission listeners:work` has fewer permissions.
"""
_LITERALS = "--from-literal=api-key=KEY --from-literal=postgres-password=PASSWORD"
_LITERAL_URL = " --from-literal=database-url=postgresql://portside:PASSWORD@portside-postgres:5432/portside"
_EXTERNAL_LITERALS = (
    "--from-literal=api-key=KEY --from-literal=database-url=postgresql://USER:PASSWORD@HOST:5432/DATABASE"
)


@click.command()
@click.option("--namespace", default="portside", show_default=True, help="Namespace of the platform.")
@click.option("--image", default=f"portside:{__version__}", show_default=True, help="Image of the platform.")
@click.option("--host", help="Host name of the platform's Ingress; no Ingress without it.")
@click.option("--ingress-class", help="Class of the Ingresses. [default: the cluster's]")
@click.option("--tls-secret", help="Secret with the certificate of the platform's Ingress.")
@click.option(
    "--postgres/--no-postgres",
    "own_postgres",
    default=True,
    show_default=True,
    help="Run Postgres on the cluster; otherwise the Secret's database-url names an external one.",
)
@click.option("--storage-gi", type=click.IntRange(1), default=20, show_default=True, help="GiB of each volume.")
@click.option("--storage-class", help="Storage class of the volumes. [default: the cluster's]")
@click.option("--listener/--no-listener", default=True, show_default=True, help="Run a listener for this cluster.")
@click.option("--compute-id", default="kubernetes", show_default=True, help="Name of the listener's compute.")
@click.option(
    "--agents-namespace",
    "agents_namespaces",
    multiple=True,
    default=("agents",),
    show_default=True,
    help="Namespace that the listener may deploy to; repeat for more.",
)
@click.option("--agents-url", help="Public address of deployments, such as https://*.agents.example.com.")
@click.option(
    "--keda", is_flag=True, help="Scale deployments by their pending runs with KEDA, which must be installed."
)
def manifests(**options: Any) -> None:
    """Print the Kubernetes objects of a platform and a listener, as YAML for kubectl."""
    import yaml

    installation = Installation(**options)
    literals = _LITERALS + _LITERAL_URL if installation.own_postgres else _EXTERNAL_LITERALS
    show_text(NOTES.format(version=__version__, namespace=installation.namespace, literals=literals), end="")

    # No YAML anchors for repeated objects: they are hard to read.
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    show_text(yaml.dump_all(build_objects(installation), Dumper=dumper, sort_keys=False, explicit_start=True), end="")


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an installation. Without `own_postgres`, `database-url` of the Secret names another Postgres."""

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
    keda: bool = False

    @property
    def operator_kinds(self) -> tuple[str, ...]:
        """The kinds of other operators that the listener makes."""
        return ("ScaledObject",) if self.keda else ()


def build_objects(options: Installation) -> list[Json]:
    """Return all objects, in the order in which to apply them."""
    namespaces = dict.fromkeys((options.namespace, *(options.agents_namespaces if options.listener else ())))
    objects = [_build_namespace(name) for name in namespaces]
    if options.own_postgres:
        objects += _build_postgres(options)

    objects += _build_platform(options)
    if options.listener:
        objects += _build_listener(options)

    return objects


def build_listener_rights(namespace: str, account_namespace: str, operator_kinds: tuple[str, ...] = ()) -> list[Json]:
    """Return the Role that a listener needs in a namespace with deployments, and its RoleBinding.

    `operator_kinds` are the kinds of other operators that it makes there.
    """
    from portside.dataplane.compute.kubernetes.objects import KINDS, OPTIONAL_KINDS

    kinds = [*KINDS.values(), *(OPTIONAL_KINDS[kind] for kind in operator_kinds)]
    rules: list[Json] = [
        {"apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "create", "patch", "delete"]}
        for group, _, plural in kinds
    ]

    rules += [
        # A pod of a store that can never start is deleted: its controller would wait for it for ever.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]},
        # Through pods/proxy it reads the metrics of agent servers, such as the length of their queue.
        {"apiGroups": [""], "resources": ["pods/log", "pods/proxy"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
        # It reads the label by which an operator lets a workspace name them.
        {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts"], "verbs": ["get"]},
    ]

    group = "rbac.authorization.k8s.io"
    metadata = {"name": _LISTENER, "namespace": namespace, "labels": _build_labels("listener")}
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


def _build_postgres(options: Installation) -> list[Json]:
    name = "portside-postgres"
    container = {
        "name": "postgres",
        "image": POSTGRES_IMAGE,
        "ports": [{"name": "postgres", "containerPort": 5432, "protocol": "TCP"}],
        "env": [
            {"name": "POSTGRES_USER", "value": "portside"},
            {"name": "POSTGRES_DB", "value": "portside"},
            _build_secret_variable("POSTGRES_PASSWORD", SECRET, "postgres-password"),
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
        _build_claim(options, name, "postgres"),
        _build_service(options, name, component="postgres", port=5432, port_name="postgres"),
        _build_object(
            options,
            kind="StatefulSet",
            name=name,
            component="postgres",
            spec={"serviceName": name, "replicas": 1, **_build_pods("postgres", pod)},
        ),
    ]


def _compute_database_bytes(options: Installation) -> int:
    """Return how large the databases may be: the volume also has the write-ahead log, of 1 GiB and more under load."""
    volume = options.storage_gi * 2**30
    return max(volume // 2, volume - max(volume // 10, 2 * 2**30))


def _build_platform(options: Installation) -> list[Json]:
    container = {
        **_build_container(options, "platform", ["up", "--no-example"]),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": [
            {"name": "PORTSIDE_HOME", "value": HOME},
            {"name": "HOME", "value": TEMPORARY_FOLDER},
            {"name": "PORTSIDE_HOST", "value": "0.0.0.0"},  # noqa: S104 - a pod's own address
            {"name": "PORTSIDE_OWN_LISTENER", "value": "false"},
            # The cluster's Ingress is the front, and no agent runs here.
            {"name": "PORTSIDE_FRONT", "value": "false"},
            {"name": "LOG_LEVEL", "value": "INFO"},
            {"name": "LOG_JSON", "value": "true"},
            _build_secret_variable("DATABASE_URL", SECRET, "database-url"),
            _build_secret_variable("PORTSIDE_API_KEY", SECRET, "api-key"),
            *(
                [{"name": "DATABASE_MAX_BYTES", "value": str(_compute_database_bytes(options))}]
                if options.own_postgres
                else []
            ),
        ],
        "startupProbe": {**_build_probe(), "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": _build_probe(),
        "livenessProbe": _build_probe(),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    }

    pod = _build_restricted_pod(container, {"persistentVolumeClaim": {"claimName": "portside-home"}})
    objects = [
        _build_claim(options, "portside-home", "platform"),
        # One at a time: the home folder, with the key that encrypts secrets, belongs to one platform.
        _build_object(
            options,
            kind="Deployment",
            name="portside",
            component="platform",
            spec={**_build_single_replica(), **_build_pods("platform", pod)},
        ),
        _build_service(options, "portside", component="platform", port=PORT, port_name="http"),
    ]

    if options.host:
        objects.append(_build_ingress(options, options.host))

    return objects


def _build_listener(options: Installation) -> list[Json]:
    values = {
        "PORTSIDE_HOME": HOME,
        "HOME": TEMPORARY_FOLDER,
        "CONTROL_PLANE_URL": f"http://portside.{options.namespace}.svc:{PORT}",
        "COMPUTE_ID": options.compute_id,
        "KUBERNETES_NAMESPACES": ",".join(options.agents_namespaces),
        "KUBERNETES_INGRESS_URL": options.agents_url,
        "KUBERNETES_INGRESS_CLASS": options.ingress_class if options.agents_url else None,
        "KUBERNETES_STORAGE_CLASS": options.storage_class,
        "KUBERNETES_KEDA": "true" if options.keda else None,
    }

    container = {
        **_build_container(options, "listener", ["listener", "--compute", "kubernetes"]),
        "env": [
            *({"name": name, "value": value} for name, value in values.items() if value),
            _build_secret_variable("CONTROL_PLANE_API_KEY", LISTENER_SECRET, "api-key"),
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }

    pod = {
        **_build_restricted_pod(container, {"emptyDir": {}}),
        "serviceAccountName": _LISTENER,
        "automountServiceAccountToken": True,
    }

    metadata = {"name": _LISTENER, "namespace": options.namespace, "labels": _build_labels("listener")}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        *(
            right
            for name in options.agents_namespaces
            for right in build_listener_rights(name, options.namespace, options.operator_kinds)
        ),
        _build_object(
            options,
            kind="Deployment",
            name=_LISTENER,
            component="listener",
            spec={**_build_single_replica(), **_build_pods("listener", pod)},
        ),
    ]


def _build_container(options: Installation, name: str, arguments: list[str]) -> Json:
    return {
        "name": name,
        "image": options.image,
        "command": ["portside"],
        "args": arguments,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "home", "mountPath": VOLUME},
            {"name": "tmp", "mountPath": TEMPORARY_FOLDER},
        ],
    }


def _build_restricted_pod(container: Json, home: Json) -> Json:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Otherwise each start opens all files of the volume to the group, also keys.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "home", **home}, {"name": "tmp", "emptyDir": {}}],
    }


def _build_single_replica() -> Json:
    return {"replicas": 1, "strategy": {"type": "Recreate"}}


def _build_pods(component: str, pod: Json) -> Json:
    template = {"metadata": {"labels": _build_labels(component)}, "spec": pod}
    return {"selector": {"matchLabels": _build_labels(component)}, "template": template}


def _build_service(options: Installation, name: str, *, component: str, port: int, port_name: str) -> Json:
    ports = [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}]
    spec = {"selector": _build_labels(component), "ports": ports}
    return _build_object(options, kind="Service", name=name, component=component, spec=spec)


def _build_claim(options: Installation, name: str, component: str) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{options.storage_gi}Gi"}},
    }

    if options.storage_class:
        spec["storageClassName"] = options.storage_class

    return _build_object(options, kind="PersistentVolumeClaim", name=name, component=component, spec=spec)


def _build_ingress(options: Installation, host: str) -> Json:
    backend = {"service": {"name": "portside", "port": {"name": "http"}}}
    spec: Json = {
        "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }

    if options.ingress_class:
        spec["ingressClassName"] = options.ingress_class

    if options.tls_secret:
        spec["tls"] = [{"hosts": [host], "secretName": options.tls_secret}]

    return _build_object(options, kind="Ingress", name="portside", component="platform", spec=spec)


def _build_object(options: Installation, *, kind: str, name: str, component: str, spec: Json) -> Json:
    from portside.dataplane.compute.kubernetes.objects import KINDS

    group, version, _ = KINDS[kind]
    metadata = {"name": name, "namespace": options.namespace, "labels": _build_labels(component)}
    return {
        "apiVersion": f"{group}/{version}" if group else version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def _build_namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _build_labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "portside", "app.kubernetes.io/component": component}


def _build_secret_variable(variable: str, secret: str, key: str) -> Json:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _build_probe() -> Json:
    return {"httpGet": {"path": "/ok", "port": "http"}, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 6}
