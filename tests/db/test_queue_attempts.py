"""Attempts at runs on Postgres: handed back, lost, and ended by workers that may not own them any more."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.config import ThreadTtl
from portside.agent.queue import statements
from portside.agent.queue.chores import DueThreads, ExpiredLeases
from portside.agent.queue.types import ClaimedRun, RunResult
from portside.agent.threads.records import set_default_lifetime
from portside.agent.types.runs import RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.db import Database
from tests.db.test_queue_cancel import INTERRUPT, UNDONE, Queue


@pytest.fixture
def queue(db: Database) -> Queue:
    return Queue(db)


async def hand_back(queue: Queue, run: ClaimedRun, **options: Any) -> None:
    await statements.hand_back_runs(queue.db, queue.worker_id, {run.run_id: run.attempt}, **options)


async def lose_lease(queue: Queue, *, max_retries: int) -> None:
    await queue.db.pool.execute("update runs set leased_until = now() - interval '1 s' where status = 'running'")
    await ExpiredLeases(queue.db, max_retries=max_retries, on_released=lambda: None).activate()


async def read_run(queue: Queue, run_id: UUID) -> dict[str, Any]:
    return dict(await queue.db.pool.fetchrow("select * from runs where run_id = $1", run_id))


async def test_a_run_that_was_handed_back_with_a_delay_waits_for_it(queue: Queue):
    run = await queue.begun()
    await hand_back(queue, run, delay_s=60.0)
    assert await queue.claim() == []

    await queue.db.pool.execute("update runs set run_after = now()")
    (again,) = await queue.claim()
    assert (again.run_id, again.attempt, again.was_started) == (run.run_id, 2, True)


async def test_a_cancelled_run_does_not_wait_for_the_delay_with_which_it_was_handed_back(queue: Queue):
    run = await queue.begun()
    await hand_back(queue, run, delay_s=60.0)
    await queue.cancel(INTERRUPT, run.run_id)
    (stopping,) = await queue.claim()
    assert stopping.cancellation == INTERRUPT

    await hand_back(queue, stopping, delay_s=60.0)
    assert [claimed.cancellation for claimed in await queue.claim()] == [INTERRUPT]


async def test_a_run_tells_when_its_first_attempt_began(queue: Queue):
    run = await queue.begun()
    await queue.db.pool.execute("update runs set started_at = now() - interval '1 hour'")
    before = await read_run(queue, run.run_id)
    await hand_back(queue, run)
    await queue.claim()
    assert (await read_run(queue, run.run_id))["started_at"] == before["started_at"]


async def test_a_suspect_stays_one_when_it_is_handed_back_for_another_reason(queue: Queue):
    run = await queue.begun()
    await hand_back(queue, run, is_suspect=True)
    (again,) = await queue.claim()
    assert again.is_suspect
    await hand_back(queue, again)
    assert [claimed.is_suspect for claimed in await queue.claim()] == [True]


async def test_an_earlier_attempt_of_the_same_worker_neither_ends_nor_returns_the_run(queue: Queue):
    first = await queue.begun()
    await hand_back(queue, first)
    (second,) = await queue.claim()
    assert await queue.end(first) == "lost"
    await hand_back(queue, first)
    assert (await read_run(queue, first.run_id))["status"] == "running"
    assert await queue.end(second) == "ended"


async def test_a_lease_is_renewed_for_its_worker_alone(queue: Queue):
    run = await queue.begun()
    await queue.db.pool.execute("update runs set leased_until = now()")
    before = await read_run(queue, run.run_id)
    assert await statements.renew_leases(queue.db, uuid4(), [run.run_id]) == {}
    assert (await read_run(queue, run.run_id))["leased_until"] == before["leased_until"]
    assert await statements.renew_leases(queue.db, queue.worker_id, [run.run_id]) == {run.run_id: None}
    assert (await read_run(queue, run.run_id))["leased_until"] > before["leased_until"]


async def test_a_run_ends_with_the_last_attempt_that_may_be_lost(queue: Queue):
    run = await queue.begun()
    after, _ = await queue.admit()
    await lose_lease(queue, max_retries=1)
    assert (await read_run(queue, run.run_id))["status"] == "pending"
    (again,) = await queue.claim()
    assert again.run_id == run.run_id
    await lose_lease(queue, max_retries=1)

    row = await read_run(queue, run.run_id)
    assert (row["status"], row["lost_attempts"], row["worker_id"], row["leased_until"]) == ("error", 2, None, None)
    assert row["error"]["error"] == "WorkerLost"
    assert "lost 2 times" in row["error"]["message"]
    assert [claimed.run_id for claimed in await queue.claim()] == [after]


async def test_a_thread_tells_that_the_worker_of_its_run_was_lost(queue: Queue):
    await queue.begun()
    await lose_lease(queue, max_retries=0)
    thread = await queue.thread()
    assert (thread["status"], thread["error"]["error"], thread["active_runs"]) == ("error", "WorkerLost", 0)
    assert thread["delete_after"] is None


async def test_the_thread_of_a_stateless_run_goes_after_its_last_attempt_was_lost(queue: Queue):
    await queue.begun(is_temporary=True)
    await lose_lease(queue, max_retries=0)
    assert (await queue.thread())["delete_after"] is not None


async def test_a_lost_attempt_makes_its_run_a_suspect_until_none_is_left(queue: Queue):
    """One more may be lost with each retry; then the worker itself ends the run."""
    run = await queue.begun()
    assert await statements.lose_attempt(queue.db, queue.worker_id, run, max_retries=1) is None
    await ExpiredLeases(queue.db, max_retries=1, on_released=lambda: None).activate()
    (again,) = await queue.claim()
    assert (again.run_id, again.is_suspect) == (run.run_id, True)

    assert await statements.lose_attempt(queue.db, queue.worker_id, run, max_retries=1) is None, "an earlier attempt"
    before = await read_run(queue, run.run_id)
    assert await statements.lose_attempt(queue.db, queue.worker_id, again, max_retries=1) == 2
    assert (await read_run(queue, run.run_id))["leased_until"] == before["leased_until"], "no other worker gets it"
    assert await queue.end(again) == "ended"


async def test_a_stateless_run_that_was_started_again_is_kept_for_its_client_for_a_minute(queue: Queue):
    """The client that waited for it was connected to the process that made the first attempt."""
    first = await queue.begun(is_temporary=True)
    await hand_back(queue, first)
    (second,) = await queue.claim()
    assert await queue.end(second) == "ended"
    assert (await queue.thread())["delete_after"] is not None
    assert await queue.statuses() == ["success"]


async def test_the_result_of_a_stateless_run_is_kept_for_a_client_of_another_process(queue: Queue):
    run = await queue.begun(is_temporary=True)
    await statements.keep_result(queue.db, queue.worker_id, run.run_id)
    assert (await read_run(queue, run.run_id))["admitted_by"] == queue.worker_id, "its own client gets it from the run"
    await statements.keep_result(queue.db, uuid4(), run.run_id)
    assert await queue.end(run) == "ended"
    assert (await queue.thread())["delete_after"] is not None


async def test_open_interrupts_are_stored_beside_the_values_of_a_thread(queue: Queue):
    asks = {"task": [{"id": "i", "value": "go on?"}]}
    values = b'{"n":1,"__interrupt__":[{"id":"i","value":"go on?"}]}'
    waiting = RunResult(
        status=RunStatus.SUCCESS, thread_status=ThreadStatus.INTERRUPTED, values=values, interrupts=asks
    )
    await queue.end(await queue.begun(), waiting)
    thread = await queue.thread()
    assert (thread["status"], thread["values"], thread["interrupts"]) == ("interrupted", {"n": 1}, asks)

    await queue.end(await queue.begun())
    assert (await queue.thread())["interrupts"] == {}


async def test_a_thread_that_a_run_makes_has_the_default_lifetime_unless_it_goes_with_the_run(db: Database):
    await set_default_lifetime(db, ThreadTtl(default_ttl=15, strategy="keep_latest"))
    lifetimes = []
    for is_temporary in (False, True):
        queue = Queue(db)
        await queue.admit(is_temporary=is_temporary)
        thread = await queue.thread()
        lifetimes.append((thread["ttl_minutes"], thread["ttl_strategy"]))

    await set_default_lifetime(db, ThreadTtl())
    assert lifetimes == [(15, "keep_latest"), (None, "delete")]


async def test_only_checkpoints_of_the_run_itself_are_resumed(queue: Queue):
    run = await queue.begun()
    insert = (
        "insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, metadata, kind, body, channels, versions)"
    )
    values = "values ($1, '', $2, $3, 'msgpack', '', '{}', '{}')"
    await queue.db.pool.execute(f"{insert} {values}", str(run.thread_id), "1", {"run_id": str(uuid4())})
    assert not await statements.has_own_checkpoint(queue.db, run)
    await queue.db.pool.execute(f"{insert} {values}", str(run.thread_id), "2", {"run_id": str(run.run_id)})
    assert await statements.has_own_checkpoint(queue.db, run)


async def test_the_thread_of_a_stateless_run_stays_while_the_run_is_being_deleted(queue: Queue):
    run = await queue.begun(is_temporary=True)
    await hand_back(queue, run)
    (again,) = await queue.claim()
    await queue.end(again)
    await queue.db.pool.execute("update threads set delete_after = now() - interval '1 s'")
    deleted = await statements.delete_run(queue.db, queue.worker_id, queue.thread_id, run.run_id)
    assert deleted.run is not None

    assert (await DueThreads(queue.db).activate()).did == {"deleted": 0}
    assert await queue.end(deleted.run, UNDONE) == "ended"
    assert await queue.thread() == {}
