"""Requests that a graph sends to its own server do not leave the process."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from portside.kernel.http.in_process import (
    MAX_UNREAD_BYTES,
    InProcessRequest,
    InProcessServer,
    ResponseCutOff,
    ServerNotRunning,
    is_in_process,
)

CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nothing")


class RunningServer:
    """An application on its own event loop, like that of a server."""

    def __init__(self) -> None:
        self.inside = InProcessServer()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.begun = threading.Event()
        self.gone = threading.Event()
        self.sent = 0

    def start(self) -> None:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(60)

    async def _open(self) -> None:
        self.inside.open(self.app)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.inside.close(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"]:
            case "/echo":
                body = (await Request(scope, receive).body()).decode()
                here = {"thread": threading.current_thread() is self.thread, "here": CONTEXT.get(), "body": body}
                request = {
                    "inside": is_in_process(scope),
                    "root_path": scope["root_path"],
                    "query": scope["query_string"].decode(),
                }

                await JSONResponse({**here, **request}, 201, {"x-name": "value"})(scope, receive, send)
            case "/endless":
                await StreamingResponse(self.endless())(scope, receive, send)
                self.gone.set()
            case "/breaks":
                await StreamingResponse(self.breaking())(scope, receive, send)
            case "/silent":
                self.begun.set()
                await self.watch(receive)

    async def watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    async def endless(self) -> Any:
        while True:
            yield b"x" * 65536
            self.sent += 65536

    async def breaking(self) -> Any:
        yield b"half"
        raise ValueError("secret")


def get(path: str, body: bytes = b"") -> InProcessRequest:
    return InProcessRequest("POST", path, path.encode(), b"a=1", [(b"X-Mine", b"1")], body)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    running = RunningServer()
    running.start()
    yield running
    running.stop()


async def test_request_runs_on_the_servers_loop_in_an_empty_context(server: RunningServer) -> None:
    CONTEXT.set("a traced run")
    head, exchange = await server.inside.send(get("/echo", b"hello"))
    assert head.status == 201
    assert (b"x-name", b"value") in head.headers
    response = await exchange.read()
    assert b'"thread":true' in response
    assert b'"here":"nothing"' in response

    assert b'"body":"hello"' in response
    assert b'"inside":true,"root_path":"/noauth","query":"a=1"' in response
    assert await exchange.read() == b""


async def test_stream_waits_for_its_reader_and_ends_when_closed(server: RunningServer) -> None:
    head, exchange = await server.inside.send(get("/endless"))
    assert head.status == 200
    assert await exchange.read()
    assert server.sent <= 4 * MAX_UNREAD_BYTES
    await exchange.close()
    assert await asyncio.to_thread(server.gone.wait, 60)


async def test_cancelled_caller_disconnects(server: RunningServer) -> None:
    caller = asyncio.create_task(server.inside.send(get("/silent")))
    # A call that is cancelled before the application has begun never reaches it.
    assert await asyncio.to_thread(server.begun.wait, 60)
    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller

    assert await asyncio.to_thread(server.gone.wait, 60)


async def test_interrupted_response_raises(server: RunningServer) -> None:
    _, exchange = await server.inside.send(get("/breaks"))
    with pytest.raises(ResponseCutOff, match="the response ended before it was complete"):
        while await exchange.read():
            pass


async def test_request_fails_before_start_and_after_stop() -> None:
    inside = InProcessServer()
    with pytest.raises(ServerNotRunning, match="does not answer yet"):
        await inside.send(get("/echo"))

    running = RunningServer()
    running.start()
    running.stop()

    with pytest.raises(ServerNotRunning):
        await running.inside.send(get("/echo"))


def test_root_path_of_a_client_is_not_in_process() -> None:
    assert is_in_process(get("/").scope())
    assert not is_in_process({"root_path": "/noauth", "headers": [(b"portside.in_process", b"true")]})
