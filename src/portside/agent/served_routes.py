"""The routes of the agent server, and which of them a configuration serves."""

from collections.abc import Iterable

from portside.agent.config import HttpConfig
from portside.agent.http import (
    a2a,
    assistants,
    components,
    crons,
    diagnostics,
    events,
    mcp,
    runs,
    states,
    store,
    system,
    threads,
)
from portside.agent.http.context import Context
from portside.kernel.http.routes import C, Route

ROUTES: list[Route[Context]] = [
    *system.routes,
    *diagnostics.routes,
    *assistants.routes,
    *threads.routes,
    *states.routes,
    *runs.routes,
    *crons.routes,
    *store.routes,
    *events.stream_routes,
    *events.protocol_routes,
    *a2a.routes,
    *mcp.routes,
    *components.routes,
]
# The groups of routes that a configuration can disable, by tag. Other groups are always served.
OPTIONAL = {
    "assistants": "disable_assistants",
    "threads": "disable_threads",
    "thread state": "disable_threads",
    "event streaming": "disable_threads",
    "runs": "disable_runs",
    # Their routes are below /runs, and a cron starts runs.
    "crons": "disable_runs",
    "store": "disable_store",
    "a2a": "disable_a2a",
    "mcp": "disable_mcp",
    "ui": "disable_ui",
    "system": "disable_meta",
}

OPERATOR_ROUTES = frozenset({"/ok", "/metrics", "/info"})


def list_served_routes(
    routes: Iterable[Route[C]], http: HttpConfig, *, has_diagnostics: bool, has_ui: bool = True
) -> list[Route[C]]:
    """Return the routes that the configuration does not disable."""
    disabled = {tag for tag, flag in OPTIONAL.items() if getattr(http, flag)}
    if not has_diagnostics:
        disabled.add("debugging")

    if not has_ui:
        disabled.add("ui")

    served = [route for route in routes if route.tag not in disabled]
    if http.disable_meta:
        served += system.bare_routes

    return served


def list_operator_routes(routes: Iterable[Route[C]]) -> list[Route[C]]:
    """Return the routes of a server that only executes runs: those for its operators."""
    return [route for route in routes if route.path in OPERATOR_ROUTES or route.tag == "debugging"]
