"""What the work on deployments knows of the compute that runs them.

A listener has one `Compute`. It gives each deployment a `Berth`, and a berth serves one `Release` at a time. On a
machine (`machine.py`) what serves a release is a `Fleet`: processes of a build, or containers of an image, behind the
one socket that the deployment keeps. On a cluster there is neither: the berth is all there is to know.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessMark
from portside.dataplane.types import DesiredDeployment, DesiredRevision, Measures

LogOf = Callable[[UUID], RevisionLog]
OnUp = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Build:
    """A finished build on this machine's disk: its folder, the configuration file in it, and its commit."""

    folder: Path
    config: Path
    commit: str


@dataclass(frozen=True)
class Release:
    """A revision that is ready to be served; `build` is None for an image."""

    deployment: DesiredDeployment
    revision: DesiredRevision
    build: Build | None


class Berth(Protocol):
    """One deployment on a compute. At most one of its methods runs at a time; any but `close` may be cancelled."""

    @property
    def url(self) -> str | None:
        """The deployment's address, once there is one."""

    @property
    def is_running(self) -> bool:
        """Whether a release serves, or is being brought back."""

    @property
    def is_provisioned(self) -> bool:
        """Whether what every revision needs was made before, as far as can be told without looking."""

    def revisions(self) -> set[UUID]:
        """Return the revisions that serve, drain or served last: what was built for them must stay."""

    async def provision(self) -> None:
        """Make what every revision needs, its database above all; a no-op where it is there. Raises CreateFailed."""

    async def switch(self, release: Release) -> None:
        """Let another release serve; when this returns, no new request reaches the one before.

        Raises DeployFailed, and then what served before still does.
        """

    async def restore(self, release: Release) -> None:
        """After a start of the listener: see to it that the active release serves, for as long as it takes.

        Returns at once; what an earlier listener left running is taken over.
        """

    async def follow(self, deployment: DesiredDeployment) -> None:
        """Take note of how many replicas are desired now; called whenever what is desired has changed."""

    def measures(self) -> Measures | None:
        """Return what was measured last, None where nothing was. Never waits."""

    async def withdraw(self) -> None:
        """Leave nothing of the deployment on the compute, its database included."""

    async def close(self) -> None:
        """The listener stops: end what cannot go on without it. Returns when nothing of it is left."""


class Compute(Protocol):
    """Where the deployments of a listener run. `compute_type` is the contract's word for it."""

    compute_type: str
    # Whether sources are built here; where not, only images are served.
    takes_builds: bool

    def berth(self, deployment_id: UUID, log_of: LogOf) -> Berth:
        """Return the place of a deployment; nothing is made before it is provisioned."""

    async def close(self) -> None:
        """Let go of what all berths share."""


class Fleet(Protocol):
    """What serves one release at its deployment's socket on this machine; what an earlier listener left is adopted."""

    @property
    def revision_id(self) -> UUID:
        """The revision that is served."""

    async def start(self) -> None:
        """Come up, pass the gate and answer on the socket. Raises DeployFailed after leaving nothing behind."""

    def keep(self, on_up: OnUp | None = None) -> None:
        """From here on replace what dies; without a `start` before it, come up in the background.

        `on_up` is called each time that something serves.
        """

    def follow(self, deployment: DesiredDeployment) -> None:
        """Take note of how many replicas are desired now."""

    def measures(self) -> Measures | None:
        """Return what was measured last, None where nothing was."""

    def replicas(self) -> set[ProcessMark]:
        """Return the processes that it runs, so that they are not taken for strays of an earlier listener."""

    async def withdraw(self) -> None:
        """Accept no more requests; those under way go on."""

    async def end(self, grace_s: float) -> None:
        """After `withdraw`: wait at most the grace for what is under way, then leave nothing behind."""

    def interrupt(self) -> None:
        """Ask what drains to hand its runs back and go at once."""

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: runs are handed back, and what takes too long is killed."""
