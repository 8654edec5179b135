"""The server in an executor process, for LangGraph's SDK: the client of `get_client()` without a URL, and the cache."""

import asyncio
from collections.abc import Awaitable
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from portside.executor import messages
from portside.executor.link import CallFailed, LinkClosed, ServedCall
from portside.executor.loops import CrossLoopCall
from portside.executor.sdk_modules import SdkCache, install_sdk_modules
from portside.executor.server_calls import ServerCalls, current_call
from portside.kernel.http.in_process import InProcessRequest, ResponseHead

if TYPE_CHECKING:
    from portside.executor.sdk_transport import ResponseBody

_servers: list[ServerCalls] = []
# The exchanges whose responses the server sends, by the numbers that it knows them by.
_exchanges: "WeakValueDictionary[int, _Exchange]" = WeakValueDictionary()
_numbers = count(1)


def let_sdk_find(server: ServerCalls) -> None:
    """Let the SDK's clients without a URL call this server."""
    _servers[:] = [server]
    install_sdk_modules(server, _send, SdkCache(ServerCache(server)))


def drain_response(number: Any, _call: ServedCall) -> Awaitable[None]:
    """Serve the server's call: wait until its response was read as far as it has arrived.

    Raises CallFailed after the end of the exchange.
    """
    exchange = _exchanges.get(number) if isinstance(number, int) else None
    if exchange is None or exchange.is_abandoned:
        raise CallFailed("closed", "the exchange is over")

    return exchange.drain()


class ServerCache:
    """The entries of the server's cache, over the link."""

    def __init__(self, server: ServerCalls) -> None:
        self._server = server

    async def read(self, key: str) -> tuple[str, float] | None:
        """Return the JSON of an entry and its age in seconds, or None. Raises ValueError."""
        entry = await self._server.call(messages.CACHE_READ, key)
        return None if entry is None else (entry[0], entry[1])

    async def write(self, key: str, content: str, ttl_s: float) -> None:
        """Store JSON for a time. Raises ValueError for a bad value or key."""
        await self._server.call(messages.CACHE_WRITE, (key, content, ttl_s))


async def _send(request: InProcessRequest) -> "tuple[ResponseHead, ResponseBody]":
    """Send a request to the server. Raises ConnectionError if it does not answer."""
    exchange = _Exchange(_servers[0])
    status, headers = await exchange.begin(
        messages.HttpRequest(
            call=current_call.get(),
            method=request.method,
            path=request.path,
            raw_path=request.raw_path,
            query=request.query,
            headers=[(bytes(name), bytes(value)) for name, value in request.headers],
            body=request.body,
            exchange=exchange.number,
        )
    )

    return ResponseHead(status, [(name, value) for name, value in headers]), exchange


class _Exchange:
    """A request and its response: items arrive on the loop of the link, and are read on the caller's."""

    def __init__(self, server: ServerCalls) -> None:
        self.number = next(_numbers)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self._was_read = asyncio.Event()
        self._call: CrossLoopCall[Any] | None = None

    async def begin(self, request: messages.HttpRequest) -> Any:
        """Send the request; return the status and the headers. Raises ConnectionError."""
        work = self._server.link.call(messages.HTTP_REQUEST, request, on_item=self._take)
        _exchanges[self.number] = self
        self._call = CrossLoopCall(self._server.loop, work)
        self._call.result.add_done_callback(self._end)

        try:
            return await self.read()
        except asyncio.CancelledError:
            await self.close()
            raise

    async def read(self) -> Any:
        """Return the next item, None at the end. Raises ConnectionError."""
        item = await self._items.get()
        if self._items.empty():
            self._was_read.set()

        if isinstance(item, CallFailed):
            raise ConnectionError(str(item)) from item
        if isinstance(item, Exception):
            raise item

        return item

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody can read the response any more."""
        return self._loop.is_closed()

    async def drain(self) -> None:
        """Wait until all items that have arrived were read; on the loop of the link."""
        # Items cross to the caller's loop in the order in which this call does, so they are in the queue before it.
        call = CrossLoopCall(self._loop, self._wait_until_read())
        try:
            await call.result
        except asyncio.CancelledError:
            await call.stop()
            raise

    async def _wait_until_read(self) -> None:
        while not self._items.empty():
            self._was_read.clear()
            await self._was_read.wait()

    async def close(self) -> None:
        """Stop the request if it is under way."""
        if self._call is not None and not self._call.result.done():
            await self._call.stop()

    def _take(self, item: Any) -> None:
        self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def _end(self, result: "asyncio.Future[Any]") -> None:
        _exchanges.pop(self.number, None)
        failure = LinkClosed("the request was cancelled") if result.cancelled() else result.exception()
        self._items.put_nowait(failure)
