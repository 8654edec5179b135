"""Requests of a server to itself, without a socket: from any event loop of the process, answered on the server's loop.

The response crosses between the loops in chunks, when the caller reads the next one. So streams stay streams, and a
slow caller makes the application wait. Applications recognize such a request by a key of the scope (`is_in_process`),
which no client can set.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from portside.kernel.tasks import TaskSet

T = TypeVar("T")
MARK = "portside.in_process"
USER = "portside.in_process.user"
ROOT_PATH = "/noauth"
PREFIX = "portside.prefix"
"""The key of a scope that has what proxies and the server took off the path."""
# The application waits while its caller has not read this much of the response.
MAX_UNREAD_BYTES = 256 * 1024


class ServerNotRunning(ConnectionError):
    """The server of this process does not run: it has not started yet, or has stopped."""


class ResponseCutOff(ConnectionError):
    """The response ended before it was complete."""


class InProcessRequest(NamedTuple):
    """A request, and the user it is made for. `raw_path` is the path as it was written, escaped."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    user: Any = None

    def scope(self) -> dict[str, Any]:
        """Return the ASGI scope. The root path is the one by which the stock SDK recognizes such requests."""
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


class ResponseHead(NamedTuple):
    """The status and the headers of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


def is_in_process(scope: Any) -> bool:
    """Whether the server sent this request to itself."""
    return scope.get(MARK) is True


def in_process_user(scope: Any) -> Any:
    """Return the user for whom the server sent itself this request, or None."""
    return scope.get(USER) if is_in_process(scope) else None


class InProcessServer:
    """Answers requests from inside the process, between `open` and `close`."""

    def __init__(self) -> None:
        self._app: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = TaskSet()

    def open(self, app: Any) -> None:
        """Let an application answer requests, on the running event loop."""
        self._app = app
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Accept no more requests, and cancel those in flight."""
        self._loop = None
        self._app = None
        await self._tasks.cancel()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop and return its result. Raises ServerNotRunning."""
        # Read once: the server's thread may close meanwhile.
        loop = self._loop
        if loop is None:
            work.close()
            raise ServerNotRunning("the server does not run")

        return await _on_loop(loop, work)

    async def send(self, request: InProcessRequest) -> "tuple[ResponseHead, InProcessResponse]":
        """Send a request and wait for the head of its response. Raises ServerNotRunning and ResponseCutOff."""
        app = self._app
        loop = self._loop
        if loop is None:
            raise ServerNotRunning("the server does not answer yet: call it from nodes and routes, not from imports")

        response = InProcessResponse(loop)
        return await _on_loop(loop, response.begin(app, request, self._tasks)), response


class InProcessResponse:
    """The response to one request. Callers use `read` and `close`, on any loop; the rest runs on the server's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._head: ResponseHead | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self._is_body_sent = False
        self._is_disconnected = False

        self._changed = asyncio.Condition()
        self._body = b""

    async def read(self) -> bytes:
        """Return the body that arrived since the last call; empty at the end. Raises ResponseCutOff."""
        return await _on_loop(self._loop, self._read())

    async def close(self) -> None:
        """Disconnect: the application sees a client that has gone."""
        if not self._is_complete:
            await _on_loop(self._loop, self._disconnect())

    async def begin(self, app: Any, request: InProcessRequest, tasks: TaskSet) -> ResponseHead:
        """Start the application, and wait for the head of its response."""
        self._body = request.body
        # An empty context: the caller's context variables, such as its traced run, must not reach the server.
        task = tasks.spawn(self._respond(app, request), context=contextvars.Context())

        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._head is not None or task.done() or self._is_disconnected)
        except asyncio.CancelledError:
            await self._disconnect()
            raise

        if self._head is None:
            raise ResponseCutOff("the server ended without a response")

        return self._head

    async def _respond(self, app: Any, request: InProcessRequest) -> None:
        # The application logged its exception; for the caller the response just ends.
        with contextlib.suppress(Exception):
            await app(request.scope(), self._receive, self._send)

        if not self._is_complete:
            await self._disconnect()

    async def _receive(self) -> dict[str, Any]:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}

        async with self._changed:
            await self._changed.wait_for(lambda: self._is_disconnected or self._is_complete)

        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._is_disconnected:
            # Yield, so that an application that sends in a loop gets to see the disconnect.
            await asyncio.sleep(0)
            return

        async with self._changed:
            if message["type"] == "http.response.start":
                self._head = ResponseHead(message["status"], list(message.get("headers", [])))
            elif message["type"] == "http.response.body":
                if chunk := message.get("body", b""):
                    self._chunks.append(bytes(chunk))
                    self._size += len(chunk)

                self._is_complete = not message.get("more_body", False)

            self._changed.notify_all()
            await self._changed.wait_for(
                lambda: self._size <= MAX_UNREAD_BYTES or self._is_disconnected or self._is_complete
            )

    async def _read(self) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self._chunks or self._is_complete or self._is_disconnected)
            data = b"".join(self._chunks)
            self._chunks = []
            self._size = 0

            self._changed.notify_all()
            if not data and not self._is_complete:
                raise ResponseCutOff("the response ended before it was complete")

            return data

    async def _disconnect(self) -> None:
        async with self._changed:
            self._is_disconnected = True
            self._changed.notify_all()


async def _on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as exc:
        work.close()
        raise ServerNotRunning("the server has stopped") from exc

    return await asyncio.wrap_future(future)
