"""A link over a gRPC stream of the core API.

Frames that are queued while a message is being sent go together into the next message. While the peer does not read,
callers and senders of items wait (`drain`), and `on_congestion` tells the bridge to stop reading. While too many bytes
of an executor's calls are unanswered, nothing more is read from it. Messages have at most `MAX_MESSAGE_BYTES`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from grpc.aio import EOF

from portside.agent.executors.core_api.codec import GO_AWAY, decode_frame, encode_frame, parse_frames
from portside.executor import link as links
from portside.executor.link import CallFailed, Handlers, Link, LinkLimits, ProtocolBroken, ServedCall

MAX_MESSAGE_BYTES = 128 * 1024 * 1024
# A message is one frame of any size, or several of up to this.
BATCH_BYTES = 1024 * 1024
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES - 1024
READ_AHEAD_BYTES = 16 * 1024 * 1024
LIMITS = LinkLimits(frame_bytes=MAX_FRAME_BYTES, queued_bytes=2 * MAX_MESSAGE_BYTES)
END_WITHIN_S = 5.0
SESSION = "/portside.core.v1.Core/Session"
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
_FRAMES_TAG = b"\x0a"
_ANSWERS = frozenset({links.ITEM, links.RESULT, links.ERROR})
_MALFORMED = (TypeError, ValueError, KeyError, AttributeError)


class PeerSession(Link):
    """One end of a session. Make it on the loop that runs it."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        is_executor: bool,
        on_hello: Callable[[Any], None],
        pong: Callable[[], Any] = lambda: None,
        on_congestion: Callable[[bool], None] = lambda _is_congested: None,
    ) -> None:
        super().__init__(handlers, on_hello=on_hello, pong=pong, limits=LIMITS)
        self.close_reason: str | None = None
        """Why the peer ended the session, as it says."""
        self.was_planned = False
        """Whether the peer ended it on purpose, so that no run is to blame."""
        self.heard_at = self._loop.time()
        """When the peer last sent something, by the clock of the loop."""

        self._is_executor = is_executor
        self._on_congestion = on_congestion
        self._take = (*self._take, self._take_go_away)
        self._outgoing: deque[bytes] = deque()
        self._methods: dict[int, str] = {}
        self._has_frames = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._is_ending = False
        self._aborted: asyncio.Future[None] = self._loop.create_future()

        # `Link` closes and aborts its transport.
        self._transport = cast("asyncio.Transport", _SessionTransport(self))

    async def run(
        self,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[Any]],
        done_writing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Carry frames in both directions until either side ends the session. Raises AioRpcError if gRPC fails."""
        reading = asyncio.create_task(self._read_all(read))
        writing = asyncio.create_task(self._write_all(write))
        reason: Exception | None = None
        try:
            await asyncio.wait([reading, writing, self._aborted], return_when=asyncio.FIRST_COMPLETED)

            if writing.done() and writing.exception() is None and not self._aborted.done():
                if done_writing is not None:
                    await done_writing()
                await asyncio.wait([reading, self._aborted], timeout=END_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)

            for task in (reading, writing):
                if task.done() and (failure := task.exception()) is not None:
                    reason = cast("Exception", failure)
                    raise failure
        finally:
            for task in (reading, writing):
                task.cancel()

            # First, because gRPC may not end a read that is cancelled while its call is: the loss would stay unknown.
            self.connection_lost(reason)
            ended_tasks, _ = await asyncio.wait([reading, writing], timeout=END_WITHIN_S)
            for task in ended_tasks:
                # Its failure is the reason above, or comes of the cancellation.
                _ = task.cancelled() or task.exception()

    @property
    def unfinished(self) -> list[asyncio.Future[Any]]:
        """The work for the peer's calls that has not ended yet."""
        return [served.work for served in self._served.values() if served.work is not None]

    # Sending

    def send_frame(self, kind: int, number: int, body: Any, *, is_followed: bool = False) -> None:  # noqa: ARG002 - it is sent soon
        """Queue a frame. Raises CallFailed if it is too large, or not of its method's types."""
        if self._reason is not None:
            return

        # Only for answers: both sides count their calls from 1.
        method = self._methods.get(number) if kind in _ANSWERS else None
        try:
            data = encode_frame(kind, number, body, method=method, is_executor=self._is_executor)
        except _MALFORMED as exc:
            call_name = body[0] if kind == links.CALL else method
            raise CallFailed("malformed", f"the message for {call_name} cannot be encoded: {exc}") from exc

        if len(data) > self._limits.frame_bytes:
            raise CallFailed(links.TOO_LARGE, links.describe_size(len(data), self._limits.frame_bytes))

        if kind in (links.RESULT, links.ERROR):
            self._methods.pop(number, None)

        self._outgoing.append(data)
        self._queued_bytes += len(data)
        self._has_frames.set()

        if self._queued_bytes > self._limits.queued_bytes:
            self.abort("the peer does not read")
        elif self._queued_bytes > links.HIGH_WATER_BYTES and self._writable is None:
            self.pause_writing()
            self._on_congestion(True)

    def close(self, reason: str = "closed by this side", *, is_planned: bool = True) -> None:
        """Send what is queued and the reason, then end the session."""
        if self._reason is None:
            self.send_frame(GO_AWAY, 0, {"reason": reason, "is_planned": is_planned})
        super().close(reason)

    def end(self) -> None:
        """End the stream when what is queued has been sent."""
        self._is_ending = True
        self._has_frames.set()

    def end_now(self) -> None:
        """End the stream at once."""
        if not self._aborted.done():
            self._aborted.set_result(None)

    def _flush(self) -> None:
        # Frames go out by themselves.
        pass

    async def _write_all(self, write: Callable[[bytes], Awaitable[Any]]) -> None:
        while True:
            while self._outgoing:
                batch: list[bytes] = []
                size = 0
                while self._outgoing and (not batch or size + len(self._outgoing[0]) <= BATCH_BYTES):
                    frame = self._outgoing.popleft()
                    # Written as protobuf encodes the list in `Frames`, so that each frame is encoded only once.
                    batch += (_FRAMES_TAG, _varint(len(frame)), frame)
                    size += len(frame)

                await write(b"".join(batch))
                self._queued_bytes -= size
                if self._writable is not None and self._queued_bytes <= links.HIGH_WATER_BYTES // 2:
                    self.resume_writing()
                    self._on_congestion(False)

            if self._is_ending:
                return

            self._has_frames.clear()
            await self._has_frames.wait()

    # Receiving

    async def _read_all(self, read: Callable[[], Awaitable[Any]]) -> None:
        while (data := await read()) is not EOF:
            self.heard_at = self._loop.time()
            try:
                for frame in parse_frames(data).frames:
                    kind, number, body = decode_frame(frame)
                    self._take[kind](number, body, frame.ByteSize())
            except ProtocolBroken as exc:
                links.log.warning("a peer broke the protocol and was disconnected: %s", exc)
                self.abort(f"the peer broke the protocol: {exc}")
                return

            # Only the orchestrator pauses. An executor must read on, or the runs that it serves could not end; its
            # slots limit how many it gets.
            while self._served_bytes > READ_AHEAD_BYTES and not self._is_executor:
                self.is_reading_paused = True
                self._has_capacity.clear()
                await self._has_capacity.wait()

            self.is_reading_paused = False

    def _take_call(self, number: int, body: Any, size: int) -> None:
        self._methods[number] = body[0]
        super()._take_call(number, body, size)

    def _on_served(self, served: ServedCall, work: asyncio.Future[Any]) -> None:
        super()._on_served(served, work)
        self._has_capacity.set()

    def _take_go_away(self, _number: int, body: Any, _size: int) -> None:
        self.close_reason = str(body["reason"])[:1000]
        self.was_planned = bool(body["is_planned"])
        if self._reason is None:
            self._reason = self.close_reason

        self.end()


class _SessionTransport:
    """The part of `asyncio.Transport` that a link uses."""

    def __init__(self, session: PeerSession) -> None:
        self._session = session

    def close(self) -> None:
        self._session.end()

    def abort(self) -> None:
        self._session.end_now()


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7

    data.append(number)
    return bytes(data)
