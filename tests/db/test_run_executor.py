"""A run that no executor can execute returns to the queue, and ends with an error once it may take no longer.

A run whose row lacks fields ends as well, whatever is missing.
"""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from portside.agent.engine import RunExecutor, RunLimits
from portside.agent.queue import worker
from portside.agent.queue.types import Admission
from portside.agent.queue.worker import Intake, Worker
from portside.agent.streams.hub import Hub
from portside.executor.requests import RunRequest
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, Unavailable
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


class Executed:
    """Graphs that note the requests they get, and then refuse them. They have no state to read."""

    def __init__(self, db: Database) -> None:
        self.facts: dict[str, Any] = {}
        self.writer = PostgresSaver(db).writer
        self.requests: dict[str, RunRequest] = {}

    async def execute(self, request: RunRequest, *_: object, **__: object) -> None:
        self.requests[request.config["metadata"]["run_id"]] = request
        raise BadRequest("the graph refuses it")

    async def read_outcome(self, request: RunRequest) -> None:
        raise BadRequest(f"the graph {request.graph_id!r} has no state")


def new_complete_run() -> Admission:
    admission = new_run(is_temporary=False)
    kwargs = dict.fromkeys(
        ("input", "command", "context", "stream_mode", "subgraphs", "interrupt_before", "interrupt_after", "durability")
    )

    config = {"configurable": {"graph_id": "g", "thread_id": str(admission.thread_id)}, "metadata": {}}
    config["configurable"]["run_id"] = str(admission.run_id)
    admission.kwargs = {**kwargs, "config": config}
    return admission


async def test_run_whose_row_lacks_a_field_ends(db: Database):
    graphs: Any = Executed(db)
    executor = RunExecutor(db, graphs, Hub(keep_s=60), limits=RunLimits(TIMEOUT_S), webhook_due=asyncio.Event())
    process = Worker(db, executor, Intake(asyncio.Event()), slots=100)
    executable = (
        "config.metadata",
        "config.configurable.run_id",
        "config.configurable.thread_id",
        "input",
        "durability",
    )
    without_graph = ("config", "config.configurable", "config.configurable.graph_id")

    async def admit(missing: str, cancel_action: str | None) -> UUID:
        admission = new_complete_run()
        await admit_run(db, admission, process.worker_id)
        await db.pool.execute(
            "update runs set kwargs = kwargs #- $2, cancel_action = $3 where run_id = $1",
            admission.run_id,
            missing.split("."),
            cancel_action,
        )
        return admission.run_id

    run_ids = {
        (missing, cancel_action): await admit(missing, cancel_action)
        for missing in (*executable, *without_graph)
        for cancel_action in (None, "interrupt", "rollback")
    }

    process.start(Driver([]))
    try:

        async def have_ended() -> bool:
            return not await db.pool.fetchval(
                "select count(*) from runs where run_id = any($1) and status in ('pending', 'running')",
                list(run_ids.values()),
            )

        await eventually(have_ended)
    finally:
        await process.drain(0.0)

    rows = await db.pool.fetch(
        "select run_id, status, error, attempt from runs where run_id = any($1)", list(run_ids.values())
    )
    rows_by_id = {row["run_id"]: row for row in rows}
    for (missing, cancel_action), run_id in run_ids.items():
        row = rows_by_id.get(run_id)
        if cancel_action == "rollback":
            assert row is None
            continue

        assert row is not None
        assert row["attempt"] == 1
        assert row["status"] == ("error" if cancel_action is None else "interrupted")

        request = graphs.requests.get(str(run_id))
        if cancel_action is not None:
            assert request is None
        elif missing in executable:
            assert request is not None
            assert request.config["configurable"]["run_id"] == str(run_id)
            assert request.config["configurable"]["graph_id"] == "g"
        else:
            assert request is None
            assert row["error"] == {
                "error": "UnreadableRun",
                "message": "the stored run has no config.configurable.graph_id",
            }


async def test_run_waits_for_an_executor_until_it_may_take_no_longer(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "POLL_S", 0.05)
    graphs: Any = WithoutExecutors(db)
    executor = RunExecutor(db, graphs, Hub(keep_s=60), limits=RunLimits(TIMEOUT_S), webhook_due=asyncio.Event())
    process = Worker(db, executor, Intake(asyncio.Event()), slots=1)
    admission = new_complete_run()
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
