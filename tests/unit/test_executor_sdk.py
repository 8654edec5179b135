"""The SDK's client in an executor process reads responses of the server as they come, and keeps none in memory."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portside.agent.executors import serving
from portside.executor import messages, sdk
from portside.executor.link import Link
from portside.executor.server_calls import ServerCalls, current_call
from portside.kernel.http.in_process import InProcessRequest, InProcessServer, in_process_user
from tests.conftest import eventually

PIECE = b"x" * 65_536
PIECES = 200
REQUEST = InProcessRequest("GET", "/large", b"/large", b"", [], b"")


class LargeResponse:
    """An application that sends a large response, and counts what it has sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.has_ended = False
        self.users: list[Any] = []

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answer one request."""
        self.users.append(in_process_user(scope))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(PIECES):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                self.sent += 1

            await send({"type": "http.response.body", "body": b""})
        finally:
            self.has_ended = True


class Executor:
    """An executor as the server knows it."""

    def __init__(self) -> None:
        self.callers: dict[int, Any] = {}
        self.link: Any = None


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Connect the SDK of an executor to a server with an application."""
    loop = asyncio.get_running_loop()
    executor = Executor()
    app = LargeResponse()
    loopback = InProcessServer()

    loopback.open(app)
    monkeypatch.setattr(serving, "LOOPBACK", loopback)
    app.drains = 0
    app.callers = executor.callers

    def drain(number: Any, call: Any) -> Any:
        app.drains += 1
        return sdk.drain_response(number, call)

    def accept() -> Link:
        executor.link = Link({messages.HTTP_REQUEST: lambda body, call: serving.answer_request(executor, body, call)})
        return executor.link

    server = await loop.create_unix_server(accept, str(tmp_path / "link"))
    _, link = await loop.create_unix_connection(lambda: Link({messages.HTTP_DRAIN: drain}), str(tmp_path / "link"))
    monkeypatch.setattr(sdk, "_servers", [ServerCalls(link)])
    yield app
    link.close()
    await link.wait_closed()
    server.close()

    await loopback.close()


async def test_response_that_is_not_read_waits_at_the_server(app):
    head, body = await sdk._send(REQUEST)

    async def is_held_back() -> bool:
        return app.drains > 0 or app.has_ended

    await eventually(is_held_back)
    assert (head.status, app.has_ended, app.sent < PIECES) == (200, False, True)
    received = 0

    while data := await body.read():
        received += len(data)

    assert (received, app.has_ended) == (PIECES * len(PIECE), True)
    assert not sdk._exchanges


async def test_response_that_is_closed_unread_ends(app):
    _head, body = await sdk._send(REQUEST)

    async def is_held_back() -> bool:
        return app.drains > 0

    await eventually(is_held_back)
    await body.close()

    async def has_ended() -> bool:
        return app.has_ended and not sdk._exchanges

    await eventually(has_ended)


async def test_requests_are_made_for_the_user_of_the_call_that_an_executor_works_on(app):
    app.callers |= {1: SimpleNamespace(user={"identity": "ada"}), 2: SimpleNamespace(user={"identity": "bob"})}
    for number in (2, 1, 0):
        token = current_call.set(number)
        _head, body = await sdk._send(REQUEST._replace(user={"identity": "root"}))
        current_call.reset(token)
        await body.close()

    assert app.users == [{"identity": "bob"}, {"identity": "ada"}, None]
