"""The OpenAPI 3.1 document, generated from the signatures of the routes, and the page that shows it to people.

The page (`reference.html`) reads `openapi.json` from its own server and connects to no other host. Its content
security policy allows its script and its style by their hashes, so an injected script does not run.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.errors import BodyTooLarge, Forbidden, Invalid, PortsideError, TooManyRequests, Unauthorized
from portside.kernel.http.error_responses import ErrorBody, ErrorFormat
from portside.kernel.http.json_validation import MAX_INT, MIN_INT
from portside.kernel.http.protocol import HEAD_REFUSALS
from portside.kernel.http.routes import Route
from portside.kernel.large_reads import ResponseTooLarge, TooManyLargeReads

RESPONSE_HEADERS = {
    "X-Request-Id": "Identifies the request in the server's log: the client's id, or a generated one.",
    "X-Ignored-Fields": "Fields of the body and the query that the server does not know and ignored, if any.",
    "X-Pagination-Total": "Total number of matches.",
    "X-Pagination-Next": "The offset of the next page, if there is one.",
    "Content-Location": "The URL of the created resource.",
    "ETag": "Identifies this version of the response; send it in If-None-Match.",
    "Last-Modified": "When the response may last have changed.",
    "Location": "The URL at which to continue after the connection was lost.",
}
REQUEST_HEADERS = {
    "Idempotency-Key": (
        "A key for the request, of 1 to 255 characters. For 24 hours, the same request with the same key, on the same "
        "thread or without one, returns what the first request created."
    ),
    "A2A-Version": "The version of the A2A protocol that the client speaks.",
    "If-None-Match": "ETags of responses that the client has. If one is still current, the server answers 304.",
    "If-Modified-Since": "When the client got its response. If nothing has changed since, the server answers 304.",
    "A2A-History-Scope": "Which messages a task includes: those of its whole context or, with `task`, only its own.",
}
REQUEST_HEADER_SCHEMAS = {"Idempotency-Key": {"minLength": 1, "maxLength": 255}}
SCHEMES = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
    "TenantId": {"type": "apiKey", "in": "header", "name": "X-Tenant-Id"},
}
# The workspace's id is not a secret, so it never authenticates alone. An organization's key requires it.
SECURITY: list[dict[str, list[str]]] = [
    {"ApiKey": []},
    {"BearerAuth": []},
    {"ApiKey": [], "TenantId": []},
    {"BearerAuth": [], "TenantId": []},
]
_REFERENCE = "#/components/schemas/{name}"
_ALWAYS = ("X-Request-Id", "X-Ignored-Fields")
_NO_NUL = r"^[^\u0000]*$"
_DATE_TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}"
_JSON = {"$ref": _REFERENCE.format(name="Json")}
# The schema of a field of any type, and of fields that the server does not know.
_JSON_SCHEMA: dict[str, Any] = {
    "title": "Json",
    "description": "Any JSON without NUL characters, without integers beyond 64 bits, and of at most 200 levels.",
    "anyOf": [
        {"type": "null"},
        {"type": "boolean"},
        # Without bounds: they would also exclude 1e300, which is no integer in JSON's text.
        {"type": "number"},
        {"type": "string", "pattern": _NO_NUL},
        {"type": "array", "items": _JSON},
        {"type": "object", "propertyNames": {"pattern": _NO_NUL}, "additionalProperties": _JSON},
    ],
}
# A string with one of these keywords gets no pattern against NUL characters: the keyword restricts it already.
_SPECIFIC = frozenset({"pattern", "format", "enum", "const", "contentEncoding"})


class ServerInfo(msgspec.Struct, frozen=True):
    """The server that a document describes."""

    title: str
    version: str
    error_format: ErrorFormat = ErrorFormat.PROBLEMS
    wants_key: bool = True
    unlimited: frozenset[str] | None = None
    """The paths of routes without rate limits; None if the server has no rate limits."""


def build_document(server: ServerInfo, routes: Sequence[Route[Any]]) -> dict[str, Any]:
    """Describe the routes of a server as an OpenAPI 3.1 document."""
    schemas, components = _build_schemas(server, routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _Operation(server, route, schemas).describe()
        paths.setdefault(route.path.replace("...}", "}"), {})[route.method.lower()] = operation

    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in RESPONSE_HEADERS.items()}
    components_object: dict[str, Any] = {"schemas": components, "headers": headers}
    if server.wants_key:
        components_object["securitySchemes"] = SCHEMES

    info = {"title": server.title, "version": server.version}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components_object}


def _build_schemas(server: ServerInfo, routes: Sequence[Route[Any]]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the schemas of all types that the routes use, by `id(type)`, and the components that they refer to."""
    bodies: list[Any] = [ErrorBody, server.error_format.value]

    for route in routes:
        bodies += [kind for kind in (route.body_type, _body_type(route.returns)) if kind is not None]
        bodies += [kind for kind in route.responses.values() if kind is not None]
        bodies += route.path_types.values()

    schemas, components = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    by_kind = {id(kind): schema for kind, schema in zip(bodies, schemas, strict=True)}

    # A query is described as one parameter for each field, so its struct is not a component; types it refers to are.
    queries = {id(route.query_type): route.query_type for route in routes if route.query_type is not None}
    schemas, referred = msgspec.json.schema_components(queries.values(), ref_template=_REFERENCE)
    for key, schema in zip(queries, schemas, strict=True):
        by_kind[key] = referred.pop(schema["$ref"].rsplit("/", 1)[-1])

    by_kind = {key: _with_limits(schema) for key, schema in by_kind.items()}
    # Errors quote values of the request, also invalid ones, so their schemas have no limits.
    _, errors = msgspec.json.schema_components([ErrorBody, server.error_format.value], ref_template=_REFERENCE)
    limited_components = {name: _with_limits(part) for name, part in {**referred, **components}.items()}

    return by_kind, {"Json": _JSON_SCHEMA, **limited_components, **errors}


def _with_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Add to a schema the limits that apply to every field (`json_validation.py`)."""
    if not schema.keys() - {"description", "default"}:
        return {**schema, **_JSON}

    result: dict[str, Any] = {**schema}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _with_limits(part) for name, part in value.items()}
        elif key in {"anyOf", "prefixItems"}:
            result[key] = [_with_limits(part) for part in value]
        elif key in {"items", "additionalProperties"} and isinstance(value, dict):
            result[key] = _with_limits(value)

    if result.get("format") == "date-time":
        # The format limits the length already. With both, tools that generate values find none that fits.
        result.pop("maxLength", None)

    return {**_build_limits(result), **result}


def _build_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the limits for the type of a schema. Limits that the schema sets itself override them."""
    if schema.keys() & _SPECIFIC:
        return {"pattern": _DATE_TIME} if schema.get("format") == "date-time" else {}

    match schema.get("type"):
        case "string":
            return {"pattern": _NO_NUL}
        case "integer":
            lower = {} if "exclusiveMinimum" in schema else {"minimum": MIN_INT}
            return lower if "exclusiveMaximum" in schema else {**lower, "maximum": MAX_INT}
        case "array" if "prefixItems" not in schema:
            return {"items": _JSON}
        case "object":
            return {"propertyNames": {"pattern": _NO_NUL}, "additionalProperties": _JSON}

    return {}


def _body_type(kind: Any) -> Any:
    """Return the type of the JSON body; None if the handler returns nothing or a response object."""
    is_response = isinstance(kind, type) and issubclass(kind, (Response, type(None)))
    return None if kind is None or is_response else kind


class _Operation:
    """Describes one route as an operation."""

    def __init__(self, server: ServerInfo, route: Route[Any], schemas: Mapping[int, Any]) -> None:
        self.server = server
        self.route = route
        self.schemas = schemas
        self.is_open = route.public or not server.wants_key

    def describe(self) -> dict[str, Any]:
        """Return the operation."""
        route = self.route
        text = (route.handler.__doc__ or route.name).strip()
        operation: dict[str, Any] = {
            "operationId": route.operation_id,
            "tags": [route.tag],
            "summary": text.split("\n", 1)[0],
            "parameters": [
                *self._describe_path_parameters(),
                *self._describe_query_parameters(),
                *self._describe_header_parameters(),
            ],
            "responses": self._describe_responses(),
            "security": [] if self.is_open else SECURITY,
        }

        if route.body_type is not None:
            operation["requestBody"] = {
                "required": not route.body_optional,
                "content": {"application/json": {"schema": self.schemas[id(route.body_type)]}},
            }
        elif route.consumes:
            content = {kind: {"schema": _with_limits(shape)} for kind, shape in route.consumes.items()}
            operation["requestBody"] = {"required": not route.body_optional, "content": content}

        return operation

    def _describe_path_parameters(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "path", "required": True, "schema": self.schemas[id(kind)]}
            for name, kind in self.route.path_types.items()
        ]

    def _describe_query_parameters(self) -> list[dict[str, Any]]:
        if self.route.query_type is None:
            return []

        described = self.schemas[id(self.route.query_type)]
        required = set(described.get("required", []))
        return [
            {"name": name, "in": "query", "required": name in required, **_query_value(_without_null(shape))}
            for name, shape in described["properties"].items()
        ]

    def _describe_header_parameters(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": REQUEST_HEADERS[name],
                "schema": {"type": "string", **REQUEST_HEADER_SCHEMAS.get(name, {})},
            }
            for name in self.route.request_headers
        ]

    def _describe_responses(self) -> dict[str, Any]:
        route = self.route
        responses: dict[str, Any] = {}
        for status, kind in {route.status: route.returns, **route.responses}.items():
            responses[str(status)] = self._describe_success(status, kind)

        for error in self._list_errors():
            summary = (error.__doc__ or "").strip().split("\n", 1)[0]
            described = responses.setdefault(str(error.status), {"description": summary})
            if summary not in described["description"]:
                described["description"] += f" Or: {summary}"

            body = self.server.error_format.value if issubclass(error, Invalid) else ErrorBody
            content = described.setdefault("content", {})
            content["application/json"] = {"schema": _either(content.get("application/json"), self.schemas[id(body)])}

        for status, _, summary in HEAD_REFUSALS:
            content = {"application/json": {"schema": self.schemas[id(ErrorBody)]}}
            responses.setdefault(str(status), {"description": summary, "content": content})

        return responses

    def _describe_success(self, status: int, kind: Any) -> dict[str, Any]:
        names = (*_ALWAYS, *self.route.response_headers)
        success: dict[str, Any] = {
            "description": "Success" if status < 400 else "Failure",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        }

        content: dict[str, Any] = {}
        if self.route.media_type != "application/json":
            # The events of a stream hold data of any type.
            for media_type in self.route.media_type.split(", "):
                content[media_type] = {"schema": {} if media_type == "text/event-stream" else {"type": "string"}}

        if _body_type(kind) is not None:
            content["application/json"] = {"schema": self.schemas[id(kind)]}
        elif not content and status < 400 and isinstance(kind, type) and issubclass(kind, Response):
            content["application/json"] = {"schema": {}}

        return {**success, "content": content} if content else success

    def _list_errors(self) -> list[type[PortsideError]]:
        errors = list(self.route.raises)
        if not self.is_open:
            # The key may lack a permission, and X-Tenant-Id may name a workspace that the key does not belong to.
            errors += [Unauthorized, Forbidden]

        if self.route.body_type is not None or self.route.consumes:
            errors += [Invalid, BodyTooLarge]
        elif self.route.path_types or self.route.query_type:
            errors.append(Invalid)

        unlimited = self.server.unlimited
        if self.route.stays_open or (unlimited is not None and self.route.path not in unlimited):
            errors.append(TooManyRequests)

        if self.route.has_budget:
            errors += [ResponseTooLarge, TooManyLargeReads]

        return errors


def _either(described: dict[str, Any] | None, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body that also has another one: a response of the route, or of another error."""
    if described is None:
        return schema

    schemas: list[dict[str, Any]] = described["schema"].get("anyOf", [described["schema"]])
    if schema not in schemas:
        schemas = [*schemas, schema]

    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _query_value(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter; a parameter that is JSON itself has a media type instead."""
    if "contentMediaType" not in shape:
        return {"schema": shape}
    return {"content": {shape["contentMediaType"]: {"schema": _with_limits(shape["contentSchema"])}}}


def _without_null(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field without the alternative of null: a query has none."""
    kinds = [kind for kind in shape.get("anyOf", ()) if kind != {"type": "null"}]
    keywords = {key: value for key, value in shape.items() if key != "anyOf"}
    if "default" in keywords and keywords["default"] is None:
        del keywords["default"]

    match kinds:
        case []:
            return keywords
        case [kind]:
            return {**kind, **keywords}

    return {"anyOf": kinds, **keywords}


def build_reference_response() -> Response:
    """Return the response with the page."""
    page, policy = read_reference_page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    return Response(page, headers=headers, media_type="text/html")


@cache
def read_reference_page() -> tuple[bytes, str]:
    """Return the page and its content security policy."""
    page = files("portside.kernel.http").joinpath("reference.html").read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hash(page, b'script')}; style-src {_hash(page, b'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    return page, policy


def _hash(page: bytes, tag: bytes) -> str:
    """Return the hash of the content of the only element with a tag, as a policy names it."""
    (content,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return f"'sha256-{digest}'"
