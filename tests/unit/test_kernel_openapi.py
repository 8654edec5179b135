import json
from collections.abc import Iterator
from typing import Any

import pytest

from portside.agent.app import ROUTES as AGENT_ROUTES
from portside.kernel.http.openapi import Described, document
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
            assert all({"name", "in", "required", "schema"} == set(p) for p in operation["parameters"])
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
    assert closed["security"] == [{"ApiKey": []}]
    assert {"201", "401", "413", "422"} <= set(closed["responses"])
    assert closed["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ProblemsBody")
    assert closed["requestBody"]["required"] is True
    assert made["paths"]["/things/{thing_id}/parts/{part}"]["put"]["requestBody"]["required"] is False
