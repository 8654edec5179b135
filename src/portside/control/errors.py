"""The errors of the control plane. Clients match some texts, which are those of LangGraph's control plane."""

from uuid import UUID

from portside.kernel.errors import BadRequest, Conflict, NotFound


class DeploymentNotFound(NotFound):
    """The workspace has no deployment with this id."""

    code = "deployment_not_found"

    @classmethod
    def of(cls, deployment_id: UUID) -> "DeploymentNotFound":
        """Return the error with the text that clients know."""
        return cls(f"Deployment ID {deployment_id} not found.")


class RevisionNotFound(NotFound):
    """The deployment has no revision with this id."""

    code = "revision_not_found"

    @classmethod
    def of(cls, revision_id: UUID) -> "RevisionNotFound":
        """Return the error with the id in its text."""
        return cls(f"Revision ID {revision_id} not found.")


class ListenerNotFound(NotFound):
    """The workspace has no listener with this id; it has to connect first."""

    code = "listener_not_found"

    @classmethod
    def of(cls, listener_id: UUID) -> "ListenerNotFound":
        """Return the error with the text that clients know."""
        return cls(f"Listener ID {listener_id} not found.")


class NameTaken(Conflict):
    """The workspace already has a deployment of this name; choose another, or wait until the old one is deleted."""

    code = "deployment_name_taken"


class ListenerExists(Conflict):
    """The workspace already has a listener with this compute id; choose another id."""

    code = "listener_exists"


class ListenerInUse(Conflict):
    """The listener has deployments; delete them first."""

    code = "listener_in_use"


class OtherCompute(Conflict):
    """A listener of another compute type uses this compute id; choose another id."""

    code = "other_compute_type"


class BeingDeleted(Conflict):
    """The deployment is being deleted and cannot be changed."""

    code = "deployment_being_deleted"


class NotBeingDeleted(Conflict):
    """Only a deployment that is being deleted can be dropped."""

    code = "deployment_not_being_deleted"


class IllegalTransition(Conflict):
    """A revision cannot change from its current status to the reported one."""

    code = "illegal_revision_transition"


class SourceNotAvailable(BadRequest):
    """The source is not supported by this installation; use one that the message names."""

    code = "source_not_available"


class BadCombination(BadRequest):
    """Each field is valid, but the combination is not; the message names the fields."""

    code = "bad_combination"


class NeverBuilt(BadRequest):
    """The revision was never built, so it cannot be deployed again; create a new one."""

    code = "revision_never_built"


class RedeployRefused(BadRequest):
    """The deployment is being deleted; its revisions cannot be deployed."""

    code = "redeploy_refused"


class Immutable(BadRequest):
    """A field cannot be changed after the deployment was created; create another deployment."""

    code = "immutable_field"


class NoRegistry(BadRequest):
    """The platform has no image registry; push to a registry of your own and deploy the image as an external_image."""

    code = "no_registry"
