"""The OpenAPI document of the agent server: its routes, how callers authenticate, and the ids of its graphs."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from portside.agent.custom.project_routes import ProjectRoutes
from portside.agent.http.services import ApiDescription
from portside.agent.http.system import SERVER_INFO
from portside.agent.types.access import AuthOpenApi
from portside.kernel.http.openapi import build_document
from portside.kernel.http.routes import Route

Json = dict[str, Any]


def describe_api(
    routes: Sequence[Route[Any]],
    graph_ids: Sequence[str],
    *,
    security: AuthOpenApi | None = None,
    own_routes: ProjectRoutes | None = None,
) -> ApiDescription:
    """Describe our routes, and the project's own; a `graph_id` in a request is one of these graphs.

    `security` describes how callers authenticate. Public routes need none of it.
    """

    def write() -> bytes:
        openapi = build_document(SERVER_INFO, routes)
        if security is not None:
            _add_security(openapi, routes, security)

        _restrict_graph_ids(openapi, list(graph_ids))
        document = msgspec.json.encode(openapi)
        return document if own_routes is None else own_routes.add_to(document)

    tags = frozenset(route.tag for route in routes)
    return ApiDescription(write, tags, fetch=None if own_routes is None else own_routes.fetch_document)


def _add_security(openapi: Json, routes: Sequence[Route[Any]], security: AuthOpenApi) -> None:
    if security.securitySchemes:
        components = openapi.setdefault("components", {})
        components.setdefault("securitySchemes", {}).update(security.securitySchemes)

    openapi["security"] = security.security
    requirements: dict[tuple[str, str], Any] = {
        (path, method.lower()): requirement
        for path, by_method in security.paths.items()
        for method, requirement in by_method.items()
    }
    requirements |= {(route.path, route.method.lower()): [] for route in routes if route.public}

    for path, by_method in openapi["paths"].items():
        for method, operation in by_method.items():
            requirement = requirements.get((path, method))
            if requirement is None:
                # An operation without a requirement of its own has that of the whole document.
                operation.pop("security", None)
            else:
                operation["security"] = requirement


def _restrict_graph_ids(openapi: Json, graph_ids: list[str]) -> None:
    """Restrict graph ids in requests. Responses keep any text: an assistant outlives its graph."""
    operations = [operation for by_method in openapi["paths"].values() for operation in by_method.values()]
    for operation in operations:
        for parameter in operation["parameters"]:
            if parameter["name"] == "assistant_id" and "format" not in parameter["schema"]:
                # An empty parameter counts as a missing one.
                names = graph_ids if parameter["required"] else [*graph_ids, ""]
                by_id = {"type": "string", "format": "uuid"}
                by_graph = {"type": "string", "enum": names}
                parameter["schema"] = {"anyOf": [by_id, by_graph]}

    schemas = openapi["components"]["schemas"]
    for name in _list_request_schemas(operations):
        field = schemas[name].get("properties", {}).get("graph_id")
        if field is None:
            continue

        for shape in (field, *field.get("anyOf", ())):
            if shape.get("type") == "string":
                shape["enum"] = graph_ids


def _list_request_schemas(operations: Iterable[Json]) -> set[str]:
    """Return the names of the schemas that bodies of requests have."""
    names: set[str] = set()
    for operation in operations:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = content["schema"]
            shapes = (schema, *schema.get("anyOf", ()))
            names.update(shape["$ref"].rsplit("/", 1)[-1] for shape in shapes if "$ref" in shape)

    return names
