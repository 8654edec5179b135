"""The row meter counts the rows of reads as they arrive, with the pinned version of the driver."""

from collections.abc import AsyncIterator

import pytest

from portside.kernel import large_reads
from portside.kernel.db import Database, Query
from portside.kernel.large_reads import ReadBudget, ReadReservation, ReservationNeeded, ResponseTooLarge

MB = 1_000_000
ROWS = Query("rows", "select repeat('x', :size::int) as text from generate_series(1, :count::int)")


@pytest.fixture
async def db(module_database: str) -> AsyncIterator[Database]:
    found = await Database.connect(module_database, max_size=1)
    yield found
    await found.close()


@pytest.fixture
def budget() -> ReadBudget:
    return ReadBudget(4 * MB, 8 * MB)


async def read_rows(db: Database, read: ReadReservation, size: int, count: int) -> int:
    entered = large_reads.set_current_read(read)
    try:
        return len(await db.fetch(ROWS, size=size, count=count))
    finally:
        large_reads.reset_current_read(entered)


async def test_too_large_result_is_stopped_and_names_what_fits(db: Database, budget: ReadBudget) -> None:
    with pytest.raises(ResponseTooLarge, match=": 4 objects fit"):
        await read_rows(db, ReadReservation(budget), MB, 100)

    # The connection is replaced, and reads outside of requests are not counted.
    assert len(await db.fetch(ROWS, size=MB, count=10)) == 10


async def test_small_rows_are_counted_one_by_one(db: Database, budget: ReadBudget) -> None:
    refused = ReadReservation(budget)
    with pytest.raises(ResponseTooLarge) as refusal:
        await read_rows(db, refused, 100, 100_000)

    refused.close()
    fitting = int(str(refusal.value).split(": ")[-1].split()[0])
    read = ReadReservation(budget)
    assert await read_rows(db, read, 100, fitting) == fitting
    assert 4 * MB < read.used <= 5 * MB


async def test_single_large_row_is_read_and_reserved(db: Database, budget: ReadBudget) -> None:
    read = ReadReservation(budget)
    assert await read_rows(db, read, 6 * MB, 1) == 1
    assert 6 * MB < read.reserved <= 6 * MB + 1000
    read.close()
    assert budget.try_reserve(8 * MB)


async def test_statement_waits_for_memory_without_a_connection(db: Database, budget: ReadBudget) -> None:
    await budget.reserve(7 * MB)
    read = ReadReservation(budget)
    with pytest.raises(ReservationNeeded) as needed:
        await read_rows(db, read, MB, 3)

    # The only connection of the pool is free again.
    assert len(await db.fetch(ROWS, size=1, count=1)) == 1
    budget.release(7 * MB)
    await read.reserve(needed.value.size)
    assert await read_rows(db, read, MB, 3) == 3


async def test_statements_of_one_request_share_a_reservation(db: Database, budget: ReadBudget) -> None:
    read = ReadReservation(budget)
    assert await read_rows(db, read, MB, 3) == 3
    with pytest.raises(ResponseTooLarge):
        await read_rows(db, read, MB, 3)
