"""The batcher: which items share a batch, and the result of each caller."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from portside.kernel.batching import Batcher

MAX_BATCH = 5
BAD = 13
LONG_S = 3600.0


class Receiver:
    """Records the batches that it receives. Each takes until `is_open` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.has_begun = asyncio.Event()
        self.is_open = asyncio.Event()
        self.cancelled_at_the_end: asyncio.Task[str] | None = None
        self.orphans: list[str] = []
        self.failure: Exception | None = None

    async def send(self, items: list[int]) -> list[str]:
        self.batches.append(items)
        self.has_begun.set()
        await self.is_open.wait()

        if self.cancelled_at_the_end is not None:
            # Cancel after the result is known, but before it reaches the caller.
            asyncio.get_running_loop().call_soon(self.cancelled_at_the_end.cancel)

        if self.failure is not None and BAD in items:
            raise self.failure

        return [f"sent {item}" for item in items]


@pytest.fixture
async def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def batcher(receiver: Receiver) -> Batcher[int, str]:
    return Batcher(receiver.send, max_batch=MAX_BATCH, on_orphan=receiver.orphans.append)


@pytest.fixture
async def writer(receiver: Receiver) -> AsyncIterator[Batcher[int, str]]:
    """A batcher whose delay never elapses during a test, so each batch was sent for another reason."""
    writer = Batcher(receiver.send, max_batch=None, delay_s=LONG_S, early_bytes=100)
    yield writer
    await writer.close(0)


def submit(batcher: Batcher[int, str], *items: int) -> list["asyncio.Task[str]"]:
    return [asyncio.create_task(batcher.submit(item)) for item in items]


async def test_single_submission_is_sent_at_once(batcher, receiver) -> None:
    receiver.is_open.set()
    assert [await batcher.submit(1), await batcher.submit(2)] == ["sent 1", "sent 2"]
    assert receiver.batches == [[1], [2]]


async def test_submissions_during_a_batch_share_the_next(batcher, receiver) -> None:
    first = submit(batcher, 1)
    await receiver.has_begun.wait()
    others = submit(batcher, *range(2, MAX_BATCH + 4))
    await asyncio.sleep(0)
    receiver.is_open.set()
    assert await asyncio.gather(*first, *others) == [f"sent {item}" for item in range(1, MAX_BATCH + 4)]
    assert [len(batch) for batch in receiver.batches] == [1, MAX_BATCH, 2]


async def test_concurrent_batches_are_limited(receiver) -> None:
    batcher = Batcher(receiver.send, max_batch=1, max_concurrent=2)
    tasks = submit(batcher, 1, 2, 3)

    for _ in range(10):
        await asyncio.sleep(0)

    assert receiver.batches == [[1], [2]]
    receiver.is_open.set()
    assert await asyncio.gather(*tasks) == ["sent 1", "sent 2", "sent 3"]


async def test_refused_item_fails_only_its_caller(batcher, receiver) -> None:
    receiver.failure = asyncpg.DataError("that one")
    receiver.is_open.set()
    results = await asyncio.gather(*submit(batcher, 1, BAD, 2), return_exceptions=True)
    assert results == ["sent 1", receiver.failure, "sent 2"]


@pytest.mark.parametrize("failure", [asyncpg.ConnectionDoesNotExistError("away"), asyncpg.QueryCanceledError("slow")])
async def test_batch_is_not_retried_if_postgres_is_unreachable_or_slow(batcher, receiver, failure) -> None:
    receiver.failure = failure
    receiver.is_open.set()
    results = await asyncio.gather(*submit(batcher, 1, BAD, 2), return_exceptions=True)
    assert results == [failure] * 3
    assert len(receiver.batches) == 1


async def test_identical_items_are_not_retried_singly(receiver) -> None:
    batcher = Batcher(receiver.send, retry_singly=False)
    receiver.failure = asyncpg.DataError("all of them")
    receiver.is_open.set()
    results = await asyncio.gather(*submit(batcher, BAD, BAD), return_exceptions=True)
    assert (results, len(receiver.batches)) == ([receiver.failure] * 2, 1)


async def test_wrong_number_of_results_fails_the_callers() -> None:
    async def send(_items: list[int]) -> list[str]:
        return []

    with pytest.raises(RuntimeError, match="a batch of 1 items got 0 results"):
        await Batcher(send).submit(1)


async def test_result_of_a_cancelled_caller_is_an_orphan(batcher, receiver) -> None:
    cancelled, stays = submit(batcher, 1, 2)
    await receiver.has_begun.wait()
    cancelled.cancel()

    with pytest.raises(asyncio.CancelledError):
        await cancelled

    receiver.is_open.set()
    assert await stays == "sent 2"
    assert receiver.orphans == ["sent 1"]


async def test_result_that_arrives_with_the_cancellation_is_an_orphan(batcher, receiver) -> None:
    (cancelled,) = submit(batcher, 1)
    receiver.cancelled_at_the_end = cancelled
    receiver.is_open.set()

    with pytest.raises(asyncio.CancelledError):
        await cancelled

    assert receiver.orphans == ["sent 1"]


async def test_added_items_are_sent_after_the_delay(receiver) -> None:
    writer = Batcher(receiver.send, delay_s=0.001)
    receiver.is_open.set()
    first = writer.add(1)
    assert writer.add(2) is first
    assert writer.add(3) is first
    assert receiver.batches == []
    await writer.add(4).wait()

    assert receiver.batches == [[1, 2, 3, 4]]
    await writer.add(5).wait()
    assert receiver.batches == [[1, 2, 3, 4], [5]]


async def test_flush_sends_without_the_delay_and_waits(writer, receiver) -> None:
    receiver.is_open.set()
    sent = writer.add(1)
    await writer.flush()
    assert (sent.is_set(), receiver.batches) == (True, [[1]])
    await writer.flush()
    assert receiver.batches == [[1]]


async def test_flush_waits_for_the_batch_in_flight_and_the_next(writer, receiver) -> None:
    first = writer.add(1)
    writer.hurry()
    await receiver.has_begun.wait()
    second = writer.add(2)
    flushing = asyncio.create_task(writer.flush())

    await asyncio.sleep(0)
    assert not flushing.done()
    receiver.is_open.set()
    await flushing
    assert (first.is_set(), second.is_set(), receiver.batches) == (True, True, [[1], [2]])


async def test_early_bytes_send_a_batch_before_its_delay(writer, receiver) -> None:
    receiver.is_open.set()
    small = writer.add(1, 60)
    assert (writer.pending_bytes, small.is_set()) == (60, False)
    await writer.add(2, 60).wait()
    assert (receiver.batches, writer.pending_bytes) == ([[1, 2]], 0)


async def test_failed_write_is_logged_and_the_next_batch_is_sent(writer, receiver, capsys) -> None:
    receiver.failure = ValueError("that one")
    receiver.is_open.set()
    writer.add(BAD)
    await writer.flush()
    writer.add(1)
    await writer.flush()
    assert receiver.batches == [[BAD], [1]]

    assert "a batch could not be sent" in capsys.readouterr().out


async def test_discard_returns_unsent_items(writer, receiver) -> None:
    writer.add(1, 50)
    writer.hurry()
    await receiver.has_begun.wait()
    discarded = writer.add(2, 30)
    (waiting,) = submit(writer, 3)

    await asyncio.sleep(0)
    assert writer.discard() == [2, 3]
    assert (writer.pending_bytes, discarded.is_set()) == (50, True)

    with pytest.raises(asyncio.CancelledError):
        await waiting

    receiver.is_open.set()
    await writer.flush()
    assert (receiver.batches, writer.pending_bytes) == ([[1]], 0)


async def test_close_drops_items_after_its_timeout(writer, receiver) -> None:
    in_flight, waiting = submit(writer, 1, 2)
    await asyncio.sleep(0)
    writer.hurry()
    await receiver.has_begun.wait()

    late = writer.add(3)
    await writer.close(0.001)
    assert late.is_set()
    assert [type(one) for one in await asyncio.gather(in_flight, waiting, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2


async def test_context_variables_of_the_first_caller_do_not_reach_the_batch() -> None:
    from contextvars import ContextVar

    caller: ContextVar[str] = ContextVar("caller", default="nobody")

    async def send(items: list[int]) -> list[str]:
        return [caller.get() for _ in items]

    caller.set("ada")
    assert await Batcher(send).submit(1) == "nobody"
    assert await Batcher(send, delay_s=0.001).submit(1) == "nobody"
