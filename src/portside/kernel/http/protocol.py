"""HTTP over one connection: uvicorn's protocol with limits.

Limits apply before any application sees a request. The head of a request is limited in size, number of headers and
time. Its body, whose size the application limits (`LimitBody`), must keep arriving, and must be complete within
`body_within_s` plus one second for each `MIN_BYTES_PER_S` of it, so that a slow line is allowed. A client must go on
reading its response. Other connections are closed: each costs the client nothing, but memory and a descriptor here.

What is written in one iteration of the event loop is sent together.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from portside.kernel.errors import RETRY_AFTER_S
from portside.kernel.files import get_connection_limit
from portside.kernel.http.body_settings import WITHIN_S
from portside.kernel.http.sse import CLOSE_CONNECTION

# Enough for a thousand ids in a query.
MAX_TARGET_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 30.0
BODY_IDLE_TIMEOUT_S = 60.0
MIN_BYTES_PER_S = 8 * 1024
CHECK_EVERY_S = 2.0
# Long, because a program may stop reading while it works on what it has read.
UNREAD_TIMEOUT_S = 600.0
# This many connections beyond the limit get a 503, if they send a request within this time; others are aborted.
MAX_REFUSED = 64
REFUSE_WITHIN_S = 1.0
# Characters that no value of a header may hold.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CLOSE_HEADERS = [(b"connection", b"close")]
MAX_BUFFERED_BYTES = 64 * 1024


class Refusal(NamedTuple):
    """A response that the protocol sends itself, because the application does not see the request."""

    status: int
    phrase: str
    detail: str


_MALFORMED = Refusal(400, "Bad Request", "Invalid HTTP request received.")


_TARGET = Refusal(414, "URI Too Long", f"The path and query of a request may have at most {MAX_TARGET_BYTES} bytes.")


_HEAD = Refusal(
    431,
    "Request Header Fields Too Large",
    f"A request may have {MAX_HEADERS} headers, {MAX_HEAD_BYTES} bytes in all.",
)


HEAD_REFUSALS = (_TARGET, _HEAD)


"""The responses to a head that is too large."""


_SLOW = Refusal(
    408,
    "Request Timeout",
    "The request body did not arrive in time (setting HTTP_REQUEST_BODY_TIMEOUT_SECONDS).",
)


_NO_CONNECTION = Refusal(503, "Service Unavailable", "This server has no free connection; retry shortly.")


class TooLarge(Exception):
    """The head of a request exceeds a limit."""


class BoundedConfig(uvicorn.Config):
    """Settings of a server. It serves `max_connections`; further connections get 503 and are closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_connections = get_connection_limit()

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
        end_of_head = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        write: Callable[[bytes], None] = getattr(self.transport, "write_whole", self.transport.write)
        write(b"".join([STATUS_LINE[status], *head, end_of_head, body]))

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

        # The head: its bytes so far, those of the data that is read now, and when it began; None while there is none.
        self._head_bytes = 0
        self._arriving = 0
        self._head_since: float | None = self.loop.time()
        # The body: its bytes so far, when the last of them arrived, and when it began.
        self._body_bytes = 0
        self._body_at = 0.0
        self._body_since = 0.0
        # The bytes of responses that the client has not read, and since when they are so many.
        self._unsent = 0
        self._unsent_at = 0.0

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
        self._head_bytes = 0
        self._head_since = self.loop.time()

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
            # uvicorn before 0.53 looks for the header of the client only when it sends the response as messages.
            self.cycle.keep_alive = self.cycle.keep_alive and self.parser.should_keep_alive()

            if self.config.is_surplus is not None and self.config.is_surplus():
                self.cycle.default_headers = _CLOSE_HEADERS

    def _head_is_too_large(self) -> bool:
        # The bytes that arrived are an upper bound; usually it is small enough, and saves adding up the headers.
        if self._head_bytes + self._arriving <= MAX_HEAD_BYTES:
            return False

        return sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        """Note that more of the body arrived."""
        self._body_at = self.loop.time()
        self._body_bytes += len(body)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - `_refusal` has the reason
        """Answer a malformed request, or one beyond the limits, and close."""
        self._refuse(self._refusal)

    def _refuse(self, refusal: Refusal) -> None:
        body = msgspec.json.encode({"detail": refusal.detail})
        head = [
            f"HTTP/1.1 {refusal.status} {refusal.phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        if refusal is _NO_CONNECTION:
            head.append(f"retry-after: {RETRY_AFTER_S}")

        head += ["connection: close", "", ""]
        self.transport.write("\r\n".join(head).encode() + body)
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
            return

        allowed_s = body_within_s + self._body_bytes / MIN_BYTES_PER_S
        if at - self._body_since > allowed_s:
            if cycle.response_started:
                self.transport.close()
            else:
                self._refuse(_SLOW)


async def close_slow(connections: set[Any], body_within_s: float = WITHIN_S) -> None:
    """Check all connections periodically, and close those that are too slow."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        for connection in list(connections):
            if isinstance(connection, BoundedProtocol):
                connection.close_if_slow(loop.time(), body_within_s)


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
        if not self._buffer:
            return

        data = b"".join(self._buffer)
        self._buffer = []
        self._size = 0

        # The client may have disconnected since. Some closed transports raise on a write.
        if not self._transport.is_closing():
            self._transport.write(data)
