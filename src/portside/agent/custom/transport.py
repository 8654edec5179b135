"""The transport of the SDK's clients of this very server: requests become calls inside the process."""

from collections.abc import AsyncIterator
from typing import Any

import httpx

from portside.agent.custom.loopback import INSIDE
from portside.agent.graphs.acting import acting_for
from portside.kernel.http.inside import BrokeOff, Call, Exchange, NotServing


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Carries requests of an HTTP client to the server of this process."""

    def __init__(self, app: Any = None, **options: Any) -> None:
        """Take what the SDK gives its transports; there is only one server to call, and one root path."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a call. Raises ConnectError when no server runs in this process, and ReadError."""
        url = request.url
        raw_path, _, query = url.raw_path.partition(b"?")
        call = Call(request.method, url.path, raw_path, query, request.headers.raw, await request.aread(), acting_for())
        try:
            head, exchange = await INSIDE.ask(call)
        except NotServing as exc:
            raise httpx.ConnectError(str(exc), request=request) from exc
        except BrokeOff as exc:
            raise httpx.ReadError(str(exc), request=request) from exc
        return httpx.Response(head.status, headers=head.headers, stream=_Answer(exchange))


class _Answer(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._exchange.next():
                yield data
        except ConnectionError as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def aclose(self) -> None:
        await self._exchange.leave()
