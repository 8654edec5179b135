"""The order in which pending runs are claimed, and the cost of a claim.

No priority makes a run wait for ever, and a caller's next run waits for no other caller's second one.
"""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.queue import statements
from portside.agent.queue.priorities import parse_priority
from portside.agent.queue.types import Admission, RunResult
from portside.agent.types.runs import RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from tests.db.queued import admit_run, end_run

WORKER = uuid4()
DONE = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b"{}", interrupts={})
# What `claim_runs` looks for, as the statement in it does.
READY = """
explain (analyze, buffers, format json) select run_id from runs
where status = 'pending' and not is_blocked and not is_delayed and run_after <= now()
order by queue_position, number limit 10 for update skip locked
"""


async def admit(
    db: Session,
    *,
    thread_id: UUID | None = None,
    priority: int = 0,
    delay_s: float = 0.0,
    caller: str | None = None,
) -> UUID:
    run_id = uuid7()
    kwargs: dict[str, Any] = {"config": {"configurable": {"graph_id": "g"}}}
    admission = Admission(
        run_id=run_id,
        thread_id=thread_id or uuid4(),
        assistant_id=uuid4(),
        metadata={},
        kwargs=kwargs,
        strategy="enqueue",
        thread_metadata={},
        create_thread=True,
        is_temporary=False,
        delay_s=delay_s,
        priority=priority,
        caller=caller,
    )

    await admit_run(db, admission, WORKER, starts=False)
    return run_id


async def claim(db: Database, limit: int = 1) -> list[UUID]:
    return [run.run_id for run in await statements.claim_runs(db, WORKER, limit)]


async def older(db: Database, run_id: UUID, minutes: float) -> None:
    await db.pool.execute(
        "update runs set queue_position = queue_position - make_interval(secs => $2 * 60) where run_id = $1",
        run_id,
        minutes,
    )


async def test_the_lowest_number_goes_first_and_equals_in_their_order(db: Database):
    last = await admit(db, priority=5)
    plain = [await admit(db) for _ in range(3)]
    first = await admit(db, priority=-5)
    assert [(await claim(db))[0] for _ in range(5)] == [first, *plain, last]


async def test_a_run_that_waited_long_enough_goes_before_those_with_priority(db: Database):
    patient = await admit(db, priority=5)
    await older(db, patient, 10.1)
    urgent = await admit(db, priority=-5)
    assert [*await claim(db), *await claim(db)] == [patient, urgent]


async def test_priority_does_not_change_the_order_within_a_thread(db: Database):
    thread_id = uuid4()
    plain = await admit(db, thread_id=thread_id)
    await admit(db, thread_id=thread_id, priority=-5)
    assert await claim(db, 10) == [plain]


async def test_each_run_of_a_thread_is_followed_by_the_one_that_was_admitted_next(db: Database):
    thread_id = uuid4()
    first = await admit(db, thread_id=thread_id)
    second = await admit(db, thread_id=thread_id, priority=5)
    third = await admit(db, thread_id=thread_id, priority=-5)

    # The third one has an earlier position in the queue than the second, but the thread is not at its turn yet.
    for run_id in (first, second, third):
        [run] = await statements.claim_runs(db, WORKER, 10)
        assert run.run_id == run_id
        assert await end_run(db, WORKER, run, DONE) == "ended"


async def test_a_delayed_run_waits_for_its_time_and_is_then_as_old_as_that(db: Database):
    delayed = await admit(db, delay_s=600)
    plain = await admit(db)
    assert await claim(db, 10) == [plain]
    await db.pool.execute("update runs set run_after = now() - interval '1 s' where run_id = $1", delayed)
    assert await claim(db, 10) == [delayed]
    assert not await db.pool.fetchval("select is_delayed from runs where run_id = $1", delayed)


async def test_callers_with_many_pending_runs_share_the_queue(db: Database):
    flood = [await admit(db, caller="ada") for _ in range(30)]
    first = [await admit(db, caller=name) for name in ("bob", "cleo")]
    assert await claim(db, 3) == [flood[0], *first]
    bobs = [await admit(db, caller="bob") for _ in range(5)]

    # From here on they take turns, although ada was first with all of hers.
    claimed = [(await claim(db))[0] for _ in range(10)]
    assert [run_id for run_id in claimed if run_id in bobs] == bobs
    assert [run_id for run_id in claimed if run_id in flood] == flood[1:6]
    late = await admit(db, caller="dan")
    assert late in await claim(db, 2)


async def test_a_second_flood_shares_with_what_is_left_of_the_first(db: Database):
    ada = [await admit(db, caller="ada") for _ in range(20)]
    assert await claim(db, 10) == ada[:10]
    bob = [await admit(db, caller="bob") for _ in range(20)]
    claimed = await claim(db, 12)
    assert {run_id in bob for run_id in claimed} == {True, False}
    assert abs(sum(run_id in bob for run_id in claimed) - 6) <= 1


async def test_a_callers_priorities_do_not_wait_behind_each_other(db: Database):
    plain = [await admit(db, caller="ada") for _ in range(20)]
    urgent = await admit(db, caller="ada", priority=-5)
    assert await claim(db, 2) == [urgent, plain[0]]


async def test_runs_that_become_due_together_take_their_turns(db: Database):
    delayed = [await admit(db, caller="ada", delay_s=600) for _ in range(10)]
    for_next_year = await admit(db, caller="ada", delay_s=3e7)
    waiting = [await admit(db, caller="ada") for _ in range(2)]
    await db.pool.execute("update runs set run_after = now() where run_id = any($1::uuid[])", delayed)
    assert await claim(db) == waiting[:1]
    bob = await admit(db, caller="bob")
    claimed = await claim(db, 20)
    assert bob in claimed[:2]

    assert [run_id for run_id in claimed if run_id != bob] == [waiting[1], *delayed]
    assert for_next_year not in claimed


async def test_runs_that_are_admitted_at_the_same_moment_share_no_turn(db: Database):
    await admit(db, caller="ada")
    async with db.transaction() as transaction:
        first = await admit(transaction, caller="ada")
        second = await admit(db, caller="ada")
        await admit(db, caller="bob")

    found = {
        row["run_id"]: row["queue_position"] for row in await db.pool.fetch("select run_id, queue_position from runs")
    }
    assert found[second] > found[first]


async def test_deleted_runs_do_not_delay_their_caller(db: Database):
    for _ in range(10):
        await admit(db, caller="ada")

    assert len(await claim(db, 10)) == 10
    again = await admit(db, caller="ada")
    bob = await admit(db, caller="bob")
    assert await claim(db, 2) == [again, bob]


@pytest.mark.parametrize("value", [-5, 0, 5])
def test_bounds_of_priority_are_allowed(value: int):
    assert parse_priority({"run_priority": value}) == value


@pytest.mark.parametrize("value", ["high", 6, -6, 1.5, True, [1]])
def test_invalid_priority_is_refused_with_its_field(value: Any):
    with pytest.raises(Invalid) as refused:
        parse_priority({"run_priority": value})
    assert refused.value.problems[0].loc == ["body", "metadata", "run_priority"]


async def pages_of_a_claim(db: Database) -> tuple[int, str]:
    """How many pages the look for ready runs reads, and by which index."""
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute("set local enable_seqscan = off")
        await connection.execute("set local enable_bitmapscan = off")
        plan_text = await connection.fetchval(READY)

    plan = (json.loads(plan_text) if isinstance(plan_text, str) else plan_text)[0]["Plan"]
    text = json.dumps(plan)
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], text


FILL = """
with made as (
    insert into threads (thread_id, active_runs) select gen_random_uuid(), 1 from generate_series(1, $1)
    returning thread_id
)
insert into runs (
    run_id, thread_id, assistant_id, status, is_blocked, is_delayed, kwargs, multitask_strategy, run_after,
    queue_position
)
select gen_random_uuid(), thread_id, gen_random_uuid(), 'pending', $2, $3, '{}', 'enqueue',
    now() + case when $3 then interval '1 hour' else interval '0' end, now()
from made
"""


@pytest.mark.parametrize("kind", ["ready", "blocked", "delayed"])
async def test_a_claim_reads_as_much_behind_three_runs_as_behind_five_thousand(db: Database, kind: str):
    await db.pool.execute(FILL, 3, False, False)
    few, _ = await pages_of_a_claim(db)
    await db.pool.execute(FILL, 5_000, kind == "blocked", kind == "delayed")
    await db.pool.execute("vacuum analyze runs")

    many, plan = await pages_of_a_claim(db)
    assert "runs_ready" in plan
    assert "Seq Scan" not in plan

    # The rows that are found, and the height of the index.
    assert many <= few + 40
