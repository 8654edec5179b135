"""`portside manifests`: the Kubernetes objects of a platform: server, Postgres, listener, and the listener's roles.

They are built once, as trees with places for values (`manifest_templates`): this command fills them in, and the Helm
chart is printed from them. The objects hold no secrets: they refer to Secrets that the operator creates first.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import click

from portside import __version__
from portside.cli.manifest_templates import (
    DEFAULT_NAMESPACE,
    All,
    CommaSeparated,
    Computed,
    Differs,
    Each,
    Either,
    Expression,
    Extended,
    Image,
    Item,
    Joined,
    JsonText,
    Namespace,
    Not,
    Scope,
    Structure,
    Text,
    Value,
    When,
    fill_elements,
)
from portside.cli.output import show_text
from portside.kernel.errors import UserMistake

Json = dict[str, Any]

PORT = 8700
VOLUME = "/var/lib/portside"
# A folder in the volume: its root belongs to root, and others may enter it.
HOME = f"{VOLUME}/home"
TEMPORARY_FOLDER = "/tmp"  # noqa: S108 - an own volume of the pod
_USER = 10001
_LISTENER = "portside-listener"
_HAS_DEPLOYMENTS = Value("listener.enabled")
KUSTOMIZATION = "kustomization.yaml"
_MARK = "# Written by portside manifests"
NOTES = """\
{mark} {version}, for {command}
# Create these first; secrets do not belong in this file:
#   kubectl create namespace {namespace} --save-config
#   kubectl -n {namespace} create secret generic {platform} {literals}
#   kubectl -n {namespace} create secret generic {listener} --from-literal=api-key=KEY
# The api-key of the first becomes the platform's first API key. The listener's may be the same at first; a key of
# `portside keys create --permission listeners:work` has fewer permissions.
"""
_LITERALS = "--from-literal=api-key=KEY --from-literal=postgres-password=PASSWORD"
_LITERAL_URL = " --from-literal=database-url=postgresql://portside:PASSWORD@portside-postgres:5432/portside"
_EXTERNAL_LITERALS = (
    "--from-literal=api-key=KEY --from-literal=database-url=postgresql://USER:PASSWORD@HOST:5432/DATABASE"
)
# The kinds of other operators that the listener makes, by the values that ask for them.
_OPERATOR_KINDS = {
    "agents.keda": ["ScaledObject"],
    "agents.cloudnativePg": ["Cluster", "ScheduledBackup"],
    "agents.parentRefs": ["HTTPRoute"],
}
# The values that each flag replaces.
_FLAGS = {
    "namespace": ["namespace"],
    "image": ["platform.image"],
    "host": ["host"],
    "ingress_class": ["ingress.className", "agents.ingressClass"],
    "tls_secret": ["ingress.tlsSecret"],
    "own_postgres": ["postgres.enabled"],
    "storage_gi": ["platform.storageGi", "postgres.storageGi"],
    "storage_class": ["storageClass"],
    "listener": ["listener.enabled"],
    "compute_id": ["listener.computeId"],
    "agents_namespaces": ["agents.namespaces"],
    "agents_url": ["agents.url"],
    "keda": ["agents.keda"],
    "cloudnative_pg": ["agents.cloudnativePg"],
    "object_store": ["agents.objectStore"],
}


@click.command()
@click.option(
    "--values",
    "values_file",
    type=click.Path(path_type=Path),
    help="YAML file with values, as for the Helm chart; the options below replace those of the file.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write for kubectl apply -k.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of the values, and nothing else.")
@click.option("--namespace", help="Namespace of the platform. [default: portside]")
@click.option("--image", help=f"Image of the platform. [default: portside:{__version__}]")
@click.option("--host", help="Host name of the platform's Ingress; no Ingress without it.")
@click.option("--ingress-class", help="Class of the Ingresses. [default: the cluster's]")
@click.option("--tls-secret", help="Secret with the certificate of the platform's Ingress.")
@click.option(
    "--postgres/--no-postgres",
    "own_postgres",
    default=None,
    help="Run Postgres on the cluster; otherwise the Secret's database-url names an external one. [default: postgres]",
)
@click.option("--storage-gi", type=click.IntRange(1), help="GiB of each volume. [default: 20]")
@click.option("--storage-class", help="Storage class of the volumes. [default: the cluster's]")
@click.option("--listener/--no-listener", default=None, help="Run a listener for this cluster. [default: listener]")
@click.option("--compute-id", help="Name of the listener's compute. [default: kubernetes]")
@click.option(
    "--agents-namespace",
    "agents_namespaces",
    multiple=True,
    help="Namespace that the listener may deploy to; repeat for more. [default: agents]",
)
@click.option("--agents-url", help="Public address of deployments, such as https://*.agents.example.com.")
@click.option(
    "--keda",
    is_flag=True,
    default=None,
    help="Scale deployments by their pending runs with KEDA, which must be installed.",
)
@click.option(
    "--cloudnative-pg",
    is_flag=True,
    default=None,
    help="Run the databases of new deployments by CloudNativePG, which must be installed.",
)
@click.option(
    "--object-store",
    help="ObjectStore of CloudNativePG's Barman plugin in each namespace, to which these databases are backed up.",
)
def manifests(*, values_file: Path | None, output: Path | None, schema: bool, **flags: Any) -> None:
    """Print the Kubernetes objects of a platform and a listener, as YAML for kubectl.

    The reference has all values (docs/reference/values.md). The Helm chart in deploy/helm takes the same file.
    """
    import json

    from portside.cli.manifest_values import build_schema, read_values

    if schema:
        show_text(json.dumps(build_schema(), indent=2))
        return

    used_flags = {name: value for name, value in flags.items() if value not in (None, ())}
    values = read_values(values_file, {path: value for name, value in used_flags.items() for path in _FLAGS[name]})
    parts = build_objects(values)
    if output is None:
        objects = [manifest for part in parts.values() for manifest in part]
        show_text(_build_notes(values, "kubectl apply -f -") + _to_yaml(objects), end="")
    else:
        _write_folder(output, values, parts)


def build_objects(values: Json) -> dict[str, list[Json]]:
    """Return the objects of each part, in the order in which to apply them. Raises UserMistake."""
    scope = Scope(values)
    namespaces = [When(Value("createNamespaces"), _build_namespace(Namespace(), "restricted"))]
    parts = {"namespaces": [*namespaces, *build_templates()["namespaces"]]}
    parts |= {name: part for name, part in build_templates().items() if name != "namespaces"}
    objects = {
        name: [manifest for node in part for manifest in fill_elements(node, scope)] for name, part in parts.items()
    }
    for section, part in (("platform", objects["platform"]), ("listener", objects["listener"])):
        _check_variables(section, part)

    return {name: part for name, part in objects.items() if part}


def build_templates() -> dict[str, list[Any]]:
    """Return the trees of each part; without the platform's own namespace, which a Helm release is already in."""
    restricted = _build_namespace(Item("namespace"), Value("agents.podSecurity"))
    is_made = All((Value("createNamespaces"), _HAS_DEPLOYMENTS))
    is_other = Differs(Item("namespace"), Namespace())
    return {
        "namespaces": [When(is_made, Each(Value("agents.namespaces"), "namespace", (When(is_other, restricted),)))],
        "postgres": [When(Value("postgres.enabled"), document) for document in _build_postgres()],
        "platform": _build_platform(),
        "listener": [When(_HAS_DEPLOYMENTS, document) for document in _build_listener()],
    }


def _check_variables(section: str, objects: list[Json]) -> None:
    for manifest in objects:
        if manifest["kind"] != "Deployment":
            continue

        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        counts = Counter(variable["name"] for variable in container["env"])
        for name, count in counts.items():
            if count > 1:
                raise UserMistake(f"{section}.env: {name} is set by the manifests, or twice; take it out")


def _write_folder(folder: Path, values: Json, parts: dict[str, list[Json]]) -> None:
    """Write a folder for `kubectl apply -k`. Raises UserMistake for a folder that has something else."""
    own_files = {KUSTOMIZATION, *(f"{name}.yaml" for name in build_templates())}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted({path.name for path in folder.iterdir()} - own_files)
        kustomization_file = folder / KUSTOMIZATION
        if strangers or (kustomization_file.exists() and not kustomization_file.read_text("utf-8").startswith(_MARK)):
            raise UserMistake(
                f"{folder} has files that this command did not write ({', '.join(strangers) or KUSTOMIZATION}); choose "
                "an empty folder, and change the objects in an overlay beside it"
            )

        names = [f"{name}.yaml" for name in parts]
        for name in own_files - {*names, KUSTOMIZATION}:
            (folder / name).unlink(missing_ok=True)

        for name, objects in parts.items():
            (folder / f"{name}.yaml").write_text(_to_yaml(objects), "utf-8")

        kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names}
        notes = _build_notes(values, f"kubectl apply -k {folder}")
        kustomization_file.write_text(notes + _to_yaml([kustomization]), "utf-8")
    except OSError as exc:
        raise UserMistake(f"cannot write {folder}: {exc.strerror}") from exc


def _build_notes(values: Json, command: str) -> str:
    literals = _LITERALS + _LITERAL_URL if values["postgres"]["enabled"] else _EXTERNAL_LITERALS
    return NOTES.format(
        mark=_MARK,
        version=__version__,
        command=command,
        namespace=values["namespace"] or DEFAULT_NAMESPACE,
        platform=values["platform"]["secretName"],
        listener=values["listener"]["secretName"],
        literals=literals,
    )


def _to_yaml(objects: list[Json]) -> str:
    import yaml

    # No YAML anchors for repeated objects: they are hard to read.
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    return str(yaml.dump_all(objects, Dumper=dumper, sort_keys=False, explicit_start=True))


def build_listener_rights(
    namespace: str | Expression, account_namespace: str | Expression, operator_kinds: tuple[str, ...] = ()
) -> list[Json]:
    """Return the Role that a listener needs in a namespace with deployments, and its RoleBinding.

    `operator_kinds` are the kinds of other operators that it makes there.
    """
    from portside.dataplane.compute.kubernetes.rights import list_rights

    rules: list[Json] = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": right.verbs.split(", ")}
        for right in list_rights(operator_kinds)
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


def _build_rule(group: str, plural: str) -> Json:
    """Return the right to make, change and delete the objects of a kind."""
    return {"apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "create", "patch", "delete"]}


def _build_postgres() -> list[Any]:
    from portside.dataplane.compute.kubernetes.security import TMP_MOUNT, TMP_VOLUME, build_container_security
    from portside.dataplane.compute.kubernetes.stores import (
        POSTGRES_RUN_MOUNT,
        POSTGRES_RUN_VOLUME,
        POSTGRES_USER,
        STORE_PROBE_TIMES,
    )

    name = "portside-postgres"
    container = {
        "name": "postgres",
        "image": Image("postgres.image"),
        "ports": [{"name": "postgres", "containerPort": 5432, "protocol": "TCP"}],
        "env": [
            {"name": "POSTGRES_USER", "value": "portside"},
            {"name": "POSTGRES_DB", "value": "portside"},
            _build_secret_variable("POSTGRES_PASSWORD", "platform.secretName", "postgres-password"),
            {"name": "PGDATA", "value": "/var/lib/postgresql/data/pgdata"},
        ],
        "readinessProbe": {
            "exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "portside"]},
            **STORE_PROBE_TIMES,
        },
        "securityContext": build_container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/postgresql/data"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - in Postgres' own pod
            POSTGRES_RUN_MOUNT,
            TMP_MOUNT,
        ],
        "resources": When(Value("postgres.resources"), Structure("postgres.resources")),
    }

    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _build_pod_security(POSTGRES_USER),
        "terminationGracePeriodSeconds": 60,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _build_labels("postgres")},
            }
        ],
        **_build_scheduling("postgres"),
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
            POSTGRES_RUN_VOLUME,
            TMP_VOLUME,
        ],
    }

    # There is one pod. A budget that kept it would keep its node from being drained for ever.
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": _build_labels("postgres")}}
    spec = {"serviceName": name, "replicas": 1, **_build_pods("postgres", "postgres", pod)}
    return [
        _build_claim(name, component="postgres", size=Value("postgres.storageGi")),
        _build_service(name, component="postgres", port=5432, port_name="postgres"),
        _build_object(kind="PodDisruptionBudget", name=name, component="postgres", spec=budget),
        _build_object(kind="StatefulSet", name=name, component="postgres", spec=spec),
    ]


def _compute_database_bytes() -> Computed:
    """Return how large the databases may be: the volume also has the write-ahead log, of 1 GiB and more under load."""
    volume = Computed("mul", Value("postgres.storageGi"), 2**30)
    reserve = Computed("max", Computed("div", volume, 10), 2 * 2**30)
    return Computed("max", Computed("div", volume, 2), Computed("sub", volume, reserve))


def _build_platform() -> list[Any]:
    from portside.dataplane.compute.kubernetes.security import ALIVE_PATH, build_probe

    container = {
        **_build_container("platform", ["up", "--no-example"]),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": _build_environment(
            "platform",
            [
                {"name": "PORTSIDE_HOST", "value": Value("listenAddress")},
                {"name": "PORTSIDE_OWN_LISTENER", "value": "false"},
                # The cluster's Ingress is the front, and no agent runs here.
                {"name": "PORTSIDE_FRONT", "value": "false"},
                # No deployment may have the platform's own host, by whatever address an owner calls.
                When(Value("host"), {"name": "PORTSIDE_PUBLIC_HOST", "value": Value("host")}),
                When(
                    Value("agents.customHosts"),
                    {"name": "CUSTOM_HOSTS", "value": CommaSeparated((), Value("agents.customHosts"))},
                ),
                {"name": "LOG_LEVEL", "value": Value("logLevel")},
                {"name": "LOG_JSON", "value": "true"},
                _build_secret_variable("DATABASE_URL", "platform.secretName", "database-url"),
                _build_secret_variable("PORTSIDE_API_KEY", "platform.secretName", "api-key"),
                When(
                    Value("postgres.enabled"),
                    {"name": "DATABASE_MAX_BYTES", "value": Text((_compute_database_bytes(),))},
                ),
            ],
        ),
        "startupProbe": {**build_probe(ALIVE_PATH), "periodSeconds": 2, "failureThreshold": 150},
        # A platform that lost its database gets no requests; a restart would not help it.
        "readinessProbe": build_probe("/ok"),
        "livenessProbe": build_probe(ALIVE_PATH),
    }

    pod = _build_program_pod("platform", container, {"persistentVolumeClaim": {"claimName": "portside-home"}})
    spec = {**_build_single_replica(), **_build_pods("platform", "platform", pod)}
    return [
        _build_claim("portside-home", component="platform", size=Value("platform.storageGi")),
        # One at a time: the home folder, with the key that encrypts secrets, belongs to one platform.
        _build_object(kind="Deployment", name="portside", component="platform", spec=spec),
        _build_service("portside", component="platform", port=PORT, port_name="http"),
        When(All((Value("host"), Value("ingress.enabled"))), _build_ingress()),
        When(All((Value("host"), Value("gateway.parentRefs"))), _build_route()),
    ]


def _build_listener() -> list[Any]:
    from portside.dataplane.compute.kubernetes.objects import OPTIONAL_KINDS

    always = {
        "CONTROL_PLANE_URL": Text(("http://portside.", Namespace(), f".svc:{PORT}")),
        "COMPUTE_ID": Value("listener.computeId"),
        "KUBERNETES_NAMESPACES": CommaSeparated((), Value("agents.namespaces")),
        "KUBERNETES_POD_SECURITY": Value("agents.podSecurity"),
        "KUBERNETES_READ_ONLY_ROOT": Text((Value("agents.readOnlyRoot"),)),
        "KUBERNETES_ARBITRARY_UIDS": Text((Value("arbitraryUids"),)),
        "KUBERNETES_LISTEN_ADDRESS": Value("listenAddress"),
        "KUBERNETES_CLUSTER_DOMAIN": Value("clusterDomain"),
        "KUBERNETES_POSTGRES_IMAGE": Image("agents.postgresImage"),
        "KUBERNETES_REDIS_IMAGE": Image("agents.redisImage"),
    }
    if_set = {
        "KUBERNETES_INGRESS_URL": "agents.url",
        "KUBERNETES_INGRESS_CLASS": "agents.ingressClass",
        "KUBERNETES_INGRESS_TLS_SECRET": "agents.tlsSecret",
        "KUBERNETES_PRIORITY_CLASS": "agents.priorityClassName",
        "KUBERNETES_STORAGE_CLASS": "storageClass",
        "KUBERNETES_POSTGRES_OBJECT_STORE": "agents.objectStore",
        "KUBERNETES_HTTP_PROXY": "proxy.http",
        "KUBERNETES_HTTPS_PROXY": "proxy.https",
    }
    lists = {"KUBERNETES_IMAGE_PULL_SECRETS": "imagePullSecrets", "KUBERNETES_NO_PROXY": "proxy.noProxy"}

    documents = {
        "KUBERNETES_GATEWAYS": "agents.parentRefs",
        "KUBERNETES_NODE_SELECTOR": "agents.nodeSelector",
        "KUBERNETES_TOLERATIONS": "agents.tolerations",
    }

    variables = [
        *({"name": name, "value": value} for name, value in always.items()),
        *(When(Value(path), {"name": name, "value": Value(path)}) for name, path in if_set.items()),
        *(When(Value(path), {"name": name, "value": CommaSeparated((), Value(path))}) for name, path in lists.items()),
        *(When(Value(path), {"name": name, "value": JsonText(path)}) for name, path in documents.items()),
        When(Value("agents.keda"), {"name": "KUBERNETES_KEDA", "value": "true"}),
        When(Value("agents.cloudnativePg"), {"name": "KUBERNETES_POSTGRES_OPERATOR", "value": "cloudnative-pg"}),
        _build_secret_variable("CONTROL_PLANE_API_KEY", "listener.secretName", "api-key"),
    ]
    container = {
        **_build_container("listener", ["listener", "--compute", "kubernetes"]),
        "env": _build_environment("listener", variables),
    }

    pod = {
        **_build_program_pod("listener", container, {"emptyDir": {}}),
        "serviceAccountName": _LISTENER,
        "automountServiceAccountToken": True,
    }

    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": _LISTENER, "namespace": Namespace(), "labels": _build_labels("listener")},
        "automountServiceAccountToken": False,
    }
    role, binding = build_listener_rights(Item("namespace"), Namespace())
    operators = [
        When(Value(path), _build_rule(OPTIONAL_KINDS[kind][0], OPTIONAL_KINDS[kind][2]))
        for path, kinds in _OPERATOR_KINDS.items()
        for kind in kinds
    ]
    rights = [_extend_metadata({**role, "rules": [*role["rules"], *operators]}), _extend_metadata(binding)]
    spec = {**_build_single_replica(), **_build_pods("listener", "listener", pod)}
    return [
        _extend_metadata(account),
        Each(Value("agents.namespaces"), "namespace", tuple(rights)),
        _build_object(kind="Deployment", name=_LISTENER, component="listener", spec=spec),
    ]


def _build_environment(section: str, variables: list[Any]) -> Extended:
    """Return the variables of a program: what both have, its own, and those of the values."""
    has_proxy = Either((Value("proxy.http"), Value("proxy.https")))
    # The API server is reached by its address, which every pod knows.
    services = ("portside", ".svc", Text((".", Value("clusterDomain"))))
    direct = ("localhost", "127.0.0.1", "::1", "$(KUBERNETES_SERVICE_HOST)", *services)
    own = [
        {"name": "PORTSIDE_HOME", "value": HOME},
        {"name": "HOME", "value": TEMPORARY_FOLDER},
        *variables,
        When(Value("proxy.http"), {"name": "HTTP_PROXY", "value": Value("proxy.http")}),
        When(Value("proxy.https"), {"name": "HTTPS_PROXY", "value": Value("proxy.https")}),
        When(has_proxy, {"name": "NO_PROXY", "value": CommaSeparated(direct, Value("proxy.noProxy"))}),
    ]
    return Extended(own, Structure(f"{section}.env"))


def _build_container(section: str, arguments: list[str]) -> Json:
    from portside.dataplane.compute.kubernetes.security import TMP_MOUNT, build_container_security

    return {
        "name": section,
        "image": Image("platform.image"),
        "command": ["portside"],
        "args": arguments,
        "envFrom": When(Value(f"{section}.envFrom"), Structure(f"{section}.envFrom")),
        "resources": When(Value(f"{section}.resources"), Structure(f"{section}.resources")),
        "securityContext": build_container_security(),
        "volumeMounts": [{"name": "home", "mountPath": VOLUME}, TMP_MOUNT],
    }


def _build_program_pod(section: str, container: Json, home: Json) -> Json:
    from portside.dataplane.compute.kubernetes.security import TMP_VOLUME

    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _build_pod_security(_USER),
        **_build_scheduling(section),
        "containers": [container],
        "volumes": [{"name": "home", **home}, TMP_VOLUME],
    }


def _build_pod_security(user: int) -> Json:
    """Return the context of a pod; a cluster that gives out users gets told none."""
    from portside.dataplane.compute.kubernetes.security import build_pod_security

    shared = build_pod_security(None)
    return {
        name: value if name in shared else When(Not(Value("arbitraryUids")), value)
        for name, value in build_pod_security(user).items()
    }


def _build_scheduling(section: str) -> Json:
    """Return where a pod may run, and how its images are pulled."""
    pull_secrets = [Each(Value("imagePullSecrets"), "secret", ({"name": Item("secret")},))]
    structures = {name: f"{section}.{name}" for name in ("nodeSelector", "tolerations", "affinity")}
    return {
        "imagePullSecrets": When(Value("imagePullSecrets"), pull_secrets),
        **{name: When(Value(path), Structure(path)) for name, path in structures.items()},
        "priorityClassName": When(Value(f"{section}.priorityClassName"), Value(f"{section}.priorityClassName")),
    }


def _build_single_replica() -> Json:
    return {"replicas": 1, "strategy": {"type": "Recreate"}}


def _build_pods(component: str, section: str, pod: Json) -> Json:
    annotations = f"{section}.podAnnotations"
    metadata = {
        "labels": Extended(_build_labels(component), Structure("labels")),
        "annotations": When(Value(annotations), Structure(annotations)),
    }
    return {
        "selector": {"matchLabels": _build_labels(component)},
        "template": {"metadata": metadata, "spec": pod},
    }


def _build_service(name: str, *, component: str, port: int, port_name: str) -> Json:
    ports = [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}]
    spec = {"selector": _build_labels(component), "ports": ports}
    return _build_object(kind="Service", name=name, component=component, spec=spec)


def _build_claim(name: str, *, component: str, size: Value) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": Text((size, "Gi"))}},
        "storageClassName": When(Value("storageClass"), Value("storageClass")),
    }
    claim = _build_object(kind="PersistentVolumeClaim", name=name, component=component, spec=spec)
    return _keep(claim)


def _build_ingress() -> Json:
    backend = {"service": {"name": "portside", "port": {"name": "http"}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    tls = [{"hosts": [Value("host")], "secretName": Value("ingress.tlsSecret")}]
    spec: Json = {
        "ingressClassName": When(Value("ingress.className"), Value("ingress.className")),
        "rules": [{"host": Value("host"), "http": {"paths": paths}}],
        "tls": When(Value("ingress.tlsSecret"), tls),
    }

    ingress = _build_object(kind="Ingress", name="portside", component="platform", spec=spec)
    return _annotate(ingress, "ingress.annotations")


def _build_route() -> Json:
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [{"name": "portside", "port": PORT}],
    }
    spec = {"parentRefs": Structure("gateway.parentRefs"), "hostnames": [Value("host")], "rules": [rule]}
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "portside", "namespace": Namespace(), "labels": _build_labels("platform")},
        "spec": spec,
    }
    return _annotate(_extend_metadata(route), "gateway.annotations")


def _build_object(*, kind: str, name: str, component: str, spec: Json) -> Json:
    from portside.dataplane.compute.kubernetes.objects import KINDS

    group, version, _ = KINDS[kind]
    metadata = {"name": name, "namespace": Namespace(), "labels": _build_labels(component)}
    manifest = {
        "apiVersion": f"{group}/{version}" if group else version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }
    return _extend_metadata(manifest)


def _build_namespace(name: Namespace | Item, level: str | Value) -> Json:
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn", "audit")}
    metadata = {"name": name, "labels": Extended(labels, Structure("labels"))}
    return _keep({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _extend_metadata(manifest: Json) -> Json:
    """Return an object with the labels and annotations of the values."""
    metadata = manifest["metadata"]
    more = {
        "labels": Extended(metadata["labels"], Structure("labels")),
        "annotations": When(Value("annotations"), Structure("annotations")),
    }
    return {**manifest, "metadata": {**metadata, **more}}


def _annotate(manifest: Json, path: str) -> Json:
    """Return an object with annotations of its own beside those of all objects."""
    annotations = Joined((Structure("annotations"), Structure(path)))
    has_any = Either((Value("annotations"), Value(path)))
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": When(has_any, annotations)}}


def _keep(manifest: Json) -> Json:
    """Return an object that Helm leaves when a release is removed, because it has data."""
    annotations = Extended({"helm.sh/resource-policy": "keep"}, Structure("annotations"))
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def _build_labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "portside", "app.kubernetes.io/component": component}


def _build_secret_variable(variable: str, secret: str, key: str) -> Json:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": Value(secret), "key": key}}}
