"""Which of the routes a server has, by its configuration, and how it describes them (contract: `http.disable_*`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from portside.agent.config import HttpConfig
from portside.agent.http import system
from portside.agent.http.system import DESCRIBED, Manual
from portside.agent.types.access import AuthOpenApi
from portside.kernel.http.openapi import document
from portside.kernel.http.routes import Route

# The groups of routes that a configuration can leave out, by their tags. Groups that are not here are always there.
OPTIONAL = {
    "assistants": "disable_assistants",
    "threads": "disable_threads",
    "thread state": "disable_threads",
    "event streaming": "disable_threads",
    "runs": "disable_runs",
    "store": "disable_store",
    "a2a": "disable_a2a",
    "mcp": "disable_mcp",
    "system": "disable_meta",
}

OPERATED = frozenset({"/ok", "/metrics", "/info"})


def served_routes(routes: Iterable[Route], http: HttpConfig, *, has_diagnostics: bool) -> list[Route]:
    """Return the routes that the configuration leaves in."""
    left_out = {tag for tag, flag in OPTIONAL.items() if getattr(http, flag)}
    if not has_diagnostics:
        left_out.add("debugging")
    served = [route for route in routes if route.tag not in left_out]
    return [*served, *system.bare_routes] if http.disable_meta else served


def without_api(routes: Iterable[Route]) -> list[Route]:
    """Return the routes of a server that only executes runs: what its operators ask, and nothing of the agent."""
    return [route for route in routes if route.path in OPERATED or route.tag == "debugging"]


def describe(routes: Sequence[Route], graph_ids: Sequence[str], security: AuthOpenApi | None = None) -> Manual:
    """Describe the routes; where a request names a graph, it is one of these.

    `security` is how callers say who they are. Routes that are open to everybody want nothing of that.
    """

    def write() -> bytes:
        described = document(DESCRIBED, routes)
        if security is not None:
            _describe_security(described, routes, security)
        _name_graphs(described, list(graph_ids))
        return msgspec.json.encode(described)

    return Manual(write, frozenset(route.tag for route in routes))


def _describe_security(described: dict[str, Any], routes: Sequence[Route], security: AuthOpenApi) -> None:
    if security.securitySchemes:
        described.setdefault("components", {}).setdefault("securitySchemes", {}).update(security.securitySchemes)
    described["security"] = security.security
    own = {(path, method.lower()): wanted for path, by in security.paths.items() for method, wanted in by.items()}
    own |= {(route.path, route.method.lower()): [] for route in routes if route.public}
    for (path, method), wanted in own.items():
        if operation := described["paths"].get(path, {}).get(method):
            operation["security"] = wanted


def _name_graphs(described: dict[str, Any], graph_ids: list[str]) -> None:
    """Answers keep any text: an assistant outlives the graph that it was made for."""
    schemas = described["components"]["schemas"]
    bodies = {
        shape["$ref"].rsplit("/", 1)[-1]
        for operations in described["paths"].values()
        for operation in operations.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for shape in (content["schema"], *content["schema"].get("anyOf", ()))
        if "$ref" in shape
    }
    for name in bodies:
        field = schemas[name].get("properties", {}).get("graph_id")
        for shape in () if field is None else (field, *field.get("anyOf", ())):
            if shape.get("type") == "string":
                shape["enum"] = graph_ids
