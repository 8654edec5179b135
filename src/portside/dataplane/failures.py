"""How the work on a revision or the talk with the control plane fails."""


class RevisionFailed(Exception):
    """The revision ends here; the message is the reason its owner reads, `status` the one it ends in."""

    status = "UNKNOWN"


class CreateFailed(RevisionFailed):
    """What the revision needs before its build cannot be had."""

    status = "CREATE_FAILED"


class BuildFailed(RevisionFailed):
    """The revision could not be built."""

    status = "BUILD_FAILED"


class DeployFailed(RevisionFailed):
    """The revision was built but does not come up."""

    status = "DEPLOY_FAILED"


class Unreachable(Exception):
    """The control plane does not answer, or not now; the same call may work later."""


class Refused(Exception):
    """The control plane answered that it will not do this; calling again would not help."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
