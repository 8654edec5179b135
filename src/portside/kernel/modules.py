"""The manifest of a package: what it adds to a server.

Each package exports one `Module`, in its `module.py`. The server loops over the modules. Of their packages it knows
nothing else but how to build their services.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic
from uuid import UUID

from portside.kernel.db import Session
from portside.kernel.http.routes import Context, Route, S
from portside.kernel.reconcile import Task

# Deletes a batch of what a workspace has, and returns whether there may be more.
EmptyWorkspace = Callable[[Session, UUID], Awaitable[bool | None]]


def _build_no_tasks(_services: object) -> Sequence[Task]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Module(Generic[S]):
    """What a package adds to a server. `S` are the services of its handlers and its background tasks."""

    package: str
    """The full name of the package. The database records its migrations under this name."""
    routes: Sequence[Route[Context[S]]] = ()
    build_tasks: Callable[[S], Sequence[Task]] = _build_no_tasks
    """Returns the background tasks. Each is safe in several processes at once."""
    empty_workspace: EmptyWorkspace | None = None
    """Deletes the data of a deleted workspace; None if the package has none."""
    has_migrations: bool = False
    has_rate_limits: bool = True
    """Whether the rate limits of the server apply to the routes."""


def list_packages(modules: Sequence[Module[Any]]) -> list[str]:
    """Return the packages with tables."""
    return [module.package for module in modules if module.has_migrations]


def list_routes(modules: Sequence[Module[Any]]) -> list[Route[Any]]:
    """Return the routes of all modules."""
    return [route for module in modules for route in module.routes]
