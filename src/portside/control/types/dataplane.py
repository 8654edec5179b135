"""What listeners and the control plane say to each other; no part of the public contract."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from portside.control.types.compute import Label
from portside.control.types.deployments import ONE_LINE, Line, Moment, Secret
from portside.control.types.operations import Scale
from portside.control.types.statuses import DeploymentStatus, RevisionStatus

ComputeType = Literal["process", "k8s"]
ComputeId = Annotated[str, Meta(min_length=1, max_length=253, pattern=ONE_LINE)]
Reason = Annotated[str, Meta(max_length=100_000)]


class Connect(msgspec.Struct):
    """A listener's introduction; `compute_id` stays the same over its restarts."""

    compute_type: ComputeType
    compute_id: ComputeId
    version: Line | None = None


class Connected(msgspec.Struct):
    """The id under which the listener works."""

    listener_id: UUID


class ComputeConfig(msgspec.Struct):
    """What a Kubernetes listener may use, null for whatever is there; nothing for processes."""

    k8s_namespaces: Annotated[list[Label], Meta(min_length=1, max_length=1000)] | None = None


class ListenerCreate(msgspec.Struct, kw_only=True):
    """The body of a create (contract: section 3.6). The listener connects later, under the same compute id."""

    compute_type: Literal["k8s"]
    compute_id: ComputeId
    compute_config: ComputeConfig
    version: Line | None = None


class ListenerPatch(msgspec.Struct):
    """The body of a PATCH; what is null stays as it is."""

    version: Line | None = None
    compute_config: ComputeConfig | None = None


class Listener(msgspec.Struct, kw_only=True):
    """A listener as clients see it (contract: section 3.6); `last_seen_at` is null until it connects."""

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


class DesiredQuery(msgspec.Struct):
    """The generation the listener knows, and how many seconds it will wait for a newer one."""

    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0


class DesiredRevision(msgspec.Struct, kw_only=True):
    """A revision that is to be built or served.

    `repo_credential` is a user name and a password for the repository's host. `built_from` is the revision whose build
    this one serves again, so that nothing is built. `resource_spec` has every default filled in.
    """

    id: UUID
    number: int
    status: RevisionStatus
    source: str
    repo_url: str | None
    repo_ref: str | None
    repo_commit_sha: str | None
    repo_credential: Secret | None = None
    graph_config_path: str | None
    source_tarball_path: str | None = None
    image_uri: str | None = None
    install_command: str | None
    build_command: str | None
    secrets: list[Secret]
    secret_references: list[dict[str, str]] = []
    resource_spec: dict[str, Any]
    built_from: UUID | None = None
    created_at: Moment


class DesiredDeployment(msgspec.Struct, kw_only=True):
    """A deployment with every revision that is not at its end, and the active one."""

    id: UUID
    name: str
    tenant_id: UUID
    status: DeploymentStatus
    active_revision_id: UUID | None
    custom_url: str | None
    deployment_type: str | None = None
    k8s_namespace: str | None = None
    scale: Scale = msgspec.field(default_factory=Scale)
    environment: dict[str, str]
    revisions: list[DesiredRevision]


class Desired(msgspec.Struct):
    """Everything a listener has to bring about, and the generation it stands for."""

    generation: int
    deployments: list[DesiredDeployment]


class DeploymentReport(msgspec.Struct):
    """How a deployment fares on the listener's compute."""

    status: Literal["READY", "UNKNOWN", "UNUSED"]
    custom_url: Line | None = None
    reason: Reason | None = None


class RevisionReport(msgspec.Struct):
    """How far a revision has come; `reason` is shown to people."""

    status: Literal[
        "AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED",
        "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "INTERRUPTED", "UNKNOWN",
    ]  # fmt: skip
    reason: Reason | None = None
    repo_commit_sha: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$(?!\n)")] | None = None
