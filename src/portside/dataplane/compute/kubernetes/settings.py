"""The settings of a listener that deploys to Kubernetes, read from the environment beside those of every listener."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from portside.kernel.errors import UserMistake
from portside.kernel.settings import setting, split_names
from portside.size_limits import SizeLimits

T = TypeVar("T")

Image = Annotated[str, msgspec.Meta(min_length=1)]
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
UrlPattern = Annotated[str, msgspec.Meta(pattern=r"^https?://(\*\.)?[a-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~/-]*)?$(?!\n)")]


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where deployments run on a cluster, and their addresses."""

    kubernetes_namespaces: Annotated[
        str,
        msgspec.Meta(min_length=1),
        setting("Namespaces for deployments, separated by commas. A deployment that names none uses the first one."),
    ]
    kubernetes_context: Annotated[
        str | None, setting("Context of the kubeconfig file to use; only outside a cluster.")
    ] = None
    kubernetes_cluster_domain: Annotated[str, setting("Domain of the cluster's services.")] = "cluster.local"
    kubernetes_ingress_url: Annotated[
        UrlPattern | None,
        setting(
            "Public address of deployments, such as https://*.agents.example.com for one host per deployment or "
            "https://example.com/agents for one path per deployment. Without it there is no Ingress, and only the "
            "cluster itself reaches deployments."
        ),
    ] = None
    kubernetes_ingress_class: Annotated[str | None, setting("Class of the Ingress. By default the cluster's.")] = None
    kubernetes_ingress_tls_secret: Annotated[
        str | None, setting("Secret with the certificate of the Ingress, in each namespace.")
    ] = None
    kubernetes_gateways: Annotated[
        str,
        setting(
            'Gateways of the Gateway API for deployments, as a JSON list of parentRefs such as [{"name": "public", '
            '"namespace": "gateways"}]. With any, a public address is an HTTPRoute at them instead of an Ingress.'
        ),
    ] = ""
    kubernetes_node_selector: Annotated[
        str, setting("Labels of the nodes that may run pods of deployments, as a JSON object.")
    ] = ""
    kubernetes_tolerations: Annotated[
        str, setting("Taints of nodes that pods of deployments tolerate, as a JSON list in the form of Kubernetes.")
    ] = ""
    kubernetes_priority_class: Annotated[str | None, setting("Priority class of pods of deployments.")] = None
    kubernetes_health_check: Annotated[
        Literal["service", "ingress", "none"],
        setting(
            "What must answer GET /ok before a revision is DEPLOYED: its Service, which only a listener inside the "
            "cluster reaches, its public address (ingress), or only the probes of its pods (none)."
        ),
    ] = "service"
    kubernetes_queue_timeout_s: Annotated[
        float, msgspec.Meta(gt=0), setting("How long the queue's pods may take to become ready, in seconds.")
    ] = 600
    kubernetes_storage_class: Annotated[
        str | None, setting("Storage class of the databases' volumes. By default the cluster's.")
    ] = None
    kubernetes_postgres_image: Annotated[Image, setting("Image of the deployments' databases.")] = (
        "pgvector/pgvector:pg15"
    )
    kubernetes_postgres_operator: Annotated[
        Literal["none", "cloudnative-pg"],
        setting(
            "What runs new databases: none is one pod that the listener makes, without backups. CloudNativePG must be "
            "installed. A database stays with what made it."
        ),
    ] = "none"
    kubernetes_postgres_instances: Annotated[
        int, msgspec.Meta(ge=1, le=9), setting("Instances of each database by CloudNativePG.")
    ] = 1
    kubernetes_postgres_object_store: Annotated[
        str | None,
        setting(
            "ObjectStore of CloudNativePG's Barman plugin in each namespace, to which databases by CloudNativePG are "
            "backed up. Without it they have no backups."
        ),
    ] = None
    kubernetes_postgres_backup_schedule: Annotated[
        str, setting("When these backups begin: six fields, seconds first.")
    ] = "0 0 3 * * *"
    kubernetes_redis: Annotated[
        bool,
        setting("Give each deployment a Redis for notifications between its pods instead of Postgres."),
    ] = True
    kubernetes_redis_image: Annotated[Image, setting("Image of that Redis.")] = "redis:6"
    kubernetes_pending_runs_metric: Annotated[
        str | None,
        setting(
            "External metric with the pending runs of a deployment, labelled portside_deployment. With it the queue "
            "scales to 10 runs per replica; without it by CPU and memory only."
        ),
    ] = None
    kubernetes_pod_security: Annotated[
        Literal["restricted", "baseline"],
        setting(
            "Pod Security level that the pods of deployments keep to. `restricted` refuses images that run as root; "
            "`baseline` allows them."
        ),
    ] = "restricted"
    kubernetes_read_only_root: Annotated[
        bool,
        setting("Let servers of deployments write only to their volumes and a /tmp of their own."),
    ] = False
    kubernetes_arbitrary_uids: Annotated[
        bool,
        setting(
            "Leave the users of Postgres and Redis to the cluster, which gives each namespace its own (OpenShift)."
        ),
    ] = False
    kubernetes_listen_address: Annotated[
        Literal["0.0.0.0", "::"],  # noqa: S104 - a pod's own address
        setting("Address that servers of deployments listen on; `::` on a cluster with IPv6."),
    ] = "0.0.0.0"  # noqa: S104 - the same
    kubernetes_image_pull_secrets: Annotated[
        str | None,
        setting("Secrets for pulling images, separated by commas; each namespace of deployments has them."),
    ] = None
    kubernetes_http_proxy: Annotated[str | None, setting("HTTP_PROXY of deployments that do not set it.")] = None
    kubernetes_https_proxy: Annotated[str | None, setting("HTTPS_PROXY of deployments that do not set it.")] = None
    kubernetes_no_proxy: Annotated[
        str | None,
        setting("NO_PROXY of deployments that do not set it; the services of the cluster are added."),
    ] = None
    kubernetes_keda: Annotated[
        bool,
        setting(
            "Scale what executes runs by KEDA, which must be installed: to 10 pending runs per replica, which it "
            "reads from the servers, and by CPU and memory. KUBERNETES_PENDING_RUNS_METRIC is not used then."
        ),
    ] = False
    kubernetes_platform_url: Annotated[
        str | None,
        setting("Address at which pods reach the platform, for traces. [default: CONTROL_PLANE_URL]"),
    ] = None

    kubernetes_named_objects: Annotated[
        Literal["labelled", "all"],
        setting(
            "Which Secrets, ConfigMaps, claims and service accounts of its namespace a deployment may name: those with "
            "the label portside/workspace, whose value is the id of its workspace or any, or all, where one team has "
            "the namespaces to itself. Objects of other deployments never."
        ),
    ] = "labelled"
    kubernetes_privileged_containers: Annotated[
        bool,
        setting(
            "Let init containers and sidecars ask for rights on the node: privileged, added capabilities, ports of the "
            "node, probes of other hosts. Whoever may deploy can take over the node then."
        ),
    ] = False
    kubernetes_volumes: Annotated[
        str,
        setting(
            "Kinds of volumes that a resource_spec may have, separated by commas. nfs and csi, which reach what the "
            "node reaches, are not among them."
        ),
    ] = "configMap,downwardAPI,emptyDir,persistentVolumeClaim,projected,secret"
    kubernetes_max_cpu: Annotated[
        PositiveFloat | None,
        setting("Most CPUs that a container of a deployment may request or have as its limit."),
    ] = None
    kubernetes_max_memory_mb: Annotated[
        PositiveInt | None,
        setting("Most memory that a container of a deployment may request or have as its limit, in MB."),
    ] = None
    kubernetes_max_storage_gi: Annotated[
        PositiveInt | None, setting("Largest volume of a deployment's database, in GiB.")
    ] = None
    kubernetes_max_scale: Annotated[
        PositiveInt | None, setting("Most replicas of each of a deployment's workloads.")
    ] = None
    kubernetes_annotations: Annotated[
        str,
        setting(
            "Keys with a domain that labels and annotations of a resource_spec may have, separated by commas; * stands "
            "for any text. Controllers act by such keys. Keys without a domain are always allowed."
        ),
    ] = "prometheus.io/*"

    @property
    def namespaces(self) -> list[str]:
        """The namespaces in the order they were given."""
        return split_names(self.kubernetes_namespaces)

    @property
    def gateways(self) -> list[dict[str, Any]]:
        """The gateways of public addresses. Raises UserMistake."""
        return _decode("KUBERNETES_GATEWAYS", self.kubernetes_gateways, list[dict[str, Any]], "[]")

    @property
    def scheduling(self) -> dict[str, Any]:
        """The fields of a pod that say on which nodes it may run, and before which others. Raises UserMistake."""
        fields = {
            "nodeSelector": _decode("KUBERNETES_NODE_SELECTOR", self.kubernetes_node_selector, dict[str, str], "{}"),
            "tolerations": _decode("KUBERNETES_TOLERATIONS", self.kubernetes_tolerations, list[dict[str, Any]], "[]"),
            "priorityClassName": self.kubernetes_priority_class,
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def size_limits(self) -> SizeLimits:
        """The largest sizes that a deployment may ask for."""
        return SizeLimits(
            cpu=self.kubernetes_max_cpu,
            memory_mb=self.kubernetes_max_memory_mb,
            storage_gi=self.kubernetes_max_storage_gi,
            scale=self.kubernetes_max_scale,
        )

    @property
    def volume_kinds(self) -> frozenset[str]:
        """The kinds of volumes that a resource_spec may have."""
        return frozenset(split_names(self.kubernetes_volumes))

    @property
    def annotation_patterns(self) -> list[str]:
        """The keys with a domain that labels and annotations may have."""
        return split_names(self.kubernetes_annotations)

    @property
    def image_pull_secrets(self) -> list[str]:
        """The names of the Secrets for pulling images."""
        return split_names(self.kubernetes_image_pull_secrets)

    @property
    def proxies(self) -> dict[str, str]:
        """The variables of deployments for an HTTP proxy; the services of the cluster are reached without it."""
        values = {"HTTP_PROXY": self.kubernetes_http_proxy, "HTTPS_PROXY": self.kubernetes_https_proxy}
        proxies = {name: value for name, value in values.items() if value}
        if proxies:
            exceptions = ["localhost", "127.0.0.1", "::1", ".svc", f".{self.kubernetes_cluster_domain}"]
            proxies["NO_PROXY"] = ",".join([*exceptions, *split_names(self.kubernetes_no_proxy)])

        return proxies


def _decode(name: str, text: str, kind: type[T], default: str) -> T:
    """Return the value of a setting in JSON. Raises UserMistake, which names the setting."""
    try:
        return msgspec.json.decode(text or default, type=kind)
    except msgspec.MsgspecError as exc:
        raise UserMistake(f"setting {name}: {exc}; write JSON, as the reference shows it") from exc
