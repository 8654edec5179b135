"""ASGI over a link: one side has a client, the other the application that answers it. Either side may be which.

The side with the client makes a call with the scope (`send_request`). The application's messages are the items of the
call. To receive a message from its client, the application makes a call in the other direction, which names the
exchange. So a body that the application does not read is never sent, and an application waits for a slow client.

An exchange belongs to the event loop of its client, which need not be that of the link.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from portside.executor.errors import to_call_failed, to_error
from portside.executor.link import CallFailed
from portside.executor.loops import CrossLoopCall
from portside.kernel.errors import PortsideError
from portside.kernel.http.in_process import PREFIX
from portside.kernel.tasks import cancel_and_wait

RECEIVE = "asgi.receive"
DRAIN = "asgi.drain"
DISCONNECTED = "client_disconnected"
EXCHANGE = "portside.exchange"
"""The key of a scope that has the number of the exchange with its client."""
_SENT_KEYS = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
    "subprotocols",
    PREFIX,
    "path_params",
)
_EXTENSIONS = frozenset({"websocket.http.response"})
"""The extensions that need nothing but messages."""
_PAIRS = ("client", "server")
UNREAD_BYTES = 256 * 1024
"""How much of a response may be under way before its application waits for the client."""
PIECE_BYTES = 8 * 1024 * 1024
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
OnItem = Callable[[Any], None]


class Peer(Protocol):
    """The other end of a link."""

    async def call(self, method: str, body: Any = None, *, on_item: OnItem | None = None) -> Any:
        """Call a method and return its result; `on_item` gets the items before it. Raises CallFailed and LinkClosed."""
        ...


class CrossLoopPeer:
    """The other end of a link that belongs to another event loop than its callers."""

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop

    async def call(self, method: str, body: Any = None, *, on_item: OnItem | None = None) -> Any:
        """Call a method from any loop."""
        caller_loop = asyncio.get_running_loop()

        def take(item: Any) -> None:
            if on_item is not None:
                caller_loop.call_soon_threadsafe(on_item, item)

        call = CrossLoopCall(self._loop, self._peer.call(method, body, on_item=take if on_item else None))
        try:
            return await call.result
        except asyncio.CancelledError:
            await call.stop()
            raise


class Exchange:
    """A request or a WebSocket whose client is on this side. `scope` is the one that the client's server made."""

    def __init__(self, number: int, scope: Any, receive: Receive) -> None:
        self.number = number
        self.scope = scope
        self.receive = receive
        self.context = contextvars.copy_context()
        self._messages: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def put(self, messages: Any) -> None:
        """Queue messages of the application for the client."""
        self._messages.extend(messages)
        self._is_idle.clear()
        self._changed.set()

    async def drain(self) -> None:
        """Wait until the client was sent all messages."""
        await self._is_idle.wait()

    async def send_all(self, send: Send) -> None:
        """Send the application's messages to the client as they come; cancel this after the last one."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._messages:
                await send(decode_message(self._messages.popleft()))

            self._is_idle.set()


class Exchanges:
    """The exchanges whose clients are on this side."""

    def __init__(self) -> None:
        self._open: dict[int, Exchange] = {}
        self._numbers = count(1)

    @contextmanager
    def open(self, scope: Any, receive: Receive) -> Iterator[Exchange]:
        """Let the other side ask the client of a scope for messages."""
        exchange = Exchange(next(self._numbers), scope, receive)
        self._open[exchange.number] = exchange
        try:
            yield exchange
        finally:
            del self._open[exchange.number]

    def find(self, number: Any) -> Exchange:
        """Return an exchange. Raises CallFailed after its end."""
        exchange = self._open.get(number) if isinstance(number, int) else None
        if exchange is None:
            raise CallFailed("closed", "the exchange is over")

        return exchange

    async def receive(self, number: Any) -> Any:
        """Return the next message of a client, for the other side. Raises CallFailed."""
        return await await_answer(self.find(number).receive())

    async def drain(self, number: Any) -> None:
        """Wait until a client was sent all messages. Raises CallFailed."""
        await self.find(number).drain()


async def await_answer(work: Awaitable[Any]) -> Any:
    """Await work. Raises CallFailed for an error that the other side understands."""
    try:
        return await work
    except PortsideError as exc:
        raise to_call_failed(exc) from exc
    except Exception as exc:
        # Starlette's, of either side: it may be another version there.
        if type(exc).__name__ != "ClientDisconnect":
            raise
        raise CallFailed(DISCONNECTED, "the client disconnected") from exc


async def send_request(peer: Peer, method: str, body: Mapping[str, Any], exchange: Exchange, send: Send) -> Any:
    """Have the other side answer the client of an exchange, and return the result.

    Raises CallFailed, LinkClosed, and the errors of `send`.
    """
    sending = asyncio.create_task(exchange.send_all(send))
    request = {**body, "exchange": exchange.number, "scope": encode_scope(exchange.scope)}
    call = asyncio.create_task(peer.call(method, request, on_item=exchange.put))

    try:
        await asyncio.wait([call, sending], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            # The client cannot be sent anything: the application is stopped.
            await sending

        drained = asyncio.create_task(exchange.drain())
        await asyncio.wait([drained, sending], return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()

        if sending.done():
            await sending

        return await call
    finally:
        await cancel_and_wait(sending, call)


class Application:
    """An application's side of one exchange: what it receives from its client and sends to it."""

    def __init__(self, peer: Peer, number: int, send_items: OnItem) -> None:
        self._peer = peer
        self._number = number
        self._send_items = send_items
        self._unread = 0

    async def receive(self) -> Any:
        """Return the next message of the client. Raises LinkClosed, and the errors of the client's side."""
        try:
            return decode_message(await self._peer.call(RECEIVE, self._number))
        except CallFailed as exc:
            raise to_error(exc) from exc

    async def send(self, message: Any) -> None:
        """Send a message to the client, and wait if it reads slowly."""
        for piece in encode_message(message):
            self._send_items([piece])
            self._unread += len(piece.get("body") or piece.get("bytes") or piece.get("text") or b"")
            if self._unread > UNREAD_BYTES:
                await self._peer.call(DRAIN, self._number)
                self._unread = 0


def encode_message(message: Any) -> Iterator[dict[str, Any]]:
    """Yield a message as the link carries it, a large body in pieces."""
    plain = dict(message)
    if message["type"] == "http.response.body":
        body = bytes(message.get("body", b""))
        is_open = message.get("more_body", False)

        while len(body) > PIECE_BYTES:
            yield {**plain, "body": body[:PIECE_BYTES], "more_body": True}
            body = body[PIECE_BYTES:]

        yield {**plain, "body": body, "more_body": is_open}
        return

    if "headers" in plain:
        plain["headers"] = [(bytes(name), bytes(value)) for name, value in plain["headers"]]

    if isinstance(plain.get("bytes"), (bytearray, memoryview)):
        plain["bytes"] = bytes(plain["bytes"])

    yield plain


def encode_scope(scope: Any) -> dict[str, Any]:
    """Return the keys of a scope that the other side gets, as the link carries them."""
    encoded = {key: scope[key] for key in _SENT_KEYS if key in scope}
    extensions = scope.get("extensions") or {}
    if not _EXTENSIONS.isdisjoint(extensions):
        encoded["extensions"] = {name: {} for name in extensions if name in _EXTENSIONS}

    return encoded


def decode_scope(scope: Any) -> dict[str, Any]:
    """Return a scope as the other side sent it, in the types of ASGI. Raises CallFailed."""
    if type(scope) is not dict or "type" not in scope:
        raise CallFailed("malformed", "a request without a scope")

    keys = [key for key in (*_SENT_KEYS, "extensions") if key in scope]
    decoded: dict[str, Any] = decode_message({key: scope[key] for key in keys})
    for key in _PAIRS:
        if type(decoded.get(key)) is list:
            decoded[key] = tuple(decoded[key])

    return decoded


def decode_message(message: Any) -> Any:
    """Return a message as the other side sent it, in the types of ASGI: headers are pairs."""
    if "headers" in message:
        message["headers"] = [(name, value) for name, value in message["headers"]]
    return message
