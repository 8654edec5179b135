"""The wire format between a control plane and its listeners: the bodies of the routes below /internal.

`control` serves these routes and `dataplane` calls them. Neither imports the other; both import this module. A control
plane and a listener of different versions may meet, so a field that is added later needs a default, and each side
ignores the fields that it does not know.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from portside.size_limits import SizeLimits

ONE_LINE = "^[^\\u0000-\\u001f]*$(?!\\n)"
Line = Annotated[str, Meta(max_length=1024, pattern=ONE_LINE)]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
ComputeType = Literal["process", "k8s"]
ComputeId = Annotated[str, Meta(min_length=1, max_length=253, pattern=ONE_LINE)]
LogType = Literal["build", "deploy"]
ReportedDeploymentStatus = Literal["READY", "UNKNOWN", "UNUSED"]
ReportedRevisionStatus = Literal[
    "AWAITING_BUILD",
    "BUILDING",
    "AWAITING_DEPLOY",
    "DEPLOYING",
    "DEPLOYED",
    "CREATE_FAILED",
    "BUILD_FAILED",
    "DEPLOY_FAILED",
    "INTERRUPTED",
    "UNKNOWN",
]
Reason = Annotated[str, Meta(max_length=100_000)]
MAX_COMMIT_TEXT = 200
CommitText = Annotated[str, Meta(min_length=1, max_length=MAX_COMMIT_TEXT, pattern=ONE_LINE)]
Replicas = Annotated[int, Meta(ge=1, le=1000)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0)]


class DeploymentStatus(StrEnum):
    """The status of a deployment, in the words of LangGraph's control plane API."""

    AWAITING_DATABASE = "AWAITING_DATABASE"
    READY = "READY"
    UNUSED = "UNUSED"
    AWAITING_DELETE = "AWAITING_DELETE"
    UNKNOWN = "UNKNOWN"


class RevisionStatus(StrEnum):
    """The status of a revision, in the words of LangGraph's control plane API.

    `control/revisions.py` has the allowed transitions.
    """

    CREATING = "CREATING"
    QUEUED = "QUEUED"
    AWAITING_BUILD = "AWAITING_BUILD"
    BUILDING = "BUILDING"
    AWAITING_DEPLOY = "AWAITING_DEPLOY"
    DEPLOYING = "DEPLOYING"
    CREATE_FAILED = "CREATE_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    DEPLOYED = "DEPLOYED"
    SKIPPED = "SKIPPED"
    INTERRUPTED = "INTERRUPTED"
    UNKNOWN = "UNKNOWN"


# A listener works on revisions with these statuses.
IN_PROGRESS = frozenset(
    {
        RevisionStatus.CREATING,
        RevisionStatus.AWAITING_BUILD,
        RevisionStatus.BUILDING,
        RevisionStatus.AWAITING_DEPLOY,
        RevisionStatus.DEPLOYING,
    }
)
# The control plane gave these up: a listener that works on one stops.
ABANDONED = frozenset({RevisionStatus.SKIPPED, RevisionStatus.INTERRUPTED})


class Secret(msgspec.Struct, frozen=True):
    """An environment variable of the deployment, kept encrypted."""

    name: str
    value: str

    def __repr__(self) -> str:
        # Representations end up in logs and tracebacks.
        return f"Secret({self.name!r})"


class Connect(msgspec.Struct, frozen=True):
    """A listener introduces itself; `compute_id` stays the same when the listener restarts.

    `size_limits` are those of its operator; the control plane refuses requests above them. A null is unknown.
    """

    compute_type: ComputeType
    compute_id: ComputeId
    version: Line | None = None
    size_limits: SizeLimits | None = None


class Connected(msgspec.Struct, frozen=True):
    """The listener's id, which it uses in later calls."""

    listener_id: UUID


class DesiredQuery(msgspec.Struct, frozen=True):
    """The generation that the listener knows, and how many seconds the call may wait for a newer one."""

    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the number of replicas. A null leaves a bound to the revision's `resource_spec`, or to the type.

    `min_scale` and `max_scale` apply to the queue as well, unless a `queue_` bound is set.
    """

    min_scale: Replicas | None = None
    max_scale: Replicas | None = None
    queue_min_scale: Replicas | None = None
    queue_max_scale: Replicas | None = None


class DesiredRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that the listener has to build or serve.

    `repo_credential` is a user name and a password for the repository's host. `built_from` is an earlier revision whose
    build is served again, so that nothing is built. `resource_spec` has every default filled in.
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

    @property
    def secret_values(self) -> dict[str, str]:
        """The values of the secrets by their names."""
        return {secret.name: secret.value for secret in self.secrets}


class DesiredDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment with its active revision and every revision that has not reached a final status.

    `scale` overrides the replica bounds in the revisions' `resource_spec`. `roll_forward` is the number of a request to
    replace servers of an older version. 0 leaves them. An older control plane sends none, and the listener replaces
    them. A deployment on a machine sleeps after it was idle for `sleep_after_s`; 0 means never. `pin_threads` is for
    how many hours threads continue with the revision that began them after it was replaced; 0 means not at all.
    """

    id: UUID
    name: str
    tenant_id: UUID
    status: DeploymentStatus
    active_revision_id: UUID | None
    custom_url: str | None
    deployment_type: str | None = None
    k8s_namespace: str | None = None
    scale: Scale = msgspec.field(default_factory=Scale)
    sleep_after_s: int = 0
    pin_threads: float = 0
    environment: dict[str, str]
    revisions: list[DesiredRevision]
    roll_forward: int | None = None

    def revision(self, revision_id: UUID | None) -> DesiredRevision | None:
        """Return the revision with this id, or None when it is not listed."""
        return next((revision for revision in self.revisions if revision.id == revision_id), None)


class Desired(msgspec.Struct, frozen=True):
    """The desired state of all deployments of a listener, and its generation."""

    generation: int
    deployments: list[DesiredDeployment]


class DeploymentReport(msgspec.Struct, frozen=True):
    """The status of a deployment on the listener's compute."""

    status: ReportedDeploymentStatus
    custom_url: Line | None = None
    reason: Reason | None = None


class RevisionReport(msgspec.Struct, frozen=True):
    """The new status of a revision; people read the `reason`.

    A build of a repository reports its commit, with the name of the author and the first line of the message. Both are
    the texts of strangers.
    """

    status: ReportedRevisionStatus
    reason: Reason | None = None
    repo_commit_sha: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$(?!\n)")] | None = None
    repo_commit_author: CommitText | None = None
    repo_commit_subject: CommitText | None = None


class MetricsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The load and the resource usage of a deployment; a null means that its compute cannot measure the value.

    `replicas` counts the replicas that answer requests, `queue_replicas` those that only execute runs. `cpu` (cores)
    and `memory_mb` (resident memory) are sums over all replicas. `restarts` counts the replicas that died since the
    listener started. `oldest_wait_s` is how long the oldest run that could start has waited. `problem` says what is
    wrong, such as why a replica is missing. `server_version` is the agent server's version, the oldest if there are
    several.

    `is_behind`: a replica runs an older agent server than the listener would start. `roll_forward` is the last request
    to replace such replicas that has ended, and `roll_failure` why it did not succeed. `is_asleep`: the deployment has
    no replica because it is idle; the next request, run or cron starts one. If the deployment pins threads,
    `threads_by_revision` counts those that have runs or wait for an answer, by the id of the revision whose code they
    use.
    """

    replicas: Number | None = None
    queue_replicas: Number | None = None
    cpu: Amount | None = None
    memory_mb: Amount | None = None
    restarts: Number | None = None
    pending_runs: Number | None = None
    active_runs: Number | None = None
    oldest_wait_s: Amount | None = None
    problem: Reason | None = None
    server_version: Annotated[str, Meta(max_length=200)] | None = None
    is_behind: bool = False
    roll_forward: Number | None = None
    roll_failure: Reason | None = None
    is_asleep: bool = False
    threads_by_revision: Annotated[dict[UUID, Number], Meta(max_length=1000)] | None = None


class NewLogEntry(msgspec.Struct, frozen=True):
    """A log entry as a listener sends it; `timestamp` is in milliseconds since 1970."""

    timestamp: Annotated[float, Meta(ge=0, le=253_402_300_799_000)]
    level: str
    message: str


class LogBatch(msgspec.Struct, frozen=True):
    """Entries for one log of a revision, oldest first."""

    type: LogType
    entries: Annotated[list[NewLogEntry], Meta(max_length=1000)]
