"""Concurrent cancels, ends and admissions of the queue on Postgres.

Statements that touch a thread and its runs lock the thread first, and several threads in the order of their ids, so
nothing deadlocks. At most one run of a thread runs, and only its first run is ready, whichever run is removed.
"""

import asyncio
import random
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.queue import statements
from portside.agent.queue.chores import ExpiredLeases
from portside.agent.queue.types import Admission, Admitted, Cancellation, CancelScope, ClaimedRun, RunResult
from portside.agent.sql import sql
from portside.agent.types.runs import CancelAction, MultitaskStrategy, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from tests.db.queued import admit_run, end_run

INTERRUPT = Cancellation(CancelAction.INTERRUPT, "because")
ROLLBACK = Cancellation(CancelAction.ROLLBACK, "because")
DONE = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b'{"n":1}', interrupts={})
STOPPED = RunResult(
    status=RunStatus.INTERRUPTED,
    thread_status=ThreadStatus.INTERRUPTED,
    error={"error": "UserInterrupt", "message": "x"},
)
UNDONE = RunResult(status=RunStatus.ROLLED_BACK, thread_status=ThreadStatus.IDLE, interrupts={})


class Queue:
    """One worker and one thread."""

    def __init__(self, db: Database, thread_id: UUID | None = None) -> None:
        self.db = db
        self.worker_id = uuid4()
        self.thread_id = thread_id or uuid4()

    async def admit(self, *, starts: bool = False, **options: Any) -> tuple[UUID, Admitted]:
        run_id = uuid7()
        given = {
            "strategy": "enqueue",
            "is_temporary": False,
            "delay_s": 0.0,
            "metadata": {},
            "thread_metadata": {},
            "kwargs": {"config": {"configurable": {"graph_id": "g"}}},
            "create_thread": True,
            **options,
        }

        admission = Admission(run_id=run_id, thread_id=self.thread_id, assistant_id=uuid4(), **given)
        return run_id, await admit_run(self.db, admission, self.worker_id, starts=starts)

    async def begun(self, **options: Any) -> ClaimedRun:
        run_id, admitted = await self.admit(starts=True, **options)
        assert admitted.outcome == "running"
        return ClaimedRun(
            run_id=run_id,
            thread_id=self.thread_id,
            assistant_id=uuid4(),
            kwargs={},
            attempt=1,
            is_temporary=bool(options.get("is_temporary")),
        )

    async def claim(self) -> list[ClaimedRun]:
        return await statements.claim_runs(self.db, self.worker_id, 10)

    async def end(self, run: ClaimedRun, ending: RunResult = DONE) -> str:
        return await end_run(self.db, self.worker_id, run, ending)

    async def cancel(self, cancellation: Cancellation, *run_ids: UUID) -> list[str]:
        scope = CancelScope(thread_id=self.thread_id, run_ids=list(run_ids) or None)
        return [run.outcome for run in await statements.cancel_runs(self.db, scope, cancellation)]

    async def renew_lease(self, run: ClaimedRun) -> Cancellation | None:
        return (await statements.renew_leases(self.db, self.worker_id, [run.run_id]))[run.run_id]

    async def thread(self) -> dict[str, Any]:
        row = await self.db.pool.fetchrow("select * from threads where thread_id = $1", self.thread_id)
        return dict(row) if row else {}

    async def statuses(self) -> list[str]:
        rows = await self.db.pool.fetch("select status from runs where thread_id = $1 order by number", self.thread_id)
        return [row["status"] for row in rows]

    async def lose_leases(self) -> None:
        await self.db.pool.execute("update runs set leased_until = now() - interval '1 s' where status = 'running'")
        await ExpiredLeases(self.db, max_retries=3, on_released=lambda: None).activate()


@pytest.fixture
def queue(db: Database) -> Queue:
    return Queue(db)


async def test_a_cancel_reaches_the_worker_with_the_renewal(queue: Queue):
    run = await queue.begun()
    assert await queue.renew_lease(run) is None
    assert await queue.cancel(INTERRUPT, run.run_id) == ["stopping"]
    assert await queue.renew_lease(run) == INTERRUPT
    assert await queue.cancel(ROLLBACK, run.run_id) == ["stopping"]
    assert await queue.renew_lease(run) == ROLLBACK
    await queue.cancel(Cancellation(CancelAction.INTERRUPT, "too late"), run.run_id)

    assert await queue.renew_lease(run) == ROLLBACK


async def test_rollback_but_not_interrupt_applies_to_an_ended_run(queue: Queue):
    run = await queue.begun()
    await queue.cancel(INTERRUPT, run.run_id)
    assert await queue.end(run) == "ended"
    row = await queue.db.pool.fetchrow("select status, cancel_reason, cancel_action from runs")
    assert tuple(row) == ("success", None, None)
    run = await queue.begun()

    await queue.cancel(ROLLBACK, run.run_id)
    assert await queue.end(run) == "rollback"
    assert await queue.end(run, UNDONE) == "ended"
    assert await queue.statuses() == ["success"]
    assert (await queue.thread())["status"] == "idle"


async def test_rollback_restores_the_thread_status(queue: Queue):
    await queue.end(
        await queue.begun(),
        RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.INTERRUPTED, values=b'{"n":1}'),
    )

    for cancellation, outcome in ((INTERRUPT, "interrupted"), (ROLLBACK, "deleted")):
        run_id, _ = await queue.admit()
        assert (await queue.thread())["status"] == "busy"
        assert await queue.cancel(cancellation, run_id) == [outcome]
        thread = await queue.thread()
        assert (thread["status"], thread["active_runs"], thread["values"]) == ("interrupted", 0, {"n": 1})


async def test_only_the_first_run_of_a_thread_is_ready(queue: Queue):
    head = await queue.begun()
    waiting = [(await queue.admit())[0] for _ in range(4)]
    assert await queue.cancel(INTERRUPT, waiting[0], waiting[2]) == ["interrupted", "interrupted"]
    assert await queue.claim() == []
    await queue.end(head)

    claimed = await queue.claim()
    assert [run.run_id for run in claimed] == [waiting[1]]
    await queue.end(claimed[0])
    assert [run.run_id for run in await queue.claim()] == [waiting[3]]


async def test_a_new_run_supersedes_all_before_it(queue: Queue):
    head = await queue.begun()
    await queue.admit()
    new, admitted = await queue.admit(starts=True, strategy=MultitaskStrategy.INTERRUPT)
    assert admitted.outcome == "pending"
    assert await queue.statuses() == ["running", "interrupted", "pending"]
    asked = await queue.renew_lease(head)
    assert asked is not None

    assert str(new) in asked.reason
    assert await queue.claim() == []
    await queue.end(head, STOPPED)
    assert [run.run_id for run in await queue.claim()] == [new]


async def test_interrupt_starts_a_run_before_pending_ones(queue: Queue):
    await queue.admit()
    await queue.admit()
    _, admitted = await queue.admit(starts=True, strategy=MultitaskStrategy.ROLLBACK)
    assert admitted.outcome == "running"
    assert await queue.statuses() == ["running"]


async def test_cancelled_run_of_a_dead_worker_is_finished_by_the_next(queue: Queue):
    await queue.begun()
    after, _ = await queue.admit(strategy=MultitaskStrategy.INTERRUPT)
    await queue.lose_leases()
    claimed = await queue.claim()
    assert len(claimed) == 1
    assert claimed[0].was_started
    assert claimed[0].cancellation is not None

    await queue.end(claimed[0], STOPPED)
    assert [run.run_id for run in await queue.claim()] == [after]


async def test_a_run_that_was_given_back_is_cancelled_by_a_worker(queue: Queue):
    run = await queue.begun()
    await statements.hand_back_runs(queue.db, queue.worker_id, {run.run_id: run.attempt})
    assert await queue.cancel(INTERRUPT, run.run_id) == ["stopping"]
    assert [claimed.cancellation for claimed in await queue.claim()] == [INTERRUPT]


async def test_stateless_runs_leave_no_thread(queue: Queue):
    run = await queue.begun(is_temporary=True)
    await queue.cancel(ROLLBACK, run.run_id)
    assert await queue.end(run, UNDONE) == "ended"
    assert await queue.thread() == {}
    await queue.admit(is_temporary=True)
    assert await queue.cancel(ROLLBACK) == ["deleted"]
    assert await queue.thread() == {}

    await queue.admit(is_temporary=True)
    assert await queue.cancel(INTERRUPT) == ["interrupted"]
    assert (await queue.thread())["delete_after"] is not None


async def test_many_threads_are_cancelled_in_bounded_steps(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statements, "THREADS_AT_ONCE", 3)
    queues = [Queue(db) for _ in range(10)]
    for queue in queues:
        await queue.begun()
        await queue.admit()

    cancelled = await statements.cancel_runs(db, CancelScope(statuses=["pending"]), INTERRUPT)
    assert [run.outcome for run in cancelled] == ["interrupted"] * 10
    cancelled = await statements.cancel_runs(db, CancelScope(), INTERRUPT)
    assert [run.outcome for run in cancelled] == ["stopping"] * 10


async def test_deleting_an_ended_run_blocks_its_thread(queue: Queue):
    run = await queue.begun()
    await queue.end(
        run, RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})
    )
    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, run.run_id)
    assert deleted.run is not None
    _, admitted = await queue.admit(starts=True)
    assert admitted.outcome == "pending"
    assert await queue.end(deleted.run, UNDONE) == "ended"

    assert len(await queue.claim()) == 1
    assert (await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, run.run_id)).outcome == "missing"
    thread = await queue.thread()
    assert (thread["idle_status"], thread["error"]) == ("idle", None)


async def test_a_thread_whose_last_run_is_deleted_tells_of_the_run_before(queue: Queue):
    timed_out = RunResult(
        status=RunStatus.TIMEOUT, thread_status=ThreadStatus.ERROR, error={"error": "TimeoutError", "message": "m"}
    )
    first = await queue.begun()
    await queue.end(first, timed_out)
    last = await queue.begun()
    await queue.end(last)

    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, last.run_id)
    assert deleted.run is not None
    assert await queue.end(deleted.run, UNDONE) == "ended"
    thread = await queue.thread()
    assert (thread["status"], thread["error"]) == ("error", timed_out.error)


async def test_deleting_an_earlier_run_leaves_the_thread_as_its_last_run_left_it(queue: Queue):
    first = await queue.begun()
    await queue.end(first)
    failed = RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})
    await queue.end(await queue.begun(), failed)

    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, first.run_id)
    assert deleted.run is not None
    assert await queue.end(deleted.run, UNDONE) == "ended"
    thread = await queue.thread()
    assert (thread["status"], thread["error"]) == ("error", failed.error)


async def test_deleting_an_earlier_run_does_not_bring_back_the_error_of_the_run_before_it(queue: Queue):
    failed = RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})
    await queue.end(await queue.begun(), failed)
    second = await queue.begun()
    await queue.end(second)
    await queue.end(await queue.begun())

    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, second.run_id)
    assert deleted.run is not None
    assert await queue.end(deleted.run, UNDONE) == "ended"
    thread = await queue.thread()
    assert (thread["status"], thread["error"]) == ("idle", None)


async def test_a_thread_without_values_after_a_rollback_names_no_long_lists(queue: Queue):
    """They are read from checkpoints, which the rollback has deleted."""
    long = RunResult(
        status=RunStatus.SUCCESS,
        thread_status=ThreadStatus.IDLE,
        values=b'{"messages":["m"]}',
        row_values=b"{}",
        long_values={"messages": "1"},
        interrupts={},
    )
    run = await queue.begun()
    await queue.end(run, long)
    assert (await queue.thread())["long_values"] == {"messages": "1"}

    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, run.run_id)
    assert deleted.run is not None
    assert await queue.end(deleted.run, UNDONE) == "ended"
    thread = await queue.thread()
    assert (thread["values"], thread["long_values"]) == (None, None)


async def test_a_cancelled_run_that_never_began_leaves_the_error_of_the_thread(queue: Queue):
    failed = RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error={"error": "E", "message": "m"})
    await queue.end(await queue.begun(), failed)
    before = await queue.thread()

    run_id, _ = await queue.admit()
    assert await queue.cancel(INTERRUPT, run_id) == ["interrupted"]
    after = await queue.thread()
    assert (after["status"], after["error"], after["active_runs"]) == ("error", failed.error, 0)
    assert after["state_updated_at"] == before["state_updated_at"]


async def test_a_rolled_back_run_leaves_the_thread_with_the_graph_of_the_run_before(queue: Queue):
    def of_graph(graph_id: str) -> dict[str, Any]:
        kwargs = {"config": {"configurable": {"graph_id": graph_id}}}
        return {"kwargs": kwargs, "thread_metadata": {"graph_id": graph_id}}

    await queue.end(await queue.begun(**of_graph("first")))
    run = await queue.begun(**of_graph("second"))
    assert (await queue.thread())["metadata"]["graph_id"] == "second"
    waiting, _ = await queue.admit(**of_graph("third"))
    ids = {"thread_id": queue.thread_id, "run_id": run.run_id}
    assert await queue.db.fetchval(sql.graph_before, **ids) == "first", "by which the state is read"
    await queue.cancel(ROLLBACK, waiting)
    await queue.cancel(ROLLBACK, run.run_id)
    await queue.end(run, UNDONE)
    assert (await queue.thread())["metadata"]["graph_id"] == "first"


async def test_a_cancel_of_an_assistants_runs_spares_those_of_others_on_the_same_thread(queue: Queue):
    await queue.begun()
    waiting, _ = await queue.admit()
    assistant_id = await queue.db.pool.fetchval("select assistant_id from runs where run_id = $1", waiting)

    scope = CancelScope(assistant_id=assistant_id)
    cancelled = await statements.cancel_runs(queue.db, scope, INTERRUPT)
    assert [(run.run_id, run.outcome) for run in cancelled] == [(waiting, "interrupted")]
    assert await queue.statuses() == ["running", "interrupted"]


async def work(db: Database, is_over: asyncio.Event) -> None:
    """A worker that ends what it claims as it is asked to."""
    queue = Queue(db)
    endings = {None: DONE, INTERRUPT.action: STOPPED, ROLLBACK.action: UNDONE}
    while True:
        is_last_look = is_over.is_set()  # before the claim: a run may be admitted between an empty claim and the end
        held = await queue.claim()
        asked = await statements.renew_leases(db, queue.worker_id, [run.run_id for run in held])
        for run in held:
            cancellation = asked.get(run.run_id)
            if await queue.end(run, endings[cancellation and cancellation.action]) == "rollback":
                await queue.end(run, UNDONE)

        if is_last_look and not held:
            return


async def test_concurrent_state_changes_do_not_deadlock(db: Database):
    """Workers, clients and the sweeper on the same few threads, all at once."""
    threads = [uuid4() for _ in range(3)]
    is_over = asyncio.Event()
    chance = random.Random(7)

    async def client(number: int) -> None:
        queue = Queue(db, threads[number % 3])
        for _ in range(15):
            strategy = chance.choice(["enqueue", "interrupt", "rollback"])
            run_id, _ = await queue.admit(strategy=strategy)
            if chance.random() < 0.4:
                await queue.cancel(chance.choice([INTERRUPT, ROLLBACK]), run_id)
            elif chance.random() < 0.2:
                await statements.cancel_runs(db, CancelScope(), INTERRUPT)

    async def sweeper() -> None:
        while not is_over.is_set():
            await ExpiredLeases(db, max_retries=3, on_released=lambda: None).activate()

    workers = [asyncio.create_task(work(db, is_over)) for _ in range(3)]
    sweeping = asyncio.create_task(sweeper())
    await asyncio.gather(*(client(number) for number in range(6)))
    is_over.set()
    await asyncio.gather(sweeping, *workers)
    assert await db.pool.fetchval("select count(*) from runs where status in ('pending', 'running')") == 0
    rows = await db.pool.fetch("select status, active_runs from threads")
    assert {row["active_runs"] for row in rows} == {0}
    assert "busy" not in {row["status"] for row in rows}
