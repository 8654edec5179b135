"""Deployments and revisions as the API takes and shows them (spec: "Resources and their fields"; contract: section 3).

In requests `null` means the same as a field that is not there. Answers carry the graph configuration's path under both
of its names, because clients read either.
"""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from portside.control.types.compute import ListenerConfig, ResourceSpec
from portside.control.types.statuses import DeploymentStatus, RevisionStatus

Source = Literal[
    "git_hosting", "github", "external_image", "external_docker", "internal_docker", "internal_source",
    "internal_template",
]  # fmt: skip
DeploymentType = Literal["dev_free", "dev", "prod", "dev_zero", "dev_free_zero"]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
ONE_LINE = "^[^\\u0000-\\u001f]*$(?!\\n)"
Line = Annotated[str, Meta(max_length=1024, pattern=ONE_LINE)]
Limit = Annotated[int, Meta(ge=1, le=100)]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Secret(msgspec.Struct):
    """An environment variable of the deployment, kept encrypted."""

    name: str
    value: str


class SecretReference(msgspec.Struct):
    """A key of a Kubernetes secret that becomes an environment variable (image deployments only)."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\n)")]
    secret_name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$(?!\n)")]
    secret_key: Annotated[str, Meta(pattern=r"^[-._A-Za-z0-9]{1,253}$(?!\n)")]


class SourceConfig(msgspec.Struct):
    """Where a deployment comes from and how it is built; the same in requests and answers."""

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
    """What a new revision is made of."""

    repo_ref: Annotated[str, Meta(max_length=255)] | None = None
    graph_config_path: Annotated[str, Meta(max_length=1024)] | None = None
    image_uri: Line | None = None
    source_tarball_path: Line | None = None


class DeploymentCreate(msgspec.Struct, kw_only=True):
    """The body of a create."""

    name: str
    source: Source
    source_config: SourceConfig
    source_revision_config: SourceRevisionRequest
    secrets: Annotated[list[Secret], Meta(max_length=500)] | None = None
    secret_references: Annotated[list[SecretReference], Meta(max_length=500)] | None = None


class DeploymentPatch(msgspec.Struct, kw_only=True):
    """The body of a PATCH; what is null stays as it is."""

    name: str | None = None
    source: Source | None = None
    revision_source: Source | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=255, pattern=ONE_LINE)] | None = None
    source_config: SourceConfig | None = None
    source_revision_config: SourceRevisionRequest | None = None
    secrets: Annotated[list[Secret], Meta(max_length=500)] | None = None
    secret_references: Annotated[list[SecretReference], Meta(max_length=500)] | None = None


class SourceRevisionConfig(msgspec.Struct):
    """What a revision was made of."""

    repo_ref: str | None
    graph_config_path: str | None
    langgraph_config_path: str | None
    repo_commit_sha: str | None
    image_uri: str | None = None
    source_tarball_path: str | None = None


class Deployment(msgspec.Struct, kw_only=True):
    """A deployment; `source_revision_config` and `secrets` are those of its latest revision."""

    id: UUID
    tenant_id: UUID
    name: str
    display_name: str | None
    source: Source
    source_config: SourceConfig
    source_revision_config: SourceRevisionConfig
    secrets: list[Secret]
    secret_references: list[SecretReference] | None = None
    status: DeploymentStatus
    status_message: str | None
    latest_revision_id: UUID | None
    active_revision_id: UUID | None
    image_version: str | None = None
    created_at: Moment
    updated_at: Moment


class Revision(msgspec.Struct, kw_only=True):
    """A revision; `status_message` says why it failed, where it did."""

    id: UUID
    status: RevisionStatus
    status_message: str | None
    source: Source
    source_revision_config: SourceRevisionConfig
    created_at: Moment
    updated_at: Moment


class Move(msgspec.Struct):
    """A state that a revision came into; `reason` is what was said of it."""

    status: RevisionStatus
    reason: str | None
    at: Moment


class RevisionHistory(msgspec.Struct):
    """Every state that a revision was in, first to last."""

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
    """Which deployments to list. An empty `name` or `name_contains` matches every one."""

    limit: Limit = 20
    offset: Offset = 0
    name: Line | None = None
    name_contains: Line | None = None
    status: DeploymentStatus | None = None
    deployment_type: DeploymentType | None = None
    deployment_ids: Annotated[list[UUID], Meta(max_length=100)] | None = None
    image_version: Line | None = None
    remote_reconciled: bool | None = None
    tag_value_ids: list[UUID] | None = None


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
    """The deployments that are being deleted now."""

    deployment_ids: list[UUID]


class DeleteQuery(msgspec.Struct):
    """What to delete besides the deployment."""

    delete_tracing_project: bool = False
