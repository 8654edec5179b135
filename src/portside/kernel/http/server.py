"""The HTTP server: uvicorn with limits for connections, and a drain that drops no request.

To stop, the server closes its listening sockets, closes each connection after its next response, waits for the
connections to go, and only then shuts down. Sockets can be added while it runs, which is how a replica takes over.

Limits apply before any application sees a request. The head of a request is limited in size, number of headers and
time. Its body, whose size the application limits (`LimitBody`), must keep arriving, and must be complete within
`body_within_s` plus one second for each `MIN_BYTES_PER_S` of it, so that a slow line is allowed. A client must go on
reading its response. Other connections are closed: each costs the client nothing, but memory and a descriptor here.
"""

import asyncio
import errno
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from portside.kernel.errors import RETRY_AFTER_S, DependencyUnavailable
from portside.kernel.files import connection_limit, short_path
from portside.kernel.http.shared_listeners import ConnectionShare, SharedListener
from portside.kernel.http.sse import CLOSE_CONNECTION
from portside.kernel.supervision import Supervision
from portside.kernel.transient_errors import join_library_outages

# Enough for a thousand ids in a query.
MAX_TARGET_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 30.0
BODY_IDLE_TIMEOUT_S = 60.0
BODY_WITHIN_S = 120.0
MIN_BYTES_PER_S = 8 * 1024
CHECK_EVERY_S = 2.0
# Long, because a program may stop reading while it works on what it has read.
UNREAD_TIMEOUT_S = 600.0
# This many connections beyond the limit get a 503, if they send a request within this time; others are aborted.
MAX_REFUSED = 64
REFUSE_WITHIN_S = 1.0
_MALFORMED = (400, "Bad Request", "Invalid HTTP request received.")
_TARGET = (414, "URI Too Long", f"The path and query of a request may have at most {MAX_TARGET_BYTES} bytes.")
_HEAD = (
    431,
    "Request Header Fields Too Large",
    f"A request may have {MAX_HEADERS} headers, {MAX_HEAD_BYTES} bytes in all.",
)
HEAD_REFUSALS = (_TARGET, _HEAD)
"""Status, phrase and detail of the responses to a head that is too large."""
_SLOW = (
    408,
    "Request Timeout",
    "The request body did not arrive in time (setting HTTP_REQUEST_BODY_TIMEOUT_SECONDS).",
)
# Characters that no value of a header may hold.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CLOSING = [(b"connection", b"close")]
_NO_CONNECTION = (503, "Service Unavailable", "This server has no free connection; retry shortly.")


class TooLarge(Exception):
    """The head of a request exceeds a limit."""


class BoundedConfig(uvicorn.Config):
    """Settings of a server. It serves `max_connections`; further connections get 503 and are closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_connections = connection_limit()

        # Called when a connection was opened or closed.
        self.on_connections: Callable[[], None] = lambda: None
        # Whether the connection of a request that arrives now is closed after the response; never if None.
        self.is_surplus: Callable[[], bool] | None = None


class ResponseCycle(RequestResponseCycle):
    """One request and its response, with a way to write a response that is in memory at once."""

    def send_whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole response, which costs less than its messages.

        Returns False, and has done nothing, if the response must be sent as messages.
        """
        if self.response_started or self.disconnected or self.flow.write_paused or self.default_headers:
            return False

        names = [name for name, _ in headers]
        if b"content-length" not in names or b"connection" in names:
            return False
        if _CONTROL.search(b"".join([value for _, value in headers])) is not None:
            return False

        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        head = [name + b": " + value + b"\r\n" for name, value in headers]
        closing = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        write: Callable[[bytes], None] = getattr(self.transport, "write_whole", self.transport.write)

        write(b"".join([STATUS_LINE[status], *head, closing, body]))
        self.message_event.set()

        if not self.keep_alive:
            self.transport.close()

        self.on_response()
        return True


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP, and closes connections that exceed the limits."""

    config: BoundedConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection, and to time its first request."""
        super().connection_made(transport)
        self._refusal = _MALFORMED
        self._extensions: dict[str, Any] = {CLOSE_CONNECTION: transport.close}
        self._head_bytes = self._arriving = self._unsent = 0
        self._head_since: float | None = self.loop.time()
        self._body_at = self._body_since = self._unsent_at = 0.0
        self._body_bytes = 0

        surplus = len(self.connections) - self.config.max_connections
        self._is_surplus = surplus > 0

        if surplus > MAX_REFUSED:
            transport.abort()
        elif surplus > 0:
            self.loop.call_later(REFUSE_WITHIN_S, transport.close)

        self.config.on_connections()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        super().connection_lost(exc)
        self.config.on_connections()

    def data_received(self, data: bytes) -> None:
        """Process data. Refuse a connection beyond the limit, and a head that is too large already."""
        if self._is_surplus:
            # Only now: closing a connection with unread data resets it, and the client would not see the response.
            self._refuse(_NO_CONNECTION)
            return

        self._arriving = len(data)
        super().data_received(data)

        if self._head_since is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_TARGET_BYTES + MAX_HEAD_BYTES:
                self._refuse(_HEAD)

    def on_message_begin(self) -> None:
        """Begin to measure the next head."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._head_bytes, self._head_since = 0, self.loop.time()

    def on_headers_complete(self) -> None:
        """Pass on a request whose head is within the limits. Raises TooLarge."""
        self._head_since = None
        self._body_at = self._body_since = self.loop.time()
        self._body_bytes = 0

        if len(self.url) > MAX_TARGET_BYTES:
            self._refusal = _TARGET
            raise TooLarge

        if len(self.headers) > MAX_HEADERS or self._head_is_too_large():
            self._refusal = _HEAD
            raise TooLarge

        super().on_headers_complete()

        if type(self.cycle) is RequestResponseCycle:
            # Its task has not begun. uvicorn has no setting for the class.
            self.cycle.__class__ = ResponseCycle
            if self.config.is_surplus is not None and self.config.is_surplus():
                self.cycle.default_headers = _CLOSING

    def _head_is_too_large(self) -> bool:
        # The bytes that arrived are an upper bound; usually it is small enough, and saves adding up the headers.
        may_be = self._head_bytes + self._arriving > MAX_HEAD_BYTES
        return may_be and sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        """Note that more of the body arrived."""
        self._body_at = self.loop.time()
        self._body_bytes += len(body)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - `_refusal` has the reason
        """Answer a malformed request, or one beyond the limits, and close."""
        self._refuse(self._refusal)

    def _refuse(self, refusal: tuple[int, str, str]) -> None:
        status, phrase, detail = refusal
        body = msgspec.json.encode({"detail": detail})
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += f"retry-after: {RETRY_AFTER_S}\r\n" if status == _NO_CONNECTION[0] else ""
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def close_if_slow(self, at: float, body_within_s: float) -> None:
        """Close the connection if the client sends its head or its body, or reads a response, too slowly.

        Call this every `CHECK_EVERY_S`.
        """
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent = unsent
            self._unsent_at = at
        elif at - self._unsent_at > UNREAD_TIMEOUT_S:
            # Not `close`, which waits until the client has read everything.
            self.transport.abort()
            return

        if self.flow.read_paused:
            # The application does not read, so the client cannot send: do not count this time.
            self._body_since += CHECK_EVERY_S
            return

        if self._head_since is not None:
            if at - self._head_since > HEAD_TIMEOUT_S:
                self.transport.close()
            return

        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return

        if at - self._body_at > BODY_IDLE_TIMEOUT_S:
            self.transport.close()
        elif at - self._body_since > body_within_s + self._body_bytes / MIN_BYTES_PER_S:
            if cycle.response_started:
                self.transport.close()
            else:
                self._refuse(_SLOW)


async def close_slow(connections: set[Any], body_within_s: float = BODY_WITHIN_S) -> None:
    """Check all connections periodically, and close those that are too slow."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        for connection in list(connections):
            if isinstance(connection, BoundedProtocol):
                connection.close_if_slow(loop.time(), body_within_s)


MAX_BUFFERED_BYTES = 64 * 1024


class BufferingProtocol(BoundedProtocol):
    """Speaks HTTP over a transport that joins small writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection."""
        super().connection_made(cast("asyncio.Transport", BufferedTransport(transport)))


class BufferedTransport:
    """A transport that sends everything written in one iteration of the event loop as one packet, up to a limit.

    A response is written in two parts, head and body, and each would be a packet of its own. Sending is the largest
    part of the cost of a small response. Streams gain too, when several events arrive together.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffer: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether the wrapped transport is closing."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send data together with everything else written in this iteration of the loop."""
        if not self._buffer:
            self._loop.call_soon(self._send)

        self._buffer.append(data)
        self._size += len(data)
        if self._size > MAX_BUFFERED_BYTES:
            self._send()

    def write_whole(self, data: bytes) -> None:
        """Write data that nothing follows soon: at once, unless it has to wait behind other data."""
        if self._buffer or self._transport.is_closing():
            self.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what is buffered and close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._buffer:
            data = b"".join(self._buffer)
            self._buffer = []
            self._size = 0

            # The client may have disconnected since. Some closed transports raise on a write.
            if not self._transport.is_closing():
                self._transport.write(data)


KEEP_ALIVE_S = 75
IDLE_DRAIN_S = 3.0
# An accepted connection gets its protocol one iteration of the event loop later with uvloop, three with asyncio.
_ACCEPT_ITERATIONS = 4
# A frame holds one command, which may be as large as the body of a request.
MAX_FRAME_BYTES = 25_000_000
PING_EVERY_S = 20.0


class Server(uvicorn.Server):
    """An HTTP server that runs inside another program. It sets `draining` when it begins to stop."""

    config: BoundedConfig

    def __init__(
        self,
        app: Any,
        *,
        draining: asyncio.Event,
        grace_s: float = 30.0,
        body_within_s: float = BODY_WITHIN_S,
        speaks_websocket: bool = False,
    ) -> None:
        # Called for each connection, as a class would be.
        websocket: Any = _websocket if speaks_websocket else "none"
        config = BoundedConfig(
            app,
            log_config=None,
            # Middleware may be a function that returns what the next one returns, which uvicorn does not recognise.
            interface="asgi3",
            access_log=False,
            server_header=False,
            date_header=False,
            # Each program has its own setting for the proxies that it trusts.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(grace_s)),
            lifespan="off",
            http=BufferingProtocol,
            ws=websocket,
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_EVERY_S,
            ws_ping_timeout=PING_EVERY_S,
        )

        super().__init__(config)
        join_library_outages("uvicorn.error")
        self.draining = draining
        self.idle_drain_s = IDLE_DRAIN_S
        self._body_within_s = body_within_s
        self._share: tuple[ConnectionShare, int] | None = None
        self._shared: list[SharedListener] = []

        self._has_left_share = False
        self._has_none = asyncio.Event()

    def share_connections(self, share: ConnectionShare, number: int) -> None:
        """Share the connections with the servers of other processes on the same sockets; call this before `open`."""
        self._share = share, number

    async def open(self, sockets: list[socket.socket]) -> None:
        """Begin to accept connections on these sockets."""
        if not self.config.loaded:
            self.config.load()

        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets if self._share is None else [])

        if self._share is not None:
            share, number = self._share
            self.config.on_connections = self._publish_connections

            # Clients keep their connections: without this a process that starts later would get new ones only.
            self.config.is_surplus = partial(share.has_too_many, number)
            for listening in sockets:
                await self.add_socket(listening)

    async def add_socket(self, listening: socket.socket) -> None:
        """Begin to accept connections on one more socket."""
        if self._share is not None:
            if self._has_left_share:
                listening.close()
                return

            share, number = self._share
            is_turn = partial(share.is_least, number)
            on_accepted = self._publish_connections
            self._shared.append(SharedListener(listening, self._protocol, is_turn=is_turn, on_accepted=on_accepted))
            self._publish_connections()

            return

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(self._protocol, sock=listening, backlog=self.config.backlog))

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def serve_until(self, stop: asyncio.Event, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until `stop` is set, then drain. `on_drain` runs once no more requests can arrive."""
        # uvicorn's own loop would do this ten times a second, for headers and limits that this server does not have.
        await self.on_tick(0)
        slow = partial(close_slow, self.server_state.connections, self._body_within_s)
        closing = asyncio.create_task(Supervision("closing of slow connections").run(slow))
        await stop.wait()
        self.draining.set()

        for server in self.servers:
            server.close()

        self._leave_share()
        await self._wait_for_connections()

        if on_drain is not None:
            await on_drain()

        self.should_exit = True
        closing.cancel()
        await self.shutdown()

    async def retire(self) -> None:
        """Accept no more, close each connection after its next response, and return when none is left.

        Everything else continues as before, for as long as a client stays. Only for a server that shares connections.
        """
        self.config.is_surplus = lambda: True
        self._leave_share()
        await asyncio.gather(*(listener.wait_opened() for listener in self._shared))
        self._publish_connections()
        await self._has_none.wait()

    def _leave_share(self) -> None:
        for listener in self._shared:
            listener.close()

        if self._share is not None:
            self._has_left_share = True
            share, number = self._share
            share.leave(number)

    def _publish_connections(self) -> None:
        if self._share is None:
            return

        share, number = self._share
        count = len(self.server_state.connections) + sum(listener.opening for listener in self._shared)
        if not self._has_left_share:
            share.publish(number, count)
        elif count == 0:
            self._has_none.set()

    async def _wait_for_connections(self) -> None:
        for listener in self._shared:
            await listener.wait_opened()

        # uvicorn counts an accepted connection only some iterations later. On a busy machine these may take any time.
        for _ in range(_ACCEPT_ITERATIONS):
            await asyncio.sleep(0)

        deadline = time.monotonic() + self.idle_drain_s
        while self.server_state.connections and time.monotonic() < deadline:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)


def _websocket(**options: Any) -> asyncio.Protocol:
    """Return the protocol of a WebSocket connection, imported when a server gets the first one.

    It reads the next frame when the application has taken the last one, so frames do not pile up.
    """
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol as Protocol
    except ImportError:
        # uvicorn before 0.35; this one reads up to 32 frames ahead.
        from uvicorn.protocols.websockets.websockets_impl import WebSocketProtocol as Protocol  # type: ignore[assignment]

    return Protocol(**options)


def listen_unix(folder: Path, name: str) -> socket.socket:
    """Listen on a unix socket in a folder, which only this user may open; it replaces an older one."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (folder / name).unlink(missing_ok=True)
    with short_path(folder, name) as path:
        listening.bind(path)

    (folder / name).chmod(0o600)
    listening.listen(2048)
    listening.setblocking(False)

    return listening


def listen(host: str, port: int, *, reuse_port: bool = False, option: str = "--port") -> socket.socket:
    """Bind and listen. Raises DependencyUnavailable, with the `option` for another port, if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    if reuse_port:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as exc:
        listening.close()
        is_foreign = exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror)
        chosen_by = "--host: this one is not an address of this machine" if is_foreign else option
        problem = f"cannot listen on {host}:{port}: {exc.strerror}; choose another with {chosen_by}"

        raise DependencyUnavailable(problem) from exc

    listening.setblocking(False)
    return listening
