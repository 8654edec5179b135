"""The OpenAPI 3.1 document, made from the routes' signatures."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.errors import BodyTooLarge, Forbidden, Invalid, PortsideError, Problem, Unauthorized
from portside.kernel.http.routes import Route


class ErrorBody(msgspec.Struct):
    """Every error but a failed validation."""

    detail: str


class ValidationErrorBody(msgspec.Struct):
    """A failed validation: one entry per problem."""

    detail: list[Problem]


def document(title: str, version: str, routes: Sequence[Route]) -> dict[str, Any]:
    """Describe the routes as an OpenAPI 3.1 document."""
    kinds: list[Any] = [ErrorBody, ValidationErrorBody]
    for route in routes:
        kinds += [kind for kind in (route.body_type, _returned(route), route.query_type) if kind is not None]
        kinds += route.path_types.values()
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    for key in {id(route.query_type) for route in routes if route.query_type is not None}:
        # A query is told field by field, so the struct is no component of the document.
        by_kind[key] = components.pop(by_kind[key]["$ref"].rsplit("/", 1)[-1])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"ApiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
        },
    }


def _returned(route: Route) -> Any:
    """Return the type of the JSON body, or None where the handler answers with a response of its own or nothing."""
    kind = route.returns
    answers_itself = isinstance(kind, type) and issubclass(kind, (Response, type(None)))
    return None if kind is None or answers_itself else kind


def _operation(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": (route.handler.__doc__ or route.name).strip().split("\n", 1)[0],
        "parameters": [*_path_parameters(route, schemas), *_query_parameters(route, schemas)],
        "responses": _responses(route, schemas),
        "security": [] if route.public else [{"ApiKey": []}],
    }
    if route.body_type is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": schemas[id(route.body_type)]}},
        }
    return operation


def _path_parameters(route: Route, schemas: dict[int, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schemas[id(kind)]}
        for name, kind in route.path_types.items()
    ]


def _query_parameters(route: Route, schemas: dict[int, Any]) -> list[dict[str, Any]]:
    if route.query_type is None:
        return []
    described = schemas[id(route.query_type)]
    required = set(described.get("required", []))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": shape}
        for name, shape in described["properties"].items()
    ]


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    returned = _returned(route)
    if returned is not None:
        success["content"] = {"application/json": {"schema": schemas[id(returned)]}}
    elif route.media_type != "application/json":
        success["content"] = {route.media_type: {"schema": {"type": "string"}}}
    responses: dict[str, Any] = {str(route.status): success}
    for error in _errors(route):
        described = responses.setdefault(str(error.status), {"description": (error.__doc__ or "").split("\n", 1)[0]})
        body = ValidationErrorBody if error is Invalid else ErrorBody
        described["content"] = {"application/json": {"schema": schemas[id(body)]}}
    return responses


def _errors(route: Route) -> list[type[PortsideError]]:
    errors = list(route.raises)
    if not route.public:
        errors.append(Unauthorized)
    if route.permission:
        errors.append(Forbidden)
    if route.body_type is not None:
        errors += [Invalid, BodyTooLarge]
    elif route.path_types or route.query_type:
        errors.append(Invalid)
    return errors
