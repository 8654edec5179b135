"""The errors of rollouts and of calls to the control plane.

RevisionFailed                    ends the revision in status UNKNOWN
├── CreateFailed                  CREATE_FAILED
├── BuildFailed                   BUILD_FAILED
└── DeployFailed                  DEPLOY_FAILED
    ├── ServerFailed
    └── NoConnectionsLeft
ComputeFailed                     what runs deployments does not answer, or refuses a change; tried again later
ControlPlaneUnreachable           the same call may succeed later
ControlPlaneRefused               the same call would fail again
"""

from portside.listener_api import ReportedRevisionStatus


class RevisionFailed(Exception):
    """The revision ends with this failure: users read the message, and `status` is its final status."""

    status: ReportedRevisionStatus = "UNKNOWN"


class CreateFailed(RevisionFailed):
    """What the revision needs before its build, such as the database, cannot be created."""

    status = "CREATE_FAILED"


class BuildFailed(RevisionFailed):
    """The revision could not be built."""

    status = "BUILD_FAILED"


class DeployFailed(RevisionFailed):
    """The revision was built but does not serve."""

    status = "DEPLOY_FAILED"


class ServerFailed(DeployFailed):
    """A server of the revision failed. The message has the server's output; `how` is how the process failed."""

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(reason)
        self.how = how


class NoConnectionsLeft(DeployFailed):
    """Postgres has too few connections for another replica."""


def describe_without_output(failure: Exception) -> str:
    """Return the message of a failure for a log that already has the server's output."""
    return failure.how if isinstance(failure, ServerFailed) else str(failure)


class ComputeFailed(Exception):
    """What runs deployments does not answer, or refuses a change; the message says why."""


class ControlPlaneUnreachable(Exception):
    """The control plane does not answer, or not now; the same call may succeed later."""


class ControlPlaneRefused(Exception):
    """The control plane refused a call; the same call would be refused again."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
