"""Event streams: encoding, heartbeats, and what closes their source."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from portside.kernel.http import sse
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.server import Server, listen
from portside.kernel.http.sse import EventStream, StreamCut, sse_event
from tests.unit.kernel_server import serve


def test_event_encoding() -> None:
    assert sse_event("values", b'{"a":1}') == b'event: values\r\ndata: {"a":1}\r\n\r\n'
    assert sse_event("end", b"null", "17-0") == b"event: end\r\ndata: null\r\nid: 17-0\r\n\r\n"


class Source:
    """Yields chunks that the test puts, until it gets None."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self.chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.closed.set()


def build_stream_routes(source: Source) -> Routes:
    routes = Routes("t")

    @routes.get("/stream", public=True)
    async def stream(_ctx: Context) -> EventStream:
        return EventStream(source.stream(), headers={"x-run": "1"})

    return routes


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def served(source):
    async with serve(build_stream_routes(source)) as served:
        yield served


async def wait_until_closed(source: Source) -> None:
    await asyncio.wait_for(source.closed.wait(), 60)


async def test_events_are_sent_as_they_are_produced(served, source, monkeypatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 3600.0)
    async with served.client.stream("GET", "/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
        assert response.headers["x-run"] == "1"
        assert "content-length" not in response.headers

        parts = response.aiter_raw()
        for chunk in (b"one", b"two"):
            source.chunks.put_nowait(chunk)
            assert await asyncio.wait_for(anext(parts), 60) == chunk

        source.chunks.put_nowait(None)
        assert [part async for part in parts] == []

    await wait_until_closed(source)


async def test_heartbeat_comment_is_sent_while_idle(served, source, monkeypatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    async with served.client.stream("GET", "/stream") as response:
        parts = response.aiter_raw()
        for _ in range(2):
            assert await asyncio.wait_for(anext(parts), 60) == b": heartbeat\r\n\r\n"

        source.chunks.put_nowait(b"one")

        while (part := await asyncio.wait_for(anext(parts), 60)) == sse.KEEP_ALIVE:
            pass

        assert part == b"one", "a comment loses nothing of the source"


async def test_client_disconnect_closes_the_source(served, source) -> None:
    async with served.client.stream("GET", "/stream") as response:
        source.chunks.put_nowait(b"one")
        await anext(response.aiter_raw())

    await wait_until_closed(source)


@pytest.mark.parametrize(("last", "has_mark"), [(None, True), (StreamCut(), False)])
async def test_only_a_stream_that_is_over_gets_the_mark_that_ends_a_response(
    served, source, caplog, last, has_mark
) -> None:
    whole = b"x" * (sse.PART_BYTES + 1) + b"."
    for chunk in (b"one", whole, last):
        source.chunks.put_nowait(chunk)

    received = await served.raw(b"GET /stream HTTP/1.1\r\nhost: a\r\nx-name: ada\r\nconnection: close\r\n\r\n")
    await wait_until_closed(source)
    assert received.endswith(b".\r\n0\r\n\r\n" if has_mark else b".\r\n"), received[-50:]
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")], caplog.text


async def test_what_middleware_holds_is_sent_before_the_connection_is_cut() -> None:
    """Middleware of a project hands chunks on in a task of its own."""

    async def chunks() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d;" % number
        raise StreamCut

    async def pass_on(request, call_next):
        return await call_next(request)

    async def stream(scope, receive, send) -> None:
        await EventStream(chunks())(scope, receive, send)

    listening = listen("127.0.0.1", 0)
    stop = asyncio.Event()
    server = Server(BaseHTTPMiddleware(stream, dispatch=pass_on), draining=asyncio.Event(), grace_s=1)
    await server.open([listening])

    running = asyncio.create_task(server.serve_until(stop))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    received = await asyncio.wait_for(reader.read(), 60)

    writer.close()
    stop.set()
    await running
    assert received.endswith(b"\r\n99;\r\n"), received[-50:]


async def test_failed_source_aborts_the_response(served, source) -> None:
    import httpx2

    with pytest.raises(httpx2.RemoteProtocolError):
        async with served.client.stream("GET", "/stream") as response:
            source.chunks.put_nowait(b"one")
            source.chunks.put_nowait(ValueError("broken"))
            async for _ in response.aiter_raw():
                pass

    await wait_until_closed(source)


async def test_failed_send_closes_the_source(source) -> None:
    async def send(message) -> None:
        if message["type"] == "http.response.body":
            raise ConnectionResetError

    source.chunks.put_nowait(b"one")
    with pytest.raises(ConnectionResetError):
        await EventStream(source.stream())({}, asyncio.Event().wait, send)

    assert source.closed.is_set()


async def test_source_is_closed_if_the_head_cannot_be_sent() -> None:
    class Opened:
        """A source that holds something before its first chunk is read, as a subscription does."""

        is_closed = False

        def __aiter__(self) -> "Opened":
            return self

        async def __anext__(self) -> bytes:
            return b"never sent"

        async def aclose(self) -> None:
            self.is_closed = True

    async def send(_message) -> None:
        raise ConnectionResetError

    opened = Opened()
    with pytest.raises(ConnectionResetError):
        await EventStream(opened)({}, asyncio.Event().wait, send)

    assert opened.is_closed
