"""What the control plane asks for and what it is told, as exchanged over its internal API for listeners.

Only the fields that the data plane acts on are declared; the rest of an answer is ignored.
"""

from typing import Any, Literal
from uuid import UUID

import msgspec

IN_PROGRESS = frozenset({"CREATING", "AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING"})
ABANDONED = frozenset({"SKIPPED", "INTERRUPTED"})

LogKind = Literal["build", "deploy"]


class Secret(msgspec.Struct, frozen=True):
    """An environment variable of a revision; its value never shows in a representation."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


class DesiredRevision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision that is in progress or active.

    `repo_credential` is a user name and a password for the repository's host. `built_from` is the revision whose build
    this one serves again. `resource_spec` has every default filled in (spec: ResourceSpec).
    """

    id: UUID
    number: int
    status: str
    source: str = "git_hosting"
    repo_url: str | None = None
    repo_ref: str | None = None
    repo_commit_sha: str | None = None
    repo_credential: Secret | None = None
    graph_config_path: str | None = None
    source_tarball_path: str | None = None
    image_uri: str | None = None
    install_command: str | None = None
    build_command: str | None = None
    secrets: list[Secret] = []
    secret_references: list[dict[str, str]] = []
    resource_spec: dict[str, Any] = {}
    built_from: UUID | None = None


class ScaleBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas a deployment may have, where its owner has said so; None leaves it to the revision."""

    min_scale: int | None = None
    max_scale: int | None = None
    queue_min_scale: int | None = None
    queue_max_scale: int | None = None


class DesiredDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment with the revisions that need work, and the active one.

    `scale` wins over what the revisions' `resource_spec` say of replicas.
    """

    id: UUID
    name: str
    status: str
    active_revision_id: UUID | None = None
    custom_url: str | None = None
    deployment_type: str | None = None
    k8s_namespace: str | None = None
    scale: ScaleBounds = ScaleBounds()
    environment: dict[str, str] = {}
    revisions: list[DesiredRevision] = []

    def revision(self, revision_id: UUID | None) -> DesiredRevision | None:
        """Return one of the revisions, or None when it is not among them."""
        return next((revision for revision in self.revisions if revision.id == revision_id), None)


class Desired(msgspec.Struct, frozen=True):
    """All that is desired, as of a generation."""

    generation: int
    deployments: list[DesiredDeployment]


class DeploymentReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of a deployment as the data plane finds it."""

    status: Literal["READY", "UNKNOWN", "UNUSED"]
    custom_url: str | None = None
    reason: str | None = None


class RevisionReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A revision's move to another status, and why when it failed."""

    status: str
    reason: str | None = None
    repo_commit_sha: str | None = None


class LogEntry(msgspec.Struct, frozen=True):
    """One line of a revision's log; `timestamp` is epoch milliseconds."""

    timestamp: int
    level: str
    message: str


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment uses and has to do at a moment; None is what cannot be told on this compute.

    `replicas` answer requests, `queue_replicas` only execute runs. `cpu` is in cores, `memory_mb` is resident memory;
    both are sums. `restarts` counts the replicas that died since its listener began. `problem` is why one is missing.
    """

    replicas: int
    queue_replicas: int = 0
    cpu: float | None = None
    memory_mb: float | None = None
    restarts: int = 0
    pending_runs: int | None = None
    active_runs: int | None = None
    problem: str | None = None
