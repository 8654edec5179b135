"""What is turned away before any application sees it."""

import asyncio
import contextlib

import pytest

from portside.kernel.http import bounds
from portside.kernel.http.bounds import HEAD_BYTES, HEADERS, TARGET_BYTES
from portside.kernel.http.routes import Context, Routes
from tests.conftest import eventually
from tests.unit.kernel_server import serve

# One byte more than is looked at: nothing is left unread, which would reset the connection and take the answer along.
BEYOND = TARGET_BYTES + HEAD_BYTES + 1
WITHIN = b"Host: h\r\nConnection: close\r\n"


def echoing() -> Routes:
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
        (b"GET /name?" + b"q" * TARGET_BYTES + b" HTTP/1.1\r\n" + WITHIN + b"\r\n", b"414 URI Too Long"),
        (b"GET /name HTTP/1.1\r\n" + b"A: b\r\n" * (HEADERS + 1) + b"\r\n", b"431 Request Header"),
        (b"GET /name HTTP/1.1\r\nA: " + b"b" * HEAD_BYTES + b"\r\n\r\n", b"431 Request Header"),
        ((b"GET /name HTTP/1.1\r\nA: " + b"b" * BEYOND)[:BEYOND], b"431 Request Header"),
        ((b"GET /" + b"n" * BEYOND)[:BEYOND], b"431 Request Header"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /name HTTP/1.1\r\nA: b\r\n" + WITHIN + b"\r\n", b"200 OK"),
        (b"GET /name?" + b"q" * 8000 + b" HTTP/1.1\r\n" + b"A: b\r\n" * 90 + WITHIN + b"\r\n", b"200 OK"),
    ],
    ids=["target", "headers", "header", "endless header", "endless target", "nonsense", "plain", "large"],
)
async def test_heads_beyond_bounds_are_refused_as_json(request_bytes: bytes, status: bytes) -> None:
    async with serve(echoing()) as served:
        answer = await served.raw(request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert b'{"detail":' in answer or b"200" in status


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time be left for anything, and look at once."""
    for name in ("HEAD_WITHIN_S", "BODY_QUIET_S", "LOOKED_AT_EVERY_S"):
        monkeypatch.setattr(bounds, name, 0.01)


@pytest.mark.usefixtures("impatient")
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
async def test_who_does_not_go_on_is_let_go(begun: bytes) -> None:
    async with serve(echoing()) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(begun)
        # It is closed, maybe before it has read what came: that is a reset.
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        writer.close()


SLOW = b"POST /take HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\nx"


async def test_a_body_that_trickles_is_ended_with_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOOKED_AT_EVERY_S", 0.01)
    async with serve(echoing(), body_within_s=0.05) as served:
        answer = await served.raw(SLOW)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"HTTP_REQUEST_BODY_TIMEOUT_SECONDS" in answer


async def test_a_body_that_keeps_pace_has_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOOKED_AT_EVERY_S", 0.01)
    # Each byte earns more time than there is.
    monkeypatch.setattr(bounds, "LEAST_BYTES_PER_S", 1e-6)
    looks = 0

    look = bounds.BoundedProtocol.close_if_slow

    def counted(protocol: bounds.BoundedProtocol, at: float, body_within_s: float) -> None:
        nonlocal looks
        looks += protocol.cycle is not None
        look(protocol, at, body_within_s)

    monkeypatch.setattr(bounds.BoundedProtocol, "close_if_slow", counted)
    async with serve(echoing(), body_within_s=0.001) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(SLOW)

        async def has_looked() -> bool:
            return looks > 3

        await eventually(has_looked)
        writer.write(b"yyyyyyyy")
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_connection_that_rests_between_requests_and_one_that_waits_for_its_answer_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "LOOKED_AT_EVERY_S", 0.01)
    held, release = asyncio.Event(), asyncio.Event()
    routes = echoing()

    @routes.get("/slow", public=True)
    async def slow(_ctx: Context) -> str:
        held.set()
        await release.wait()
        return "done"

    async with serve(routes) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for path in (b"/name", b"/slow", b"/name"):
            if path == b"/slow":
                # From here on there is no time for a head or a body to come in pieces.
                monkeypatch.setattr(bounds, "HEAD_WITHIN_S", 0.0)
                monkeypatch.setattr(bounds, "BODY_QUIET_S", 0.0)
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            if path == b"/slow":
                await held.wait()
                for _ in range(5):
                    await asyncio.sleep(bounds.LOOKED_AT_EVERY_S)
                release.set()
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                await reader.readuntil(b'"')
                await reader.readuntil(b'"')
        writer.close()
