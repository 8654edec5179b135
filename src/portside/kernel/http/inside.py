"""Calls of a server to itself, without a socket: from any event loop of the process, answered on the server's own.

An answer crosses between the loops piece by piece, when the caller asks for the next one, so a stream is one here too
and a slow caller makes its sender wait. What is called knows such a call by a mark in its scope, which no client can
set: `is_inside`.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
MARK = "portside.inside"
USER = "portside.inside.user"
ROOT_PATH = "/noauth"
AHEAD_AT_MOST_BYTES = 256 * 1024


class NotServing(ConnectionError):
    """Nothing answers inside this process: the server has not started yet, or is gone."""


class BrokeOff(ConnectionError):
    """The answer ended before it was whole."""


class Call(NamedTuple):
    """A request: its path as it was written, escaped, its headers as they are sent, and the user it is made for."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    user: Any = None

    def scope(self) -> dict[str, Any]:
        """Return what an application is told of it. The root path is the one that such calls are known by."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": ROOT_PATH,
            "headers": [(name.lower(), value) for name, value in self.headers],
            "client": None,
            "server": ("api", 80),
            "state": {},
            MARK: True,
            USER: self.user,
        }


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: list[tuple[bytes, bytes]]


def is_inside(scope: Any) -> bool:
    """Whether this process calls itself."""
    return scope.get(MARK) is True


def user_inside(scope: Any) -> Any:
    """Return the user for whom this process calls itself; None for nobody."""
    return scope.get(USER) if is_inside(scope) else None


class Inside:
    """The way in for calls from inside the process; closed until there is an application to answer them."""

    def __init__(self) -> None:
        self._app: Any = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._exchanges: set[asyncio.Task[None]] = set()

    def open(self, app: Any) -> None:
        """Let an application answer, on the loop that runs now."""
        self._app, self._home = app, asyncio.get_running_loop()

    async def close(self) -> None:
        """Answer no more, and end what is being answered."""
        self._app = self._home = None
        for task in (under_way := list(self._exchanges)):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the server's loop, for a caller on any. Raises NotServing when there is none."""
        if self._home is None:
            work.close()
            raise NotServing("the server does not run")
        return await _at(self._home, work)

    async def ask(self, call: Call) -> "tuple[Head, Exchange]":
        """Make a call and wait until its answer begins. Raises NotServing and BrokeOff."""
        if self._home is None:
            raise NotServing("the server does not answer yet: call it from nodes and routes, not from imports")
        exchange = Exchange(self._home)
        return await _at(self._home, exchange.begin(self._app, call, self._exchanges)), exchange


class Exchange:
    """One call and its answer. What is not said to be for the caller happens on the server's loop."""

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_whole = False
        self._is_read = False
        self._is_left = False
        self._moved = asyncio.Condition()
        self._body = b""

    async def next(self) -> bytes:
        """Return what has come of the answer since, for the caller; nothing when it is whole. Raises BrokeOff."""
        return await _at(self._home, self._next())

    async def leave(self) -> None:
        """Tell the application that its client has gone, for the caller."""
        if not self._is_whole:
            await _at(self._home, self._leave())

    async def begin(self, app: Any, call: Call, under_way: set[asyncio.Task[None]]) -> Head:
        """Have the call answered, and wait for the head."""
        self._body = call.body
        # In a context of its own: what the caller is just doing, such as a traced run, is not what the server does.
        task = asyncio.create_task(self._answer(app, call), context=contextvars.Context())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: self._head is not None or task.done() or self._is_left)
        except asyncio.CancelledError:
            await self._leave()
            raise
        if self._head is None:
            raise BrokeOff("the call was not answered")
        return self._head

    async def _answer(self, app: Any, call: Call) -> None:
        # What an application raises it has logged; to its caller the answer just ends.
        with contextlib.suppress(Exception):
            await app(call.scope(), self._receive, self._send)
        if not self._is_whole:
            await self._leave()

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        async with self._moved:
            await self._moved.wait_for(lambda: self._is_left or self._is_whole)
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._is_left:
            # Who sends without a pause has to come to learn that nobody listens.
            await asyncio.sleep(0)
            return
        async with self._moved:
            if message["type"] == "http.response.start":
                self._head = Head(message["status"], list(message.get("headers", [])))
            elif message["type"] == "http.response.body":
                if piece := message.get("body", b""):
                    self._pieces.append(bytes(piece))
                    self._size += len(piece)
                self._is_whole = not message.get("more_body", False)
            self._moved.notify_all()
            await self._moved.wait_for(lambda: self._size <= AHEAD_AT_MOST_BYTES or self._is_left or self._is_whole)

    async def _next(self) -> bytes:
        async with self._moved:
            await self._moved.wait_for(lambda: self._pieces or self._is_whole or self._is_left)
            data, self._pieces, self._size = b"".join(self._pieces), [], 0
            self._moved.notify_all()
            if not data and not self._is_whole:
                raise BrokeOff("the answer broke off")
            return data

    async def _leave(self) -> None:
        async with self._moved:
            self._is_left = True
            self._moved.notify_all()


async def _at(home: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    try:
        going_on = asyncio.run_coroutine_threadsafe(work, home)
    except RuntimeError as exc:
        work.close()
        raise NotServing("the server is gone") from exc
    return await asyncio.wrap_future(going_on)
