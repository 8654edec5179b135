"""ASGI over a link: what one side's application receives and sends is what the other side's client does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from portside.executor.asgi import (
    DISCONNECTED,
    DRAIN,
    RECEIVE,
    Application,
    Exchanges,
    await_answer,
    decode_scope,
    send_request,
)
from portside.executor.handlers import PlainRequest
from portside.executor.link import CallFailed, Link, LinkClosed
from portside.executor.values import pack, unpack
from portside.kernel.errors import BodyTooLarge

SCOPE = {"type": "http", "method": "POST", "path": "/x", "headers": [(b"a", b"1")], "client": ("10.0.0.1", 5)}


@asynccontextmanager
async def open_links(app: Any, folder: Path) -> AsyncIterator[tuple[Link, Exchanges, list[Link]]]:
    """Connect a side with clients to one with an application."""
    loop = asyncio.get_running_loop()
    exchanges = Exchanges()
    apps = []

    def serve(body: Any, call: Any) -> Any:
        application = Application(apps[0], body["exchange"], call.send)
        return await_answer(app(decode_scope(body["scope"]), application.receive, application.send))

    def accept() -> Link:
        apps.append(Link({"request": serve}))
        return apps[0]

    server = await loop.create_unix_server(accept, str(folder / "link"))
    handlers = {RECEIVE: lambda body, _: exchanges.receive(body), DRAIN: lambda body, _: exchanges.drain(body)}

    _, link = await loop.create_unix_connection(lambda: Link(handlers), str(folder / "link"))
    try:
        yield link, exchanges, apps
    finally:
        link.close()
        await link.wait_closed()
        server.close()


class Client:
    """A client that sends messages, and keeps what it gets."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.got = []

    async def receive(self) -> Any:
        if not self.messages:
            await asyncio.Event().wait()

        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message

        return message

    async def send(self, message: Any) -> None:
        self.got.append(message)


async def ask(link: Link, exchanges: Exchanges, client: Any) -> Any:
    with exchanges.open(SCOPE, client.receive) as exchange:
        return await send_request(link, "request", {}, exchange, client.send)


async def test_bodies_stream_in_both_directions(tmp_path: Path) -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> str:
        assert scope == {**SCOPE, "headers": [(b"a", b"1")]}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"b", b"2")]})

        is_open = True
        while is_open:
            message = await receive()
            is_open = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": is_open})

        return "done"

    parts = [{"type": "http.request", "body": bytes([n]) * 300_000, "more_body": n < 3} for n in range(4)]
    client = Client(*parts)
    async with open_links(echo, tmp_path) as (link, exchanges, _):
        assert await ask(link, exchanges, client) == "done"

    assert client.got[0] == {"type": "http.response.start", "status": 200, "headers": [(b"b", b"2")]}
    assert [message["body"] for message in client.got[1:]] == [bytes([n]) * 300_000 for n in range(4)]


async def test_slow_client_makes_the_application_wait(tmp_path: Path) -> None:
    sent = 0
    may_read = asyncio.Event()
    waits = asyncio.Event()

    async def flood(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal sent
        for _ in range(50):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            sent += 1

    class Slow(Client):
        async def send(self, message: Any) -> None:
            await may_read.wait()
            await super().send(message)

    client = Slow()
    async with open_links(flood, tmp_path) as (link, exchanges, _):
        drain = exchanges.drain

        async def note(number: Any) -> None:
            waits.set()
            await drain(number)

        exchanges.drain = note  # type: ignore[method-assign]
        asking = asyncio.create_task(ask(link, exchanges, client))
        await waits.wait()
        assert sent < 10
        may_read.set()
        await asking

    assert (sent, len(client.got)) == (50, 50)


async def test_errors_of_the_client_reach_the_application_and_come_back(tmp_path: Path) -> None:
    seen: list[BaseException] = []

    async def read(_scope: Any, receive: Any, _send: Any) -> None:
        try:
            await receive()
        except BodyTooLarge as exc:
            seen.append(exc)
            raise

    async with open_links(read, tmp_path) as (link, exchanges, _):
        with pytest.raises(CallFailed) as failed:
            await ask(link, exchanges, Client(BodyTooLarge("more than 5", headers={"Connection": "close"})))

    assert (failed.value.code, failed.value.message) == ("body_too_large", "more than 5")
    assert [(exc.message, exc.headers) for exc in seen if isinstance(exc, BodyTooLarge)] == [
        ("more than 5", {"Connection": "close"})
    ]


async def test_client_that_takes_nothing_stops_the_application(tmp_path: Path) -> None:
    stopped = asyncio.Event()

    async def talk(_scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "websocket.send", "text": "hi"})
            await receive()
        finally:
            stopped.set()

    class Gone(Client):
        async def send(self, message: Any) -> None:
            raise OSError("the client has gone")

    async with open_links(talk, tmp_path) as (link, exchanges, _):
        with pytest.raises(OSError, match="has gone"):
            await ask(link, exchanges, Gone())
        await asyncio.wait_for(stopped.wait(), 60)


async def test_lost_link_fails_the_request(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def hang(_scope: Any, _receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with open_links(hang, tmp_path) as (link, exchanges, apps):
        asking = asyncio.create_task(ask(link, exchanges, Client()))
        await begun.wait()
        apps[0].abort("killed")

        with pytest.raises(LinkClosed):
            await asking


def test_values_keep_their_types() -> None:
    value = {
        "id": uuid4(),
        "at": datetime.now(UTC),
        "labels": ("a", ("b",)),
        "big": 2**70,
        "small": -(2**70),
        "none": None,
        "bytes": b"\x00",
        7: [1.5, True],
    }

    assert unpack(pack(value)) == value
    assert unpack(pack({"lone": "\ud800", "set": {1}})) == {"lone": "?", "set": [1]}


async def test_body_of_a_plain_request_is_whole_or_an_error() -> None:
    """A handler must not take the beginning of a body for all of it."""

    def request(*messages: Any) -> PlainRequest:
        return PlainRequest(SCOPE, Client(*messages).receive)

    begin = {"type": "http.request", "body": b"a", "more_body": True}
    assert await request(begin, {"type": "http.request", "body": b"b"}).body() == b"ab"
    with pytest.raises(CallFailed) as failed:
        await request(begin, {"type": "http.disconnect"}).body()

    assert failed.value.code == DISCONNECTED
