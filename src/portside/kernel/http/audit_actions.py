"""What the audit log records of a route, as the declaration of the route says it.

    @routes.post("/sessions", audit=Action("project.create", id_query="create_project"))

    @routes.post("/runs/batch", audit=Unrecorded("traces are data"))

A server with an audit log (`portside.audit.recording`) refuses to start if a route that may change something has
neither. Other servers ignore both.
"""

import msgspec


class Action(msgspec.Struct, frozen=True):
    """What a route does, as the audit log names it. The ids in the path of a request name its objects."""

    name: str
    """The object and the verb, such as `deployment.create`."""
    id_query: str | None = None
    """The query that stores the new object: its parameter `id` names the object. Before it has run, the action has not
    happened."""
    related_id_query: str | None = None
    """Another query of the action whose `id` is named too, such as the one that stores a deployment's new revision."""
    id_fields: tuple[str, ...] = ()
    """The fields of the body or of the query that name objects too."""
    is_sign_in: bool = False
    """Whether nobody is signed in yet, and a 401 is a refused sign-in."""
    by_browser: bool = False
    """Whether the route is public, and the session of the browser says who acts."""
    is_read: bool = False
    """Whether the action reads a secret: it is recorded when the response is ready, once for each thing read."""
    if_shown: bool = False
    """Whether some callers are shown no secret: only responses with one are recorded, and no refusal is."""


class Unrecorded(msgspec.Struct, frozen=True):
    """Why the audit log does not record a route that may change something."""

    reason: str


Audit = Action | Unrecorded
