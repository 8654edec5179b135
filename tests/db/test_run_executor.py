"""A run that no executor can execute returns to the queue, and ends with an error once it may take no longer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from portside.agent.engine import RunExecutor, RunLimits
from portside.agent.queue import worker
from portside.agent.queue.worker import Intake, Worker
from portside.agent.streams.hub import Hub
from portside.kernel.db import Database
from portside.kernel.errors import Unavailable
from portside.kernel.reconcile import Driver
from tests.conftest import eventually
from tests.db.graph_runs import PostgresSaver
from tests.db.queued import admit_run
from tests.db.test_worker import new_run

TIMEOUT_S = 3600.0


class WithoutExecutors:
    """Graphs whose executors do not start; it counts the runs that they are asked for."""

    def __init__(self, db: Database) -> None:
        self.facts: dict[str, Any] = {}
        self.writer = PostgresSaver(db).writer
        self.asked = 0

    async def execute(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise Unavailable("the graph's executor cannot be started")


async def test_run_waits_for_an_executor_until_it_may_take_no_longer(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "POLL_S", 0.05)
    graphs: Any = WithoutExecutors(db)
    executor = RunExecutor(db, graphs, Hub(keep_s=60), limits=RunLimits(TIMEOUT_S), webhook_due=asyncio.Event())
    process = Worker(db, executor, Intake(asyncio.Event()), slots=1)
    admission = new_run(is_temporary=False)
    kwargs = dict.fromkeys(
        ("input", "command", "context", "stream_mode", "subgraphs", "interrupt_before", "interrupt_after", "durability")
    )

    config = {"configurable": {"graph_id": "g", "thread_id": str(admission.thread_id)}, "metadata": {}}
    config["configurable"]["run_id"] = str(admission.run_id)
    admission.kwargs = {**kwargs, "config": config}
    await admit_run(db, admission, process.worker_id)

    async def run() -> SimpleNamespace:
        row = await db.pool.fetchrow(
            "select status, lost_attempts, error from runs where run_id = $1", admission.run_id
        )
        return SimpleNamespace(**dict(row))

    process.start(Driver([]))
    try:

        async def was_tried_again() -> bool:
            process.wake()
            return graphs.asked >= 2

        await eventually(was_tried_again)
        found = await run()
        assert (found.status in {"pending", "running"}, found.lost_attempts) == (True, 0)

        await db.pool.execute(
            "update runs set started_at = started_at - make_interval(secs => $2) where run_id = $1",
            admission.run_id,
            TIMEOUT_S,
        )

        async def has_ended() -> bool:
            process.wake()
            return (await run()).status == "error"

        await eventually(has_ended)
        error = str((await run()).error)
        assert "BG_JOB_TIMEOUT_SECS is 3600 s" in error
        assert "the graph's executor cannot be started" in error
    finally:
        await process.drain(0.0)
