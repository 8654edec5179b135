"""The limit of pending runs for each caller.

It holds over all processes, and far from the limit an admission costs no count.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from portside.agent.queue import pending_limit, statements
from portside.agent.queue.pending_limit import PendingRunLimit, TooManyPendingRuns
from portside.agent.queue.types import Admission
from portside.agent.types.access import IN_PROCESS, Caller
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from portside.kernel.migrations import migrate
from tests.db.queued import admit_run

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKER = uuid4()
ADA = Caller("ada").limit_key
BOB = Caller("bob").limit_key


class CountingDatabase(Database):
    """A database that notes how often it is asked to count."""

    counts = 0

    async def fetchval(self, query: Any, **values: Any) -> Any:
        self.counts += query.name == "count_pending"
        return await super().fetchval(query, **values)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counting_database(module_database: str) -> AsyncIterator[CountingDatabase]:
    opened = CountingDatabase((await Database.connect(module_database, schema="portside", max_size=12)).pool)
    await migrate(opened, ["portside.agent"], schema="portside")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def db(counting_database: CountingDatabase) -> CountingDatabase:
    await counting_database.pool.execute("truncate threads cascade")
    counting_database.counts = 0
    return counting_database


def build_admission(by: str | None) -> Admission:
    return Admission(
        run_id=uuid7(),
        thread_id=uuid7(),
        assistant_id=uuid4(),
        metadata={},
        strategy="enqueue",
        thread_metadata={},
        kwargs={"config": {"configurable": {"graph_id": "g"}, "metadata": {}}},
        create_thread=True,
        is_temporary=True,
        delay_s=0.0,
        caller=by,
    )


async def ask(db: Database, process: PendingRunLimit, by: str | None, *, starts: bool = False) -> bool:
    try:
        async with process.reserve(1, by):
            await admit_run(db, build_admission(by), WORKER, starts=starts)
    except TooManyPendingRuns:
        return False

    return True


async def test_callers_are_counted_separately() -> None:
    names = [
        Caller("ada"),
        Caller(address="ada"),
        Caller("bob", address="ada"),
        Caller(address="::1"),
        Caller("b\ud800"),
    ]

    assert len({caller.limit_key for caller in names}) == len(names)
    assert Caller("ada", address="1.2.3.4").limit_key == ADA
    assert (IN_PROCESS.limit_key, Caller().limit_key) == (None, None)


async def test_waiting_runs_of_all_processes_count_and_running_ones_do_not(db: CountingDatabase):
    processes = [PendingRunLimit(db, 3), PendingRunLimit(db, 3)]
    assert [await ask(db, processes[n % 2], ADA, starts=True) for n in range(4)] == [True] * 4
    assert [await ask(db, processes[n % 2], ADA) for n in range(5)] == [True, True, True, False, False]
    assert await ask(db, processes[0], BOB)
    assert await ask(db, processes[0], None)
    (claimed,) = await statements.claim_runs(db, WORKER, 1)
    assert [await ask(db, processes[1], ADA) for _ in range(2)] == [True, False]

    await statements.hand_back_runs(db, WORKER, {claimed.run_id: claimed.attempt})
    assert not await ask(db, processes[0], ADA)


async def test_many_at_once_do_not_get_past_the_limit(db: CountingDatabase):
    process = PendingRunLimit(db, 20)
    let_in = await asyncio.gather(*(ask(db, process, ADA) for _ in range(60)))
    assert sum(let_in) == await db.pool.fetchval("select count(*) from runs") <= 20

    while await ask(db, process, ADA):
        pass

    assert await db.pool.fetchval("select count(*) from runs") == 20


async def test_runs_that_are_being_admitted_count(db: CountingDatabase):
    process = PendingRunLimit(db, 2)
    async with process.reserve(1, ADA), process.reserve(1, ADA):
        with pytest.raises(TooManyPendingRuns):
            async with process.reserve(1, ADA):
                raise AssertionError("let in")

    # None of them was stored.
    assert await ask(db, process, ADA)


async def test_batch_is_limited_as_a_whole(db: CountingDatabase):
    process = PendingRunLimit(db, 3)
    async with process.reserve(2, ADA):
        await statements.admit_runs(db, [build_admission(ADA), build_admission(ADA)], uuid4())

    with pytest.raises(TooManyPendingRuns, match="MAX_PENDING_RUNS_PER_CALLER") as refused:
        async with process.reserve(2, ADA):
            raise AssertionError("let in")

    assert refused.value.headers["Retry-After"]
    assert await db.pool.fetchval("select count(*) from runs where caller = $1", ADA) == 2


async def test_runs_far_below_the_limit_are_not_counted(db: CountingDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_limit, "COUNT_VALID_S", 3600.0)
    process = PendingRunLimit(db, 10_000)
    assert all([await ask(db, process, ADA) for _ in range(50)])
    assert db.counts == 1
    monkeypatch.setattr(pending_limit, "COUNT_VALID_S", 0.0)

    process = PendingRunLimit(db, 10_000)
    assert all([await ask(db, process, ADA) for _ in range(5)])
    assert db.counts == 6


async def test_a_count_lets_in_a_tenth_of_what_is_free(db: CountingDatabase, monkeypatch: pytest.MonkeyPatch):
    """Other processes may do so at the same moment."""
    monkeypatch.setattr(pending_limit, "COUNT_VALID_S", 3600.0)
    process = PendingRunLimit(db, 20)
    counts = []
    for _ in range(4):
        assert await ask(db, process, ADA)
        counts.append(db.counts)

    assert counts == [1, 1, 2, 3]


async def test_a_run_that_is_admitted_during_a_count_is_added_to_it(
    db: CountingDatabase, monkeypatch: pytest.MonkeyPatch
):
    process = PendingRunLimit(db, 1)
    async with AsyncExitStack() as first:
        await first.enter_async_context(process.reserve(1, ADA))

        async def count_what_was_before(*_args: Any, **_values: Any) -> int:
            await first.aclose()
            return 0

        monkeypatch.setattr(db, "fetchval", count_what_was_before)
        with pytest.raises(TooManyPendingRuns):
            async with process.reserve(1, ADA):
                raise AssertionError("let in")


async def test_without_a_limit_callers_are_not_counted(db: CountingDatabase):
    process = PendingRunLimit(db, 0)
    assert await ask(db, process, ADA if process.is_enabled else None)
    assert (db.counts, await db.pool.fetchval("select caller from runs")) == (0, None)


async def test_counts_of_idle_callers_are_dropped(db: CountingDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_limit, "CALLERS_AT_MOST", 3)
    process = PendingRunLimit(db, 10)
    async with process.reserve(1, "here"):
        for number in range(10):
            assert await ask(db, process, f"caller {number}")

        assert len(process._callers) <= 4
        assert "here" in process._callers
