import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from portside.kernel.http.inside import AHEAD_AT_MOST_BYTES, BrokeOff, Call, Inside, NotServing, is_inside

HERE: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nothing")


class Home:
    """An application on an event loop of its own, as a server has one."""

    def __init__(self) -> None:
        self.inside = Inside()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.gone = threading.Event()
        self.sent = 0

    def start(self) -> None:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(10)

    async def _open(self) -> None:
        self.inside.open(self.app)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.inside.close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"]:
            case "/echo":
                body = (await Request(scope, receive).body()).decode()
                here = {"thread": threading.current_thread() is self.thread, "here": HERE.get(), "body": body}
                told = {
                    "inside": is_inside(scope),
                    "root_path": scope["root_path"],
                    "query": scope["query_string"].decode(),
                }
                await JSONResponse({**here, **told}, 201, {"x-name": "value"})(scope, receive, send)
            case "/endless":
                await StreamingResponse(self.endless())(scope, receive, send)
                self.gone.set()
            case "/breaks":
                await StreamingResponse(self.breaking())(scope, receive, send)
            case "/silent":
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


def get(path: str, body: bytes = b"") -> Call:
    return Call("POST", path, path.encode(), b"a=1", [(b"X-Mine", b"1")], body)


@pytest.fixture
def home() -> Iterator[Home]:
    running = Home()
    running.start()
    yield running
    running.stop()


async def test_a_call_is_answered_on_the_servers_loop_in_a_context_of_its_own(home: Home) -> None:
    HERE.set("a traced run")
    head, exchange = await home.inside.ask(get("/echo", b"hello"))
    assert head.status == 201
    assert (b"x-name", b"value") in head.headers
    answer = await exchange.next()
    assert b'"thread":true' in answer
    assert b'"here":"nothing"' in answer
    assert b'"body":"hello"' in answer
    assert b'"inside":true,"root_path":"/noauth","query":"a=1"' in answer
    assert await exchange.next() == b""


async def test_a_stream_waits_for_its_reader_and_ends_when_that_leaves(home: Home) -> None:
    head, exchange = await home.inside.ask(get("/endless"))
    assert head.status == 200
    assert await exchange.next()
    assert home.sent <= 4 * AHEAD_AT_MOST_BYTES
    await exchange.leave()
    assert await asyncio.to_thread(home.gone.wait, 30)


async def test_a_caller_that_is_cancelled_has_left(home: Home) -> None:
    asking = asyncio.create_task(home.inside.ask(get("/silent")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(home.gone.wait, 30)


async def test_an_answer_that_breaks_off_is_no_whole_one(home: Home) -> None:
    _, exchange = await home.inside.ask(get("/breaks"))
    with pytest.raises(BrokeOff, match="the answer broke off"):
        while await exchange.next():
            pass


async def test_nobody_answers_before_the_server_runs_or_after() -> None:
    inside = Inside()
    with pytest.raises(NotServing, match="does not answer yet"):
        await inside.ask(get("/echo"))
    home = Home()
    home.start()
    home.stop()
    with pytest.raises(NotServing):
        await home.inside.ask(get("/echo"))


def test_a_root_path_makes_nobody_an_insider() -> None:
    assert is_inside(get("/").scope())
    assert not is_inside({"root_path": "/noauth", "headers": [(b"portside.inside", b"true")]})
