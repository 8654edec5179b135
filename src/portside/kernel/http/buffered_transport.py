"""A transport that joins small writes, and the protocol over it."""

import asyncio
from typing import Any, cast

from portside.kernel.http.protocol import BoundedProtocol

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
        if not self._buffer:
            return

        data = b"".join(self._buffer)
        self._buffer = []
        self._size = 0

        # The client may have disconnected since. Some closed transports raise on a write.
        if not self._transport.is_closing():
            self._transport.write(data)
