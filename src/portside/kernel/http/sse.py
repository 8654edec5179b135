"""Server-sent events, by a response of our own: an event costs a quarter of its cost in the usual package (docs/why).

A source yields chunks of encoded events. Each chunk is one write, so a source joins the events that are ready. The
response detects a disconnected client, and sends a comment after a while without events.

When a source ends, its response is complete. When a source continues on another server, it raises `StreamCut`: then
the connection is closed after a whole event, without the mark that ends a response. Clients take a response with that
mark for complete, and would not connect again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from prometheus_client import Gauge
from starlette.responses import Response

KEEP_ALIVE_S = 5.0
# Large chunks are sent in parts of this size, so that a connection buffers little for a client that does not read.
PART_BYTES = 64 * 1024
# The name of an ASGI extension: a function that closes the connection when all that was written is sent.
CLOSE_CONNECTION = "portside.close_connection"
OPEN = Gauge("lg_api_streams_open", "Responses that are being streamed: events, and results that are waited for.")
KEEP_ALIVE = b": heartbeat\r\n\r\n"


class StreamCut(Exception):
    """The stream is not over, but this server sends no more of it. Clients get the rest from the next server."""


def sse_event(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """Encode one event: fields in the order event, data, id, lines end in CRLF, as clients of the API parse it."""
    parts = [b"event: ", event.encode(), b"\r\ndata: ", data, b"\r\n"]
    if event_id is not None:
        parts += [b"id: ", event_id.encode(), b"\r\n"]

    return b"".join([*parts, b"\r\n"])


class EventStream(Response):
    """Streams chunks of bytes until the source ends or the client goes."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        keep_alive: bytes = KEEP_ALIVE,
        media_type: str | None = None,
    ) -> None:
        super().__init__(headers=dict(headers or {}), media_type=media_type or "text/event-stream")
        del self.headers["content-length"]
        self.headers.setdefault("cache-control", "no-store")
        self.headers.setdefault("x-accel-buffering", "no")

        self._source = source
        self._keep_alive = keep_alive

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the head, then chunks. The source is always closed, however the stream ends."""
        with OPEN.track_inprogress():
            is_cut = False
            disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._pump(send, disconnect)
            except StreamCut:
                is_cut = True
            finally:
                disconnect.cancel()
                close = getattr(self._source, "aclose", None)
                if close is not None:
                    await close()

            if is_cut:
                await _cut(scope, receive, send)
            elif not disconnect.done() or disconnect.cancelled():
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Any, disconnect: asyncio.Future[Any]) -> None:
        """Send chunks until the source ends or the client disconnects."""
        pending: asyncio.Future[Any] | None = None
        try:
            while not disconnect.done():
                pending = pending or asyncio.ensure_future(anext(self._source, b""))
                await asyncio.wait([pending, disconnect], timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)

                if not pending.done():
                    if disconnect.done():
                        return

                    await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                    continue

                chunk = pending.result()
                pending = None
                if not chunk:
                    return

                for begin in range(0, len(chunk), PART_BYTES):
                    piece = chunk if len(chunk) <= PART_BYTES else chunk[begin : begin + PART_BYTES]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await pending


async def _cut(scope: Any, receive: Any, send: Any) -> None:
    """Close the connection of an incomplete response; where that is impossible, the server does it on our return."""
    close = (scope.get("extensions") or {}).get(CLOSE_CONNECTION)
    if close is None:
        return

    # Middleware may forward chunks from its own task. Once it accepts this empty chunk, it has sent all earlier ones.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    close()

    # The server logs an error, or middleware completes the response, if this returns before the connection is closed.
    await _wait_for_disconnect(receive)


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
