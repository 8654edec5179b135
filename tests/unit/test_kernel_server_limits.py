"""Limits of the server: requests and connections that it refuses before the application sees them."""

import asyncio
import contextlib
import socket

import pytest

from portside.kernel.http import protocol
from portside.kernel.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from portside.kernel.http.routes import Context, Routes
from tests.conftest import eventually
from tests.unit.kernel_server import serve

# One byte above the limit, so that the server reads all bytes. Unread ones would reset the connection before the client
# has read the response.
BEYOND = MAX_TARGET_BYTES + MAX_HEAD_BYTES + 1
WITHIN = b"Host: h\r\nConnection: close\r\n"


def build_echo_routes() -> Routes:
    routes = Routes("t")

    @routes.get("/name", public=True)
    async def show(_ctx: Context) -> str:
        return "ada"

    @routes.post("/take", public=True)
    async def take(ctx: Context) -> int:
        return len(await ctx.request.body())

    return routes


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /name?" + b"q" * MAX_TARGET_BYTES + b" HTTP/1.1\r\n" + WITHIN + b"\r\n", b"414 URI Too Long"),
        (b"GET /name HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", b"431 Request Header"),
        (b"GET /name HTTP/1.1\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", b"431 Request Header"),
        ((b"GET /name HTTP/1.1\r\nA: " + b"b" * BEYOND)[:BEYOND], b"431 Request Header"),
        ((b"GET /" + b"n" * BEYOND)[:BEYOND], b"431 Request Header"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /name HTTP/1.1\r\nA: b\r\n" + WITHIN + b"\r\n", b"200 OK"),
        (b"GET /name?" + b"q" * 8000 + b" HTTP/1.1\r\n" + b"A: b\r\n" * 90 + WITHIN + b"\r\n", b"200 OK"),
    ],
    ids=["target", "headers", "header", "endless header", "endless target", "nonsense", "plain", "large"],
)
async def test_request_head_above_limits_is_refused_as_json(request_bytes: bytes, status: bytes) -> None:
    async with serve(build_echo_routes()) as served:
        response = await served.raw(request_bytes)

    assert response.startswith(b"HTTP/1.1 " + status), response[:200]
    assert b'{"detail":' in response or b"200" in status


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all timeouts, and the interval of their checks, to 10 ms."""
    for name in ("HEAD_TIMEOUT_S", "BODY_IDLE_TIMEOUT_S", "CHECK_EVERY_S"):
        monkeypatch.setattr(protocol, name, 0.01)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /name HTT",
        b"GET /name HTTP/1.1\r\nA: b\r\n",
        b"POST /take HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx",
    ],
    ids=["nothing", "a line", "headers", "a body"],
)
async def test_connection_without_a_complete_request_is_closed(begun: bytes) -> None:
    async with serve(build_echo_routes()) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(begun)

        # If the server closes before it has read all bytes, the client sees a reset.
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""

        writer.close()


SLOW = b"POST /take HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\nx"


async def test_slow_body_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CHECK_EVERY_S", 0.01)
    async with serve(build_echo_routes(), body_within_s=0.05) as served:
        response = await served.raw(SLOW)

    assert response.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"HTTP_REQUEST_BODY_TIMEOUT_SECONDS" in response


async def test_body_that_keeps_the_minimum_rate_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CHECK_EVERY_S", 0.01)
    # Each byte extends the deadline by more than it takes to send.
    monkeypatch.setattr(protocol, "MIN_BYTES_PER_S", 1e-6)
    checks = 0
    close_if_slow = protocol.BoundedProtocol.close_if_slow

    def counted(connection: protocol.BoundedProtocol, at: float, body_within_s: float) -> None:
        nonlocal checks
        checks += connection.cycle is not None
        close_if_slow(connection, at, body_within_s)

    monkeypatch.setattr(protocol.BoundedProtocol, "close_if_slow", counted)
    async with serve(build_echo_routes(), body_within_s=0.001) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(SLOW)

        async def was_checked() -> bool:
            return checks > 3

        await eventually(was_checked)
        writer.write(b"yyyyyyyy")
        async with asyncio.timeout(60):
            response = await reader.read()

        writer.close()

    assert response.startswith(b"HTTP/1.1 200")


async def test_connection_of_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(protocol, "UNREAD_TIMEOUT_S", 0.05)
    asked = asyncio.Event()
    routes = build_echo_routes()

    @routes.get("/large", public=True)
    async def large(_ctx: Context) -> str:
        asked.set()
        return "x" * 30_000_000

    async with serve(routes) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(asked.wait(), 60)

            async def is_closed() -> bool:
                return not served.server.server_state.connections

            await eventually(is_closed)


async def test_idle_and_waiting_connections_stay_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "CHECK_EVERY_S", 0.01)
    held = asyncio.Event()
    release = asyncio.Event()
    routes = build_echo_routes()

    @routes.get("/slow", public=True)
    async def slow(_ctx: Context) -> str:
        held.set()
        await release.wait()
        return "done"

    async with serve(routes) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for path in (b"/name", b"/slow", b"/name"):
            if path == b"/slow":
                # From here on, a head or body that arrives in pieces would time out.
                monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.0)
                monkeypatch.setattr(protocol, "BODY_IDLE_TIMEOUT_S", 0.0)

            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")

            if path == b"/slow":
                await held.wait()
                for _ in range(5):
                    await asyncio.sleep(protocol.CHECK_EVERY_S)

                release.set()

            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                await reader.readuntil(b'"')
                await reader.readuntil(b'"')

        writer.close()


async def test_connection_above_the_limit_gets_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REFUSE_WITHIN_S", 60.0)
    async with serve(build_echo_routes()) as served:
        served.server.config.max_connections = 3
        idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]

        async def are_connected() -> bool:
            return len(served.server.server_state.connections) == 3

        await eventually(are_connected)

        for _ in range(20):
            response = await served.raw(b"GET /name HTTP/1.1\r\nHost: h\r\n\r\n")
            assert response.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nretry-after: 2\r\n" in response
            assert b'{"detail":"This server has no free connection' in response

        idle[0][1].write(b"GET /name HTTP/1.1\r\n" + WITHIN + b"\r\n")
        assert (await idle[0][0].read()).startswith(b"HTTP/1.1 200 OK")

        async def has_free_slot() -> bool:
            return (await served.raw(b"GET /name HTTP/1.1\r\n" + WITHIN + b"\r\n")).startswith(b"HTTP/1.1 200 OK")

        await eventually(has_free_slot)

        for _, writer in idle:
            writer.close()


async def test_silent_connection_above_the_limit_is_closed() -> None:
    async with serve(build_echo_routes()) as served:
        served.server.config.max_connections = 1
        kept = await asyncio.open_connection("127.0.0.1", served.port)

        async def is_connected() -> bool:
            return len(served.server.server_state.connections) == 1

        await eventually(is_connected)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await asyncio.wait_for(reader.read(), 60) == b""

        for one in (writer, kept[1]):
            one.close()
