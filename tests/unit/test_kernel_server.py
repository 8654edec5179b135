"""Connections of the HTTP server: no request is lost at a stop or a handover."""

import asyncio
import re
import socket

import httpx2
import pytest
import uvloop

from portside.kernel.errors import UserMistake
from portside.kernel.http.protocol import MAX_BUFFERED_BYTES, BufferedTransport
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.server import listen
from tests.conftest import eventually
from tests.unit.kernel_server import serve


def build_routes(name: str) -> Routes:
    routes = Routes("t")

    @routes.get("/name", public=True)
    async def show(_ctx: Context) -> str:
        await asyncio.sleep(0.001)
        return name

    return routes


async def test_address_that_cannot_be_listened_on_is_refused() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserMistake, match=rf"127\.0\.0\.1:{port}.*--port"):
            listen("127.0.0.1", port)

        for host in ("192.0.2.1", "no-such-host.invalid"):
            with pytest.raises(UserMistake, match=rf"cannot listen on {re.escape(host)}:.*choose another with --host"):
                listen(host, port)


async def test_connections_set_tcp_nodelay() -> None:
    nodelay: list[int] = []
    routes = Routes("t")

    @routes.post("/ask", public=True)
    async def report_nodelay(_ctx: Context) -> None:
        (connection,) = served.server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        nodelay.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async with serve(routes) as served:
        assert (await served.client.post("/ask", content=b"x")).status_code == 200

    assert nodelay
    assert all(nodelay)


class Sent(asyncio.Transport):
    """A transport that records each piece that it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def close(self) -> None:
        self.pieces.append(b"closed")

    def is_closing(self) -> bool:
        return b"closed" in self.pieces


async def test_writes_of_one_loop_iteration_are_sent_together() -> None:
    sent = Sent()
    transport = BufferedTransport(sent)
    transport.write(b"head ")
    transport.write(b"body")
    assert sent.pieces == []
    await asyncio.sleep(0)
    assert sent.pieces == [b"head body"]

    large = b"x" * (MAX_BUFFERED_BYTES + 1)
    transport.write(b"more ")
    transport.write(large)
    assert sent.pieces[1:] == [b"more " + large]
    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)

    assert sent.pieces[2:] == [b"last", b"closed"]


def test_hand_over_fails_no_request() -> None:
    # uvloop, as in our programs: the loop of Python 3.11 may lose a connection that it accepts while it closes.
    uvloop.run(_take_over())


async def _take_over() -> None:
    listening = listen("127.0.0.1", 0)
    successor_socket = socket.socket(fileno=listening.dup().detach())
    seen: list[str] = []

    # Who answered the requests that were sent after the old server had stopped.
    seen_late: set[str] = set()
    has_stopped = asyncio.Event()
    enough = asyncio.Event()

    async def send_on_one_connection(url: str) -> None:
        async with httpx2.AsyncClient(timeout=300, verify=False) as client:
            while not enough.is_set():
                is_late = has_stopped.is_set()
                response = await client.get(url)
                assert response.status_code == 200
                seen.append(response.json())

                if is_late:
                    seen_late.add(response.json())

    async def send_on_new_connections(url: str) -> None:
        while not enough.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", listening_port)
            writer.write(f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    async def counted(name: str) -> bool:
        return seen.count(name) >= 50

    async with serve(build_routes("old"), listening=listening) as old:
        old.server.idle_drain_s = 60
        listening_port = old.port

        clients = [asyncio.create_task(send_on_one_connection(f"http://127.0.0.1:{old.port}/name")) for _ in range(4)]
        clients += [asyncio.create_task(send_on_new_connections("/name")) for _ in range(2)]
        try:
            await eventually(lambda: counted("old"))
            async with serve(build_routes("new"), listening=successor_socket):
                await asyncio.wait_for(old.stop(), 60)
                has_stopped.set()
                await eventually(lambda: counted("new"))
                await eventually(lambda: asyncio.sleep(0, bool(seen_late)))
                enough.set()
                await asyncio.gather(*clients)
                assert seen_late == {"new"}
        finally:
            enough.set()
            await asyncio.gather(*clients, return_exceptions=True)


async def test_idle_connection_gets_one_more_response_after_stop() -> None:
    request = b"GET /name HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve(build_routes("old")) as served:
        served.server.idle_drain_s = 60
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request)
        assert await reader.readuntil(b'"old"')
        served.stopping.set()
        await served.server.draining.wait()

        # A server that does not wait for its connections would close this one in these iterations.
        for _ in range(20):
            await asyncio.sleep(0)

        assert served.server.server_state.connections
        assert not served.server.should_exit
        writer.write(request)
        response = await asyncio.wait_for(reader.read(), 60)
        assert response.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in response.lower()
        writer.close()

        await asyncio.wait_for(served.running, 60)


@pytest.mark.parametrize("turns", range(4))
def test_connection_accepted_during_stop_is_answered(turns: int) -> None:
    uvloop.run(_stop_while_accepting(turns))


async def _stop_while_accepting(turns: int) -> None:
    """Connect, stop the server after some iterations of the event loop, and only then send the request."""
    listening = listen("127.0.0.1", 0)
    with socket.socket(fileno=listening.dup().detach()) as successor_socket, socket.socket() as client:
        async with serve(build_routes("old"), listening=listening) as served:
            served.server.idle_drain_s = 60
            client.connect(successor_socket.getsockname())
            client.setblocking(False)

            for _ in range(turns):
                await asyncio.sleep(0)

            served.stopping.set()

            for _ in range(20):
                await asyncio.sleep(0)

            assert served.server.draining.is_set()
            assert not served.server.should_exit, "the server waits for the request of a connection that it accepted"
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"GET /name HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")


async def test_running_request_is_answered_before_shutdown() -> None:
    begun = asyncio.Event()
    go = asyncio.Event()
    routes = Routes("t")

    @routes.get("/slow", public=True)
    async def slow(_ctx: Context) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with serve(routes) as served:
        served.server.idle_drain_s = 60
        clients = asyncio.create_task(served.client.get("/slow"))
        await begun.wait()
        served.stopping.set()
        await served.server.draining.wait()
        go.set()

        response = await clients
        assert response.json() == "done"
        assert response.headers["connection"] == "close", "the client is to come back on a new connection"
        await asyncio.wait_for(served.running, 60)

        with pytest.raises(httpx2.ConnectError):
            await served.client.get("/slow")


async def test_added_socket_is_served_and_closed() -> None:
    more = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{more.getsockname()[1]}/name"
    async with serve(build_routes("one")) as served:
        served.server.idle_drain_s = 0.05
        await served.server.add_socket(more)
        assert (await served.client.get(url)).json() == "one"
        assert (await served.client.get("/name")).json() == "one"
        await served.stop()

        with pytest.raises(httpx2.ConnectError):
            await served.client.get(url)


@pytest.mark.parametrize(
    ("version", "header"),
    [
        ("1.1", "Connection: close\r\n"),
        ("1.0", "Connection: close\r\n"),
        # Before, the messages did not say that the connection is closed, which is the rule of HTTP/1.0.
        pytest.param("1.0", "", marks=pytest.mark.needs("uvicorn", "0.53.0")),
    ],
)
async def test_whole_response_has_the_bytes_of_its_messages(version: str, header: str) -> None:
    """Middleware of a project sees the messages of a response; without any, the response is written at once."""
    routes = build_routes("n")

    @routes.get("/headers", public=True)
    async def show(ctx: Context) -> str:
        ctx.headers["X-Ignored-Fields"] = "a, b"
        return "text"

    requests = [
        f"{method} {path} HTTP/{version}\r\nHost: x\r\nX-Request-Id: r\r\n{header}\r\n".encode()
        for method, path in (("GET", "/name"), ("GET", "/headers"), ("HEAD", "/name"), ("GET", "/missing"))
    ]

    async with serve(routes) as served:
        config = served.server.config
        seen = list[str]()
        app = config.loaded_app

        async def watched(scope, receive, send) -> None:
            async def see(message) -> None:
                seen.append(message["type"])
                await send(message)

            await app(scope, receive, see)

        written = [await _whole_connection(served.port, request) for request in requests]
        config.loaded_app = watched
        assert [await _whole_connection(served.port, request) for request in requests] == written

    assert seen == ["http.response.start", "http.response.body"] * len(requests)
    assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in written[0]


async def _whole_connection(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(60):
        received = await reader.read()

    writer.close()
    return received
