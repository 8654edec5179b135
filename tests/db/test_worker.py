"""The worker of one process on Postgres: its slots, the leases of its runs, and what it does when they are lost.

Two attempts at a run never execute at once in a process. A slot is free again whatever happened to its run. Nothing
here waits for the worker's periodic looks: each test says when it claims and when it renews its leases.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from portside.agent.app import SCHEMA
from portside.agent.queue import active_run, returns, statements, worker
from portside.agent.queue.active_run import ActiveRun, AttemptLost
from portside.agent.queue.admissions import Admissions
from portside.agent.queue.backlog import IN_PROGRESS, PENDING, READY, Backlog, QueueMonitor
from portside.agent.queue.chores import ExpiredLeases
from portside.agent.queue.rest import REST_AFTER_S, IdleBackoff
from portside.agent.queue.types import Admission, Cancellation, CancelScope, ClaimedRun, RunResult
from portside.agent.queue.worker import Intake, Worker
from portside.agent.sql import sql
from portside.agent.types.runs import CancelAction, MultitaskStrategy, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.db import Database
from portside.kernel.http.middleware import Activity
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Driver
from tests.conftest import eventually
from tests.db.queued import admit_run

DONE = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b"{}", interrupts={})
ENDS = {
    "interrupt": RunResult(
        status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED, values=b"{}", interrupts={}
    ),
    "rollback": RunResult(status=RunStatus.ROLLED_BACK, thread_status=ThreadStatus.IDLE, interrupts={}),
}


class Attempt:
    """An attempt at a run, which ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.end, self.cancelled, self.let_go = (asyncio.Event() for _ in range(4))
        self.failure: Exception | None = None


class Handler:
    """Executes runs as the test says, and notes what the worker asks for."""

    def __init__(self) -> None:
        self.attempts: dict[tuple[UUID, int], Attempt] = {}
        self.ended: list[tuple[UUID, RunResult | None]] = []
        self.on_flush: Callable[[], Awaitable[None]] | None = None

    def attempt(self, run_id: UUID, number: int = 1) -> Attempt:
        return self.attempts.setdefault((run_id, number), Attempt())

    async def execute(self, run: ActiveRun) -> RunResult:
        attempt = self.attempt(run.claimed.run_id, run.claimed.attempt)
        attempt.begun.set()
        try:
            await attempt.end.wait()
        except asyncio.CancelledError:
            attempt.cancelled.set()
            # A node takes its time to stop.
            await attempt.let_go.wait()
            if attempt.failure is not None:
                raise attempt.failure from None

            raise

        if attempt.failure is not None:
            raise attempt.failure

        return DONE

    async def finish_cancelled(self, run: ClaimedRun, cancellation: Cancellation) -> RunResult:
        return ENDS[cancellation.action]

    async def flush_events(self) -> None:
        if self.on_flush is not None:
            await self.on_flush()

    def on_end(self, run: ClaimedRun, result: RunResult | None) -> None:
        self.ended.append((run.run_id, result))


def new_run(*, is_temporary: bool) -> Admission:
    return Admission(
        run_id=uuid7(),
        thread_id=uuid7(),
        assistant_id=uuid4(),
        metadata={},
        strategy=MultitaskStrategy.ENQUEUE,
        thread_metadata={},
        kwargs={"config": {"configurable": {"graph_id": "g"}}},
        create_thread=True,
        is_temporary=is_temporary,
        delay_s=0.0,
    )


class Process:
    """A process with a worker of one slot."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.handler = Handler()
        self.draining = asyncio.Event()
        self.worker = Worker(db, self.handler, Intake(self.draining), slots=1)

    async def admit(self) -> UUID:
        """Admit a run that waits to be claimed."""
        admission = new_run(is_temporary=False)
        await admit_run(self.db, admission, self.worker.worker_id)
        return admission.run_id

    async def execute(self) -> tuple[UUID, Attempt]:
        """Claim a new run and wait until its graph executes."""
        run_id = await self.admit()
        self.worker.wake()
        attempt = self.handler.attempt(run_id)
        await asyncio.wait_for(attempt.begun.wait(), 60)
        return run_id, attempt

    async def status(self, run_id: UUID) -> str | None:
        status: str | None = await self.db.pool.fetchval("select status from runs where run_id = $1", run_id)
        return status

    async def wait_for_status(self, run_id: UUID, status: str | None) -> None:
        async def has_status() -> bool:
            return await self.status(run_id) == status

        await eventually(has_status)

    async def renew_until(self, condition: Callable[[], bool]) -> None:
        """Renew leases until a condition holds: on a busy machine the answer to one renewal may come too late."""

        async def holds() -> bool:
            self.worker.check_cancellations()
            return condition()

        await eventually(holds)

    async def wait_until_idle(self) -> None:
        async def is_idle() -> bool:
            return self.worker.busy_slots == 0

        await eventually(is_idle)

    async def wait_until_behind(self) -> None:
        """Let the worker see that it has no slot for what waits."""
        self.worker.wake()

        async def is_behind() -> bool:
            return self.worker._is_behind and not self.worker._claims_due.is_set()

        await eventually(is_behind)


@pytest.fixture
async def process(db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    for name in ("POLL_S", "RENEW_EVERY_S"):
        monkeypatch.setattr(worker, name, 3600.0)

    # The test renews leases when it wants to.
    for module in (active_run, worker, statements):
        monkeypatch.setattr(module, "LEASE_S", 600.0)

    # A busy machine may answer late: nothing is given up for that, and what a stop hands back is back when it is over.
    monkeypatch.setattr(statements, "STATEMENT_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(returns, "RETURNED_WITHIN_S", 600.0)
    for name in ("HAND_BACK_AFTER_S", "CLOSED_WITHIN_S"):
        monkeypatch.setattr(worker, name, 600.0)

    made = Process(db)
    made.worker.start(Driver([]))
    yield made

    for attempt in made.handler.attempts.values():
        attempt.let_go.set()

    await made.worker.drain(0.0)


async def count_waiting(db: Database) -> int:
    """Count the statements about runs that wait for a lock. Copies of a database have the same numbers of tables."""
    count: int = await db.pool.fetchval(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
        " where datname = current_database() and not granted and relation = 'runs'::regclass"
    )
    return count


@asynccontextmanager
async def runs_locked(db: Database) -> AsyncIterator[None]:
    """Let no statement about runs be answered."""
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("lock table runs in access exclusive mode")
        yield


async def test_second_attempt_in_a_process_waits_for_the_first_and_outlives_it(process: Process):
    run_id, first = await process.execute()
    await process.db.pool.execute("update runs set attempt = 2 where run_id = $1", run_id)
    claimed = process.worker._active[run_id].claimed
    again = ClaimedRun(**{name: getattr(claimed, name) for name in claimed.__struct_fields__} | {"attempt": 2})

    process.worker.begin(again)
    await asyncio.wait_for(first.cancelled.wait(), 60)
    second = process.handler.attempt(run_id, 2)

    for _ in range(10):
        await asyncio.sleep(0)

    assert not second.begun.is_set()
    first.let_go.set()
    await asyncio.wait_for(second.begun.wait(), 60)
    assert process.worker.busy_slots == 1
    second.end.set()
    await process.wait_for_status(run_id, "success")


async def test_lost_run_returns_to_the_queue(process: Process):
    run_id, attempt = await process.execute()
    process.worker._active[run_id].lose()
    attempt.let_go.set()
    await process.wait_until_idle()
    process.worker.check_cancellations()
    await process.wait_for_status(run_id, "pending")
    assert process.handler.ended == [(run_id, None)]


async def test_lost_run_that_fails_while_it_stops_returns_to_the_queue(process: Process):
    """Its next attempt may succeed, and only that attempt may write an end."""
    run_id, attempt = await process.execute()
    attempt.failure = RuntimeError("a node does not like to be stopped")
    process.worker._active[run_id].lose()
    attempt.let_go.set()
    await process.wait_until_idle()
    process.worker.check_cancellations()
    await process.wait_for_status(run_id, "pending")

    assert process.handler.ended == [(run_id, None)]


async def test_run_that_another_worker_owns_is_stopped(process: Process):
    run_id, attempt = await process.execute()
    await process.db.pool.execute("update runs set worker_id = $1, attempt = 2", uuid4())
    await process.renew_until(attempt.cancelled.is_set)
    attempt.let_go.set()
    await process.wait_until_idle()
    assert await process.status(run_id) == "running"


async def test_run_is_stopped_when_its_lease_runs_out_without_an_answer(process: Process):
    run_id, attempt = await process.execute()
    async with runs_locked(process.db):
        process.worker._active[run_id].leased_until = 0.0
        process.worker.check_cancellations()
        await asyncio.wait_for(attempt.cancelled.wait(), 60)

    attempt.let_go.set()


async def test_a_lease_counts_from_when_its_renewal_was_sent(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "RENEWAL_TIMEOUT_S", 3600.0)
    run_id, _ = await process.execute()

    run = process.worker._active[run_id]
    async with runs_locked(process.db):
        # It gives up waiting for the answer, which comes when the lock is gone. One sent before may still be answered.
        while (sent := process.worker._renewal) is None:
            await process.worker._renew_leases()
        before = run.leased_until

    while run.leased_until == before:
        await process.worker._renew_leases()

    assert run.leased_until == sent.sent_at + worker.LEASE_S


async def test_a_renewal_that_is_not_answered_is_replaced(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "RENEWAL_TIMEOUT_S", 0.0)
    run_id, _ = await process.execute()
    async with runs_locked(process.db):
        process.worker.check_cancellations()

        async def is_sent() -> bool:
            return process.worker._renewal is not None

        await eventually(is_sent)
        first = process.worker._renewal

        async def is_replaced() -> bool:
            process.worker.check_cancellations()
            return process.worker._renewal is not first

        await eventually(is_replaced)

    assert not process.handler.attempt(run_id).cancelled.is_set()


async def test_a_cancel_is_found_by_a_later_renewal(process: Process):
    run_id, attempt = await process.execute()
    before = process.worker._active[run_id].leased_until
    await process.renew_until(lambda: process.worker._active[run_id].leased_until != before)
    await statements.cancel_runs(process.db, CancelScope(), Cancellation(CancelAction.INTERRUPT, ""))
    await process.renew_until(attempt.cancelled.is_set)
    attempt.let_go.set()
    await process.wait_for_status(run_id, "interrupted")


async def test_rollback_that_comes_while_a_run_ends_removes_it(process: Process):
    run_id, attempt = await process.execute()
    await statements.cancel_runs(process.db, CancelScope(), Cancellation(CancelAction.ROLLBACK, ""))
    attempt.end.set()
    await process.wait_for_status(run_id, None)

    # The worker hears of it a moment after the others who ask the database.
    await process.wait_until_idle()
    assert process.handler.ended == [(run_id, ENDS["rollback"])]


async def test_run_that_an_outage_stopped_returns_to_the_queue(process: Process):
    run_id, attempt = await process.execute()
    attempt.failure = ConnectionError("the database is gone")
    attempt.end.set()
    await process.wait_until_idle()

    # The database is still away.
    await process.db.pool.execute("alter table runs rename to runs_away")
    await process.worker._returns.return_attempts()
    await process.db.pool.execute("alter table runs_away rename to runs")
    process.worker.check_cancellations()
    await process.wait_for_status(run_id, "pending")


async def test_stopping_worker_returns_the_run_that_an_outage_stopped(process: Process):
    """No renewal follows with which it would return, and its lease would count as lost."""
    run_id, attempt = await process.execute()
    attempt.failure = ConnectionError("the database is gone")
    attempt.end.set()
    await process.wait_until_idle()
    await process.worker.drain(0.0)
    assert await process.status(run_id) == "pending"


async def test_leases_are_renewed_while_a_run_cannot_be_returned(process: Process):
    """Its row may be locked, or its statement may wait for a dead connection."""
    stopped, attempt = await process.execute()
    attempt.failure = ConnectionError("the database is gone")
    attempt.end.set()
    await process.wait_until_idle()

    running, _ = await process.execute()

    def is_renewed_since(before: float) -> bool:
        return process.worker._active[running].leased_until != before

    async with process.db.pool.acquire() as other, other.transaction():
        await other.execute("select from runs where run_id = $1 for update", stopped)

        # The first renewal is followed by the attempt to return the run.
        for _ in range(2):
            before = process.worker._active[running].leased_until
            await process.renew_until(partial(is_renewed_since, before))

    await process.wait_for_status(stopped, "pending")


async def test_process_that_stood_still_renews_its_leases_before_it_sweeps(process: Process):
    run_id, _ = await process.execute()
    active = process.worker._active[run_id]
    chore = ExpiredLeases(process.db, max_retries=3, on_released=lambda: None, is_overdue=process.worker.renew_overdue)

    lost = await process.admit()
    await process.db.pool.execute("update runs set status = 'running', worker_id = $2 where run_id = $1", lost, uuid4())
    await process.db.pool.execute("update runs set leased_until = now() - interval '1 second'")
    active.leased_until -= 2 * worker.LEASE_S
    process.worker._renewed_at -= 2 * worker.LEASE_S

    assert (await chore.activate()).did == {}
    await process.renew_until(lambda: active.is_owned)
    assert (await chore.activate()).did == {"released": 1}
    assert [await process.status(each) for each in (run_id, lost)] == ["running", "pending"]


@pytest.mark.parametrize("is_counted", [True, False])
async def test_run_whose_executor_crashed_is_a_suspect_for_every_worker(process: Process, *, is_counted: bool):
    run_id, attempt = await process.execute()
    attempt.failure = AttemptLost("its executor was killed", is_counted=is_counted, is_suspect=True)
    # The worker of this process must not take the run before the test does: it claims when it has a slot again.
    process.draining.set()
    attempt.end.set()
    await process.wait_until_idle()

    if is_counted:
        await ExpiredLeases(process.db, max_retries=3, on_released=lambda: None).activate()
    else:
        process.worker.check_cancellations()

    await process.wait_for_status(run_id, "pending")
    await process.db.pool.execute("update runs set run_after = now()")
    [claimed] = await statements.claim_runs(process.db, uuid4(), 1)
    lost = await process.db.pool.fetchval("select lost_attempts from runs")
    assert (claimed.run_id, claimed.is_suspect, lost) == (run_id, True, int(is_counted))


async def test_stopped_run_leaves_its_slot_to_one_that_waits(process: Process):
    run_id, attempt = await process.execute()
    waiting = await process.admit()
    await process.wait_until_behind()

    # Nothing is written at the end of a lost run, so no claim comes with it.
    process.worker._active[run_id].lose()
    attempt.let_go.set()
    await asyncio.wait_for(process.handler.attempt(waiting).begun.wait(), 60)


async def test_released_slot_is_given_to_a_run_that_waits(process: Process):
    with ExitStack() as reservations:

        async def is_reserved() -> bool:
            # The first claim may have reserved it.
            return reservations.enter_context(process.worker.reserve_slot())

        await eventually(is_reserved)
        waiting = await process.admit()
        await process.wait_until_behind()
        assert process.worker.free_slots == 0
        assert process.worker.available_slots == 1, "no run has the slot yet, so metrics show it as available"

    await asyncio.wait_for(process.handler.attempt(waiting).begun.wait(), 60)


async def test_failed_claim_releases_its_slots(process: Process):
    await process.db.pool.execute("alter table runs rename to runs_away")
    assert not await process.worker._claim()

    async def is_free() -> bool:
        return process.worker.free_slots == 1

    await eventually(is_free)
    await process.db.pool.execute("alter table runs_away rename to runs")
    await process.execute()


@pytest.mark.parametrize("how", ["draining", "drain"])
async def test_stopping_worker_claims_nothing_when_a_run_ends(process: Process, how: str):
    run_id, attempt = await process.execute()
    waiting = await process.admit()
    await process.wait_until_behind()
    stopping = None

    if how == "drain":
        stopping = asyncio.create_task(process.worker.drain(600.0))
    else:
        process.draining.set()

    attempt.end.set()
    await process.wait_for_status(run_id, "success")

    if stopping is not None:
        await asyncio.wait_for(stopping, 60)

    assert await process.status(waiting) == "pending"
    assert (waiting, 1) not in process.handler.attempts


async def test_events_are_flushed_before_runs_are_handed_back(process: Process):
    """The next worker's events must come after those that were written here."""
    run_id, attempt = await process.execute()
    seen: list[str | None] = []

    async def flush() -> None:
        seen.append(await process.status(run_id))

    process.handler.on_flush = flush
    attempt.let_go.set()
    await process.worker.drain(0.0)
    assert [*seen, await process.status(run_id)] == ["running", "pending"]


async def test_stop_of_the_worker_hands_back_a_run_that_is_being_cancelled(process: Process):
    run_id, attempt = await process.execute()
    process.worker._active[run_id].cancel(Cancellation(CancelAction.INTERRUPT, ""))
    await asyncio.wait_for(attempt.cancelled.wait(), 60)
    await process.worker.drain(0.0)
    assert process.handler.ended == [(run_id, None)]
    assert await process.status(run_id) == "pending"


async def test_run_that_started_for_a_client_that_left_returns_to_the_queue(process: Process):
    admission = new_run(is_temporary=True)
    admission.starts = admission.is_awaited = True

    async def is_being_admitted() -> bool:
        return await count_waiting(process.db) > 0

    async with runs_locked(process.db):
        admitting = asyncio.create_task(Admissions(process.db, process.worker).admit(admission))
        await eventually(is_being_admitted)
        admitting.cancel()

    await process.wait_for_status(admission.run_id, "running")

    async def is_returned() -> bool:
        process.worker.check_cancellations()
        return await process.status(admission.run_id) == "pending"

    await eventually(is_returned)


async def test_large_run_is_admitted_beside_the_batch_of_the_others(process: Process):
    """Nobody waits for the input of somebody else's run."""
    admissions = Admissions(process.db, process.worker)
    large = new_run(is_temporary=True)
    large.kwargs["input"] = ["x" * 2_000_000]
    small = new_run(is_temporary=True)

    async def are_being_admitted() -> bool:
        return await count_waiting(process.db) == 2

    async with runs_locked(process.db):
        admitting = [asyncio.create_task(admissions.admit(admission)) for admission in (large, small)]
        await eventually(are_being_admitted)

    admitted = await asyncio.gather(*admitting)
    assert [each.run_id for each in admitted] == [large.run_id, small.run_id]


async def test_a_worker_with_fewer_slots_than_runs_takes_no_new_one_when_one_ends(process: Process):
    process.worker.set_slots(2)
    first, attempt = await process.execute()
    second, other = await process.execute()
    waiting = await process.admit()
    await process.wait_until_behind()

    process.worker.set_slots(1)
    attempt.end.set()
    await process.wait_for_status(first, "success")
    assert await process.status(waiting) == "pending"
    other.end.set()
    await asyncio.wait_for(process.handler.attempt(waiting).begun.wait(), 60)
    assert await process.status(second) == "success"


async def test_a_worker_whose_loop_has_ended_is_not_working_until_it_stops(process: Process):
    assert process.worker.is_working
    loop = process.worker._loops[0]
    loop.cancel()
    await asyncio.wait([loop])
    assert not process.worker.is_working
    await process.worker.drain(0.0)
    assert process.worker.is_working


async def test_a_run_that_was_cancelled_before_it_is_claimed_is_not_executed(process: Process):
    run_id = await process.admit()
    await process.db.pool.execute("update runs set cancel_action = 'interrupt', started_at = now()")
    process.worker.wake()
    await process.wait_for_status(run_id, "interrupted")
    assert not process.handler.attempt(run_id).begun.is_set()


async def test_first_starts_and_retries_are_counted_apart(process: Process):
    def count() -> tuple[float, float]:
        return worker.RETRIED._value.get(), worker.WAITED._sum.get()

    def begin(**fields: Any) -> None:
        run_id = uuid7()
        run = ClaimedRun(
            run_id=run_id, thread_id=uuid7(), assistant_id=uuid7(), kwargs={}, is_temporary=False, **fields
        )
        process.handler.attempt(run_id, run.attempt).end.set()
        process.worker.begin(run)

    retries, waited_s = count()
    begin(attempt=1, waited_s=512.0)
    assert count() == (retries, waited_s + 512.0)
    begin(attempt=2, was_started=True, waited_s=512.0)
    assert count() == (retries + 1, waited_s + 512.0)
    begin(attempt=2, was_started=True, waited_s=512.0, cancel_action="interrupt")
    assert count() == (retries + 1, waited_s + 512.0)
    await process.wait_until_idle()


async def test_figures_of_the_queue_tell_for_how_long_runs_could_have_started(db: Database):
    process = Process(db)
    for _ in range(4):
        await process.admit()

    # One runs, one could start, one is blocked by another of its thread, and one is due in an hour.
    changes = (
        "status = 'running', leased_until = now()",
        "created_at = now() - interval '5 hours', run_after = now() - interval '10 minutes'",
        "created_at = now() - interval '1 hour', run_after = now() - interval '1 hour', is_blocked = true",
        "created_at = now() - interval '2 hours', run_after = now() + interval '1 hour', is_delayed = true",
    )
    rows = await db.pool.fetch("select run_id from runs order by number")
    for row, change in zip(rows, changes, strict=True):
        await db.pool.execute(f"update runs set {change} where run_id = $1", row["run_id"])

    monitor = QueueMonitor(db, process.worker, {})
    await monitor.set_gauges()
    found = await monitor.get_backlog()
    assert (found.n_pending, found.n_running, READY._value.get()) == (3, 1, 1)
    hours = [
        (figure or 0) // 600 / 6
        for figure in (
            found.pending_unblocked_runs_wait_time_max_secs,
            found.pending_runs_wait_time_med_secs,
            found.pending_runs_wait_time_max_secs,
        )
    ]
    assert hours == [1 / 6, 3 / 6, 1]


async def test_queue_of_a_database_that_dies_during_the_count_has_no_figures(agent_databases, monkeypatch):
    """An operator sees the other metrics meanwhile."""
    db = await Database.connect(await agent_databases(), schema=SCHEMA)
    monitor = QueueMonitor(db, Process(db).worker, {"api": db})
    is_alive = db.is_alive

    async def is_alive_once_more() -> bool:
        answer = await is_alive()
        await db.close()
        return answer

    monkeypatch.setattr(db, "is_alive", is_alive_once_more)
    await monitor.set_gauges()
    assert await monitor.get_backlog() == Backlog()
    assert all(math.isnan(gauge._value.get()) for gauge in (PENDING, READY, IN_PROGRESS))


async def test_process_is_not_idle_while_a_run_could_start(db: Database):
    """Nobody may claim it, because all processes have ended but this one: it must not go to sleep."""
    process = Process(db)
    activity = Activity(ended_at=process.worker.ended_at - 3600)
    process.worker.ended_at -= 3600

    async def idle_s() -> float | None:
        return await QueueMonitor(db, process.worker, {"api": db}).get_idle_s(activity)

    before = await idle_s()
    assert before is not None
    assert before > 0
    run_id = await process.admit()
    assert await idle_s() == 0
    await db.pool.execute(
        "update runs set run_after = now() + interval '1 day', is_delayed = true where run_id = $1", run_id
    )

    after = await idle_s()
    assert after is not None
    assert after > 0


async def test_run_that_was_being_admitted_when_the_worker_stopped_returns_to_the_queue(process: Process):
    admission = new_run(is_temporary=False)
    admission.starts = True
    await process.worker.drain(0.0)
    [admitted] = await statements.admit_runs(process.db, [admission], process.worker.worker_id)
    assert admitted is not None
    assert admitted.outcome == "running"

    process.worker.begin(
        ClaimedRun(
            run_id=admission.run_id,
            thread_id=admission.thread_id,
            assistant_id=admission.assistant_id,
            kwargs=admission.kwargs,
            attempt=admitted.attempt,
            is_temporary=False,
        )
    )

    await process.wait_for_status(admission.run_id, "pending")
    assert (process.handler.ended, process.worker.busy_slots) == ([(admission.run_id, None)], 0)


class Resting:
    """A process that was used last long ago, and the chore that finds its lost runs."""

    def __init__(self, process: Process) -> None:
        self.activity = Activity(ended_at=process.worker.ended_at - 2 * REST_AFTER_S)
        self.chore = ExpiredLeases(process.db, max_retries=3, on_released=process.worker.wake)
        self.told: list[bool] = []
        self.backoff = IdleBackoff(process.db, process.worker, self.activity, tasks=[self.chore], pollers=[self])
        process.worker.ended_at -= 2 * REST_AFTER_S

    def rest(self, *, is_resting: bool) -> None:
        self.told.append(is_resting)

    @property
    def is_slow(self) -> bool:
        """Whether the process looks rarely; it looks at once when that ends."""
        assert (self.chore.report.every_s > 10) == self.backoff.is_resting == (self.activity.on_use is not None)
        return self.backoff.is_resting


@pytest.fixture
def idle_process(process: Process) -> Resting:
    return Resting(process)


async def test_process_without_work_rests_until_it_is_used(process: Process, idle_process: Resting):
    await idle_process.backoff.activate()
    assert idle_process.is_slow
    await idle_process.backoff.activate()
    assert idle_process.told == [True], "told once"

    # A request begins: the process is as quick as ever before it is answered, and stays so for a while after it.
    assert idle_process.activity.on_use is not None
    idle_process.activity.on_use()
    assert not idle_process.is_slow
    assert idle_process.chore.signal.is_set()
    idle_process.activity.open = 1

    await idle_process.backoff.activate()
    assert not idle_process.is_slow
    idle_process.activity.open = 0
    await idle_process.backoff.activate()
    assert idle_process.is_slow
    assert idle_process.told == [True, False, True]


async def test_process_does_not_rest_while_there_are_runs_of_anybody(process: Process, idle_process: Resting):
    run_id, attempt = await process.execute()
    await idle_process.backoff.activate()
    assert not idle_process.is_slow

    # Another process executes it: its lease may have to be swept.
    await process.db.pool.execute("update runs set worker_id = $2 where run_id = $1", run_id, uuid4())
    process.worker._active[run_id].lose()
    attempt.let_go.set()
    await process.wait_until_idle()
    process.worker.ended_at -= 2 * REST_AFTER_S
    await idle_process.backoff.activate()
    assert not idle_process.is_slow

    # What is due in an hour lets it rest, what is due in a moment does not.
    for due_in_s, is_slow in ((3600, True), (3, False)):
        await process.db.pool.execute(
            "update runs set status = 'pending', worker_id = null, is_delayed = true, leased_until = null,"
            " run_after = now() + make_interval(secs => $1)",
            due_in_s,
        )

        await idle_process.backoff.activate()
        assert idle_process.is_slow == is_slow, due_in_s


async def test_run_that_nobody_announced_is_found_at_the_next_look_of_a_resting_process(
    process: Process, idle_process: Resting
):
    await idle_process.backoff.activate()
    assert idle_process.is_slow
    run_id = await process.admit()
    await idle_process.backoff.activate()
    assert not idle_process.is_slow
    await asyncio.wait_for(process.handler.attempt(run_id).begun.wait(), 60)
    process.handler.attempt(run_id).end.set()

    await process.wait_for_status(run_id, "success")


async def test_what_is_due_next_is_the_earliest_of_crons_webhooks_and_runs(db: Database):
    """A platform starts a server that sleeps again at this time."""

    async def due_in_hours() -> int | None:
        left_s = await db.fetchval(sql.seconds_until_next_due)
        return None if left_s is None else round(left_s / 3600)

    assistant_id = uuid4()
    await db.pool.execute("insert into assistants (assistant_id, graph_id, name) values ($1, 'g', 'a')", assistant_id)
    await db.pool.execute(
        "insert into crons (cron_id, assistant_id, schedule, payload, is_enabled, next_run_date)"
        " values ($1, $1, '@yearly', '{}', false, now() + interval '9 hours')",
        assistant_id,
    )
    assert await due_in_hours() is None
    await db.pool.execute("update crons set is_enabled = true")
    assert await due_in_hours() == 9

    await db.pool.execute(
        "insert into webhook_deliveries (run_id, thread_id, url, run_created_at, run_ended_at, due_at)"
        " values ($1, $1, 'http://a.example', now(), now(), now() + interval '6 hours')",
        assistant_id,
    )
    assert await due_in_hours() == 6
    await db.pool.execute("update webhook_deliveries set status = 'failed'")
    assert await due_in_hours() == 9

    process = Process(db)
    await process.admit()
    await db.pool.execute("update runs set is_delayed = true, run_after = now() + interval '3 hours'")
    assert await due_in_hours() == 3
    await db.pool.execute("update runs set is_delayed = false, is_blocked = true")
    assert await due_in_hours() == 9
    await db.pool.execute("update runs set status = 'running', is_blocked = false")
    assert await due_in_hours() == 0


async def test_rest_ends_when_the_database_does_not_answer(process: Process, idle_process: Resting):
    await idle_process.backoff.activate()
    await process.db.pool.execute("alter function next_due_at() rename to away")
    try:
        with pytest.raises(asyncpg.UndefinedFunctionError):
            await idle_process.backoff.activate()
    finally:
        await process.db.pool.execute("alter function away() rename to next_due_at")

    assert not idle_process.is_slow
