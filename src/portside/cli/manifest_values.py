"""The values of an installation on a cluster: one typed document for `portside manifests --values` and the Helm chart.

Every value has a default and a description, from which the reference, the JSON schema and the chart's `values.yaml` are
written. Names are those of Kubernetes and Helm (`nodeSelector`), because operators copy from their other charts.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from portside import __version__
from portside.kernel.errors import UserMistake

Json = dict[str, Any]
# What identifies an object's component; selectors of Deployments cannot change later.
OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component")
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_MAX_FILE_BYTES = 1_000_000

Name = Annotated[str, msgspec.Meta(pattern=rf"^{_LABEL}$(?!\n)", max_length=63)]
HostName = Annotated[str, msgspec.Meta(pattern=rf"^{_LABEL}(\.{_LABEL})*$(?!\n)", max_length=253)]
HostPattern = Annotated[str, msgspec.Meta(pattern=rf"^(\*\.)?{_LABEL}(\.{_LABEL})+$(?!\n)", max_length=253)]
Image = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\s]+$(?!\n)")]
Labels = Annotated[
    dict[str, str],
    msgspec.Meta(max_length=64, extra_json_schema={"propertyNames": {"not": {"enum": list(OWN_LABELS)}}}),
]
Annotations = Annotated[dict[str, str], msgspec.Meta(max_length=64)]
Gibibytes = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


def described(text: str) -> msgspec.Meta:
    """Return the description of a value."""
    return msgspec.Meta(description=text)


class ValuesSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the values; an unknown name in it is an error."""


class Variable(ValuesSection, frozen=True, kw_only=True, omit_defaults=True):
    """An environment variable in the form of Kubernetes."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)", max_length=200)]
    value: str | None = None
    value_from: Json | None = None


class ComponentValues(ValuesSection, frozen=True, kw_only=True):
    """What the pods of every component have."""

    resources: Annotated[Json, described("Requests and limits of the container.")] = {}
    node_selector: Annotated[dict[str, str], described("Labels of the nodes that may run the pod.")] = {}
    tolerations: Annotated[list[Json], described("Taints of nodes that the pod tolerates.")] = []
    affinity: Annotated[Json, described("Affinity of the pod, in the form of Kubernetes.")] = {}
    priority_class_name: Annotated[str | None, described("Priority class of the pod.")] = None
    pod_annotations: Annotated[Annotations, described("Annotations of the pod.")] = {}


class ProgramValues(ComponentValues, frozen=True, kw_only=True):
    """What the pods of the platform's own programs have."""

    env: Annotated[
        list[Variable],
        described("More environment variables: `name` with `value` or `valueFrom`. None that the manifests set."),
    ] = []
    env_from: Annotated[list[Json], described("Secrets and ConfigMaps with more environment variables.")] = []


class PlatformValues(ProgramValues, frozen=True, kw_only=True):
    """The platform: control plane, hosted API and console."""

    image: Annotated[Image, described("Image of the platform and of the listener.")] = f"portside:{__version__}"
    secret_name: Annotated[
        Name, described("Secret with the keys `api-key`, `database-url` and, for Postgres, `postgres-password`.")
    ] = "portside"  # noqa: S105 - the name of an object
    storage_gi: Annotated[Gibibytes, described("GiB of the volume of the platform's home.")] = 20
    resources: Annotated[Json, described("Requests and limits of the container.")] = msgspec.field(
        default_factory=lambda: {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    )


class PostgresValues(ComponentValues, frozen=True, kw_only=True):
    """The platform's own Postgres."""

    enabled: Annotated[bool, described("Run Postgres here; otherwise `database-url` names an external one.")] = True
    image: Annotated[Image, described("Image of Postgres 15 or newer with pgvector.")] = "pgvector/pgvector:pg15"
    storage_gi: Annotated[Gibibytes, described("GiB of its volume.")] = 20
    resources: Annotated[Json, described("Requests and limits of the container.")] = msgspec.field(
        default_factory=lambda: {"requests": {"cpu": "250m", "memory": "512Mi"}}
    )


class ListenerValues(ProgramValues, frozen=True, kw_only=True):
    """The listener, which runs deployments on this cluster."""

    enabled: Annotated[bool, described("Run a listener for this cluster.")] = True
    secret_name: Annotated[Name, described("Secret with the key `api-key`, of the listener.")] = "portside-listener"  # noqa: S105 - the name of an object
    compute_id: Annotated[Name, described("Name of the listener's compute.")] = "kubernetes"
    resources: Annotated[Json, described("Requests and limits of the container.")] = msgspec.field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    )


class AgentsValues(ValuesSection, frozen=True, kw_only=True):
    """The deployments that the listener makes."""

    namespaces: Annotated[
        list[Name],
        msgspec.Meta(min_length=1, max_length=1000, extra_json_schema={"uniqueItems": True}),
        described("Namespaces that deployments may be in."),
    ] = msgspec.field(default_factory=lambda: ["agents"])
    url: Annotated[str | None, described("Public address of deployments, such as https://*.agents.example.com.")] = None
    ingress_class: Annotated[str | None, described("Class of their Ingresses. By default the cluster's.")] = None
    tls_secret: Annotated[
        str | None, described("Secret with the certificate of their Ingresses, in each namespace.")
    ] = None
    pod_security: Annotated[
        Literal["restricted", "baseline"],
        described("Pod Security level of their namespaces and pods; `baseline` allows images that run as root."),
    ] = "restricted"
    read_only_root: Annotated[
        bool, described("Let their servers write only to their volumes and a /tmp of their own.")
    ] = False
    keda: Annotated[bool, described("Scale deployments by their pending runs with KEDA, which must be installed.")] = (
        False
    )
    cloudnative_pg: Annotated[
        bool, described("Run the databases of new deployments by CloudNativePG, which must be installed.")
    ] = False
    object_store: Annotated[
        str | None,
        described(
            "ObjectStore of CloudNativePG's Barman plugin in each namespace, to which these databases are backed up."
        ),
    ] = None
    parent_refs: Annotated[
        list[Json],
        described(
            "Gateways, in the form of Gateway API; with any, their public addresses are HTTPRoutes, not Ingresses."
        ),
    ] = []
    node_selector: Annotated[dict[str, str], described("Labels of the nodes that may run their pods.")] = {}
    tolerations: Annotated[list[Json], described("Taints of nodes that their pods tolerate.")] = []
    priority_class_name: Annotated[str | None, described("Priority class of their pods.")] = None
    custom_hosts: Annotated[
        list[HostPattern],
        described(
            "Host names that owners may request for them by `custom_url`; `*.agents.example.com` allows all below it."
        ),
    ] = []
    postgres_image: Annotated[Image, described("Image of their Postgres.")] = "pgvector/pgvector:pg15"
    redis_image: Annotated[Image, described("Image of their Redis.")] = "redis:6"


class IngressValues(ValuesSection, frozen=True, kw_only=True):
    """The Ingress of the platform."""

    enabled: Annotated[bool, described("Make an Ingress if there is a `host`.")] = True
    class_name: Annotated[str | None, described("Its class. By default the cluster's.")] = None
    annotations: Annotated[Annotations, described("Its annotations.")] = {}
    tls_secret: Annotated[str | None, described("Secret with its certificate.")] = None


class GatewayValues(ValuesSection, frozen=True, kw_only=True):
    """The route of the platform at a gateway of the Gateway API."""

    parent_refs: Annotated[
        list[Json], described("Gateways, in the form of Gateway API; with any, an HTTPRoute is made for the `host`.")
    ] = []
    annotations: Annotated[Annotations, described("Annotations of the HTTPRoute.")] = {}


class ProxyValues(ValuesSection, frozen=True, kw_only=True):
    """The HTTP proxy between the cluster and the world, for the platform, the listener and deployments."""

    http: Annotated[str | None, described("HTTP_PROXY, without a password: the manifests hold no secrets.")] = None
    https: Annotated[str | None, described("HTTPS_PROXY, likewise.")] = None
    no_proxy: Annotated[
        list[str], described("More names for NO_PROXY, which has the services of the cluster and its API server.")
    ] = []


class Values(ValuesSection, frozen=True, kw_only=True):
    """The values of an installation on a cluster."""

    namespace: Annotated[
        Name | None, described("Namespace of the platform. By default `portside`, or that of the Helm release.")
    ] = None
    create_namespaces: Annotated[
        bool, described("Make the namespaces, with labels for Pod Security. A chart makes only those of deployments.")
    ] = True
    host: Annotated[
        HostName | None, described("Host name of the platform; without it only the cluster reaches it.")
    ] = None
    image_registry: Annotated[
        str | None, described("Registry, or a path in it, that stands before the name of every image.")
    ] = None
    image_pull_secrets: Annotated[
        list[Name], described("Names of Secrets for pulling images; in the namespaces of deployments as well.")
    ] = []
    labels: Annotated[Labels, described("Labels of all objects and pods.")] = {}
    annotations: Annotated[Annotations, described("Annotations of all objects.")] = {}
    storage_class: Annotated[str | None, described("Storage class of all volumes. By default the cluster's.")] = None
    arbitrary_uids: Annotated[
        bool, described("Set no user and no group: the cluster gives each namespace its own, as OpenShift does.")
    ] = False
    listen_address: Annotated[
        Literal["0.0.0.0", "::"],  # noqa: S104 - a pod's own address
        described("Address that servers listen on in their pods; `::` on a cluster with IPv6."),
    ] = "0.0.0.0"  # noqa: S104 - the same
    cluster_domain: Annotated[HostName, described("Domain of the cluster's services.")] = "cluster.local"
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], described("What the platform logs.")] = "INFO"
    platform: PlatformValues = PlatformValues()
    postgres: PostgresValues = PostgresValues()
    listener: ListenerValues = ListenerValues()
    agents: AgentsValues = AgentsValues()
    ingress: IngressValues = IngressValues()
    gateway: GatewayValues = GatewayValues()
    proxy: ProxyValues = ProxyValues()


def read_values(path: Path | None, flags: Json) -> Json:
    """Return the complete values of a file; flags, by their dotted names, replace those of the file.

    Raises UserMistake, with the name of the value, for one that is not valid.
    """
    document = _merge(msgspec.to_builtins(Values()), {} if path is None else _read_document(path))
    for name, value in flags.items():
        section, _, field = name.rpartition(".")
        target = document[section] if section else document
        if not isinstance(target, dict):
            raise UserMistake(f"{section}: expected an object")
        target[field] = value

    try:
        values: Json = msgspec.to_builtins(msgspec.convert(document, Values))
    except msgspec.ValidationError as exc:
        raise UserMistake(f"the values are not valid: {exc}; see portside manifests --schema") from exc

    namespaces = values["agents"]["namespaces"]
    if len(set(namespaces)) < len(namespaces):
        raise UserMistake("agents.namespaces: a namespace is there twice; take one out")

    taken = [label for label in OWN_LABELS if label in values["labels"]]
    if taken:
        raise UserMistake(f"labels: {taken[0]} is set by the manifests; take it out")

    return values


def _merge(defaults: Json, document: Json, depth: int = 0) -> Json:
    """Return the defaults with the values of a document, object by object, as Helm does.

    In an object of Kubernetes, such as `resources`, null removes a field.
    """
    merged = dict(defaults)
    for name, value in document.items():
        default = defaults.get(name)
        if value is None and depth > 1:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(default, dict):
            merged[name] = _merge(default, value, depth + 1)
        else:
            merged[name] = value

    return merged


def _read_document(path: Path) -> Json:
    import yaml

    try:
        text = path.read_bytes()
    except OSError as exc:
        raise UserMistake(f"cannot read {path}: {exc.strerror}") from exc

    if len(text) > _MAX_FILE_BYTES:
        raise UserMistake(f"{path} has more than {_MAX_FILE_BYTES} bytes; it is no file of values")

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise UserMistake(f"{path} is not valid YAML: {exc}") from exc

    if document is None:
        return {}

    if not isinstance(document, dict):
        raise UserMistake(f"{path}: expected an object with values, such as `host: portside.example.com`")

    return document


def build_schema() -> Json:
    """Return the JSON schema of the values, in the version that Helm reads."""
    (reference,), definitions = msgspec.json.schema_components([Values], ref_template="#/definitions/{name}")
    root = definitions.pop(reference["$ref"].rpartition("/")[2])
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **root, "definitions": definitions}

    # In other languages `$` is the end of a text, not of a line, and Go's expressions do not look ahead.
    text = msgspec.json.encode(schema).decode().replace(r"$(?!\\n)", "$")
    return dict(msgspec.json.decode(text))
