"""Connections that send what is written in one turn of the event loop at once.

An answer is written in two pieces, its head and its body, and each would be a packet of its own; sending is what a
small answer costs most. A stream gains as well when several events come together.
"""

import asyncio
from typing import Any, cast

from portside.kernel.http.bounds import BoundedProtocol

GATHERED_AT_MOST_BYTES = 64 * 1024


class GatheringProtocol(BoundedProtocol):
    """Speaks HTTP over a transport that gathers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection."""
        super().connection_made(cast("asyncio.Transport", Gathering(transport)))


class Gathering:
    """A transport that gathers what is written, up to a bound; all else is that of the transport behind it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._gathered: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether the transport behind it is closing."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send data with all that is written in this turn."""
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > GATHERED_AT_MOST_BYTES:
            self._send()

    def close(self) -> None:
        """Send what was written and close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._gathered:
            data, self._gathered, self._size = b"".join(self._gathered), [], 0
            self._transport.write(data)
