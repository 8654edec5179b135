"""What the control plane refuses, beyond the kernel's errors. Texts follow the contract where it gives them."""

from uuid import UUID

from portside.kernel.errors import BadRequest, Conflict, NotFound


class DeploymentNotFound(NotFound):
    """The workspace has no deployment with this id."""

    code = "deployment_not_found"

    @classmethod
    def of(cls, deployment_id: UUID) -> "DeploymentNotFound":
        """Make the error with the text that clients know."""
        return cls(f"Deployment ID {deployment_id} not found.")


class RevisionNotFound(NotFound):
    """The deployment has no revision with this id."""

    code = "revision_not_found"

    @classmethod
    def of(cls, revision_id: UUID) -> "RevisionNotFound":
        """Make the error with the id in it."""
        return cls(f"Revision ID {revision_id} not found.")


class ListenerNotFound(NotFound):
    """The workspace has no listener with this id; it has to connect first."""

    code = "listener_not_found"

    @classmethod
    def of(cls, listener_id: UUID) -> "ListenerNotFound":
        """Make the error with the text that clients know."""
        return cls(f"Listener ID {listener_id} not found.")


class NameTaken(Conflict):
    """The workspace has a deployment of this name already; choose another, or wait until the old one is deleted."""

    code = "deployment_name_taken"


class ListenerExists(Conflict):
    """The workspace has a listener of this compute id already."""

    code = "listener_exists"


class ListenerInUse(Conflict):
    """The listener has deployments; delete them first."""

    code = "listener_in_use"


class OtherCompute(Conflict):
    """The compute id stands for a listener of another compute type; choose another id."""

    code = "other_compute_type"


class BeingDeleted(Conflict):
    """The deployment is being deleted and cannot be changed any more."""

    code = "deployment_being_deleted"


class NotBeingDeleted(Conflict):
    """Only a deployment that was asked to be deleted can be dropped."""

    code = "deployment_not_being_deleted"


class IllegalMove(Conflict):
    """A revision cannot go from the state it is in to the one reported."""

    code = "illegal_revision_move"


class SourceNotAvailable(BadRequest):
    """Deployments from such a source are not available; name one that is."""

    code = "source_not_available"


class BadCombination(BadRequest):
    """Each field is good, but together they make no deployment."""

    code = "bad_combination"


class NeverBuilt(BadRequest):
    """The revision was never built, so there is nothing to deploy again; make a new one."""

    code = "revision_never_built"


class DeploymentLeaving(BadRequest):
    """The deployment is being deleted, and no revision of it is deployed any more."""

    code = "deployment_leaving"


class Immutable(BadRequest):
    """A field cannot be changed after the deployment was created."""

    code = "immutable_field"
