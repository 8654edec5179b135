"""What a connection may ask for and how long it may take to say so, before any application sees it.

The head of a request is bounded in size, number of headers and time; its body, whose size the application bounds
(`bodies.LimitBody`), must go on arriving, and be whole in time: within so many seconds and one more for each
`LEAST_BYTES_PER_S` of it, so that a slow line is no reason. Connections that are slower are closed: they would cost
nothing to keep open on the other side, and each holds memory and a descriptor here.
"""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TARGET_BYTES = 16 * 1024
HEAD_BYTES = 64 * 1024
HEADERS = 100
HEAD_WITHIN_S = 30.0
BODY_QUIET_S = 60.0
BODY_WITHIN_S = 120.0
LEAST_BYTES_PER_S = 8 * 1024
LOOKED_AT_EVERY_S = 2.0
_MALFORMED = (400, "Bad Request", "Invalid HTTP request received.")
_TARGET = (414, "URI Too Long", f"The path and query of a request may have {TARGET_BYTES} bytes.")
_HEAD = (
    431, "Request Header Fields Too Large",
    f"The headers of a request may be {HEADERS}, and have {HEAD_BYTES} bytes together.",
)  # fmt: skip
_SLOW = (
    408, "Request Timeout",
    "The body of the request did not arrive in time (setting HTTP_REQUEST_BODY_TIMEOUT_SECONDS).",
)  # fmt: skip


class TooLarge(Exception):
    """The head of a request is beyond its bounds."""


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP with those who keep to the bounds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection; the time for its first request begins as well."""
        super().connection_made(transport)
        self._refusal = _MALFORMED
        self._head_bytes = self._arriving = 0
        self._head_since: float | None = self.loop.time()
        self._body_at = self._body_since = 0.0
        self._body_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take what came. A head that is not over and too large already is refused."""
        self._arriving = len(data)
        super().data_received(data)
        if self._head_since is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > TARGET_BYTES + HEAD_BYTES:
                self._refuse(_HEAD)

    def on_message_begin(self) -> None:
        """Begin to count and to time a head."""
        super().on_message_begin()
        self._head_bytes, self._head_since = 0, self.loop.time()

    def on_headers_complete(self) -> None:
        """Serve a request whose head is within bounds. Raises TooLarge."""
        self._head_since = None
        self._body_at = self._body_since = self.loop.time()
        self._body_bytes = 0
        if len(self.url) > TARGET_BYTES:
            self._refusal = _TARGET
            raise TooLarge
        if len(self.headers) > HEADERS or self._head_is_too_large():
            self._refusal = _HEAD
            raise TooLarge
        super().on_headers_complete()

    def _head_is_too_large(self) -> bool:
        # What has come bounds it from above, and saves counting the headers one by one.
        may_be = self._head_bytes + self._arriving > HEAD_BYTES
        return may_be and sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        """Note that the body goes on arriving."""
        self._body_at = self.loop.time()
        self._body_bytes += len(body)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the reason is known better here
        """Answer what is no request, or none within bounds, and close."""
        self._refuse(self._refusal)

    def _refuse(self, refusal: tuple[int, str, str]) -> None:
        status, phrase, detail = refusal
        body = msgspec.json.encode({"detail": detail})
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def close_if_slow(self, at: float, body_within_s: float) -> None:
        """Close when the other side takes too long for its head or body, or lets its body rest for too long.

        Call it every `LOOKED_AT_EVERY_S`.
        """
        if self.flow.read_paused:
            # Nobody here reads: that is not the other side's doing.
            self._body_since += LOOKED_AT_EVERY_S
            return
        if self._head_since is not None:
            if at - self._head_since > HEAD_WITHIN_S:
                self.transport.close()
            return
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return
        if at - self._body_at > BODY_QUIET_S:
            self.transport.close()
        elif at - self._body_since > body_within_s + self._body_bytes / LEAST_BYTES_PER_S:
            if cycle.response_started:
                self.transport.close()
            else:
                self._refuse(_SLOW)


async def close_slow(connections: set[Any], body_within_s: float = BODY_WITHIN_S) -> None:
    """Close connections that are too slow, for as long as this runs."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOKED_AT_EVERY_S)
        at = loop.time()
        for connection in list(connections):
            if isinstance(connection, BoundedProtocol):
                connection.close_if_slow(at, body_within_s)
