"""Bounded buffers between the graphs that emit events and the clients that read them.

Each client reads from a `ReplayBuffer`. It holds the frames that wait for this client alone and is bounded, so a slow
client neither delays the run nor fills the memory. A client that reads kept events pulls them through a cursor: one
slice whenever its socket has accepted the slice before. `ReplayBudget` bounds the slices on their way to all clients
together.

`ThreadBridge` carries the events of a graph from its thread to the API's event loop.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from portside.agent.streams.history import (
    BLOCK_BYTES,
    BlockGroup,
    Cursor,
    EncodedBlockCache,
    FellBehind,
    History,
    ReaderView,
)
from portside.kernel.http.sse import StreamCut

T = TypeVar("T")
ENCODED_LIMIT_BYTES = 8 * 1024 * 1024
PER_CALLER_BYTES = 8 * 1024 * 1024
TOTAL_BYTES = 32 * 1024 * 1024
# While a reader waits for its slice, readers that held one for this long without asking for more are ended.
STALLED_AFTER_S = 10.0
BUFFER_LIMIT_BYTES = 32 * 1024 * 1024
# A reader with this much waiting switches to the history, if its events are kept.
LATE_BYTES = 256 * 1024
# One step of a run may emit the same large value in every mode: that does not make a reader slow.
FRAMES_AT_LEAST = 16
# The thread of a graph that emits faster than the API's loop takes waits before its next event when this much is on its
# way.
BRIDGE_LIMIT_BYTES = 16 * 1024 * 1024
# A loop that takes nothing for this long is closing or blocked, and a longer wait would not help.
BRIDGE_WAIT_LIMIT_S = 5.0
# Events that nobody listens to wait this long, or up to this size, for a listener before they wake the API's loop.
UNFOLLOWED_DELAY_S = 0.1
UNFOLLOWED_LIMIT_BYTES = 256 * 1024
# The caller that the bytes of this request's replays count against; None is exempt from limits.
counted_caller: ContextVar[str | None] = ContextVar("counted_caller", default=None)


class ReplayLimits(NamedTuple):
    """The bytes of replays that may be on their way to one caller, and to all callers; 0 turns a limit off."""

    per_caller: int = PER_CALLER_BYTES
    total: int = TOTAL_BYTES


class ReplayClaim:
    """A slice on its way to a reader. It returns its bytes to the budget at the latest when the reader is collected."""

    __slots__ = ("__weakref__", "_budget", "caller", "number", "reader", "since", "size")

    def __init__(self, budget: "ReplayBudget", number: int, caller: str | None, reader: "ReplayBuffer[Any]") -> None:
        self._budget: ReplayBudget | None = budget
        self.number = number
        self.caller = caller
        self.reader = ref(reader)
        self.since = time.monotonic()
        self.size = 0

    def resize(self, size: int) -> None:
        """Set how many bytes the slice has."""
        if self._budget is not None:
            self._budget.charge(self, size)

    def release(self) -> None:
        """Return the bytes: the slice arrived, or never will."""
        budget = self._budget
        self._budget = None
        if budget is not None:
            budget.charge(self, 0)
            budget.release(self)

    def __del__(self) -> None:
        # In any thread, and in the middle of any statement of the budget.
        if self._budget is not None:
            self._budget.abandon(AbandonedClaim(self.number, self.caller, self.size))


class AbandonedClaim(NamedTuple):
    """A claim whose reader was collected, with the bytes that it held."""

    number: int
    caller: str | None
    size: int


class _ClaimRequest(NamedTuple):
    claim: ReplayClaim
    granted: "asyncio.Future[None]"


class ReplayBudget:
    """The slices on their way to the readers of this process, within the limits for each caller and for all.

    A reader claims a slice before it reads it, and releases the claim when it asks for the next one, which is when its
    socket took the slice. At a limit readers queue. A reader whose socket takes nothing while others wait is ended.
    """

    def __init__(self, limits: ReplayLimits | None = None) -> None:
        self.encoded = EncodedBlockCache(ENCODED_LIMIT_BYTES)
        self._limits = limits or ReplayLimits()
        self._bytes_of: Counter[str] = Counter()
        self._total = 0
        self._waiting: deque[_ClaimRequest] = deque()

        # Oldest first; weak, because a claim ends with its reader.
        self._claims: dict[int, ref[ReplayClaim]] = {}
        self._numbers = count(1)

        # Filled in any thread, and emptied on the loop of the readers, where alone the bytes are counted.
        self._abandoned: deque[AbandonedClaim] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def claim(self, reader: "ReplayBuffer[Any]") -> ReplayClaim:
        """Wait until a reader may take a slice."""
        claim = ReplayClaim(self, next(self._numbers), reader.caller, reader)
        if self._waiting or not self._has_capacity(claim.caller):
            loop = self._loop = asyncio.get_running_loop()
            # After the request is in the queue: it may be collected claims that leave the capacity.
            loop.call_soon(self._grant_waiting)
            await self._wait(_ClaimRequest(claim, loop.create_future()))
        else:
            self._grant(claim)

        return claim

    def charge(self, claim: ReplayClaim, size: int) -> None:
        """Set how many bytes of a claim are on their way."""
        self._add(claim.caller, size - claim.size)
        claim.size = size

    def release(self, claim: ReplayClaim) -> None:
        """Give the capacity of a claim to the readers that wait."""
        self._claims.pop(claim.number, None)
        if self._waiting and self._loop is not None:
            self._loop.call_soon(self._grant_waiting)

    def abandon(self, claim: AbandonedClaim) -> None:
        """Release the claim of a reader that was collected. Safe to call in any thread."""
        self._abandoned.append(claim)

        if self._waiting and self._loop is not None:
            # The loop is closed when the process ends.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._grant_waiting)

    def _add(self, caller: str | None, size: int) -> None:
        self._total += size

        if caller is not None:
            self._bytes_of[caller] += size
            if not self._bytes_of[caller]:
                del self._bytes_of[caller]

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            claim = self._abandoned.popleft()
            self._claims.pop(claim.number, None)
            self._add(claim.caller, -claim.size)

    async def _wait(self, request: _ClaimRequest) -> None:
        self._waiting.append(request)
        try:
            while not request.granted.done():
                await asyncio.wait([request.granted], timeout=STALLED_AFTER_S)
                if not request.granted.done():
                    self._end_stalled()
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    def _grant_waiting(self) -> None:
        for request in [*self._waiting]:
            if self._is_full():
                break

            if self._has_capacity(request.claim.caller):
                self._waiting.remove(request)
                self._grant(request.claim)
                request.granted.set_result(None)

    def _grant(self, claim: ReplayClaim) -> None:
        claim.since = time.monotonic()
        self._claims[claim.number] = ref(claim)
        self.charge(claim, BLOCK_BYTES)

    def _end_stalled(self) -> None:
        """End the readers that have held a slice for too long while others wait."""
        since = time.monotonic() - STALLED_AFTER_S
        for weak in [*self._claims.values()]:
            claim = weak()
            if claim is None or not self._waiting:
                continue
            if claim.since > since:
                break

            if (reader := claim.reader()) is not None:
                reader.overflow()

            claim.release()

    def _is_full(self) -> bool:
        self._drop_abandoned()
        return 0 < self._limits.total < self._total + BLOCK_BYTES

    def _has_capacity(self, caller: str | None) -> bool:
        limit = self._limits.per_caller
        if self._is_full():
            return False

        return caller is None or limit == 0 or self._bytes_of[caller] + BLOCK_BYTES <= limit


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

        # Includes the frames that the reader took last, until it asks again: they are still on their way to the client.
        self._size = self._taken = self._largest = 0
        self._is_ended = self._is_cut = False
        self._overflow_event = overflow_event
        self._wake = asyncio.Event()

    def offer(self, frame: bytes, history: History[T] | BlockGroup[T] | None, after: object = None) -> None:
        """Add the frame of an item that the reader wants, and that is the newest in `kept` if it is kept.

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


def size_of_event(event: tuple[str, bytes]) -> int:
    """Return the bytes of an event of a graph."""
    return len(event[1])


class ThreadBridge(Generic[T]):
    """A one-way queue to an event loop, for items of a known weight in bytes: in order, one wake-up for each burst.

    Create and close it on that loop. `is_wanted` says whether anybody listens, and is called in any thread. Until
    then items wait for a moment, and are dropped if the bridge closes first: most stateless runs never wake the API's
    loop.

    A producer in another thread pushes items, and waits while too many are on their way. A producer on the loop itself
    delivers its items: if it waited, nobody would take them.
    """

    def __init__(
        self,
        deliver: Callable[[list[T]], None],
        weigh: Callable[[T], int],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._deliver = deliver
        self._weigh = weigh
        self._is_wanted = is_wanted
        self._waiting: list[T] = []
        self._weight = 0

        self._taken = threading.Condition()
        self._is_open = is_wanted()
        self._opening = None if self._is_open else self._loop.call_later(UNFOLLOWED_DELAY_S, self._open)
        self._is_flush_scheduled = False

    def push(self, item: T) -> None:
        """Hand over an item, from another thread. Raises RuntimeError on the receiving loop."""
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError("the receiving loop would wait for itself: deliver items there")

        with self._taken:
            if self._weight >= BRIDGE_LIMIT_BYTES:
                # A graph that emits without a pause must cost no more memory than this and one item.
                self._taken.wait(BRIDGE_WAIT_LIMIT_S)

            self._add([item])
            if self._is_open and not self._is_flush_scheduled:
                self._is_flush_scheduled = True
                self._loop.call_soon_threadsafe(self._flush)

    def deliver(self, items: list[T]) -> None:
        """Deliver items on the receiving loop: at once, or after the moment in which they wait for a listener."""
        with self._taken:
            self._add(items)

        if self._is_open:
            self._flush()

    def is_followed(self) -> bool:
        """Whether an item that is pushed now is delivered, as far as is known. Thread-safe."""
        return self._is_open or self._is_wanted()

    def close(self) -> None:
        """Deliver the items on their way, if they are wanted; no more may follow."""
        if self._opening is not None:
            self._opening.cancel()

        if self._is_open or self._is_wanted():
            self._flush()

    def _add(self, items: list[T]) -> None:
        self._waiting += items
        self._weight += sum(map(self._weigh, items))
        self._is_open = self._is_open or self._weight > UNFOLLOWED_LIMIT_BYTES or self._is_wanted()

    def _open(self) -> None:
        self._is_open = True
        self._flush()

    def _flush(self) -> None:
        with self._taken:
            items = self._waiting
            self._waiting = []
            self._weight = 0
            self._is_flush_scheduled = False

            self._taken.notify_all()

        if items:
            self._deliver(items)
