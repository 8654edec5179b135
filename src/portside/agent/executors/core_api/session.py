"""A link between machines: the same frames as on one machine, in a stream of gRPC.

A message of the stream is the next piece of the bytes that a unix socket would carry (`executor/link.py`), wherever
frames begin and end. While the peer does not read, callers and senders of items wait (`drain`), and `on_congestion`
tells the bridge to stop reading. While too many bytes of an executor's calls are unanswered, nothing more is read from
it. A frame has at most `MAX_FRAME_BYTES`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from grpc.aio import EOF

from portside.executor import link as links
from portside.executor import messages
from portside.executor.link import CallFailed, Handlers, Link, LinkLimits, ProtocolBroken, ServedCall
from portside.executor.messages import GoAway

MAX_FRAME_BYTES = 128 * 1024 * 1024
# gRPC refuses messages of more than 4 MB.
PIECE_BYTES = 1024 * 1024
READ_AHEAD_BYTES = 16 * 1024 * 1024
LIMITS = LinkLimits(frame_bytes=MAX_FRAME_BYTES, queued_bytes=2 * MAX_FRAME_BYTES)
END_WITHIN_S = 5.0
SERVICE = "portside.core.v1.Core"
METHOD = "Link"
EARLIER_METHOD = "Session"
"""What executor servers of earlier versions call: its messages were in protobuf."""
LINK = f"/{SERVICE}/{METHOD}"
GO_AWAY = links.PONG + 1
"""The kind of a frame that ends the stream, and says why; links on one machine close their socket."""


class PeerSession(Link):
    """One end of a link between machines. Make it on the loop that runs it."""

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
        self._has_capacity = asyncio.Event()
        self._outgoing = _Outgoing(self)
        self.connection_made(self._outgoing)

    async def run(
        self,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[Any]],
        done_writing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Carry frames in both directions until either side ends the session. Raises AioRpcError if gRPC fails."""
        reading = asyncio.create_task(self._read_all(read))
        writing = asyncio.create_task(self._outgoing.write_all(write))
        aborted = self._outgoing.aborted
        reason: Exception | None = None
        try:
            await asyncio.wait([reading, writing, aborted], return_when=asyncio.FIRST_COMPLETED)

            if writing.done() and writing.exception() is None and not aborted.done():
                if done_writing is not None:
                    await done_writing()
                await asyncio.wait([reading, aborted], timeout=END_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)

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

    def close(self, reason: str = "closed by this side", *, is_planned: bool = True) -> None:
        """Send what is queued and the reason, then end the session."""
        if not self.is_closed:
            self.send_frame(GO_AWAY, 0, GoAway(reason=reason, is_planned=is_planned))
        super().close(reason)

    def pause_writing(self) -> None:
        """Let senders wait, and tell the bridge."""
        super().pause_writing()
        self._on_congestion(True)

    def resume_writing(self) -> None:
        """Let senders continue, and tell the bridge; also when the session has ended."""
        if self.is_congested:
            super().resume_writing()
            self._on_congestion(False)

    async def _read_all(self, read: Callable[[], Awaitable[Any]]) -> None:
        while (piece := await read()) is not EOF:
            self.heard_at = self._loop.time()
            if not self.is_closed:
                self.data_received(piece)

            # Only the orchestrator pauses. An executor must read on, or the runs that it serves could not end; its
            # slots limit how many it gets.
            while self._served_bytes > READ_AHEAD_BYTES and not self._is_executor:
                self.is_reading_paused = True
                self._has_capacity.clear()
                await self._has_capacity.wait()

            self.is_reading_paused = False

    def _on_served(self, served: ServedCall, work: asyncio.Future[Any]) -> None:
        super()._on_served(served, work)
        self._has_capacity.set()

    def _take_go_away(self, _number: int, body: Any, _size: int) -> None:
        try:
            farewell = messages.read(GoAway, body)
        except CallFailed as exc:
            raise ProtocolBroken(exc.message) from exc

        self.close_reason = farewell.reason[:1000]
        self.was_planned = farewell.is_planned
        if self._reason is None:
            self._reason = self.close_reason

        self._outgoing.close()


class _Outgoing(asyncio.Transport):
    """What a session writes, as a transport of its link: it is sent in pieces while gRPC takes them."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the stream must end at once."""
        self._link = link
        self._queue = bytearray()
        self._sent_bytes = 0
        self._has_news = asyncio.Event()
        self._is_ending = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limit is that of all links."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes gRPC has not taken yet."""
        return len(self._queue) + self._sent_bytes

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Queue the bytes of frames."""
        for data in list_of_data:
            self._queue += data

        self._has_news.set()
        if self.get_write_buffer_size() > links.HIGH_WATER_BYTES and not self._link.is_congested:
            self._link.pause_writing()

    def close(self) -> None:
        """End the stream when what is queued has been sent."""
        self._is_ending = True
        self._has_news.set()

    def abort(self) -> None:
        """End the stream at once."""
        if not self.aborted.done():
            self.aborted.set_result(None)

    async def write_all(self, write: Callable[[bytes], Awaitable[Any]]) -> None:
        """Send what is queued, and what will be, until the stream ends."""
        while True:
            while self._queue:
                with memoryview(self._queue)[:PIECE_BYTES] as view:
                    piece = bytes(view)

                del self._queue[: len(piece)]
                self._sent_bytes = len(piece)
                await write(piece)

                self._sent_bytes = 0
                if self._link.is_congested and len(self._queue) <= links.HIGH_WATER_BYTES // 2:
                    self._link.resume_writing()

            if self._is_ending:
                return

            self._has_news.clear()
            await self._has_news.wait()
