"""Batches the submissions of many callers, so that one database statement serves all of them.

There are two ways to use a `Batcher`:

Requests that wait for a result (admissions, ends of runs, lookups of states). `await batcher.submit(item)` returns the
result of this item. Nothing is delayed: a submission that finds the batcher idle is sent at once, and those that arrive
while a batch is in flight go together in the next one. So batches grow with the load. A result is never older than its
submission, because no batch is sent before its items are submitted.

Writes that no caller waits for (checkpoints, stream events). `batcher.add(item, size)` returns immediately. With
`delay_s`, a batch is sent that long after its first item, or as soon as it holds `early_bytes`. `await batcher.flush()`
waits until all added items were sent. `add` returns an event that is set once the batch of its item was sent, for a
caller that waits only for its own item: `batcher.hurry()` and then `await sent.wait()`. `send` may merge items. To
limit what is pending, check `pending_bytes` or `waiting_bytes`, and remove unsent items with `discard()`. With `add`,
`send` must handle its own failures: the batcher only logs them and continues with the next batch.

A batcher belongs to one event loop. Other threads use `loop.call_soon_threadsafe(batcher.add, item)`.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import asyncpg

from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.kernel.transient_errors import is_transient, log_failure

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Batch(Generic[Item, Result]):
    """Items that are sent together, with the futures of the callers that wait for a result."""

    items: list[Item] = field(default_factory=list)
    futures: list[asyncio.Future[Result] | None] = field(default_factory=list)
    size: int = 0
    # Set once the batch was sent, has failed, or was discarded.
    sent: asyncio.Event = field(default_factory=asyncio.Event)


class Batcher(Generic[Item, Result]):
    """Sends submitted items in batches of at most `max_batch`, with at most `max_concurrent` batches in flight.

    `send` returns one result for each item, in order. It must not wait for anything but the database, or every item of
    the batch waits with it. If Postgres refuses a batch, its items are sent again one by one, so that a bad item fails
    its own caller alone; pass `retry_singly=False` where all items are the same. If a caller was cancelled, its result
    goes to `on_orphan`.
    """

    def __init__(  # noqa: PLR0913 - options, each with a default
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int | None = 32,
        max_concurrent: int = 1,
        delay_s: float = 0.0,
        early_bytes: int | None = None,
        retry_singly: bool = True,
        on_orphan: Callable[[Result], None] | None = None,
    ) -> None:
        self.pending_bytes = 0
        """The size of all items that were not sent yet, including those of batches in flight."""
        self._send = send
        self._max_batch = max_batch
        self._max_concurrent = max_concurrent
        self._delay_s = delay_s
        self._early_bytes = early_bytes
        self._retry_singly = retry_singly
        self._on_orphan = on_orphan

        self._waiting: deque[_Batch[Item, Result]] = deque()
        # The last batch of those that wait.
        self._last: _Batch[Item, Result] | None = None
        self._in_flight: set[_Batch[Item, Result]] = set()
        self._senders: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_urgent = False

    async def submit(self, item: Item) -> Result:
        """Send an item with the next batch and return its result. Raises the error of sending it."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._append(item, future)
        try:
            return await future
        except asyncio.CancelledError:
            # The result may have arrived in the same tick as the cancellation.
            if not future.cancelled() and future.exception() is None:
                self._orphan(future.result())
            raise

    def add(self, item: Item, size: int = 0) -> asyncio.Event:
        """Send an item with the next batch, without waiting. The event is set once the batch was sent or has failed."""
        batch = self._append(item, None)
        batch.size += size
        self.pending_bytes += size

        if self._early_bytes is not None and batch.size >= self._early_bytes:
            self.hurry()

        return batch.sent

    def hurry(self) -> None:
        """Send what waits as soon as a batch may be in flight, without further delay."""
        if not self._waiting:
            return

        self._is_urgent = True
        if len(self._senders) < self._max_concurrent:
            self._start()

    @property
    def waiting_bytes(self) -> int:
        """The size of all items that wait for a batch of their own, without those of batches in flight."""
        return sum(batch.size for batch in self._waiting)

    async def flush(self) -> None:
        """Send what waits, and return when every item submitted so far was sent."""
        self.hurry()
        for batch in [*self._in_flight, *self._waiting]:
            await batch.sent.wait()

    def discard(self) -> list[Item]:
        """Take back the items that wait and return them. Callers that wait for their results are cancelled."""
        batches = self._waiting
        self._waiting = deque()
        self._last = None
        self._is_urgent = False

        for batch in batches:
            self.pending_bytes -= batch.size
            batch.sent.set()
            _cancel(batch.futures)

        return [item for batch in batches for item in batch.items]

    async def close(self, within_s: float) -> None:
        """Send what waits for at most this long, then drop the rest and stop."""
        await wait_at_most(within_s, self.flush())

        self.discard()
        await cancel_and_wait(*self._senders)

    def _append(self, item: Item, future: asyncio.Future[Result] | None) -> _Batch[Item, Result]:
        batch = self._last
        if batch is None or len(batch.items) == self._max_batch:
            batch = self._last = _Batch()
            self._waiting.append(batch)

        batch.items.append(item)
        batch.futures.append(future)

        if len(self._senders) < self._max_concurrent:
            self._start(self._delay_s)

        return batch

    def _start(self, delay_s: float = 0.0) -> None:
        """Start a sender, now or after a delay."""
        # An empty context: the first caller's context variables must not leak into the batch.
        empty = contextvars.Context()
        if delay_s and not self._is_urgent:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._start, context=empty)
            return

        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

        self._senders.add(asyncio.create_task(self._send_batches(), context=empty))

    async def _send_batches(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting.popleft()
                if batch is self._last:
                    self._last = None
                    self._is_urgent = False

                self._in_flight.add(batch)
                try:
                    await self._send_items(batch.items, batch.futures)
                finally:
                    self._in_flight.discard(batch)
                    self.pending_bytes -= batch.size
                    batch.sent.set()

                if self._delay_s and not self._is_urgent:
                    break
        finally:
            # Now, not in a callback of the task: a submission that comes before the callback would not be sent.
            self._senders.discard(asyncio.current_task())

        if self._waiting:
            self._start(self._delay_s)

    async def _send_items(self, items: list[Item], futures: list[asyncio.Future[Result] | None]) -> None:
        try:
            results = await self._send(items)
            if len(results) != len(items):
                raise RuntimeError(f"a batch of {len(items)} items got {len(results)} results")  # noqa: TRY301
        except Exception as failure:  # noqa: BLE001 - raised in the callers
            if len(items) > 1 and self._retry_singly and _is_refusal(failure):
                for item, future in zip(items, futures, strict=True):
                    await self._send_items([item], [future])
            else:
                _fail(futures, failure)

            return
        except asyncio.CancelledError:
            _cancel(futures)
            raise

        for future, result in zip(futures, results, strict=False):
            if future is None:
                continue

            if future.cancelled():
                self._orphan(result)
            else:
                future.set_result(result)

    def _orphan(self, result: Result) -> None:
        if self._on_orphan is not None:
            self._on_orphan(result)


def _fail(futures: Sequence[asyncio.Future[Result] | None], failure: Exception) -> None:
    for future in futures:
        if future is not None and not future.done():
            future.set_exception(failure)

    if None in futures:
        log_failure("a batch could not be sent", failure)


def _cancel(futures: Sequence[asyncio.Future[Result] | None]) -> None:
    for future in futures:
        if future is not None:
            future.cancel()


def _is_refusal(failure: Exception) -> bool:
    """Whether Postgres refused a statement for its content, rather than being slow or unreachable."""
    if not isinstance(failure, asyncpg.PostgresError) or isinstance(failure, asyncpg.QueryCanceledError):
        return False

    return not is_transient(failure)
