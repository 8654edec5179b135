"""The structs of the control plane's API (docs/compatibility.md lists their fields).

In requests, null means the same as an absent field. Responses have the path of the graph configuration under both of
its names, because clients read either. The structs that listeners exchange are in `portside.listener_api`.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from portside.kernel import clock
from portside.kernel.http.json_validation import NO_ITEMS, NO_TEXT, NO_VALUE
from portside.listener_api import (
    ONE_LINE,
    ComputeId,
    ComputeType,
    DeploymentStatus,
    Line,
    LogType,
    MetricsReport,
    Moment,
    RevisionStatus,
    Secret,
)

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$(?!\n)"

Cpu = Annotated[int, Meta(ge=1, le=8)] | Annotated[float, Meta(ge=0.1, le=8)]
CpuLimit = Annotated[int, Meta(ge=1, le=16)] | Annotated[float, Meta(ge=0.1, le=16)]
DatabaseCpu = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=0.1)]
ReplicaCount = Annotated[int, Meta(ge=0, le=1000)]
WholeAmount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
DnsLabel = Annotated[str, Meta(pattern=DNS_LABEL, description="up to 63 lower-case letters, digits and hyphens")]
PodText = Annotated[str, Meta(min_length=1, max_length=4096)]
Source = Literal[
    "git_hosting",
    "github",
    "external_image",
    "external_docker",
    "internal_docker",
    "internal_source",
    "internal_template",
]
DeploymentType = Literal["dev_free", "dev", "prod", "dev_zero", "dev_free_zero"]
Limit = Annotated[int, Meta(ge=1, le=100)]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# Idle seconds, at most 30 days.
SleepAfter = Annotated[int, Meta(ge=0, le=2_592_000)]
# Hours, at most a year.
PinThreads = Annotated[float, Meta(ge=0, le=8760)]
LogOffset = Annotated[str, Meta(max_length=19, pattern=r"^\d{0,18}$(?!\n)")]
GitHostKind = Literal["github", "gitlab", "gitea"]
IntegrationName = Annotated[str, Meta(min_length=1, max_length=100, pattern=ONE_LINE)]
HostToken = Annotated[
    str, Meta(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$(?!\n)", description="a token without spaces")
]


class LocalObjectReference(msgspec.Struct, forbid_unknown_fields=True):
    """A secret of the same namespace, by name."""

    name: PodText


class Volume(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A volume of the pod; its source is passed on unchanged. Other sources, such as hostPath, are refused."""

    name: DnsLabel
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    persistent_volume_claim: dict[str, Any] | None = None
    nfs: dict[str, Any] | None = None
    projected: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")
    csi: dict[str, Any] | None = None


class VolumeMount(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The mount of a volume in a container."""

    name: PodText
    mount_path: PodText
    sub_path: str | None = None
    mount_propagation: str | None = None
    read_only: bool | None = None
    sub_path_expr: str | None = None


class EnvVar(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An environment variable of a container."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
            description="the name of a variable: letters, digits and underscores, no digit first",
        ),
    ]
    value: str = ""
    value_from: dict[str, Any] | None = None


class ResourceRequirements(msgspec.Struct, forbid_unknown_fields=True):
    """The resource requests and limits of a container."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class ContainerPort(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A port on which a container listens. `hostPort` needs the permission of the cluster's operator."""

    container_port: Annotated[int, Meta(ge=1, le=65535)]
    name: (
        Annotated[
            str,
            Meta(
                pattern=r"^(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$(?!\n)",
                description="the name of a port: up to 15 lower-case letters, digits and hyphens, at least one letter",
            ),
        ]
        | None
    ) = None
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None
    host_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


class Container(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A container that runs before or beside the main one; its probes and its lifecycle are passed on unchanged."""

    name: DnsLabel
    image: PodText
    image_pull_policy: Literal["Always", "Never", "IfNotPresent"] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str | None = None
    env: list[EnvVar] | None = None
    env_from: list[dict[str, Any]] | None = None
    resources: ResourceRequirements | None = None
    volume_mounts: list[VolumeMount] | None = None
    security_context: dict[str, Any] | None = None
    restart_policy: Literal["Always", "OnFailure"] | None = None
    ports: Annotated[list[ContainerPort], Meta(max_length=100)] | None = None
    startup_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    liveness_probe: dict[str, Any] | None = None
    lifecycle: dict[str, Any] | None = None


class ResourceSpec(msgspec.Struct):
    """Replicas, CPU, memory and pod settings of an image deployment."""

    min_scale: ReplicaCount | None = None
    max_scale: ReplicaCount | None = None
    cpu: Cpu | None = None
    cpu_limit: CpuLimit | None = None
    memory_mb: WholeAmount | None = None
    memory_limit_mb: WholeAmount | None = None
    queue_min_scale: ReplicaCount | None = None
    queue_max_scale: ReplicaCount | None = None
    queue_cpu: Cpu | None = None
    queue_cpu_limit: CpuLimit | None = None
    queue_memory_mb: WholeAmount | None = None
    queue_memory_limit_mb: WholeAmount | None = None
    orchestrator_cpu: Cpu | None = None
    orchestrator_cpu_limit: CpuLimit | None = None
    orchestrator_memory_mb: WholeAmount | None = None
    orchestrator_memory_limit_mb: WholeAmount | None = None
    orchestrator_min_scale: ReplicaCount | None = None
    orchestrator_max_scale: ReplicaCount | None = None
    executor_cpu: Cpu | None = None
    executor_cpu_limit: CpuLimit | None = None
    executor_memory_mb: WholeAmount | None = None
    executor_memory_limit_mb: WholeAmount | None = None
    redis_cpu: Cpu | None = None
    redis_cpu_limit: CpuLimit | None = None
    redis_memory_mb: WholeAmount | None = None
    redis_memory_limit_mb: WholeAmount | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    service_account_name: PodText | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None
    volumes: list[Volume] | None = None
    volume_mounts: list[VolumeMount] | None = None
    init_containers: list[Container] | None = None
    sidecars: list[Container] | None = None
    db_cpu: DatabaseCpu | None = None
    db_cpu_limit: DatabaseCpu | None = None
    db_memory_mb: WholeAmount | None = None
    db_memory_limit_mb: WholeAmount | None = None
    db_storage_gi: WholeAmount | None = None
    db_max_connections: WholeAmount | None = None


class ListenerConfig(msgspec.Struct):
    """The Kubernetes namespace of the deployment."""

    k8s_namespace: DnsLabel | None = None


class SecretReference(msgspec.Struct):
    """A key of a Kubernetes secret that becomes an environment variable (image deployments only)."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\n)",
            description="the name of a variable: letters, digits and underscores, no digit first",
        ),
    ]
    secret_name: Annotated[
        str,
        Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$(?!\n)", description="the name of a secret of Kubernetes"),
    ]
    secret_key: Annotated[
        str, Meta(pattern=r"^[-._A-Za-z0-9]{1,253}$(?!\n)", description="a key of a secret of Kubernetes")
    ]


class SourceConfig(msgspec.Struct):
    """The source of a deployment and how it is built; the same in requests and responses."""

    integration_id: UUID | None = None
    repo_url: Annotated[str, Meta(max_length=2048)] | None = None
    deployment_type: DeploymentType | None = None
    build_on_push: bool | None = None
    custom_url: Line | None = None
    resource_spec: ResourceSpec | None = None
    listener_id: UUID | None = None
    listener_config: ListenerConfig | None = None
    install_command: Annotated[str, Meta(max_length=1024)] | None = None
    build_command: Annotated[str, Meta(max_length=1024)] | None = None


class SourceRevisionRequest(msgspec.Struct):
    """The code of a new revision."""

    repo_ref: Annotated[str, Meta(max_length=255)] | None = None
    graph_config_path: Annotated[str, Meta(max_length=1024)] | None = None
    image_uri: Line | None = None
    source_tarball_path: Line | None = None


class AgentAccess(msgspec.Struct, frozen=True):
    """Who may call the agent with the platform's keys, logins and tokens.

    `workspace` allows any key of the workspace, `permission` keys and members with `deployments:call`, `roles` members
    with one of `roles`, and `none` nobody. A project with an authentication of its own decides by that instead.
    """

    allow: Literal["workspace", "permission", "roles", "none"] = "workspace"
    roles: Annotated[list[Line], Meta(max_length=20)] = []


class DeploymentCreate(msgspec.Struct, kw_only=True):
    """The body of a create. The agent sleeps after `sleep_after_s` without a request or a run; 0 means never.

    `pin_threads` is for how many hours threads that are interrupted or have runs continue with the revision that began
    them, after a new one was deployed; 0 means that they change at once. Only sources that are built on a listener's
    machine can pin threads.
    """

    name: Annotated[str, Meta(extra_json_schema={"pattern": DNS_LABEL})]
    source: Source
    source_config: SourceConfig
    source_revision_config: SourceRevisionRequest
    secrets: Annotated[list[Secret], Meta(max_length=500)] | None = None
    secret_references: Annotated[list[SecretReference], Meta(max_length=500)] | None = None
    agent_access: AgentAccess | None = None
    sleep_after_s: SleepAfter | None = None
    pin_threads: PinThreads | None = None
    agent: Annotated[Any, NO_VALUE] = None


class SecretChanges(msgspec.Struct, frozen=True):
    """Secrets to set and to remove; the others stay. Removing a secret that does not exist has no effect."""

    set: Annotated[list[Secret], Meta(max_length=500)] = []
    unset: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=500)] = []


class DeploymentPatch(msgspec.Struct, kw_only=True):
    """The body of a PATCH; null keeps a value. `secrets` replaces all secrets, `secret_changes` single ones."""

    name: str | None = None
    source: Source | None = None
    revision_source: Source | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=255, pattern=ONE_LINE)] | None = None
    source_config: SourceConfig | None = None
    source_revision_config: SourceRevisionRequest | None = None
    secrets: Annotated[list[Secret], Meta(max_length=500)] | None = None
    secret_changes: SecretChanges | None = None
    secret_references: Annotated[list[SecretReference], Meta(max_length=500)] | None = None
    agent_access: AgentAccess | None = None
    sleep_after_s: SleepAfter | None = None
    pin_threads: PinThreads | None = None


class SourceRevisionConfig(msgspec.Struct):
    """The code of a revision; the author and the subject of its commit are known once it is built."""

    repo_ref: str | None
    graph_config_path: str | None
    langgraph_config_path: str | None
    repo_commit_sha: str | None
    repo_commit_author: str | None = None
    repo_commit_subject: str | None = None
    image_uri: str | None = None
    source_tarball_path: str | None = None


class Deployment(msgspec.Struct, kw_only=True):
    """A deployment; `source_revision_config` and `secrets` are those of its latest revision.

    `server_version` is the version of the running agent server; null if its compute does not report it. An agent that
    nobody uses for `sleep_after_s` sleeps (`is_asleep`) until a request, a run or a cron wakes it; 0 means never.
    `ignored_secrets` are secrets that its servers do not get: a LANGSMITH_API_KEY that this platform does not know,
    without an endpoint. The traces arrive with the deployment's own key.
    """

    id: UUID
    tenant_id: UUID
    name: str
    display_name: str | None
    source: Source
    source_config: SourceConfig
    source_revision_config: SourceRevisionConfig
    secrets: list[Secret]
    ignored_secrets: list[str]
    secret_references: list[SecretReference] | None = None
    agent_access: AgentAccess
    sleep_after_s: int
    is_asleep: bool
    pin_threads: float
    status: DeploymentStatus
    status_message: str | None
    latest_revision_id: UUID | None
    active_revision_id: UUID | None
    image_version: str | None = None
    server_version: str | None = None
    tracing_project_id: UUID
    created_at: Moment
    updated_at: Moment


class Revision(msgspec.Struct, kw_only=True):
    """A revision; `status_message` has the reason of a failure."""

    id: UUID
    status: RevisionStatus
    status_message: str | None
    source: Source
    source_revision_config: SourceRevisionConfig
    created_at: Moment
    updated_at: Moment


class Move(msgspec.Struct):
    """A status of a revision, with the time of the change and the reason that was given."""

    status: RevisionStatus
    reason: str | None
    at: Moment


class RevisionHistory(msgspec.Struct):
    """All statuses of a revision, oldest first."""

    moves: list[Move]


class DeploymentList(msgspec.Struct):
    """A page of deployments, newest first; `offset` is where the next page starts."""

    resources: list[Deployment]
    offset: int


class RevisionList(msgspec.Struct):
    """A page of revisions, newest first; `offset` is where the next page starts."""

    resources: list[Revision]
    offset: int


class DeploymentQuery(msgspec.Struct):
    """Which deployments to list. An empty `name` or `name_contains` matches all."""

    limit: Limit = 20
    offset: Offset = 0
    name: Line | None = None
    name_contains: Line | None = None
    status: DeploymentStatus | None = None
    deployment_type: DeploymentType | None = None
    deployment_ids: Annotated[list[UUID], Meta(max_length=100)] | None = None
    tracing_project_id: UUID | None = None
    image_version: Line | None = None
    remote_reconciled: bool | None = None
    tag_value_ids: Annotated[list[UUID], NO_ITEMS] | None = None
    agent_id: Annotated[str, NO_TEXT] | None = None
    agent_environment: Annotated[str, NO_TEXT] | None = None


class RevisionQuery(msgspec.Struct):
    """Which revisions of a deployment to list."""

    limit: Limit = 20
    offset: Offset = 0
    status: list[RevisionStatus] | None = None
    remote_reconciled: bool | None = None


class DeleteManyQuery(msgspec.Struct):
    """Which deployments to delete, all or none of them."""

    deployment_ids: Annotated[list[UUID], Meta(min_length=1, max_length=100)]


class DeletedDeployments(msgspec.Struct):
    """The deployments whose delete was requested."""

    deployment_ids: list[UUID]


class DeleteQuery(msgspec.Struct):
    """What to delete besides the deployment."""

    delete_tracing_project: bool = False


class ComputeConfig(msgspec.Struct):
    """The namespaces that a Kubernetes listener may use; null for all. Process listeners have none."""

    k8s_namespaces: Annotated[list[DnsLabel], Meta(min_length=1, max_length=1000)] | None = None


class ListenerCreate(msgspec.Struct, kw_only=True):
    """The body of a create. The listener connects later, under the same compute id."""

    compute_type: Literal["k8s"]
    compute_id: ComputeId
    compute_config: ComputeConfig
    version: Line | None = None


class ListenerPatch(msgspec.Struct):
    """The body of a PATCH; null keeps a value."""

    version: Line | None = None
    compute_config: ComputeConfig | None = None


class Listener(msgspec.Struct, kw_only=True):
    """A listener as clients see it; `last_seen_at` is null until it connects."""

    id: UUID
    compute_type: ComputeType
    compute_id: str
    compute_config: ComputeConfig
    version: str | None
    last_seen_at: Moment | None
    created_at: Moment
    updated_at: Moment


class ListenerList(msgspec.Struct):
    """A page of listeners; `offset` is where the next page starts."""

    resources: list[Listener]
    offset: int


class LogFilter(msgspec.Struct, kw_only=True):
    """Which entries to read; `offset` is the previous page's `next_offset`."""

    order: Literal["asc", "desc"] = "asc"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    offset: LogOffset | None = None
    level: Line | None = None
    query: Line | None = None
    start_time: clock.Moment | None = None
    end_time: clock.Moment | None = None
    run_id: Line | None = None


class LogQuery(LogFilter, kw_only=True):
    """Which log to read, and which of its entries."""

    type: LogType


class LogEntry(msgspec.Struct):
    """One line of a log; `timestamp` in milliseconds since 1970."""

    id: str
    timestamp: int
    level: str
    message: str


class LogPage(msgspec.Struct):
    """A page of entries. Ascending, `next_offset` is also where later entries will appear."""

    logs: list[LogEntry]
    next_offset: str | None


class DeploymentMetrics(MetricsReport, frozen=True, kw_only=True):
    """The metrics of a deployment at `measured_at`; null if none were reported yet."""

    measured_at: Moment | None = None


class PushTokenRequest(msgspec.Struct):
    """The client's capabilities."""

    supports_registry_username: bool = False


class UploadRequest(msgspec.Struct):
    """The client's capabilities: whether it sends the headers that the response names."""

    supports_upload_headers: bool = False


class UploadAddress(msgspec.Struct):
    """The address to PUT one archive to, and the path by which a revision names it.

    The address needs no API key and works for an hour and one archive. The upload must send `upload_headers`.
    """

    upload_url: str
    object_path: str
    upload_headers: dict[str, str] | UnsetType = UNSET


class UploadQuery(msgspec.Struct):
    """The token of an upload address."""

    token: str = ""


class Integration(msgspec.Struct, frozen=True, kw_only=True):
    """An account at a git host; its id goes into `source_config.integration_id`. `kind` is `git` for plain git."""

    id: UUID
    installation_id: int
    name: str
    kind: str
    base_url: str | None
    has_token: bool
    has_webhook: bool


class IntegrationCreate(msgspec.Struct, kw_only=True):
    """An account at a git host. Forgejo has kind `gitea`; hosts other than the public ones need `base_url`.

    Without a token it can read public repositories, and can still have a webhook.
    """

    name: IntegrationName
    kind: GitHostKind
    base_url: Line | None = None
    token: HostToken | None = None


class IntegrationPatch(msgspec.Struct, kw_only=True):
    """A new token for an integration."""

    token: HostToken


class PushWebhook(msgspec.Struct):
    """The values to enter at the git host. The secret is shown once."""

    url: str
    secret: str
    content_type: str = "application/json"
    events: list[str] = msgspec.field(default_factory=lambda: ["push"])


class GitRepository(msgspec.Struct):
    """A repository that an integration can read; a deployment uses its `url` and `default_branch`."""

    host_integration_id: UUID
    id: int
    name: str
    owner: str
    url: str
    default_branch: str | None


class PushResponse(msgspec.Struct):
    """The result of a push: the revisions it started, or the reason why there are none."""

    revision_ids: list[UUID] = []
    ignored: str | None = None
