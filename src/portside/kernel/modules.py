"""The manifest of a package: what it adds to a server.

Each package exports one `Module`, in its `module.py`. The server loops over the modules. Of their packages it knows
nothing else but how to build their services.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from portside.kernel.http.routes import Context, Route, S
from portside.kernel.reconcile import Task


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
    has_migrations: bool = False
    has_rate_limits: bool = True
    """Whether the rate limits of the server apply to the routes."""
