"""What waits for one reader, and nothing else: bounded, so that a slow reader costs neither the run nor the memory.

A reader that falls further behind than the bound gets what its owner says for goodbye instead of what was waiting, and
the end; it may come back and go on where it was, as far as events are kept.
"""

import asyncio
from collections.abc import AsyncIterator

BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
# One step of a run may say the same large value in every mode: nobody is slow because of that.
FRAMES_AT_LEAST = 16


class Buffer:
    """An async iterator of chunks, each holding every frame that was waiting; filled on the API's event loop."""

    def __init__(self, goodbye: bytes = b"") -> None:
        self._waiting: list[bytes] = []
        # What the reader took last counts until it asks again: it is still on its way.
        self._size = self._taken = self._largest = 0
        self._is_ended = False
        self._goodbye = goodbye
        self._wake = asyncio.Event()

    def push(self, frame: bytes) -> None:
        """Let a frame wait for the reader; one that is too far behind is ended."""
        if self._is_ended:
            return
        self._waiting.append(frame)
        self._size += len(frame)
        self._largest = max(self._largest, len(frame))
        if self._size > max(BUFFER_LIMIT_BYTES, FRAMES_AT_LEAST * self._largest):
            self.fail(self._goodbye)
        self._wake.set()

    def fail(self, goodbye: bytes) -> None:
        """Let the reader go with a word of what went wrong instead of what was waiting."""
        if not self._is_ended:
            self._waiting = [goodbye] if goodbye else []
            self.end()

    def end(self) -> None:
        """Let the iterator stop once nothing waits any more."""
        self._is_ended = True
        self._wake.set()

    async def take(self) -> list[bytes]:
        """Return every frame that waits, as soon as there is one; none at the end."""
        self._size -= self._taken
        self._taken = 0
        while not self._waiting and not self._is_ended:
            self._wake.clear()
            await self._wake.wait()
        frames, self._waiting = self._waiting, []
        self._taken = self._size
        return frames

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        frames = await self.take()
        if not frames:
            raise StopAsyncIteration
        return b"".join(frames)
