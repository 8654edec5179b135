import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from starlette.responses import Response

from portside.agent.app import ROUTES as AGENT_ROUTES
from portside.kernel.errors import BadRequest, Conflict, NotFound
from portside.kernel.http.openapi import Described, document
from portside.kernel.http.refusals import ErrorForm
from portside.kernel.http.routes import Context, Routes
from portside.platform.app import ROUTES as PLATFORM_ROUTES
from tests.unit.test_kernel_routes import routes as things

METHODS = {"get", "post", "put", "patch", "delete"}
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


def test_the_document_has_the_shape_of_openapi_3_1(routes) -> None:
    made = document(Described("Title", "1.2.3"), routes)
    assert made["openapi"].startswith("3.1.")
    assert made["info"] == {"title": "Title", "version": "1.2.3"}
    assert set(made["components"]) == {"headers", "schemas", "securitySchemes"}
    for path, operations in made["paths"].items():
        assert path.startswith("/")
        assert set(operations) <= METHODS
        for operation in operations.values():
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert all({"name", "in", "required", "schema"} <= set(p) for p in operation["parameters"])
            assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
            assert operation["summary"]
            for status, answer in operation["responses"].items():
                assert 200 <= int(status) < 600
                assert answer["description"]
    json.dumps(made, allow_nan=False)


def test_every_reference_resolves(routes) -> None:
    made = document(Described("t", "1"), routes)
    found = set(references(made))
    assert found
    for reference in found:
        node: Any = made
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_every_route_is_in_it_once_under_a_name_of_its_own(routes) -> None:
    made = document(Described("t", "1"), routes)
    operations = [operation for methods in made["paths"].values() for operation in methods.values()]
    assert len(operations) == len(routes)
    handlers = {route.handler for route in routes}
    assert len({operation["operationId"] for operation in operations}) == len(handlers)


def test_doors_and_errors_are_told() -> None:
    made = document(Described("t", "1"), list(things))
    opened, closed = made["paths"]["/open"]["get"], made["paths"]["/things"]["post"]
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


@shapes.get("/shapes", returns=list[Shape], headers=("X-Pagination-Total",), raises=(NotFound, BadRequest, Conflict))
async def list_shapes(_ctx: Context, query: ShapeQuery) -> Response:
    """List shapes."""
    return Response("[]")


@shapes.patch("/shapes", answers={204: None})
async def patch_shape(_ctx: Context, body: Shape, query: ShapeQuery) -> Shape | Response:
    """Change a shape."""
    return body


@shapes.post("/shapes", status=202, answers={202: None, 200: Shape})
async def post_shape(_ctx: Context) -> Response:
    """Do something to a shape."""
    return Response(status_code=202)


@shapes.get("/figures", media_type="text/plain", returns=Shape)
async def figures(_ctx: Context) -> Response:
    """Tell figures in one of two forms."""
    return Response("1")


@pytest.fixture(scope="module")
def described() -> Any:
    return document(Described("t", "1", ErrorForm.TEXT, wants_key=False), list(shapes))


def answers(described: Any, method: str, path: str = "/shapes") -> dict[str, Any]:
    responses = described["paths"][path][method]["responses"]
    return {status: answer.get("content") for status, answer in responses.items()}


def test_a_raw_answer_says_what_it_holds(described) -> None:
    held = answers(described, "get")["200"]["application/json"]["schema"]
    assert held == {"type": "array", "items": {"$ref": "#/components/schemas/Shape"}}
    assert "X-Pagination-Total" in described["paths"]["/shapes"]["get"]["responses"]["200"]["headers"]
    assert set(answers(described, "get", "/figures")["200"]) == {"text/plain", "application/json"}


def test_other_successes_are_told(described) -> None:
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Shape"}}}
    patched, posted = answers(described, "patch"), answers(described, "post")
    assert (patched["200"], patched["204"]) == (shape, None)
    assert (posted["200"], posted["202"]) == (shape, None)


def test_a_query_parameter_is_never_null_and_keeps_its_bounds(described) -> None:
    side, tags = described["paths"]["/shapes"]["get"]["parameters"]
    assert (side["schema"], tags["schema"]) == (
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "string"}},
    )
    assert "ShapeQuery" not in described["components"]["schemas"]


def test_errors_of_one_status_share_an_answer_in_the_form_of_the_server(described) -> None:
    schemas = described["components"]["schemas"]
    assert set(answers(described, "get")) == {"200", "400", "404", "409", "422"}
    refused = answers(described, "get")["422"]["application/json"]["schema"]["$ref"]
    assert schemas[refused.rsplit("/", 1)[-1]]["properties"].keys() == {"detail", "errors"}


def test_a_server_without_keys_asks_for_none(described) -> None:
    assert "securitySchemes" not in described["components"]
    assert described["paths"]["/shapes"]["post"]["security"] == []
