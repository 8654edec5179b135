"""The queue after the clock of Postgres was set back, for example because it was hours fast.

Nothing waits until the clock has caught up, and a worker that is alive keeps its runs.
"""

from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.queue import statements
from portside.agent.queue.chores import ExpiredLeases
from portside.agent.queue.types import Admission
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from tests.db.clock import set_clock_back
from tests.db.queued import admit_run

HOURS = 4 * 3600.0


async def admit(db: Database, worker_id: UUID, *, starts: bool = False, delay_s: float = 0.0) -> UUID:
    admission = Admission(
        run_id=uuid7(),
        thread_id=uuid4(),
        assistant_id=uuid4(),
        strategy="enqueue",
        is_temporary=False,
        metadata={},
        delay_s=delay_s,
        thread_metadata={},
        kwargs={"config": {"configurable": {"graph_id": "g"}}},
        create_thread=True,
    )

    admitted = await admit_run(db, admission, worker_id, starts=starts)
    assert admitted.outcome == ("running" if starts else "pending")
    return admission.run_id


async def sweep(db: Database) -> None:
    await ExpiredLeases(db, max_retries=3, on_released=lambda: None).activate()


async def columns(db: Database, run_id: UUID) -> dict[str, Any]:
    row = await db.pool.fetchrow("select status, lost_attempts, leased_until from runs where run_id = $1", run_id)
    return dict(row)


async def test_runs_of_a_dead_worker_continue(db: Database) -> None:
    dead = uuid4()
    alive = uuid4()
    run_id = await admit(db, dead, starts=True)
    await set_clock_back(db, HOURS)
    await sweep(db)
    assert (await columns(db, run_id))["status"] == "running", "its worker may still renew the lease"

    # The lease that is left ends within a minute.
    await set_clock_back(db, -61)
    await sweep(db)
    assert [claimed.run_id for claimed in await statements.claim_runs(db, alive, 10)] == [run_id]


async def test_live_worker_keeps_its_runs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # A lease of seconds would end on a busy machine.
    monkeypatch.setattr(statements, "LEASE_S", 60.0)
    worker = uuid4()
    run_id = await admit(db, worker, starts=True)
    await set_clock_back(db, HOURS)
    await sweep(db)
    assert run_id in await statements.renew_leases(db, worker, [run_id])
    await sweep(db)

    kept = await columns(db, run_id)
    assert (kept["status"], kept["lost_attempts"]) == ("running", 0)


async def test_waiting_runs_are_claimed(db: Database) -> None:
    worker = uuid4()
    waiting = [await admit(db, worker) for _ in range(3)]
    delayed = await admit(db, worker, delay_s=3600)
    returned = await admit(db, worker, starts=True)

    await statements.hand_back_runs(db, worker, {returned: 1})
    await set_clock_back(db, HOURS)
    claimed = {run.run_id for run in await statements.claim_runs(db, worker, 10)}
    assert claimed == {*waiting, returned}
    assert (await columns(db, delayed))["status"] == "pending", "a run that was delayed keeps its time"


async def test_processes_that_died_before_are_forgotten(db: Database) -> None:
    dead = uuid4()
    alive = uuid4()
    for process_id in (dead, alive):
        await db.fetchrow(sql.renew_stream_process, process_id=process_id, alive_s=15.0)

    await set_clock_back(db, HOURS)
    await db.execute(sql.delete_dead_processes)
    row = await db.fetchrow(sql.renew_stream_process, process_id=alive, alive_s=15.0)
    assert row is not None
    assert (row["was_dead"], row["others"]) == (True, 0)
