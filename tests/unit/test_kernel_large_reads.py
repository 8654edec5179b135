"""Memory budgets of responses: the limit of one, the limit of all, and the order in which they wait."""

import asyncio

import pytest

from portside.kernel.large_reads import (
    FREE_BYTES,
    ReadBudget,
    ReadReservation,
    ReservationNeeded,
    ResponseTooLarge,
    TooManyLargeReads,
)

MB = 1_000_000


def budget(wait_s: float = 30) -> ReadBudget:
    return ReadBudget(10 * MB, 20 * MB, wait_s)


async def test_page_keeps_what_fits_and_at_least_one_object() -> None:
    whole = budget()
    assert await ReadReservation(whole).reserve_page([]) == 0
    assert await ReadReservation(whole).reserve_page([4 * MB, 6 * MB, 1]) == 2
    assert await ReadReservation(budget()).reserve_page([50 * MB, 1]) == 1
    assert await ReadReservation(None).reserve_page([50 * MB, 1]) == 2


async def test_reservations_are_granted_in_order() -> None:
    whole = budget()
    order = list[str]()
    await whole.reserve(15 * MB)

    async def reading(name: str, size: int) -> None:
        taken = await whole.reserve(size)
        order.append(name)
        whole.release(taken)

    waiting = [asyncio.create_task(reading("large", 18 * MB))]
    await asyncio.sleep(0)

    # This one would fit, but it came later.
    waiting.append(asyncio.create_task(reading("small", 2 * MB)))
    await asyncio.sleep(0)
    assert not order and not whole.try_reserve(1)
    whole.release(15 * MB)
    await asyncio.gather(*waiting)
    assert order == ["large", "small"] and whole.try_reserve(20 * MB)


async def test_reservation_timeout_gets_503_with_retry_after() -> None:
    whole = budget(wait_s=0.01)
    await whole.reserve(20 * MB)
    with pytest.raises(TooManyLargeReads) as refusal:
        await whole.reserve(MB)

    assert (refusal.value.status, int(refusal.value.headers["Retry-After"]) > 0) == (503, True)
    whole.release(20 * MB)
    assert whole.try_reserve(20 * MB)


async def test_cancelled_waiter_reserves_nothing() -> None:
    whole = budget()
    await whole.reserve(20 * MB)
    first, second = (asyncio.create_task(whole.reserve(20 * MB)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    whole.release(20 * MB)

    assert await second == 20 * MB


async def test_reservation_granted_to_a_cancelled_waiter_is_released() -> None:
    whole = budget()
    await whole.reserve(20 * MB)
    waiting = asyncio.create_task(whole.reserve(20 * MB))
    await asyncio.sleep(0)
    whole.release(20 * MB)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert whole.try_reserve(20 * MB)


async def test_object_above_the_whole_budget_waits_for_all_of_it() -> None:
    whole = budget()
    read = ReadReservation(whole)
    read.check(90 * MB, rows=1)
    assert read.reserved == 20 * MB and not whole.try_reserve(1)
    read.close()
    assert whole.try_reserve(20 * MB)


async def test_small_reads_are_free_and_large_ones_reserved_until_the_end() -> None:
    whole = budget()
    read = ReadReservation(whole)
    read.check(FREE_BYTES, rows=1)
    assert read.reserved == 0
    read.check(3 * MB, rows=2)

    read.used = 3 * MB
    assert read.reserved == 10 * MB
    read.release_unused()
    assert read.reserved == 3 * MB and whole.try_reserve(17 * MB)
    whole.release(17 * MB)
    read.close()
    assert whole.try_reserve(20 * MB)


async def test_too_large_response_names_the_number_that_fits() -> None:
    read = ReadReservation(budget())
    with pytest.raises(ResponseTooLarge, match=r"smaller `limit`: 7 objects fit") as refusal:
        read.check(12 * MB, rows=8)

    assert refusal.value.status == 413


async def test_read_above_the_free_memory_waits_for_a_reservation() -> None:
    whole = budget()
    await whole.reserve(15 * MB)

    read = ReadReservation(whole)
    with pytest.raises(ReservationNeeded) as needed:
        read.check(6 * MB, rows=3)

    whole.release(15 * MB)
    await read.reserve(needed.value.size)
    read.check(6 * MB, rows=3)
    read.close()
    assert whole.try_reserve(20 * MB)


async def test_ended_request_reserves_nothing() -> None:
    whole = budget()
    read = ReadReservation(whole)
    read.close()

    with pytest.raises(ReservationNeeded):
        read.check(5 * MB, rows=2)

    assert whole.try_reserve(20 * MB)
