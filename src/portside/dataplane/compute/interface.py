"""The interface between the reconcilers and the compute that runs deployments.

A listener has one `Compute`. It gives each deployment a `Target`, and a target serves one `Release` at a time. On a
machine (`machine.py`) a target switches between `ReplicaSet`s: processes of a build, or containers of an image, all
behind the one socket that the deployment keeps. On a cluster (`kubernetes/`) the cluster itself runs the replicas.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessIdentity
from portside.listener_api import ComputeType, DesiredDeployment, DesiredRevision, MetricsReport
from portside.size_limits import SizeLimits

OpenLog = Callable[[UUID], RevisionLog]
OnServing = Callable[[], Awaitable[None]]

# The problem that metrics show while a release is being restored.
STARTING = "No server answers yet; one is being started."


class ServerFiles(Protocol):
    """What a server needs in its build, which an upgrade of the platform replaces."""

    async def update(self) -> None:
        """Install what this version's servers need. Raises DeployFailed."""

    async def restore_previous(self) -> None:
        """Install the executor from before the update again, which the earlier servers need."""


@dataclass(frozen=True)
class Build:
    """A finished build on this machine's disk: its folder, the configuration file in it, and its commit.

    The commit is empty for an archive. Its author and subject are None where the build does not know them.

    The server of a split build runs from the platform's environment: `server_code` is the version of its files there,
    `describing_code` that of its executors alone, and `files` is what it needs in the build. A combined build has the
    server itself, and none of these.
    """

    folder: Path
    config: Path
    commit: str
    commit_author: str | None = None
    commit_subject: str | None = None
    server_code: str = ""
    describing_code: str = ""
    files: ServerFiles | None = None

    @property
    def is_split(self) -> bool:
        """Whether the server runs from the platform's environment, and only executors from the build's."""
        return bool(self.server_code)


@dataclass(frozen=True)
class Release:
    """A revision that is ready to be served; `build` is None for an image.

    `earlier` has the builds of earlier revisions that threads may continue with.
    """

    deployment: DesiredDeployment
    revision: DesiredRevision
    build: Build | None
    earlier: Mapping[UUID, Build] = field(default_factory=dict)

    @property
    def is_split(self) -> bool:
        """Whether the release has a build in the split layout."""
        return self.build is not None and self.build.is_split

    @property
    def lacks_pins(self) -> bool:
        """Whether threads should continue with the code that began them, which only a split build can do."""
        return bool(self.deployment.pin_threads) and not self.is_split


class Target(Protocol):
    """One deployment on a compute. The caller runs one method at a time and may cancel any of them but `close`."""

    @property
    def url(self) -> str | None:
        """The deployment's address, or None while it has none."""

    @property
    def is_running(self) -> bool:
        """Whether a release serves or is being restored."""

    @property
    def is_starting(self) -> bool:
        """Whether the servers of a release that is being restored are still being started on this machine."""

    async def is_provisioned(self) -> bool:
        """Whether `provision` succeeded before, and what it made is still there."""

    def list_revisions(self) -> set[UUID]:
        """Return the revisions that serve, drain or served last; their builds must be kept."""

    def list_earlier_revisions(self) -> set[UUID]:
        """Return the revisions whose code threads may continue with when another one serves."""

    def forget_unused(self) -> bool:
        """Forget earlier revisions that no thread uses any more; return whether there were any."""

    async def provision(self, deployment: DesiredDeployment, *, is_new: bool) -> None:
        """Create what every revision needs, above all the database of a new deployment. Idempotent.

        Raises CreateFailed, also when the database of an older deployment is gone.
        """

    async def switch(self, release: Release) -> None:
        """Serve another release; once this returns, no new request reaches the previous one.

        Raises DeployFailed, and then the previous release keeps serving.
        """

    async def withdraw(self, deployment: DesiredDeployment) -> None:
        """Serve nothing any more: the first release was given up after it began to serve. The data stays."""

    async def restore(self, release: Release) -> None:
        """Serve the active release again after a start of the listener, and retry until it serves.

        Replicas that an earlier listener left running are adopted. Returns before the release serves, but waits for up
        to a minute for the socket that such a replica has.
        """

    async def update(self, deployment: DesiredDeployment) -> None:
        """Apply changed replica bounds and variables; called whenever the desired state has changed."""

    def metrics(self) -> MetricsReport | None:
        """Return the latest metrics, or None before the first measurement. Never blocks."""

    async def destroy(self, deployment: DesiredDeployment) -> None:
        """Delete the deployment from the compute, including its database."""

    async def close(self) -> None:
        """Stop what cannot run without the listener, which is stopping; returns when none of it is left."""


class Compute(Protocol):
    """Where the deployments of a listener run; `compute_type` is its name in the control plane's API."""

    compute_type: ComputeType
    # Whether sources are built here; otherwise only images are served.
    builds_sources: bool
    # The largest sizes that its operator allows; None if it has no such limits.
    size_limits: SizeLimits | None

    def target(self, deployment_id: UUID, open_log: OpenLog) -> Target:
        """Return the target of a deployment; creates nothing before `provision`."""

    async def claim(self, listener_id: UUID) -> None:
        """Wait until no other listener with this id works on the compute."""

    async def keep_claim(self) -> None:
        """Never return while this listener alone works on the compute. Raises UserMistake when another one does."""

    async def close(self) -> None:
        """Release what all targets share."""


class ReplicaSet(Protocol):
    """All replicas of one release on this machine, behind the deployment's socket."""

    @property
    def revision_id(self) -> UUID:
        """The revision of the release."""

    @property
    def idle_s(self) -> float | None:
        """For how many seconds a server of the set had no request and no run, if it says so."""

    async def start(self) -> None:
        """Start the replicas, check that they answer, and serve. Raises DeployFailed after stopping all of them."""

    def supervise(self, on_serving: OnServing | None = None) -> None:
        """Replace replicas that die. Without a `start` before, adopt or start the replicas in the background.

        `on_serving` is called each time that the replicas begin to serve.
        """

    def update(self, deployment: DesiredDeployment) -> None:
        """Apply changed replica bounds and variables."""

    def metrics(self) -> MetricsReport | None:
        """Return the latest metrics, or None before the first measurement."""

    def list_ports(self) -> list[int]:
        """Return a port of this machine for each server of the set; empty while one is missing, starts or drains."""

    def list_processes(self) -> set[ProcessIdentity]:
        """Return the processes of the set, so that the target does not reap them as orphans of an earlier listener."""

    async def stop_accepting(self) -> None:
        """Accept no new requests; requests and runs in flight continue."""

    async def drain(self, grace_s: float) -> None:
        """After `stop_accepting`: wait up to the grace period for requests and runs in flight, then stop everything."""

    def interrupt(self) -> None:
        """Ask the replicas to hand their runs back and exit now, also those that drain already."""

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: replicas hand their runs back, and those that take longer than this are killed."""
