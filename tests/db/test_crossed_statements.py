"""The pool repeats a statement that Postgres rolled back because of a conflict; a transaction raises the conflict."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from portside.kernel.db import Database, Query
from portside.kernel.errors import Conflict
from portside.kernel.http.error_responses import to_error
from portside.kernel.pool import MAX_ATTEMPTS

# Locks one row, waits until another one has locked the other, and asks for that as well. The one that is run again does
# not wait.
CROSS = Query("cross", "select cross_rows(:first::int, :second::int)")
SETUP = """
create table pairs (id int primary key, n int not null default 0);
insert into pairs values (1), (2);
create function cross_rows(p_first int, p_second int) returns int language plpgsql as $$
begin
    update pairs set n = n + 1 where id = p_first;
    perform nextval('begun');
    while (select last_value from begun) < 2 loop
        perform pg_sleep(0.01);
    end loop;
    update pairs set n = n + 1 where id = p_second;
    return p_first;
end $$;
create function always_crossed() returns int language plpgsql as $$
begin
    raise exception 'crossed' using errcode = '40001';
end $$;
create sequence tries;
create sequence begun;
"""


@pytest.fixture
async def db(fresh_database: Callable[[], Awaitable[str]]) -> AsyncIterator[Database]:
    url = await fresh_database()
    opened = await Database.connect(url)
    await opened.pool.execute(SETUP)
    yield opened
    await opened.close()


async def test_both_sides_of_a_deadlock_are_done(db: Database):
    done = await asyncio.gather(
        db.fetchval(CROSS, first=1, second=2), db.fetchrow(CROSS, first=2, second=1), return_exceptions=True
    )
    assert [result if isinstance(result, int) else result[0] for result in done] == [1, 2]
    assert [row["n"] for row in await db.pool.fetch("select n from pairs")] == [2, 2]


async def test_statement_that_always_conflicts_fails_with_a_conflict(db: Database):
    again = Query("again", "select nextval('tries'), always_crossed()")
    with pytest.raises(asyncpg.SerializationError) as failed:
        await db.fetchval(again)

    assert await db.pool.fetchval("select last_value from tries") == MAX_ATTEMPTS
    assert isinstance(to_error(failed.value, "/runs"), Conflict)


async def test_a_transaction_is_not_run_again_by_halves(db: Database):
    async def crossing(first: int, second: int) -> None:
        async with db.transaction() as transaction:
            await transaction.fetchval(CROSS, first=first, second=second)

    results = await asyncio.gather(crossing(1, 2), crossing(2, 1), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    assert [type(error) for error in failed] == [asyncpg.DeadlockDetectedError]
    error = to_error(failed[0], "/threads")  # type: ignore[arg-type]
    assert (error.status, "send it again" in error.message) == (409, True)
    assert [row["n"] for row in await db.pool.fetch("select n from pairs")] == [1, 1]
