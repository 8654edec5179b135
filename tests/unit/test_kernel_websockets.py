"""WebSockets: permissions, failures and shutdown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from portside.kernel.errors import Unauthorized
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.cors import Cors, CorsRules
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.routes import Api, BaseServices, Context, Route, Routes
from portside.kernel.http.server import Server, listen
from portside.kernel.http.websockets import WEBSOCKET, SocketApi, SocketContext, bind_sockets

sockets = Routes("t")


@sockets.add(WEBSOCKET, "/things/{thing_id}/talk")
async def talk(ctx: SocketContext, thing_id: UUID) -> None:
    """Echo every message."""
    async for frame in ctx.frames():
        if frame == "leave":
            return
        if frame == "break":
            raise ValueError(frame)

        await ctx.send(f"{ctx.actor} {thing_id} {ctx.request_id} {frame}".encode())


async def guard(ctx: Context, _route: Route) -> str:
    name = ctx.request.headers.get("x-name")
    if name == "broken":
        raise ValueError("the guard does not know")
    if name is None:
        raise Unauthorized

    return name


@asynccontextmanager
async def serve_routes() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve the routes; yield the address, and the event that stops the server."""
    draining = asyncio.Event()
    stop = asyncio.Event()
    api = SocketApi(Api([], guard), bind_sockets(sockets, BaseServices(db=None)), guard, draining=draining)
    cors = Cors(CorsRules(allow_origins=["https://friend.example"]))
    app = RequestMiddleware(LimitBody(api, 1000), draining=draining, cors=cors)
    server = Server(app, draining=draining, speaks_websocket=True)
    listening = listen("127.0.0.1", 0)

    await server.open([listening])
    running = asyncio.create_task(server.serve_until(stop))
    yield f"ws://127.0.0.1:{listening.getsockname()[1]}", stop
    stop.set()
    await running


def to(url: str, **headers: str) -> connect:
    return connect(
        f"{url}/things/{uuid4()}/talk",
        additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        open_timeout=60,
    )


async def read_status(connection: connect) -> int:
    with pytest.raises(InvalidStatus) as refused:
        async with connection:
            pass

    return refused.value.response.status_code


async def read_close_code(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(socket.recv(), 60)

    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


async def test_messages_are_exchanged_in_both_directions() -> None:
    async with serve_routes() as (url, _), to(url, x_name="ann", x_request_id="r-1") as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "r-1"
        await socket.send("hello")
        actor, _, request_id, said = str(await socket.recv()).split()
        assert (actor, request_id, said) == ("ann", "r-1", "hello")
        await socket.send(b"bytes")
        assert str(await socket.recv()).endswith("bytes")

        await socket.send("leave")
        assert await read_close_code(socket) == 1000


async def test_websocket_without_permission_is_refused() -> None:
    async with serve_routes() as (url, _):
        assert await read_status(to(url)) == 401
        assert await read_status(to(url, x_name="broken")) == 500
        assert await read_status(to(url, x_name="ann", origin="https://stranger.example")) == 403
        assert await read_status(connect(f"{url}/things/{uuid4()}", additional_headers={"x-name": "ann"})) == 404
        assert await read_status(connect(f"{url}/things/x/talk", additional_headers={"x-name": "ann"})) == 422

        async with to(url, x_name="ann", origin="https://friend.example") as socket:
            await socket.send("leave")
            assert await read_close_code(socket) == 1000


async def test_refused_handshakes_have_an_id_and_are_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serve_routes() as (url, _):
            for number, headers in enumerate(({"origin": "https://stranger.example", "x-name": "ann"}, {}), 1):
                with pytest.raises(InvalidStatus) as refused:
                    await to(url, **headers, x_request_id=f"r-{number}")
                assert refused.value.response.headers["x-request-id"] == f"r-{number}"

    assert [entry["status"] for entry in logs if entry["event"] == "websocket"] == [403, 401]


@pytest.mark.parametrize("hosts", [0, 2])
async def test_handshake_needs_exactly_one_host_header(hosts: int) -> None:
    """With two, a proxy may have routed by the one, and this server would act on the other."""
    async with serve_routes() as (url, _):
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        lines = [
            f"GET /things/{uuid4()}/talk HTTP/1.1",
            *["Host: a.example"] * hosts,
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
            "X-Name: ann",
            "",
            "",
        ]

        writer.write("\r\n".join(lines).encode())
        response = await asyncio.wait_for(reader.read(), 60)
        writer.close()

    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.endswith(b'{"detail":"A request must have exactly one Host header."}')


async def test_failed_handler_closes_the_connection() -> None:
    async with serve_routes() as (url, _), to(url, x_name="ann") as socket:
        await socket.send("break")
        assert await read_close_code(socket) == 1011


async def test_draining_server_closes_the_connection() -> None:
    async with serve_routes() as (url, stop), to(url, x_name="ann") as socket:
        stop.set()
        assert await read_close_code(socket) == 1012
