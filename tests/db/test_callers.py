"""How many runs of one caller may wait: over all processes, and without a look into the database for each run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from portside.agent.queue import crowding, lifecycle
from portside.agent.queue.crowding import Crowding, TooManyPendingRuns
from portside.agent.queue.lifecycle import Admission, Asked
from portside.agent.types.access import INSIDE, Caller
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from portside.kernel.migrations import migrate

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKER = uuid4()
ADA, BOB = Caller("ada").counted_as, Caller("bob").counted_as


class CountingDatabase(Database):
    """A database that notes how often it is asked to count."""

    counts = 0

    async def fetchval(self, query: Any, **values: Any) -> Any:
        self.counts += query.name == "count_waiting"
        return await super().fetchval(query, **values)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(module_database: str) -> AsyncIterator[CountingDatabase]:
    opened = CountingDatabase((await Database.connect(module_database, schema="portside", max_size=12)).pool)
    await migrate(opened, ["portside.agent"], schema="portside")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def db(opened: CountingDatabase) -> CountingDatabase:
    await opened.pool.execute("truncate threads cascade")
    opened.counts = 0
    return opened


def asked(by: str | None) -> Admission:
    return Admission(
        run_id=uuid7(), thread_id=uuid7(), assistant_id=uuid4(), metadata={}, strategy="enqueue", thread_metadata={},
        kwargs={"config": {"configurable": {"graph_id": "g"}, "metadata": {}}}, create_thread=True, temporary=True,
        delay_s=0.0, asked_by=by,
    )  # fmt: skip


async def ask(db: Database, process: Crowding, by: str | None, *, starts: bool = False) -> bool:
    try:
        async with process.room_for(1, by):
            await lifecycle.admit_run(db, asked(by), WORKER, has_free_slot=starts)
    except TooManyPendingRuns:
        return False
    return True


async def test_callers_are_told_apart() -> None:
    names = [
        Caller("ada"),
        Caller(address="ada"),
        Caller("bob", address="ada"),
        Caller(address="::1"),
        Caller("b\ud800"),
    ]
    assert len({caller.counted_as for caller in names}) == len(names)
    assert Caller("ada", address="1.2.3.4").counted_as == ADA
    assert (INSIDE.counted_as, Caller().counted_as) == (None, None)


async def test_what_waits_in_all_processes_counts_and_what_begins_does_not(db: CountingDatabase):
    processes = [Crowding(db, 3), Crowding(db, 3)]
    assert [await ask(db, processes[n % 2], ADA, starts=True) for n in range(4)] == [True] * 4
    assert [await ask(db, processes[n % 2], ADA) for n in range(5)] == [True, True, True, False, False]
    assert await ask(db, processes[0], BOB)
    assert await ask(db, processes[0], None)
    (claimed,) = await lifecycle.claim_runs(db, WORKER, 1)
    assert [await ask(db, processes[1], ADA) for _ in range(2)] == [True, False]
    await lifecycle.hand_back_runs(db, WORKER, {claimed.run_id: claimed.attempt})
    assert not await ask(db, processes[0], ADA)


async def test_many_at_once_do_not_get_past_the_limit(db: CountingDatabase):
    process = Crowding(db, 20)
    let_in = await asyncio.gather(*(ask(db, process, ADA) for _ in range(60)))
    assert sum(let_in) == await db.pool.fetchval("select count(*) from runs") <= 20
    while await ask(db, process, ADA):
        pass
    assert await db.pool.fetchval("select count(*) from runs") == 20


async def test_a_batch_finds_room_as_a_whole(db: CountingDatabase):
    process = Crowding(db, 3)
    async with process.room_for(2, ADA):
        await lifecycle.admit_runs(db, [Asked(asked(ADA)), Asked(asked(ADA))], uuid4())
    with pytest.raises(TooManyPendingRuns, match="MAX_PENDING_RUNS_PER_CALLER") as refused:
        async with process.room_for(2, ADA):
            raise AssertionError("let in")
    assert refused.value.headers["Retry-After"]
    assert await db.pool.fetchval("select count(*) from runs where asked_by = $1", ADA) == 2


async def test_far_from_the_limit_nothing_is_counted_for_a_while(db: CountingDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crowding, "COUNTED_FOR_S", 3600.0)
    process = Crowding(db, 10_000)
    assert all([await ask(db, process, ADA) for _ in range(50)])
    assert db.counts == 1
    monkeypatch.setattr(crowding, "COUNTED_FOR_S", 0.0)
    process = Crowding(db, 10_000)
    assert all([await ask(db, process, ADA) for _ in range(5)])
    assert db.counts == 6


async def test_without_a_limit_nobody_is_counted_or_written_down(db: CountingDatabase):
    process = Crowding(db, 0)
    assert await ask(db, process, process.name(ADA))
    assert (db.counts, await db.pool.fetchval("select asked_by from runs")) == (0, None)


async def test_those_who_have_gone_are_forgotten(db: CountingDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crowding, "KNOWN_AT_MOST", 3)
    process = Crowding(db, 10)
    async with process.room_for(1, "here"):
        for number in range(10):
            assert await ask(db, process, f"caller {number}")
        assert len(process._callers) <= 4
        assert "here" in process._callers


async def test_a_replica_of_the_last_version_admits_as_before(db: CountingDatabase):
    empty, configured = "'{}'::jsonb", """'{"config": {}}'::jsonb"""
    values = f"""
        gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), {empty}, {empty}, {configured}, 'enqueue', 0, {empty},
        {empty}, true, true, interval '0', null, null, null, null, null, null, interval '5 s'"""
    assert await db.pool.fetchval(f"select outcome from admit_run({values})") == "pending"
    assert await db.pool.fetchval(f"select outcome from admit_run_for(null, {empty}, {values})") == "pending"
    assert await db.pool.fetchval("select count(*) from runs where asked_by is null") == 2
