"""Bounded buffers, from which each client reads the events that it follows.

A `ReplayBuffer` holds the frames that wait for one client alone and is bounded, so a slow client neither delays the run
nor fills the memory. A client that reads kept events pulls them through a cursor: one slice whenever its socket has
accepted the slice before. `replay_budget` bounds the slices on their way to all clients together.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from portside.agent.streams.history import (
    BLOCK_BYTES,
    BlockGroup,
    Cursor,
    FellBehind,
    History,
    ReaderView,
)
from portside.agent.streams.replay_budget import ReplayBudget, ReplayClaim, counted_caller
from portside.kernel.http.sse import StreamCut

T = TypeVar("T")
BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
# A reader with this much waiting switches to the history, if its events are kept.
LATE_BYTES = 256 * 1024
# One step of a run may emit the same large value in every mode: that does not make a reader slow.
FRAMES_AT_LEAST = 16


class ReplayBuffer(Generic[T]):
    """An async iterator of chunks of frames, for items that may be kept. It is filled on the API's event loop.

    It raises StreamCut where the items end here, although more of them come elsewhere.

    Waiting frames come first, then the frames that the cursor reads from the history, then new ones. A reader that
    falls further behind than the bound gets the overflow event in place of the waiting frames, and the end. It may
    reconnect and continue from where it was, as far as events are kept.
    """

    def __init__(self, view: ReaderView[T], budget: ReplayBudget, overflow_event: bytes) -> None:
        self.view = view
        self.caller = counted_caller.get()

        # Set while the next frames come from the history.
        self.cursor: Cursor[T] | None = None
        self._budget = budget
        self._claim: ReplayClaim | None = None
        self._waiting: list[bytes] = []

        # The bytes of the frames that wait, and of those that the reader took last until it asks again: they are still
        # on their way to the client.
        self._size = 0
        # What the reader took last.
        self._taken = 0
        self._largest = 0

        self._is_ended = False
        self._is_cut = False
        self._overflow_event = overflow_event
        self._wake = asyncio.Event()

    def offer(self, frame: bytes, history: History[T] | BlockGroup[T] | None, after: object = None) -> None:
        """Add the frame of an item that the reader wants, and that is the newest of the history if it is kept.

        A reader that is too far behind switches to the history; without one it is ended.
        """
        if self.cursor is not None or self._is_ended:
            return

        if history is not None and self._size > max(LATE_BYTES, FRAMES_AT_LEAST * self._largest):
            self.cursor = Cursor.at_newest(history, after=after)
            return

        self._waiting.append(frame)
        self._size += len(frame)
        self._largest = max(self._largest, len(frame))
        if self._size > max(BUFFER_LIMIT_BYTES, FRAMES_AT_LEAST * self._largest):
            self.overflow()

        self._wake.set()

    def overflow(self) -> None:
        """End the reader because it is too slow."""
        self.fail(self._overflow_event)

    def fail(self, event: bytes) -> None:
        """End the reader with an error event in place of the waiting frames."""
        # A reader that was only ended may still be reading kept events.
        if not self._is_ended or self.cursor is not None:
            self._waiting = [event] if event else []
            self.cursor = None
            self._is_cut = False
            self.end()

    def end(self) -> None:
        """Stop the iterator once no frame waits."""
        self._is_ended = True
        self._wake.set()

    def stop(self) -> None:
        """Stop the iterator without the frames that wait, which another reader will get."""
        self._waiting.clear()
        self.cursor = None
        self.end()

    def cut(self) -> None:
        """Have the iterator raise StreamCut once no frame waits, unless it has ended."""
        if not self._is_ended:
            self._is_cut = True
            self.end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        frames = await self.take()
        if not frames:
            raise StopAsyncIteration

        return frames[0] if len(frames) == 1 else b"".join(frames)

    async def take(self) -> list[bytes]:
        """Wait for frames and return about a slice of them; none at the end. Raises StreamCut."""
        self._size = self._size - self._taken
        self._taken = 0

        if self._claim is not None:
            self._claim.release()
            self._claim = None

        while not self._waiting:
            if self.cursor is not None:
                if frames := await self._pull(self.cursor):
                    return frames
            elif self._is_cut:
                raise StreamCut
            elif self._is_ended:
                return []
            else:
                self._wake.clear()
                await self._wake.wait()

        if self._size <= BLOCK_BYTES:
            frames = self._waiting
            self._waiting = []
            self._taken = self._size
            return frames

        count = 0
        while count < len(self._waiting) and self._taken < BLOCK_BYTES:
            self._taken += len(self._waiting[count])
            count += 1

        frames = self._waiting[:count]
        del self._waiting[:count]
        return frames

    async def _pull(self, cursor: Cursor[T]) -> list[bytes]:
        self._claim = claim = await self._budget.claim(self)
        # Many may read at once: let other work run between two slices.
        await asyncio.sleep(0)

        frames = None
        if self.cursor is cursor:
            try:
                frames = cursor.pull(self.view, self._budget.encoded)
            except FellBehind:
                self.overflow()
            else:
                self.cursor = cursor if frames is not None else None

        if frames is None:
            self._claim = None
            claim.release()
            return []

        claim.resize(sum(map(len, frames)))
        return frames
