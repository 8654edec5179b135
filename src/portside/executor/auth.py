"""Imports the project's `Auth` object, with its handlers for authentication and authorization."""

from typing import NamedTuple

from langgraph_sdk.auth import Auth

from portside.executor.authentication import Authentication
from portside.executor.authorization import AuthorizationHandlers
from portside.executor.imports import add_to_path, import_object
from portside.executor.project import Project
from portside.kernel.errors import UserMistake

AUTH_LABEL = "auth"


class LoadedAuth(NamedTuple):
    """The handlers of a project's `Auth` object: the one for authentication, and those for authorization."""

    authenticate: Authentication
    handlers: AuthorizationHandlers


def load_auth(project: Project, path: str) -> LoadedAuth:
    """Import the project's `Auth` object. Raises UserMistake."""
    auth = import_object(project, AUTH_LABEL, path, roots=add_to_path(project))
    if not isinstance(auth, Auth):
        kind = type(auth).__name__
        raise UserMistake(f"{project.file}: auth ({path}) is of type {kind}; export a langgraph_sdk.Auth")

    handler = auth._authenticate_handler  # noqa: SLF001 - the SDK keeps these names stable for servers
    if handler is None:
        raise UserMistake(
            f"{project.file}: auth ({path}) has no @authenticate handler, so every request would be refused"
        )

    return LoadedAuth(Authentication(handler), AuthorizationHandlers(auth))
