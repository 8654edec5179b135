"""What every server does around its routes: request ids, body limits, hosts, metrics and prefixes."""

import asyncio
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import httpx2
import pytest
import pytest_asyncio
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.errors import NotFound, PortsideError
from portside.kernel.http.hosts import AllowedHosts, HostUnclear, check_host
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.prefixes import MountBelow
from portside.kernel.http.routes import Context, Routes
from portside.kernel.metrics import REQUESTS, count_requests
from tests.conftest import eventually
from tests.unit.kernel_server import MAX_BODY, MAX_VALUES, serve
from tests.unit.test_kernel_cors import hello

pytestmark = pytest.mark.asyncio(loop_scope="module")
routes = Routes("t")


@routes.post("/size", public=True)
async def size(ctx: Context) -> int:
    """Return the size of the body."""
    return len(await ctx.request.body())


@routes.put("/large/{name}", public=True, max_body_bytes=5 * MAX_BODY)
async def large(ctx: Context, name: str) -> int:
    """Return the size of a body that may be larger than others."""
    return len(await ctx.request.body())


@routes.post("/values", public=True)
async def values(_ctx: Context, body: list[int]) -> int:
    """Return how many numbers the body has."""
    return len(body)


@routes.post("/deaf", public=True)
async def deaf(_ctx: Context) -> str:
    """Answer without reading the body."""
    return "ok"


@routes.post("/counted", public=True)
async def counted(_ctx: Context) -> str:
    """Answer the one request whose metrics a test reads; those of other requests may be counted after their tests."""
    return "ok"


@routes.get("/broken", public=True)
async def broken(_ctx: Context) -> str:
    """Raise the error of the driver for a text that Postgres cannot store."""

    class DriverError(Exception):
        sqlstate = "22021"

    raise DriverError("invalid byte sequence for encoding")


@routes.get("/own", public=True)
async def own(_ctx: Context) -> Response:
    """Return headers that the middleware also sets."""
    return Response(headers={"X-Request-Id": "mine", "X-Content-Type-Options": "guess", "X-Mine": "yes"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    async with serve(routes) as served:
        yield served


async def test_response_has_nosniff_header(served) -> None:
    for response in (await served.client.post("/deaf"), await served.client.get("/nothing")):
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_middleware_keeps_headers_of_the_response(served) -> None:
    """The middleware overrides only the request id, and duplicates no header."""
    response = await served.client.get("/own", headers={"x-request-id": "asked"})
    assert response.headers.get_list("x-request-id") == ["asked"]
    assert response.headers.get_list("x-content-type-options") == ["guess"]
    assert response.headers["x-mine"] == "yes"


async def test_request_id_is_returned_or_generated(served) -> None:
    assert (await served.client.post("/deaf", headers={"x-request-id": "abc-1.2:3_4"})).headers[
        "x-request-id"
    ] == "abc-1.2:3_4"
    first, second = [(await served.client.post("/deaf")).headers["x-request-id"] for _ in range(2)]
    assert UUID(first) != UUID(second)
    missing = await served.client.get("/nothing", headers={"x-request-id": "of-an-error"})
    assert missing.headers["x-request-id"] == "of-an-error"


@pytest.mark.parametrize("sent", [b"a b", b"\x1b[31mred", b"caf\xc3\xa9", b"x" * 1000, b"a,b;c", b'"><script>', b""])
async def test_invalid_request_id_is_replaced(served, sent: bytes) -> None:
    """The id appears in logs, which terminals show."""
    response = await served.raw(
        b"POST /deaf HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: "
        + sent
        + b"\r\nContent-Length: 0\r\n\r\n"
    )

    head = response.split(b"\r\n\r\n", 1)[0].split(b"\r\n")
    if head[0].startswith(b"HTTP/1.1 400"):
        return  # the parser refused it

    (found,) = [line.split(b": ", 1)[1] for line in head if line.lower().startswith(b"x-request-id")]
    assert len(found) <= 200
    assert found.decode().translate(str.maketrans("", "", "-_.:")).isalnum()


@pytest.mark.parametrize("excess", [0, 1])
async def test_body_with_more_values_than_allowed_gets_413(served, excess: int) -> None:
    # The list is a value as well, and an opening bracket is counted for it.
    numbers = [0] * (MAX_VALUES - 1 + excess)
    response = await served.client.post("/values", content=dump_api(numbers))
    assert response.status_code == (413 if excess else 200)

    if excess:
        assert f"more than {MAX_VALUES}" in response.json()["detail"]


@pytest.mark.parametrize("excess", [0, 1, 100_000])
@pytest.mark.parametrize("path", ["/size", "/deaf"])
async def test_declared_body_above_the_limit_gets_413(served, path: str, excess: int) -> None:
    response = await served.client.post(path, content=b"x" * (MAX_BODY + excess))
    assert response.status_code == (413 if excess else 200)
    if excess:
        assert str(MAX_BODY) in response.json()["detail"]
        assert (await served.client.post("/size", content=b"x")).json() == 1, "the next request is not disturbed"


@pytest.mark.parametrize("excess", [0, 1, 100_000])
async def test_streamed_body_above_the_limit_gets_413(served, excess: int) -> None:
    async def chunks():
        left = MAX_BODY + excess
        while left > 0:
            yield b"x" * min(left, 300)
            left -= 300

    response = await served.client.post("/size", content=chunks())
    assert response.status_code == (413 if excess else 200)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"99999999999999999999999", b"+5"])
async def test_invalid_content_length_is_refused(served, length: bytes) -> None:
    response = await served.raw(b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
    assert response.split(b" ")[1] in (b"400", b"413"), response


async def test_text_that_postgres_cannot_store_gets_400(served) -> None:
    response = await served.client.get("/broken")
    assert response.status_code == 400
    assert "NUL" in response.json()["detail"]
    assert "byte sequence" not in response.text


async def test_client_disconnect_during_the_body_is_not_an_error() -> None:
    """The server sends no response and logs no error."""
    ended: asyncio.Future = asyncio.get_running_loop().create_future()
    waiting = Routes("t")

    @waiting.post("/size", public=True)
    async def size(ctx: Context) -> int:
        try:
            return len(await ctx.request.body())
        except BaseException as exc:
            ended.set_result(exc)
            raise

    import structlog

    with structlog.testing.capture_logs() as logs:
        async with serve(waiting) as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
            await writer.drain()
            await eventually(lambda: _has_requests(served))
            writer.close()
            assert isinstance(await asyncio.wait_for(ended, 60), ClientDisconnect)

    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def _has_requests(served) -> bool:
    return bool(served.server.server_state.tasks)


async def test_500_contains_the_request_id(served) -> None:
    failing = Routes("t")

    @failing.get("/fail", public=True)
    async def fail(_ctx: Context) -> None:
        raise ValueError("secret place")

    async with serve(failing) as other:
        response = await other.client.get("/fail", headers={"x-request-id": "r-1"})

    assert response.headers["x-request-id"] == "r-1"
    assert response.json() == {"detail": PortsideError().message}


async def test_request_metrics_use_the_route_also_below_a_prefix(served) -> None:
    def count() -> float:
        return REQUESTS.labels("POST", "/counted", 200)._value.get()

    before = count()
    await served.client.post("/api/v1/counted")
    await eventually(lambda: _is(count() == before + 1))
    assert {"method": "POST", "path": "/counted", "status": "200", "count": int(before) + 1} in count_requests()


async def _is(value: bool) -> bool:  # noqa: FBT001 - a probe
    return value


async def test_route_can_have_its_own_body_limit(served) -> None:
    for prefix in ("", "/api"):
        fits = await served.client.put(f"{prefix}/large/x", content=b"x" * 5 * MAX_BODY)
        assert fits.json() == 5 * MAX_BODY
        refused = await served.client.put(f"{prefix}/large/x", content=b"x" * (5 * MAX_BODY + 1))
        assert refused.status_code == 413
        assert f"{5 * MAX_BODY} bytes" in refused.json()["detail"]


ALLOWED_HOSTS = ["localhost", "[::1]", "Agents.example.org", "*.mine.example"]


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("localhost:2024", "/", 200),
        ("LOCALHOST", "/", 200),
        ("[::1]:2024", "/", 200),
        ("[::1]", "/", 200),
        ("agents.example.org", "/", 200),
        ("a.b.mine.example:80", "/", 200),
        ("mine.example", "/", 400),
        ("notmine.example", "/", 400),
        ("evil.example:2024", "/", 400),
        ("localhost.evil.example", "/", 400),
        ("", "/", 400),
        ("10.0.0.7:8000", "/ok", 200),
    ],
)
async def test_request_for_another_host_gets_400(host: str, path: str, status: int) -> None:
    transport = httpx2.ASGITransport(RequestMiddleware(AllowedHosts(hello, ALLOWED_HOSTS)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get(path, headers={"host": host})).status_code == status


async def test_websocket_for_another_host_is_closed() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    await AllowedHosts(hello, ALLOWED_HOSTS)(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("version", "names", "is_clear"),
    [("1.1", 1, True), ("1.1", 0, False), ("1.1", 2, False), ("1.0", 0, True), ("1.0", 2, False)],
)
async def test_request_needs_exactly_one_host_header(version: str, names: int, *, is_clear: bool) -> None:
    scope = {"http_version": version, "headers": [(b"accept", b"*/*"), *[(b"host", b"a.example")] * names]}
    with nullcontext() if is_clear else pytest.raises(HostUnclear):
        check_host(scope)


async def send_path(path: str, kind: str = "http") -> Any:
    seen: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["path"])

    async def send(message: Any) -> None:
        seen.append(message["type"])

    await MountBelow(app, "/my/api", frozenset({"/ok"}))({"type": kind, "path": path, "headers": []}, None, send)
    return seen


@pytest.mark.parametrize(
    ("path", "inner"),
    [("/my/api/threads", "/threads"), ("/my/api", "/"), ("/my/api/", "/"), ("/ok", "/ok"), ("/my/api/ok", "/ok")],
)
async def test_paths_below_the_prefix_reach_the_application(path: str, inner: str) -> None:
    assert await send_path(path) == [inner]


@pytest.mark.parametrize("path", ["/", "/threads", "/my", "/my/apix", "/my/api2/threads", "/ok/", "/info"])
async def test_paths_outside_the_prefix_get_404(path: str) -> None:
    with pytest.raises(NotFound):
        await send_path(path)
    assert await send_path(path, "websocket") == ["websocket.close"]
