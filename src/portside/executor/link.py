"""Calls in both directions over one stream of bytes, between an agent server and an executor process.

The stream is a unix socket; between machines it is one of gRPC (`agent/executors/core_api/session.py`).

A frame is the length of its payload (4 bytes, big-endian) and the payload: msgpack of `[kind, call, body]`. `kind` is
one of the constants below and `call` the caller's number for the call, 0 for frames of no call. Both sides may call,
and many calls are open at once. A call is answered by any number of items, then by a result or an error. A cancelled
call is answered as well, when its work has stopped.

Frames that are queued in one turn of the event loop are one write. What a peer does not read is bounded. A peer that
breaks the protocol is disconnected. A link belongs to one event loop and is not thread-safe.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import ormsgpack

log = logging.getLogger(__name__)

HELLO, CALL, ITEM, RESULT, ERROR, CANCEL, PING, PONG = range(8)
BIG_INTEGER = 1
MAX_INTEGER_DIGITS = 4000
HEADER_BYTES = 4
MAX_FRAME_BYTES = 256 * 1024 * 1024
MAX_QUEUED_BYTES = 2 * MAX_FRAME_BYTES
MAX_SERVED_CALLS = 10_000
HIGH_WATER_BYTES = 1024 * 1024
TOO_LARGE = "too_large"
"""The code of an error: a message has more bytes than a frame may have."""
_CALL_BODY = 2
_FRAME = 3

Handler = Callable[[Any, "ServedCall"], Awaitable[Any] | Any]
"""Serves a call: takes its body and the call, and returns the result or an awaitable of it."""


class Handlers(Protocol):
    """The handlers for the calls of a peer by method, most often a dict."""

    def get(self, method: str, /) -> Handler | None:
        """Return the handler of a method, or None."""
        ...


class LinkClosed(ConnectionError):
    """The connection to the peer ended before it answered."""


class CallFailed(Exception):
    """The peer answered a call with an error: a stable `code`, a `message` for people, and `fields` with details."""

    def __init__(self, code: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields = dict(fields or {})


class ProtocolBroken(Exception):
    """The peer sent what the protocol does not allow."""


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of a link: bytes of one frame, bytes that wait to be sent, and calls that are served at once."""

    frame_bytes: int = MAX_FRAME_BYTES
    queued_bytes: int = MAX_QUEUED_BYTES
    served_calls: int = MAX_SERVED_CALLS


@dataclass(slots=True, eq=False)
class _OpenCall:
    """A call that the peer has not answered yet."""

    answer: asyncio.Future[Any]
    on_item: Callable[[Any], None] | None = None
    failure: Exception | None = None


@dataclass(slots=True, eq=False)
class ServedCall:
    """A call of the peer while this side serves it."""

    link: "Link"
    number: int
    size: int
    work: asyncio.Future[Any] | None = None
    is_stopped: bool = False

    def stop(self) -> None:
        """Cancel its work, only once: a second cancellation would interrupt the cleanup that the first one started."""
        if self.work is not None and not self.is_stopped:
            self.is_stopped = True
            self.work.cancel()

    def send(self, item: Any, *, is_last: bool = False) -> None:
        """Send an item before the result. Raises CallFailed if it is too large; does nothing on a closed link.

        The last one is sent with the result, which must follow at once.
        """
        self.link.send_frame(ITEM, self.number, item, is_followed=is_last)

    async def drain(self) -> None:
        """Wait until the peer reads what it was sent. Raises LinkClosed."""
        await self.link.drain()


class Link(asyncio.Protocol):
    """One end of a connection. `handlers` serve the calls of the peer, by the names of their methods.

    `on_hello` gets the body of each hello of the peer, and `pong` returns what answers a ping.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        on_hello: Callable[[Any], None] | None = None,
        pong: Callable[[], Any] = lambda: None,
        limits: LinkLimits = LinkLimits(),
    ) -> None:
        self._handlers = handlers
        self._on_hello = on_hello
        self._pong = pong
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._is_flush_due = False
        self._writable: asyncio.Future[None] | None = None
        self._open: dict[int, _OpenCall] = {}
        self._served: dict[int, ServedCall] = {}
        self._served_bytes = 0

        self._pings: list[asyncio.Future[Any]] = []
        self._next = 1
        self._reason: str | None = None
        self.is_reading_paused = False
        """Whether this side has stopped reading, so that the peer waits."""
        self._closed: asyncio.Future[str] = self._loop.create_future()

        # Indexed by the kind of a frame.
        self._take: tuple[Callable[[int, Any, int], None], ...] = (
            self._take_hello,
            self._take_call,
            self._take_item,
            self._take_result,
            self._take_error,
            self._take_cancel,
            self._take_ping,
            self._take_pong,
        )

    # Calling

    async def call(self, method: str, body: Any = None, *, on_item: Callable[[Any], None] | None = None) -> Any:
        """Call a method of the peer and return its result; `on_item` gets the items before it, in their order.

        Cancelling this cancels the peer's work and waits until it has stopped. Raises CallFailed, LinkClosed, and what
        `on_item` raises.
        """
        if self._writable is not None:
            await self.drain()

        number = self._next
        self._next = self._next + 1
        open_call = _OpenCall(self._loop.create_future(), on_item)
        self.send_frame(CALL, number, (method, body))

        if self._reason is not None:
            raise LinkClosed(self._reason)

        self._open[number] = open_call
        try:
            answer = await open_call.answer
        except asyncio.CancelledError:
            await self._stop(number, open_call)
            raise

        if open_call.failure is not None:
            raise open_call.failure

        return answer

    async def _stop(self, number: int, open_call: _OpenCall) -> None:
        """Cancel a call, and wait until the peer has answered it."""
        if number in self._open:
            # Cancelling the caller has cancelled its future: the peer's answer gets a new one.
            open_call.answer = self._loop.create_future()
            self.send_frame(CANCEL, number, None)
            with suppress(CallFailed, LinkClosed):
                await open_call.answer

    async def ping(self) -> Any:
        """Send a ping, and return the body of the peer's pong. Raises LinkClosed."""
        pong: asyncio.Future[Any] = self._loop.create_future()
        self.send_frame(PING, 0, None)
        if self._reason is not None:
            raise LinkClosed(self._reason)

        self._pings.append(pong)
        return await pong

    def hello(self, body: Any) -> None:
        """Send the hello: what the peer has to know before its first call."""
        self.send_frame(HELLO, 0, body)

    async def drain(self) -> None:
        """Wait until the peer reads what it was sent. Raises LinkClosed."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

        if self._reason is not None:
            raise LinkClosed(self._reason)

    @property
    def calls_made(self) -> int:
        """How many methods of the peer were called."""
        return self._next - 1

    @property
    def is_congested(self) -> bool:
        """Whether the peer does not read what it was sent; any thread may ask."""
        return self._writable is not None

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`, so that the peer waits."""
        if self._transport is not None and not self.is_reading_paused:
            self.is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.is_reading_paused:
            self.is_reading_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._reason is not None

    async def wait_closed(self) -> str:
        """Wait until the connection has ended; return why."""
        return await asyncio.shield(self._closed)

    def close(self, reason: str = "closed by this side") -> None:
        """Send what is queued, then end the connection."""
        self._flush()
        if self._reason is None:
            self._reason = reason

        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        if self._reason is None:
            self._reason = reason

        self._queue.clear()
        if self._transport is not None:
            self._transport.abort()

    # Sending

    def send_frame(self, kind: int, number: int, body: Any, *, is_followed: bool = False) -> None:
        """Queue a frame. It is written at the end of this turn of the loop, or with the next frame if `is_followed`.

        Raises CallFailed if it is too large.
        """
        if self._reason is not None:
            return

        payload = encode((kind, number, body))
        size = len(payload)
        if size > self._limits.frame_bytes:
            raise CallFailed(TOO_LARGE, describe_size(size, self._limits.frame_bytes))

        if not (self._is_flush_due or is_followed):
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

        self._queue += (size.to_bytes(HEADER_BYTES, "big"), payload)
        self._queued_bytes += HEADER_BYTES + size
        if self._queued_bytes > HIGH_WATER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self._queue or self._transport is None:
            return

        queue = self._queue
        self._queue = []
        self._queued_bytes = 0
        self._transport.writelines(queue)

        if self._transport.get_write_buffer_size() > self._limits.queued_bytes:
            self.abort("the peer does not read")

    # The transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        # The transports of uvloop do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

        # Frames may have been queued before the connection was made.
        self._flush()

    def pause_writing(self) -> None:
        """Let senders wait; called by the event loop."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let senders continue; called by the event loop."""
        writable = self._writable
        self._writable = None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open calls and stop the served ones; called by the event loop."""
        reason = self._reason = self._reason or (f"connection lost: {exc}" if exc else "closed by the peer")
        self._transport = None
        self.resume_writing()
        unanswered = [open_call.answer for open_call in self._open.values()] + self._pings
        self._open = {}
        self._pings = []

        for answer in unanswered:
            if not answer.done():
                answer.set_exception(LinkClosed(reason))

        for served in list(self._served.values()):
            served.stop()

        self._closed.set_result(reason)

    def data_received(self, data: bytes) -> None:
        """Take the frames in what arrived; called by the event loop."""
        if self._received:
            self._received += data
            at = self._take_frames(self._received)
            del self._received[:at]
        else:
            at = self._take_frames(data)
            if at < len(data):
                self._received += memoryview(data)[at:]

    def _take_frames(self, data: bytes | bytearray) -> int:
        """Handle the complete frames of a buffer; return the position after the last one."""
        at = 0
        end = len(data)
        try:
            with memoryview(data) as view:
                while end - at >= HEADER_BYTES and self._reason is None:
                    start = at + HEADER_BYTES
                    size = self._check_size(int.from_bytes(view[at:start], "big"))
                    if end - start < size:
                        break

                    at = start + size
                    with view[start:at] as payload:
                        kind, number, body = _decode(payload, kinds=len(self._take))

                    self._take[kind](number, body, size)
        except ProtocolBroken as exc:
            log.warning("a peer broke the protocol and was disconnected: %s", exc)
            self.abort(f"the peer broke the protocol: {exc}")

        return at

    def _check_size(self, size: int) -> int:
        if size > self._limits.frame_bytes:
            raise ProtocolBroken(f"a frame of {size} bytes")
        return size

    def _take_hello(self, _number: int, body: Any, _size: int) -> None:
        if self._on_hello is None:
            raise ProtocolBroken("an unexpected hello")
        self._on_hello(body)

    def _take_ping(self, _number: int, _body: Any, _size: int) -> None:
        self.send_frame(PONG, 0, self._pong())

    def _take_pong(self, _number: int, body: Any, _size: int) -> None:
        if not self._pings:
            raise ProtocolBroken("a pong without a ping")

        pong = self._pings.pop(0)
        if not pong.done():
            pong.set_result(body)

    def _take_cancel(self, number: int, _body: Any, _size: int) -> None:
        # The result may have crossed the cancellation on the wire; then there is nothing to stop.
        served = self._served.get(number)
        if served is not None:
            served.stop()

    # Answers to this side's calls

    def _take_item(self, number: int, body: Any, _size: int) -> None:
        open_call = self._open.get(number)
        if open_call is None or open_call.on_item is None:
            raise ProtocolBroken("an item of a call that has none")
        if open_call.failure is not None:
            return

        try:
            open_call.on_item(body)
        except Exception as exc:  # noqa: BLE001 - raised in the caller, when the peer has stopped
            open_call.failure = exc
            self.send_frame(CANCEL, number, None)

    def _take_result(self, number: int, body: Any, _size: int) -> None:
        self._end(number, body, None)

    def _take_error(self, number: int, body: Any, _size: int) -> None:
        self._end(number, None, _read_failure(body))

    def _end(self, number: int, body: Any, failure: CallFailed | None) -> None:
        open_call = self._open.pop(number, None)
        if open_call is None:
            raise ProtocolBroken("an answer to no call")
        if open_call.answer.done():
            return

        error = open_call.failure or failure
        if error is None:
            open_call.answer.set_result(body)
        else:
            open_call.answer.set_exception(error)

    # The peer's calls

    def _take_call(self, number: int, body: Any, size: int) -> None:
        if type(body) is not list or len(body) != _CALL_BODY or type(body[0]) is not str or number in self._served:
            raise ProtocolBroken("a malformed call")
        if len(self._served) >= self._limits.served_calls or self._served_bytes > self._limits.queued_bytes:
            raise ProtocolBroken("too many calls at once")

        method, argument = body
        handler = self._handlers.get(method)
        if handler is None:
            self.fail(number, CallFailed("unknown_method", f"there is no method {method!r}"))
            return

        served = ServedCall(self, number, size)
        try:
            answer = handler(argument, served)
        except Exception as exc:  # noqa: BLE001 - answered to the caller
            self.fail(number, exc)
            return

        if not isinstance(answer, Awaitable):
            self._answer(number, answer)
            return

        self._served[number] = served
        self._served_bytes += size
        served.work = asyncio.ensure_future(answer)
        served.work.add_done_callback(partial(self._on_served, served))

    def _on_served(self, served: ServedCall, work: asyncio.Future[Any]) -> None:
        del self._served[served.number]
        self._served_bytes -= served.size

        failure = CallFailed("cancelled", "the call was cancelled") if work.cancelled() else work.exception()
        if failure is None:
            self._answer(served.number, work.result())
        else:
            self.fail(served.number, failure)

    def _answer(self, number: int, answer: Any) -> None:
        try:
            self.send_frame(RESULT, number, answer)
        except (CallFailed, ormsgpack.MsgpackEncodeError) as exc:
            self.fail(number, exc)

    def fail(self, number: int, failure: BaseException) -> None:
        """Answer a call with an error. One that is not a CallFailed is logged, and sent as its class and its text."""
        if not isinstance(failure, CallFailed):
            log.error("a call could not be served", exc_info=failure)
            failure = CallFailed("internal", f"{type(failure).__name__}: {failure}")

        try:
            self.send_frame(ERROR, number, {"code": failure.code, "message": failure.message, "fields": failure.fields})
        except (CallFailed, ormsgpack.MsgpackEncodeError):
            self.send_frame(ERROR, number, {"code": failure.code, "message": "the error has no encodable text"})


def describe_size(size: int, limit: int) -> str:
    """Describe a message that is too large, for people."""
    return f"a message between the server and an executor has {size} bytes, more than {limit}"


def encode(value: Any) -> bytes:
    """Encode plain data, dataclasses and integers of any size as msgpack. Raises MsgpackEncodeError."""
    return ormsgpack.packb(value, default=_encode_other, option=ormsgpack.OPT_PASSTHROUGH_BIG_INT)


def decode(data: bytes | memoryview) -> Any:
    """Decode msgpack. Raises ProtocolBroken."""
    try:
        return ormsgpack.unpackb(data, ext_hook=_decode_other)
    except ValueError as exc:
        raise ProtocolBroken(f"a frame that is not msgpack: {exc}") from exc


def _decode(payload: memoryview, *, kinds: int) -> tuple[int, int, Any]:
    """Decode a frame into its kind, the number of its call and its body. Raises ProtocolBroken."""
    frame = decode(payload)
    if type(frame) is not list or len(frame) != _FRAME or type(frame[0]) is not int or type(frame[1]) is not int:
        raise ProtocolBroken("a frame is not [kind, call, body]")
    if not 0 <= frame[0] < kinds:
        raise ProtocolBroken(f"a frame of the unknown kind {frame[0]}")

    return frame[0], frame[1], frame[2]


def _read_failure(body: Any) -> CallFailed:
    """Read the body of an error frame. Raises ProtocolBroken."""
    if type(body) is not dict or type(body.get("code")) is not str or type(body.get("message")) is not str:
        raise ProtocolBroken("a malformed error")

    fields = body.get("fields")
    return CallFailed(body["code"], body["message"], fields if type(fields) is dict else None)


def _encode_other(value: Any) -> Any:
    """Encode values that msgpack has no form for: integers of more than 64 bits, and named tuples."""
    if isinstance(value, tuple):
        return tuple(value)

    if isinstance(value, int):
        digits = str(value).encode()
        if len(digits) > MAX_INTEGER_DIGITS:
            # Refused here, because the peer would disconnect, and every call of the link would fail.
            raise ValueError(f"an integer of {len(digits)} digits cannot be sent, only {MAX_INTEGER_DIGITS}")

        return ormsgpack.Ext(BIG_INTEGER, digits)

    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _decode_other(tag: int, data: bytes) -> int:
    if tag != BIG_INTEGER or len(data) > MAX_INTEGER_DIGITS:
        raise ValueError("an extension of an unknown type")
    return int(data)
