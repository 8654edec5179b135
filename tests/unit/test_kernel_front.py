import asyncio
from uuid import UUID

import pytest
import pytest_asyncio
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from portside.kernel.errors import PortsideError
from portside.kernel.http.routes import Context, Routes
from portside.kernel.metrics import REQUESTS, requests_answered
from tests.conftest import eventually
from tests.unit.kernel_server import MAX_BODY, serve

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


@routes.post("/deaf", public=True)
async def deaf(_ctx: Context) -> str:
    """Answer without reading the body."""
    return "ok"


@routes.get("/broken", public=True)
async def broken(_ctx: Context) -> str:
    """Fail as the driver does on a text that Postgres cannot hold."""

    class DriverError(Exception):
        sqlstate = "22021"

    raise DriverError("invalid byte sequence for encoding")


@routes.get("/own", public=True)
async def own(_ctx: Context) -> Response:
    """Answer with headers that every answer is given."""
    return Response(headers={"X-Request-Id": "mine", "X-Content-Type-Options": "guess", "X-Mine": "yes"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    async with serve(routes) as served:
        yield served


async def test_no_type_is_guessed(served) -> None:
    for answer in (await served.client.post("/deaf"), await served.client.get("/nothing")):
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_what_an_answer_says_itself_stands_beside_its_marks(served) -> None:
    """But for its id; and each is there once."""
    answer = await served.client.get("/own", headers={"x-request-id": "asked"})
    assert answer.headers.get_list("x-request-id") == ["asked"]
    assert answer.headers.get_list("x-content-type-options") == ["guess"]
    assert answer.headers["x-mine"] == "yes"


async def test_a_request_id_is_given_back_or_made(served) -> None:
    assert (await served.client.post("/deaf", headers={"x-request-id": "abc-1.2:3_4"})).headers[
        "x-request-id"
    ] == "abc-1.2:3_4"
    first, second = [(await served.client.post("/deaf")).headers["x-request-id"] for _ in range(2)]
    assert UUID(first) != UUID(second)
    missing = await served.client.get("/nothing", headers={"x-request-id": "of-an-error"})
    assert missing.headers["x-request-id"] == "of-an-error"


@pytest.mark.parametrize("sent", [b"a b", b"\x1b[31mred", b"caf\xc3\xa9", b"x" * 1000, b"a,b;c", b'"><script>', b""])
async def test_a_request_id_holds_nothing_but_harmless_characters(served, sent: bytes) -> None:
    """It goes into logs and terminals."""
    answer = await served.raw(
        b"POST /deaf HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: "
        + sent
        + b"\r\nContent-Length: 0\r\n\r\n"
    )
    head = answer.split(b"\r\n\r\n", 1)[0].split(b"\r\n")
    if head[0].startswith(b"HTTP/1.1 400"):
        return  # the parser refused it
    (found,) = [line.split(b": ", 1)[1] for line in head if line.lower().startswith(b"x-request-id")]
    assert len(found) <= 200
    assert found.decode().translate(str.maketrans("", "", "-_.:")).isalnum()


@pytest.mark.parametrize("excess", [0, 1, 100_000])
@pytest.mark.parametrize("path", ["/size", "/deaf"])
async def test_a_declared_body_over_the_limit_is_413(served, path: str, excess: int) -> None:
    answer = await served.client.post(path, content=b"x" * (MAX_BODY + excess))
    assert answer.status_code == (413 if excess else 200)
    if excess:
        assert str(MAX_BODY) in answer.json()["detail"]
        assert (await served.client.post("/size", content=b"x")).json() == 1, "the next request is not disturbed"


@pytest.mark.parametrize("excess", [0, 1, 100_000])
async def test_a_body_that_grows_over_the_limit_is_413(served, excess: int) -> None:
    async def chunks():
        left = MAX_BODY + excess
        while left > 0:
            yield b"x" * min(left, 300)
            left -= 300

    answer = await served.client.post("/size", content=chunks())
    assert answer.status_code == (413 if excess else 200)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"99999999999999999999999", b"+5"])
async def test_a_senseless_length_is_refused(served, length: bytes) -> None:
    answer = await served.raw(b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
    assert answer.split(b" ")[1] in (b"400", b"413"), answer


async def test_a_text_that_the_database_cannot_hold_is_the_callers_mistake(served) -> None:
    answer = await served.client.get("/broken")
    assert answer.status_code == 400
    assert "NUL" in answer.json()["detail"]
    assert "byte sequence" not in answer.text


async def test_a_client_that_goes_while_it_sends_is_no_failure_of_ours() -> None:
    """No answer is owed and no error is logged."""
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
            assert isinstance(await asyncio.wait_for(ended, 5), ClientDisconnect)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def _has_requests(served) -> bool:
    return bool(served.server.server_state.tasks)


async def test_the_500_names_its_request(served) -> None:
    failing = Routes("t")

    @failing.get("/fail", public=True)
    async def fail(_ctx: Context) -> None:
        raise ValueError("secret place")

    async with serve(failing) as other:
        answer = await other.client.get("/fail", headers={"x-request-id": "r-1"})
    assert answer.headers["x-request-id"] == "r-1"
    assert answer.json() == {"detail": PortsideError().message}


async def test_requests_are_counted_by_route_below_a_prefix_too(served) -> None:
    def counted() -> float:
        return REQUESTS.labels("POST", "/deaf", 200)._value.get()

    before = counted()
    await served.client.post("/api/v1/deaf")
    await eventually(lambda: _is(counted() == before + 1))
    assert {"method": "POST", "path": "/deaf", "status": "200", "count": int(before) + 1} in requests_answered()


async def _is(value: bool) -> bool:  # noqa: FBT001 - a probe
    return value


async def test_a_route_with_a_limit_of_its_own_takes_more_and_no_more(served) -> None:
    for prefix in ("", "/api"):
        fits = await served.client.put(f"{prefix}/large/x", content=b"x" * 5 * MAX_BODY)
        assert fits.json() == 5 * MAX_BODY
        refused = await served.client.put(f"{prefix}/large/x", content=b"x" * (5 * MAX_BODY + 1))
        assert refused.status_code == 413
        assert f"{5 * MAX_BODY} bytes" in refused.json()["detail"]
