import asyncio
import socket

import httpx2
import pytest

from portside.kernel.errors import UserMistake
from portside.kernel.http.connections import GATHERED_AT_MOST_BYTES, Gathering
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.server import Server, listen
from tests.conftest import eventually
from tests.unit.kernel_server import serve


def named(name: str) -> Routes:
    routes = Routes("t")

    @routes.get("/name", public=True)
    async def show(_ctx: Context) -> str:
        await asyncio.sleep(0.001)
        return name

    return routes


async def test_a_taken_port_is_the_operators_mistake_and_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserMistake, match=rf"127\.0\.0\.1:{port}.*--port"):
            listen("127.0.0.1", port)
        with pytest.raises(UserMistake, match=r"cannot listen on 192\.0\.2\.1:"):
            listen("192.0.2.1", port)


async def test_answers_are_not_held_back_for_the_next_packet() -> None:
    nodelay: list[int] = []
    routes = Routes("t")

    @routes.post("/ask", public=True)
    async def ask(ctx: Context) -> None:
        (connection,) = ctx.get(Connections).server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        nodelay.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    known = Connections()
    async with serve(routes, services={Connections: known}) as served:
        known.server = served.server
        assert (await served.client.post("/ask", content=b"x")).status_code == 200
    assert nodelay
    assert all(nodelay)


class Sent(asyncio.Transport):
    """A transport that notes each piece that it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def close(self) -> None:
        self.pieces.append(b"closed")


async def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    sent = Sent()
    transport = Gathering(sent)
    transport.write(b"head ")
    transport.write(b"body")
    assert sent.pieces == []
    await asyncio.sleep(0)
    assert sent.pieces == [b"head body"]
    large = b"x" * (GATHERED_AT_MOST_BYTES + 1)
    transport.write(b"more ")
    transport.write(large)
    assert sent.pieces[1:] == [b"more " + large]
    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)
    assert sent.pieces[2:] == [b"last", b"closed"]


class Connections:
    """The way from a handler to the server that runs it."""

    server: Server


async def test_clients_in_a_loop_see_no_failed_request_while_a_successor_takes_over() -> None:
    listening = listen("127.0.0.1", 0)
    heir = socket.socket(fileno=listening.dup().detach())
    seen: list[str] = []
    enough = asyncio.Event()

    async def ask(url: str) -> None:
        async with httpx2.AsyncClient(timeout=10, verify=False) as client:
            while not enough.is_set():
                answer = await client.get(url)
                assert answer.status_code == 200
                seen.append(answer.json())

    async def ask_anew(url: str) -> None:
        while not enough.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", listening_port)
            writer.write(f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    async def counted(name: str) -> bool:
        return seen.count(name) >= 50

    async with serve(named("old"), listening=listening) as old:
        listening_port = old.port
        asking = [asyncio.create_task(ask(f"http://127.0.0.1:{old.port}/name")) for _ in range(4)]
        asking += [asyncio.create_task(ask_anew("/name")) for _ in range(2)]
        try:
            await eventually(lambda: counted("old"), 10)
            async with serve(named("new"), listening=heir):
                await asyncio.wait_for(old.stop(), 10)
                before = seen.count("old")
                await eventually(lambda: counted("new"), 10)
                assert seen.count("old") == before
                enough.set()
                await asyncio.gather(*asking)
        finally:
            enough.set()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_a_connection_that_was_idle_when_the_stop_came_is_answered_once_more() -> None:
    request = b"GET /name HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve(named("old")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request)
        assert await reader.readuntil(b'"old"')
        served.stopping.set()
        await served.server.draining.wait()
        await asyncio.sleep(0.3)  # long enough for a server that does not wait to hang up
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
        writer.close()
        await asyncio.wait_for(served.running, 5)


async def test_a_request_under_way_is_answered_before_the_server_ends() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    routes = Routes("t")

    @routes.get("/slow", public=True)
    async def slow(_ctx: Context) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with serve(routes) as served:
        asking = asyncio.create_task(served.client.get("/slow"))
        await begun.wait()
        served.stopping.set()
        await served.server.draining.wait()
        go.set()
        answer = await asking
        assert answer.json() == "done"
        assert answer.headers["connection"] == "close", "the client is to come back on a new connection"
        await asyncio.wait_for(served.running, 10)
        with pytest.raises(httpx2.ConnectError):
            await served.client.get("/slow")


async def test_a_socket_that_is_added_is_served_and_let_go_at_the_end() -> None:
    more = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{more.getsockname()[1]}/name"
    async with serve(named("one")) as served:
        served.server.idle_drain_s = 0.05
        await served.server.add_socket(more)
        assert (await served.client.get(url)).json() == "one"
        assert (await served.client.get("/name")).json() == "one"
        await served.stop()
        with pytest.raises(httpx2.ConnectError):
            await served.client.get(url)
