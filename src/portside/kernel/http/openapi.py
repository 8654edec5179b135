"""The OpenAPI 3.1 document, made from the routes' signatures.

It promises only what the servers keep: the statuses a route can answer with, the headers clients look at, the form of
errors. Query parameters never are null, whatever their struct allows: a query string has no word for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.errors import BodyTooLarge, Forbidden, Invalid, PortsideError, TooManyRequests, Unauthorized
from portside.kernel.http.refusals import ErrorBody, ErrorForm
from portside.kernel.http.routes import Route

HEADERS = {
    "X-Request-Id": "Names the request in the server's log; the client's own, or made by the server.",
    "X-Ignored-Fields": "Fields of the body and of the query that the server does not know, when there are any.",
    "X-Pagination-Total": "How many match in all.",
    "X-Pagination-Next": "The offset of the next page, when there is one.",
    "Content-Location": "Where what was made is found.",
    "Location": "Where to go on after the connection was lost.",
}
TAKEN = {
    "Idempotency-Key": (
        "A name for the request, of 1 to 255 characters. The same request with the same key, on the same thread or "
        "without one, is answered for 24 hours with what the first one made."
    ),
    "A2A-Version": "The version of the A2A protocol that the client speaks.",
    "A2A-History-Scope": "Which messages a task shows: those of its whole context, or with `task` its own only.",
}
SCHEMES = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
    "TenantId": {"type": "apiKey", "in": "header", "name": "X-Tenant-Id"},
}
# The workspace's id is no secret: it goes with a key, and must where the key is the organization's.
ALTERNATIVES: list[dict[str, list[str]]] = [
    {"ApiKey": []},
    {"BearerAuth": []},
    {"ApiKey": [], "TenantId": []},
    {"BearerAuth": [], "TenantId": []},
]
_REFERENCE = "#/components/schemas/{name}"
_ALWAYS = ("X-Request-Id", "X-Ignored-Fields")


class Described(msgspec.Struct, frozen=True):
    """The server that a document is about."""

    title: str
    version: str
    form: ErrorForm = ErrorForm.PROBLEMS
    wants_key: bool = True


def document(server: Described, routes: Sequence[Route]) -> dict[str, Any]:
    """Describe the routes of a server as an OpenAPI 3.1 document."""
    schemas, components = _schemas(server, routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _Operation(server, route, schemas).describe()
    described: dict[str, Any] = {"schemas": components, "headers": _headers()}
    if server.wants_key:
        described["securitySchemes"] = SCHEMES
    info = {"title": server.title, "version": server.version}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": described}


def _headers() -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in HEADERS.items()}


def _schemas(server: Described, routes: Sequence[Route]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the schema of every type that the routes name, by the type's identity, and what they refer to."""
    bodies: list[Any] = [ErrorBody, server.form.value]
    for route in routes:
        bodies += [kind for kind in (route.body_type, _returned(route.returns)) if kind is not None]
        bodies += [kind for kind in route.answers.values() if kind is not None]
        bodies += route.path_types.values()
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    by_kind = {id(kind): schema for kind, schema in zip(bodies, schemas, strict=True)}
    # A query is told field by field, so its struct is no component of the document; what it refers to is.
    queries = {id(route.query_type): route.query_type for route in routes if route.query_type is not None}
    schemas, parts = msgspec.json.schema_components(queries.values(), ref_template=_REFERENCE)
    for key, schema in zip(queries, schemas, strict=True):
        by_kind[key] = parts.pop(schema["$ref"].rsplit("/", 1)[-1])
    return by_kind, {**parts, **components}


def _returned(kind: Any) -> Any:
    """Return the type of the JSON body, or None where the handler answers with a response of its own or nothing."""
    answers_itself = isinstance(kind, type) and issubclass(kind, (Response, type(None)))
    return None if kind is None or answers_itself else kind


class _Operation:
    """One route on its way into the document."""

    def __init__(self, server: Described, route: Route, schemas: Mapping[int, Any]) -> None:
        self.server, self.route, self.schemas = server, route, schemas
        self.is_open = route.public or not server.wants_key

    def describe(self) -> dict[str, Any]:
        """Return the operation."""
        route = self.route
        text = (route.handler.__doc__ or route.name).strip()
        operation: dict[str, Any] = {
            "operationId": route.name,
            "tags": [route.tag],
            "summary": text.split("\n", 1)[0],
            "parameters": [*self._path_parameters(), *self._query_parameters(), *self._header_parameters()],
            "responses": self._responses(),
            "security": [] if self.is_open else ALTERNATIVES,
        }
        if route.body_type is not None:
            operation["requestBody"] = {
                "required": not route.body_optional,
                "content": {"application/json": {"schema": self.schemas[id(route.body_type)]}},
            }
        return operation

    def _path_parameters(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "path", "required": True, "schema": self.schemas[id(kind)]}
            for name, kind in self.route.path_types.items()
        ]

    def _query_parameters(self) -> list[dict[str, Any]]:
        if self.route.query_type is None:
            return []
        described = self.schemas[id(self.route.query_type)]
        required = set(described.get("required", []))
        return [
            {"name": name, "in": "query", "required": name in required, "schema": _without_null(shape)}
            for name, shape in described["properties"].items()
        ]

    def _header_parameters(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "header", "required": False, "description": TAKEN[name], "schema": {"type": "string"}}
            for name in self.route.takes
        ]

    def _responses(self) -> dict[str, Any]:
        route = self.route
        responses: dict[str, Any] = {}
        for status, kind in {route.status: route.returns, **route.answers}.items():
            responses[str(status)] = self._success(status, kind)
        for error in self._errors():
            said = (error.__doc__ or "").strip().split("\n", 1)[0]
            described = responses.setdefault(str(error.status), {"description": said})
            if said not in described["description"]:
                described["description"] += f" Or: {said}"
            body = self.server.form.value if issubclass(error, Invalid) else ErrorBody
            described["content"] = {"application/json": {"schema": self.schemas[id(body)]}}
        return responses

    def _success(self, status: int, kind: Any) -> dict[str, Any]:
        names = (*_ALWAYS, *self.route.headers)
        success: dict[str, Any] = {
            "description": "Success" if status < 400 else "Failure",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        }
        content: dict[str, Any] = {}
        if self.route.media_type != "application/json":
            content[self.route.media_type] = {"schema": {"type": "string"}}
        if _returned(kind) is not None:
            content["application/json"] = {"schema": self.schemas[id(kind)]}
        elif not content and isinstance(kind, type) and issubclass(kind, Response):
            content["application/json"] = {"schema": {}}
        return {**success, "content": content} if content else success

    def _errors(self) -> list[type[PortsideError]]:
        errors = list(self.route.raises)
        if not self.is_open:
            errors.append(Unauthorized)
            if self.route.permission:
                errors.append(Forbidden)
        if self.route.body_type is not None:
            errors += [Invalid, BodyTooLarge]
        elif self.route.path_types or self.route.query_type:
            errors.append(Invalid)
        if self.route.stays_open:
            errors.append(TooManyRequests)
        return errors


def _without_null(shape: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in shape.get("anyOf", ()) if kind != {"type": "null"}]
    rest = {key: value for key, value in shape.items() if key != "anyOf" and not (key == "default" and value is None)}
    if not kinds:
        return rest
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}
