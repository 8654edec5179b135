"""The OpenAPI document describes what the routes accept and answer."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from starlette.responses import Response

from portside.agent.served_routes import ROUTES as AGENT_ROUTES
from portside.kernel.clock import Moment
from portside.kernel.errors import BadRequest, Conflict, NotFound
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.json_validation import JSON_TEXT, needs_any
from portside.kernel.http.openapi import ServerInfo, build_document
from portside.kernel.http.operation_ids import to_operation_id
from portside.kernel.http.routes import Context, Routes
from portside.platform.modules import ROUTES as PLATFORM_ROUTES
from tests.unit.test_kernel_routes import routes as things

ROOT = Path(__file__).parents[2]
METHODS = {"get", "post", "put", "patch", "delete"}
# The verbs of operation ids. A new one is added only if none of these says it.
VERBS = (
    "add|call|cancel|check|command|commit|complete|confirm|connect|copy|count|create|decide|delete|diff|"
    "download|drop|dump|end|erase|exchange|export|find|finish|get|give|ingest|interrupt|join|like|list|"
    "measure|move|open|patch|preview|prune|pull|put|query|read|receive|redeploy|remove|report|review|"
    "revoke|rotate|run|search|send|set|share|start|stream|tag|take|test|trigger|unshare|update|upload|"
    "verify|wait"
)
SERVERS = {"things": list(things), "platform": PLATFORM_ROUTES, "agent": AGENT_ROUTES}


@pytest.fixture(params=SERVERS)
def routes(request) -> list:
    return SERVERS[request.param]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]

        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_document_is_valid_openapi_3_1(routes) -> None:
    made = build_document(ServerInfo("Title", "1.2.3"), routes)
    assert made["openapi"].startswith("3.1.")
    assert made["info"] == {"title": "Title", "version": "1.2.3"}
    assert set(made["components"]) == {"headers", "schemas", "securitySchemes"}

    for path, operations in made["paths"].items():
        assert path.startswith("/")
        assert set(operations) <= METHODS

        for operation in operations.values():
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert all({"name", "in", "required"} <= set(p) for p in operation["parameters"])
            assert all(("schema" in p) != ("content" in p) for p in operation["parameters"])
            assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
            assert operation["summary"]

            for status, response in operation["responses"].items():
                assert 200 <= int(status) < 600
                assert response["description"]

    json.dumps(made, allow_nan=False)


def test_every_reference_resolves(routes) -> None:
    made = build_document(ServerInfo("t", "1"), routes)
    found = set(references(made))
    assert found

    for reference in found:
        node: Any = made
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_document_describes_security_and_errors() -> None:
    made = build_document(ServerInfo("t", "1"), list(things))
    opened = made["paths"]["/open"]["get"]
    closed = made["paths"]["/things"]["post"]
    assert opened["security"] == []
    assert "401" not in opened["responses"]
    assert {"ApiKey": []} in closed["security"]
    assert {"BearerAuth": [], "TenantId": []} in closed["security"]

    assert {"TenantId": []} not in closed["security"]
    assert {"201", "401", "413", "422"} <= set(closed["responses"])
    assert closed["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ProblemsBody")
    assert closed["requestBody"]["required"] is True
    assert made["paths"]["/things/{thing_id}/parts/{part}"]["put"]["requestBody"]["required"] is False


class Shape(msgspec.Struct):
    side: Annotated[int, msgspec.Meta(ge=1, le=9)]


class ShapeQuery(msgspec.Struct):
    side: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tags: list[str] | None = None


shapes = Routes("shapes")


@shapes.get(
    "/shapes", returns=list[Shape], response_headers=("X-Pagination-Total",), raises=(NotFound, BadRequest, Conflict)
)
async def list_shapes(_ctx: Context, query: ShapeQuery) -> Response:
    """List shapes."""
    return Response("[]")


@shapes.patch("/shapes", responses={204: None})
async def patch_shape(_ctx: Context, body: Shape, query: ShapeQuery) -> Shape | Response:
    """Change a shape."""
    return body


@shapes.post("/shapes", status=202, responses={202: None, 200: Shape})
async def post_shape(_ctx: Context) -> Response:
    """Do something to a shape."""
    return Response(status_code=202)


@shapes.get("/figures", media_type="text/plain", returns=Shape)
async def figures(_ctx: Context) -> Response:
    """Return figures in one of two formats."""
    return Response("1")


@pytest.fixture(scope="module")
def document() -> Any:
    return build_document(ServerInfo("t", "1", ErrorFormat.TEXT, wants_key=False), list(shapes))


def contents(described: Any, method: str, path: str = "/shapes") -> dict[str, Any]:
    responses = described["paths"][path][method]["responses"]
    return {status: response.get("content") for status, response in responses.items()}


def test_raw_response_has_its_media_type(document) -> None:
    held = contents(document, "get")["200"]["application/json"]["schema"]
    assert held == {"type": "array", "items": {"$ref": "#/components/schemas/Shape"}}
    assert "X-Pagination-Total" in document["paths"]["/shapes"]["get"]["responses"]["200"]["headers"]
    assert set(contents(document, "get", "/figures")["200"]) == {"text/plain", "application/json"}


def test_document_describes_further_success_statuses(document) -> None:
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Shape"}}}
    patched = contents(document, "patch")
    posted = contents(document, "post")
    assert (patched["200"], patched["204"]) == (shape, None)
    assert (posted["200"], posted["202"]) == (shape, None)


def test_query_parameter_is_not_nullable_and_keeps_its_limits(document) -> None:
    side, tags = document["paths"]["/shapes"]["get"]["parameters"]
    assert (side["schema"], tags["schema"]) == (
        {"type": "integer", "minimum": 1, "maximum": 2**64 - 1},
        {"type": "array", "items": {"type": "string", "pattern": r"^[^\u0000]*$"}},
    )

    assert "ShapeQuery" not in document["components"]["schemas"]


def test_errors_of_one_status_share_a_response(document) -> None:
    schemas = document["components"]["schemas"]
    assert set(contents(document, "get")) == {"200", "400", "404", "409", "413", "414", "422", "431", "503"}
    refused = contents(document, "get")["422"]["application/json"]["schema"]["$ref"]
    assert schemas[refused.rsplit("/", 1)[-1]]["properties"].keys() == {"detail", "errors"}


def test_server_without_keys_has_no_security(document) -> None:
    assert "securitySchemes" not in document["components"]
    assert document["paths"]["/shapes"]["post"]["security"] == []


@shapes.post("/names", "/v1/names", consumes={"multipart/form-data": {"type": "object"}})
async def upload_names(_ctx: Context) -> None:
    """Upload names."""


class Anything(msgspec.Struct):
    text: str
    number: int
    free: dict[str, Any]
    at: Moment


@shapes.put("/names")
async def put_names(_ctx: Context, body: Anything) -> None:
    """Replace names."""


@pytest.fixture(scope="module")
def guarded_document() -> Any:
    return build_document(ServerInfo("t", "1", unlimited=("/shapes",)), list(shapes))


def test_operation_ids_are_unique(routes) -> None:
    made = build_document(ServerInfo("t", "1"), routes)
    ids = [operation["operationId"] for methods in made["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert len(ids) == len(routes)


@pytest.mark.parametrize("served", [PLATFORM_ROUTES, AGENT_ROUTES], ids=["platform", "agent"])
def test_operation_ids_are_a_resource_and_a_verb(served) -> None:
    """Generated clients name their methods by them. The second path of a route has the same id with `_2`."""
    for route in served:
        assert re.fullmatch(rf"[a-z][a-z0-9]*(_[a-z0-9]+)*_({VERBS})(_[2-9])?", route.operation_id), route.operation_id


@pytest.mark.parametrize(
    ("handler_name", "operation_id"),
    [
        ("list_runs", "runs_list"),
        ("get_run", "runs_get"),
        ("revoke_api_key", "api_keys_revoke"),
        ("get_webhook_delivery", "webhook_deliveries_get"),
        ("receive_push", "pushes_receive"),
        ("get_thread_state", "thread_state_get"),
        ("create_feedback", "feedback_create"),
    ],
)
def test_operation_ids_are_made_of_the_names_of_handlers(handler_name: str, operation_id: str) -> None:
    assert to_operation_id(handler_name) == operation_id


def test_aliases_of_a_route_have_ids_of_their_own() -> None:
    aliased = Routes[Context[Any]]("aliased")

    @aliased.put("/names", "/v1/names", operation="names_replace")
    async def put_names(_ctx: Context[Any]) -> None:
        """Replace names."""

    assert [route.operation_id for route in aliased] == ["names_replace", "names_replace_2"]


def test_document_describes_raw_request_bodies(guarded_document) -> None:
    for path in ("/names", "/v1/names"):
        body = guarded_document["paths"][path]["post"]["requestBody"]
        assert (body["required"], list(body["content"])) == (True, ["multipart/form-data"])
        assert {"413", "422"} <= set(guarded_document["paths"][path]["post"]["responses"])


def test_schemas_contain_the_limits_of_all_fields(guarded_document) -> None:
    schemas = guarded_document["components"]["schemas"]
    fields = schemas["Anything"]["properties"]
    anything = {"$ref": "#/components/schemas/Json"}
    assert fields["text"]["pattern"] == r"^[^\u0000]*$"
    assert (fields["number"]["minimum"], fields["number"]["maximum"]) == (-(2**63), 2**64 - 1)
    assert fields["free"]["additionalProperties"] == anything
    assert schemas["Anything"]["additionalProperties"] == anything

    assert (schemas["Shape"]["properties"]["side"]["minimum"], fields["at"]["format"]) == (1, "date-time")


def test_document_describes_refusals_of_the_server(guarded_document) -> None:
    limited, unlimited = (
        guarded_document["paths"][path]["put" if path == "/names" else "get"]["responses"]
        for path in ("/names", "/shapes")
    )
    assert {"401", "403", "414", "429", "431"} <= set(limited)
    assert "429" not in unlimited


PARTS = {"application/json": {"type": "object", "propertyNames": True, "additionalProperties": True}}


class Rejected(msgspec.Struct):
    reason: str


class FoundBy(msgspec.Struct):
    metadata: Annotated[str, JSON_TEXT] | None = None


class Moved(msgspec.Struct):
    x: int | None = None
    y: int | None = None


moves = Routes("moves")


@moves.post("/parts", consumes=PARTS, body_optional=True, raises=(BadRequest,), responses={400: Rejected})
async def take_parts(_ctx: Context) -> None:
    """Take parts."""


@moves.put("/parts")
async def move_parts(_ctx: Context, query: FoundBy, body: Annotated[Moved, needs_any("x", "y")]) -> None:
    """Move parts."""


def test_constraints_beside_the_types_are_described() -> None:
    made = build_document(ServerInfo("t", "1"), list(moves))["paths"]["/parts"]
    assert made["post"]["requestBody"] == {
        "required": False,
        "content": {"application/json": {"schema": PARTS["application/json"]}},
    }

    refused = made["post"]["responses"]["400"]["content"]["application/json"]["schema"]["anyOf"]
    assert [one["$ref"].rsplit("/", 1)[-1] for one in refused] == ["Rejected", "ErrorBody"]
    (metadata,) = made["put"]["parameters"]
    assert metadata["content"]["application/json"]["schema"]["type"] == "object"
    body = made["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert [one["required"] for one in body["anyOf"]] == [["x"], ["y"]]


@pytest.mark.parametrize("server", ["agent", "platform"])
def test_named_differences_are_of_operations_that_exist(server: str) -> None:
    config = tomllib.loads((ROOT / "scripts" / "openapi" / f"{server}.toml").read_text("utf-8"))
    known = {f"{route.method} {route.path}" for route in SERVERS[server]}
    for group in config["operations"]:
        names = group["include-name"]
        assert {names} <= known if isinstance(names, str) else set(names) <= known


def test_unsupported_fields_are_described_as_empty() -> None:
    described = build_document(ServerInfo("t", "1"), PLATFORM_ROUTES)
    listed = {each["name"]: each.get("schema") for each in described["paths"]["/sessions"]["get"]["parameters"]}
    assert (listed["facets"]["const"], listed["tag_value_id"]["maxItems"]) == (False, 0)
