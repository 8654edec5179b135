"""Typed routes: decoding, permissions, errors, and the shape of responses.

A documented field without effect is refused; an unknown one is named in `X-Ignored-Fields`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio
from starlette.responses import Response

from portside.kernel.http.routes import Api, BaseServices, Context, Routes, bind, refuse_field
from portside.kernel.http.sse import EventStream
from tests.conftest import eventually
from tests.unit.kernel_server import guard, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")
ID = "0190a0c0-0000-7000-8000-000000000001"
routes = Routes("things")


class Thing(msgspec.Struct):
    name: str
    size: int | None = None


class Page(msgspec.Struct):
    limit: int = 10


@routes.get("/things/{thing_id}")
async def show(_ctx: Context, thing_id: UUID) -> Thing:
    """Show a thing."""
    return Thing(str(thing_id))


@routes.get("/things/newest")
async def newest(_ctx: Context) -> Thing:
    """Show the newest thing."""
    return Thing("newest")


@routes.get("/things")
async def list_things(_ctx: Context, query: Page) -> list[Thing]:
    """List things."""
    return [Thing("a")] * query.limit


@routes.post("/things", status=201)
async def create(ctx: Context, body: Thing) -> Thing:
    """Create a thing."""
    if body.size is not None:
        raise refuse_field("size", "sizes come later")

    ctx.headers["X-Made"] = "yes"
    return body


@routes.put("/things/{thing_id}/parts/{part}")
async def put_part(_ctx: Context, thing_id: UUID, part: str, body: Thing | None = None) -> list[str]:
    """Put a part."""
    return [str(thing_id), part, body.name if body else "-"]


@routes.delete("/things/{thing_id}", status=204)
async def delete(_ctx: Context, thing_id: UUID) -> None:
    """Delete a thing."""


@routes.get("/who")
async def show_caller(ctx: Context) -> Any:
    """Return the caller."""
    return ctx.actor


@routes.get("/open", public=True)
async def public_route(ctx: Context) -> Response:
    """Answer without authentication."""
    return Response(str(ctx.actor), 418)


closed: list[bool] = []


async def endless() -> AsyncIterator[bytes]:
    try:
        while True:
            yield b": more\r\n\r\n"
            await asyncio.sleep(3600)
    finally:
        closed.append(True)


@routes.get("/stream", public=True, media_type="text/event-stream")
async def stream(_ctx: Context) -> Response:
    """Stream until cancelled."""
    source = endless()
    await anext(source)
    return EventStream(source)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    async with serve(routes) as served:
        yield served


@pytest.fixture
def client(served):
    return served.client


async def test_values_are_decoded_and_encoded(client) -> None:
    assert (await client.get(f"/things/{ID}")).json() == {"name": ID, "size": None}
    assert (await client.get("/things", params={"limit": 2})).json() == [{"name": "a", "size": None}] * 2
    response = await client.post("/things", json={"name": "n", "zap": 1, "zip": 2})
    assert (response.status_code, response.json()["name"], response.headers["x-made"]) == (201, "n", "yes")
    assert response.headers["x-ignored-fields"] == "zap, zip"
    assert (await client.put(f"/things/{ID}/parts/a%20b")).json() == [ID, "a b", "-"]
    assert (await client.put(f"/things/{ID}/parts/x", json={"name": "n"})).json() == [ID, "x", "n"]

    gone = await client.delete(f"/things/{ID}")
    assert (gone.status_code, gone.content) == (204, b"")


async def test_fixed_segment_takes_precedence_over_a_parameter(client) -> None:
    assert (await client.get("/things/newest")).json()["name"] == "newest"


async def test_ignored_fields_header_is_escaped(client) -> None:
    odd = await client.post(
        "/things", json={"name": "n", "a\r\nSet-Cookie: x=1": 1, "é": 2, **{f"f{i}": 1 for i in range(50)}}
    )
    assert odd.status_code == 201
    assert "set-cookie" not in odd.headers
    assert len(odd.headers["x-ignored-fields"]) <= 1000


async def test_unsupported_field_is_refused_by_name(client) -> None:
    response = await client.post("/things", json={"name": "n", "size": 1})
    expected = {"loc": ["body", "size"], "msg": "sizes come later", "type": "not_supported"}
    assert (response.status_code, response.json()) == (422, {"detail": [expected]})


@pytest.mark.parametrize("path", ["/", "/nothing", "/things/a/b", f"/things/{ID}/parts", "/things//parts/x", "/%00"])
async def test_unknown_path_gets_404(client, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PATCH", "/things", "GET, HEAD, POST"), ("POST", f"/things/{ID}", "DELETE, GET, HEAD")],
)
async def test_wrong_method_gets_405_with_allow_header(client, method, path, allowed) -> None:
    response = await client.request(method, path)
    assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})
    assert response.headers["allow"] == allowed


async def test_head_returns_the_headers_of_get(client) -> None:
    head = await client.head(f"/things/{ID}")
    get = await client.get(f"/things/{ID}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_prefix_is_stripped_once(client) -> None:
    for path in ("/things/newest", "/api/v1/things/newest", "/api/things/newest"):
        assert (await client.get(path)).status_code == 200, path

    for path in ("/api/v1/api/v1/things/newest", "/api/v1", "/apithings/newest", "/API/v1/things/newest"):
        assert (await client.get(path)).status_code == 404, path


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("/things/", "/things"),
        ("/things/?limit=2&x=%2F", "/things?limit=2&x=%2F"),
        ("/api/v1/things/newest/", "/api/v1/things/newest"),
        (f"/things/{ID}/parts/a%20b/", f"/things/{ID}/parts/a%20b"),
    ],
)
async def test_trailing_slash_redirects(client, path: str, leads_to: str) -> None:
    response = await client.request("PUT", path, content=b"body")
    assert (response.status_code, response.headers["location"]) == (307, leads_to)


@pytest.mark.parametrize("path", ["/nothing/", "/things//", "//", "//things/", "/things%2F", "//evil.example/"])
async def test_trailing_slash_of_an_unknown_path_gets_404(served, path: str) -> None:
    response = await served.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 404"), response


async def test_unknown_query_parameters_are_listed_in_a_header(client) -> None:
    for path, names in {"/things?limit=1&zap=2&zap=3": "zap", "/things/newest?a=1&b%0D=%00": "a, b?"}.items():
        assert (await client.get(path)).headers["x-ignored-fields"] == names
    assert "x-ignored-fields" not in (await client.get("/things?limit=1")).headers


async def test_head_request_closes_the_stream(served) -> None:
    response = await served.raw(b"HEAD /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, body = response.split(b"\r\n\r\n", 1)
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")

    # The stream may be closed after the response.
    await eventually(lambda: asyncio.sleep(0, closed == [True]))


async def test_only_public_routes_bypass_the_guard(client) -> None:
    assert (await client.get("/who")).json() == "ada"
    assert (await client.get("/open")).text == "None"

    nobody = {"x-name": ""}
    for route in routes:
        if route.path == "/stream":
            continue

        path = route.path.format(thing_id=ID, part="x")
        response = await client.request(route.method, path, json={"bad": 1}, headers=nobody)
        assert response.status_code == (418 if route.public else 401), route.path

    assert (await client.head(f"/things/{ID}", headers=nobody)).status_code == 401


async def test_duplicate_route_is_refused() -> None:
    twice = Routes("t")

    async def other(_ctx: Context, other_id: UUID) -> None: ...

    twice.get("/things/{other_id}")(other)
    with pytest.raises(ValueError, match="routed twice"):
        Api(bind([*routes, *twice], BaseServices(db=None)), guard)


async def test_handler_signature_must_match_the_path() -> None:
    async def handler(_ctx: Context, thing_id: UUID) -> None: ...

    for path in ("/things", "/things/{other_id}", "/things/{thing_id}/{other}"):
        with pytest.raises(TypeError, match="handler"):
            Routes("t").get(path)(handler)
