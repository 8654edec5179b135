"""What a connection may ask for and how long it may take to say so, before any application sees it.

The head of a request is bounded in size, number of headers and time; its body, whose size the application bounds
(`middleware.LimitBody`), must go on arriving. Connections that are slower are closed: they would cost nothing to keep
open on the other side, and each holds memory and a descriptor here.
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
LOOKED_AT_EVERY_S = 2.0
_MALFORMED = (400, "Bad Request", "Invalid HTTP request received.")
_TARGET = (414, "URI Too Long", f"The path and query of a request may have {TARGET_BYTES} bytes.")
_HEAD = (
    431, "Request Header Fields Too Large",
    f"The headers of a request may be {HEADERS}, and have {HEAD_BYTES} bytes together.",
)  # fmt: skip


class TooLarge(Exception):
    """The head of a request is beyond its bounds."""


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP with those who keep to the bounds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection; the time for its first request begins as well."""
        super().connection_made(transport)
        self._refusal = _MALFORMED
        self._head_bytes = 0
        self._head_since: float | None = self.loop.time()
        self._body_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Take what came. A head that is not over and too large already is refused."""
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
        self._body_at = self.loop.time()
        if len(self.url) > TARGET_BYTES:
            self._refusal = _TARGET
            raise TooLarge
        size = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > HEADERS or size > HEAD_BYTES:
            self._refusal = _HEAD
            raise TooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that the body goes on arriving."""
        self._body_at = self.loop.time()
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

    def is_too_slow(self, at: float) -> bool:
        """Whether the other side has taken too long for its head, or let its body rest for too long."""
        if self.flow.read_paused:
            return False
        if self._head_since is not None:
            return at - self._head_since > HEAD_WITHIN_S
        cycle = self.cycle
        is_awaited = cycle is not None and cycle.more_body and not cycle.response_complete
        return is_awaited and at - self._body_at > BODY_QUIET_S


async def close_slow(connections: set[Any]) -> None:
    """Close connections that are too slow, for as long as this runs."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOKED_AT_EVERY_S)
        at = loop.time()
        for connection in list(connections):
            if isinstance(connection, BoundedProtocol) and connection.is_too_slow(at):
                connection.transport.close()
