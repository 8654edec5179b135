"""The process at the other end of an executor's link, as far as a unit test needs one."""

import asyncio
from collections.abc import Iterable
from typing import Any

from portside.executor.link import HEADER_BYTES, Link, decode, encode
from portside.executor.messages import MAIN_SCOPE, CheckpointPut

CHECKPOINT_PUT = CheckpointPut(
    call=1,
    scope=MAIN_SCOPE,
    thread_id="t",
    checkpoint_ns="",
    run=("r", 2),
    is_awaited=True,
    checkpoints=[("t", "", "c", None, "{}", "msgpack", b"\x01", "{}", "{}")],
    values=[("t", "", "messages", "1", "msgpack", b"\x02", "{1,2,3}", None)],
    pieces=[("t", 4, 5, 6, b"\x03")],
    writes=[("t", "", "c", "task", -1, "~p", None, "messages", "msgpack", b"\x04", None, None)],
    size=10,
)


class Peer(asyncio.Transport):
    """The peer of a link. It sends only what a test lets it send."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._link = link
        self._is_closed = False

        link.connection_made(self)

    def send(self, kind: int, number: int, body: Any) -> None:
        """Send a frame to the link."""
        payload = encode((kind, number, body))
        self._link.data_received(len(payload).to_bytes(HEADER_BYTES, "big") + payload)

    async def next_frame(self) -> tuple[int, int]:
        """Wait for the next frame of the link, and return its kind and the number of its call."""
        kind, number, _ = await asyncio.wait_for(self._frames.get(), 60)
        return kind, number

    # What a link asks of its transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the peer reads everything at once."""

    def get_write_buffer_size(self) -> int:
        """Return 0: the peer reads everything at once."""
        return 0

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Note the frames; they are headers and payloads by turns."""
        for payload in [*list_of_data][1::2]:
            self._frames.put_nowait(decode(payload))

    def close(self) -> None:
        """End the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._link.connection_lost(None)

    def abort(self) -> None:
        """End the connection."""
        self.close()
