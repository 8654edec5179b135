"""Tasks of the A2A protocol in the database: whose they are, their states, and pages of them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.a2a.messages import ToolResults
from portside.agent.a2a.params import ListTasksParams
from portside.agent.a2a.rpc import TaskNotFound
from portside.agent.a2a.tasks import Tasks
from portside.agent.sql import sql
from portside.executor.requests import UNKNOWN_INTERRUPT
from portside.kernel.db import Database

AGENT = uuid4()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def tasks(db: Database) -> Tasks:
    services: Any = None
    return Tasks(db, services, services, ToolResults(""))


async def add_thread(db: Database, status: str = "idle", **columns: Any) -> UUID:
    thread_id = uuid4()
    await db.pool.execute(
        "insert into threads (thread_id, status, delete_after) values ($1, $2, $3)",
        thread_id,
        status,
        columns.get("delete_after"),
    )
    return thread_id


async def add_run(
    db: Database,
    thread_id: UUID,
    start: str,
    *,
    status: str = "success",
    agent: UUID = AGENT,
    at: datetime = NOON,
    **more: Any,
) -> UUID:
    run_id = uuid4()
    await db.pool.execute(
        "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, metadata, error, updated_at)"
        " values ($1, $2, $3, $4, 'enqueue', $5, $6, $7)",
        run_id,
        thread_id,
        agent,
        status,
        {"a2a.task_start_id": start, **more.get("metadata", {})},
        more.get("error"),
        at,
    )
    return run_id


async def list_starts(tasks: Tasks, thread_id: UUID | None = None, **params: Any) -> list[str]:
    page = await tasks.list_page(AGENT, ListTasksParams(**params), thread_id, None)
    return [task.start for task in page.tasks]


@pytest.mark.parametrize(
    ("status", "thread_status", "state"),
    [
        ("pending", "busy", "submitted"),
        ("running", "busy", "working"),
        ("error", "error", "failed"),
        ("timeout", "error", "failed"),
        ("interrupted", "idle", "canceled"),
        ("success", "interrupted", "input-required"),
        ("success", "idle", "completed"),
    ],
)
async def test_a_task_has_the_state_of_its_last_run(
    db: Database, tasks: Tasks, status: str, thread_status: str, state: str
) -> None:
    thread_id = await add_thread(db, thread_status)
    await add_run(db, thread_id, "one", status="error")
    await add_run(db, thread_id, "one", status=status)
    assert (await tasks.find(AGENT, thread_id, "one")).state == state
    assert await list_starts(tasks, status=state) == ["one"]
    assert await list_starts(tasks, status="rejected") == []


async def test_only_the_last_task_of_a_context_waits_for_an_answer(db: Database, tasks: Tasks) -> None:
    thread_id = await add_thread(db, "interrupted")
    await add_run(db, thread_id, "one")
    await add_run(db, thread_id, "two")
    assert [(await tasks.find(AGENT, thread_id, start)).state for start in ("one", "two")] == [
        "completed",
        "input-required",
    ]


async def test_tasks_of_other_agents_and_of_deleted_threads_are_not_there(db: Database, tasks: Tasks) -> None:
    thread_id = await add_thread(db)
    await add_run(db, thread_id, "theirs", agent=uuid4())
    gone = await add_thread(db, delete_after=NOON)
    await add_run(db, gone, "gone")
    for place, start in ((thread_id, "theirs"), (gone, "gone")):
        with pytest.raises(TaskNotFound):
            await tasks.find(AGENT, place, start)

    assert await list_starts(tasks) == []


async def test_late_answer_does_not_count_as_the_last_run_of_its_task(db: Database, tasks: Tasks) -> None:
    thread_id = await add_thread(db)
    answered = await add_run(db, thread_id, "one")
    await add_run(db, thread_id, "one", status="error", error={"error": UNKNOWN_INTERRUPT})
    page = await tasks.list_page(AGENT, ListTasksParams(), None, None)
    for task in (await tasks.find(AGENT, thread_id, "one"), *page.tasks):
        assert (task.run_id, task.state) == (answered, "completed")


async def test_pages_have_each_task_once_also_of_tasks_that_changed_at_once(db: Database, tasks: Tasks) -> None:
    thread_id = await add_thread(db)
    starts = [str(number) for number in range(5)]
    for start in starts:
        await add_run(db, thread_id, start, at=NOON if start != "0" else NOON + timedelta(seconds=1))

    found: list[str] = []
    token = None
    while token != "":
        page = await tasks.list_page(AGENT, ListTasksParams(page_size=2, page_token=token), None, None)
        assert (page.total, page.size) == (5, 2)
        found += [task.start for task in page.tasks]
        token = page.next_token

    assert found[0] == "0"
    assert sorted(found) == starts
    later = (NOON + timedelta(milliseconds=1)).isoformat()
    assert await list_starts(tasks, status_timestamp_after=later) == ["0"]
    assert len(await list_starts(tasks, page_size=0)) == 5


async def test_a_task_is_closed_only_while_it_waits_or_if_another_one_supersedes_it(db: Database, tasks: Tasks) -> None:
    async def close(thread_id: UUID, run_id: UUID, *, is_superseded: bool = False) -> bool:
        values = {"thread_id": thread_id, "run_id": run_id, "is_superseded": is_superseded}
        return await db.fetchval(sql.a2a_close_task, **values) is not None

    idle = await add_thread(db)
    assert not await close(idle, await add_run(db, idle, "one"))

    waiting = await add_thread(db, "interrupted")
    asked = await add_run(db, waiting, "one")
    assert not await close(idle, asked)
    answer = await add_run(db, waiting, "one", status="pending")
    assert not await close(waiting, asked)
    assert not await close(waiting, answer, is_superseded=True)
    assert await close(waiting, asked, is_superseded=True)

    await db.pool.execute("delete from runs where run_id = $1", answer)
    assert (await tasks.find(AGENT, waiting, "one")).state == "canceled"
    again = await add_run(db, waiting, "two")
    assert await close(waiting, again)
