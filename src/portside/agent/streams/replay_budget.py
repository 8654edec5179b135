"""The bytes of kept events that are on their way to clients, bounded for each caller and for all of them."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from contextvars import ContextVar
from itertools import count
from typing import NamedTuple, Protocol
from weakref import ref

from portside.agent.streams.history import (
    BLOCK_BYTES,
    EncodedBlockCache,
)

ENCODED_LIMIT_BYTES = 8 * 1024 * 1024
PER_CALLER_BYTES = 8 * 1024 * 1024
TOTAL_BYTES = 32 * 1024 * 1024
# While a reader waits for its slice, readers that held one for this long without asking for more are ended.
STALLED_AFTER_S = 10.0
# The caller that the bytes of this request's replays count against; None is exempt from limits.
counted_caller: ContextVar[str | None] = ContextVar("counted_caller", default=None)


class ReplayLimits(NamedTuple):
    """The bytes of replays that may be on their way to one caller, and to all callers; 0 turns a limit off."""

    per_caller: int = PER_CALLER_BYTES
    total: int = TOTAL_BYTES


class Reader(Protocol):
    """A reader of kept events."""

    @property
    def caller(self) -> str | None:
        """The caller that its slices count against."""
        ...

    def overflow(self) -> None:
        """End the reader because it is too slow."""
        ...


class ReplayClaim:
    """A slice on its way to a reader. It returns its bytes to the budget at the latest when the reader is collected."""

    __slots__ = ("__weakref__", "_budget", "caller", "number", "reader", "since", "size")

    def __init__(self, budget: "ReplayBudget", number: int, caller: str | None, reader: Reader) -> None:
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
    granted: asyncio.Future[None]


class ReplayBudget:
    """The slices on their way to the readers of this process, within the limits for each caller and for all.

    A reader claims a slice before it reads it, and releases the claim when it asks for the next one, which is when its
    socket took the slice. At a limit readers queue. A reader whose socket takes nothing while others wait is ended.
    """

    def __init__(self, limits: ReplayLimits | None = None) -> None:
        self.encoded = EncodedBlockCache(ENCODED_LIMIT_BYTES)
        self._limits = limits or ReplayLimits()
        self._bytes_by_caller: Counter[str] = Counter()
        self._total = 0
        self._waiting: deque[_ClaimRequest] = deque()

        # Oldest first; weak, because a claim ends with its reader.
        self._claims: dict[int, ref[ReplayClaim]] = {}
        self._numbers = count(1)

        # Filled in any thread, and emptied on the loop of the readers, where alone the bytes are counted.
        self._abandoned: deque[AbandonedClaim] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def claim(self, reader: Reader) -> ReplayClaim:
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
            self._bytes_by_caller[caller] += size
            if not self._bytes_by_caller[caller]:
                del self._bytes_by_caller[caller]

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

        return caller is None or limit == 0 or self._bytes_by_caller[caller] + BLOCK_BYTES <= limit
