"""`get_client()` of the SDK without a URL: a client of the server that the code runs in.

The clients work once the server runs, from any event loop.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx

from portside.executor.sdk_modules import SdkCache, install_sdk_modules
from portside.executor.user import current_user
from portside.kernel.http.in_process import (
    InProcessRequest,
    InProcessResponse,
    InProcessServer,
    ResponseCutOff,
    ServerNotRunning,
)

# The SDK creates clients without arguments, so there is one entry point for the whole process.
LOOPBACK = InProcessServer()


def let_sdk_find_server(cache: SdkCache) -> None:
    """Let the SDK's clients without a URL call this server, and its functions find this cache."""
    install_sdk_modules(LOOPBACK, LoopbackTransport, cache)


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Carries requests of an HTTP client to the server of this process."""

    def __init__(self, app: Any = None, **options: Any) -> None:
        """Accept the SDK's arguments; there is only one server to call, and one root path."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a call. Raises ConnectError if no server runs in this process, and ReadError."""
        url = request.url
        raw_path, _, query = url.raw_path.partition(b"?")
        call = InProcessRequest(
            request.method, url.path, raw_path, query, request.headers.raw, await request.aread(), current_user()
        )
        try:
            head, exchange = await LOOPBACK.send(call)
        except ServerNotRunning as exc:
            raise httpx.ConnectError(str(exc), request=request) from exc
        except ResponseCutOff as exc:
            raise httpx.ReadError(str(exc), request=request) from exc
        return httpx.Response(head.status, headers=head.headers, stream=_ResponseStream(exchange))


class _ResponseStream(httpx.AsyncByteStream):
    """The body of a response, streamed."""

    def __init__(self, exchange: InProcessResponse) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._exchange.read():
                yield data
        except ConnectionError as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def aclose(self) -> None:
        await self._exchange.close()
