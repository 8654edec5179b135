"""Idempotency keys: a repeated request finds the run of the first one.

One key makes one run, whichever process receives the requests.
"""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.queue import statements
from portside.agent.queue.chores import DueThreads, LapsedRunKeys
from portside.agent.queue.types import Admission, Admitted, Cancellation, CancelScope, ClaimedRun, RequestKey, RunResult
from portside.agent.runs.idempotency import STATELESS
from portside.agent.types.runs import CancelAction, MultitaskStrategy, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from tests.db.queued import admit_run, end_run

WORKER = uuid4()
DONE = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b'{"n":1}', interrupts={})


def build_admission(
    thread_id: UUID | None = None, key: str | None = "k", digest: str = "d", **options: Any
) -> Admission:
    given = {
        "strategy": "enqueue",
        "is_temporary": thread_id is None,
        "delay_s": 0.0,
        "metadata": {},
        "thread_metadata": {},
        "kwargs": {"config": {"configurable": {"graph_id": "g"}, "metadata": {}}},
        "create_thread": True,
        **options,
    }

    named = None if key is None else RequestKey(thread_id or STATELESS, key, digest)
    return Admission(run_id=uuid7(), thread_id=thread_id or uuid7(), assistant_id=uuid4(), key=named, **given)


async def admit(db: Database, admission: Admission, *, starts: bool = False) -> Admitted:
    return await admit_run(db, admission, WORKER, starts=starts)


async def count(db: Database, table: str = "runs") -> int:
    return await db.pool.fetchval(f"select count(*) from {table}")


@pytest.mark.parametrize("thread_id", [None, uuid4()])
async def test_concurrent_requests_with_one_key_get_one_run(db: Database, thread_id: UUID | None):
    admitted = await asyncio.gather(*(admit(db, build_admission(thread_id)) for _ in range(20)))
    assert sorted(one.outcome for one in admitted) == ["pending", *["repeated"] * 19]
    assert len({(one.run_id, one.thread_id) for one in admitted}) == 1
    assert (await count(db), await count(db, "threads")) == (1, 1)
    assert await db.pool.fetchval("select active_runs from threads") == 1


async def test_keys_are_their_threads_own(db: Database):
    scopes = [None, uuid4(), uuid4()]
    assert [(await admit(db, build_admission(scope))).outcome for scope in scopes] == ["pending"] * 3
    assert (await admit(db, build_admission(scopes[1]))).outcome == "repeated"


async def test_other_request_with_the_same_key_is_refused(db: Database):
    for scope in (None, uuid4()):
        await admit(db, build_admission(scope))
        assert (await admit(db, build_admission(scope, digest="other"))).outcome == "reused"

    assert (await count(db), await count(db, "threads")) == (2, 2)


async def test_repeated_key_makes_no_second_run_with_any_strategy(db: Database):
    thread_id = uuid4()
    first = await admit(db, build_admission(thread_id, strategy=MultitaskStrategy.REJECT))
    for strategy in ("reject", "interrupt", "rollback", "enqueue"):
        again = await admit(db, build_admission(thread_id, strategy=strategy))
        assert (again.outcome, again.run_id) == ("repeated", first.run_id)

    assert await db.pool.fetchval("select status from runs") == "pending"


async def test_a_refused_request_keeps_no_key(db: Database):
    thread_id = uuid4()
    await admit(db, build_admission(thread_id, key=None))
    assert (await admit(db, build_admission(thread_id, strategy=MultitaskStrategy.REJECT))).outcome == "busy"
    await statements.cancel_runs(db, CancelScope(thread_id=thread_id), Cancellation(CancelAction.ROLLBACK, "because"))
    assert (await admit(db, build_admission(thread_id, strategy=MultitaskStrategy.REJECT))).outcome == "pending"
    assert (await admit(db, build_admission(uuid4(), create_thread=False))).outcome == "missing"


async def test_idempotency_key_is_valid_for_a_day(db: Database):
    for scope in (None, uuid4()):
        first = await admit(db, build_admission(scope))
        await db.pool.execute(
            "update runs set created_at = now() - interval '25 hours' where run_id = $1", first.run_id
        )

        again = await admit(db, build_admission(scope, digest="other"))
        assert (again.outcome, again.run_id != first.run_id) == ("pending", True)

    await db.pool.execute("update runs set created_at = now() - interval '23 hours'")
    assert (await LapsedRunKeys(db).activate()).did == {"forgotten": 0}
    await db.pool.execute("update runs set created_at = now() - interval '25 hours'")
    assert (await LapsedRunKeys(db).activate()).did == {"forgotten": 2}
    assert await db.pool.fetchval("select count(request_key) from runs") == 0


async def begun(db: Database, admission: Admission) -> ClaimedRun:
    admitted = await admit(db, admission, starts=True)
    assert admitted.outcome == "running"
    return ClaimedRun(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        kwargs={},
        attempt=1,
        is_temporary=True,
    )


async def test_a_stateless_run_is_kept_as_long_as_its_key(db: Database):
    kept = await begun(db, build_admission())
    gone = await begun(db, build_admission(key=None))
    for run in (kept, gone):
        assert await end_run(db, WORKER, run, DONE) == "ended"

    rows = await db.pool.fetch("select thread_id, delete_after - now() as left from threads")
    assert [row["thread_id"] for row in rows] == [kept.thread_id]
    assert 23.9 < rows[0]["left"].total_seconds() / 3600 <= 24
    assert (await admit(db, build_admission())).run_id == kept.run_id
    await db.pool.execute("update threads set delete_after = now() - interval '1 s'")
    await DueThreads(db).activate()
    assert (await admit(db, build_admission())).outcome == "pending"


async def test_a_run_inherits_metadata_from_its_assistant_and_thread(db: Database):
    thread_id = uuid4()
    first = build_admission(thread_id, key=None, thread_metadata={"graph_id": "g", "assistant_id": "a"})
    await admit(db, first)
    await db.pool.execute(
        """update threads set metadata = metadata || '{"a": "thread", "b": "thread", "c": "thread"}'"""
    )

    config = {"configurable": {"graph_id": "g2"}, "metadata": {"a": "x", "given": 1}}
    second = build_admission(
        thread_id,
        key=None,
        inherited={"a": "assistant", "d": "assistant"},
        metadata={"b": "own", "graph_id": "g2"},
        kwargs={"config": config},
    )

    labels = {"a": "thread", "b": "own", "c": "thread", "d": "assistant", "graph_id": "g2"}
    assert (await admit(db, second)).metadata == labels
    row = await db.pool.fetchrow("select metadata, kwargs from runs where run_id = $1", second.run_id)
    assert row["metadata"] == labels
    assert row["kwargs"]["config"]["metadata"] == {**labels, "given": 1}
