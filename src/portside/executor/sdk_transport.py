"""The transport of the SDK's clients without a URL: requests of httpx to the server that the code runs in.

It is imported with the first client, because most processes create none and do without httpx.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias

import httpx

from portside.kernel.http.in_process import InProcessRequest, ResponseCutOff, ResponseHead

Send: TypeAlias = "Callable[[InProcessRequest], Awaitable[tuple[ResponseHead, ResponseBody]]]"


class ResponseBody(Protocol):
    """The body of a response that arrives."""

    async def read(self) -> bytes | None:
        """Return the bytes that arrived since the last call; none at the end. Raises ConnectionError."""
        ...

    async def close(self) -> None:
        """Stop the request if it has not been answered completely."""
        ...


class ServerTransport(httpx.AsyncBaseTransport):
    """Carries requests of an HTTP client to the server by a function, which raises ConnectionError."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a call. Raises ConnectError if the server does not answer, and ReadError."""
        url = request.url
        raw_path, _, query = url.raw_path.partition(b"?")

        call = InProcessRequest(
            method=request.method,
            path=url.path,
            raw_path=raw_path,
            query=query,
            headers=request.headers.raw,
            body=await request.aread(),
        )
        try:
            head, body = await self._send(call)
        except ResponseCutOff as exc:
            raise httpx.ReadError(str(exc), request=request) from exc
        except ConnectionError as exc:
            raise httpx.ConnectError(str(exc), request=request) from exc

        return httpx.Response(head.status, headers=head.headers, stream=_Body(body))


class _Body(httpx.AsyncByteStream):
    """The body of a response, streamed."""

    def __init__(self, body: ResponseBody) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._body.read():
                yield data
        except ConnectionError as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def aclose(self) -> None:
        await self._body.close()
