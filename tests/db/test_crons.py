"""Firing crons: once per instant, whoever looks after them, and whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from portside.agent.app import SCHEMA, open_app
from portside.agent.config import load_config
from portside.agent.crons.firing import CLAIM_S, DueCron, DueCrons
from portside.agent.graphs.load import load_graphs
from portside.agent.queue.worker import Worker
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from tests.conftest import eventually
from tests.servers import PROJECTS

ECHO = UUID("046b5dc7-2108-582c-9c6c-31d556d138f0")


class House:
    """A database, and the schedulers of several servers on it, whose workers execute what they fire."""

    def __init__(self, db: Database, schedulers: list[DueCrons], workers: list[Worker]) -> None:
        self.db, self.schedulers, self.workers = db, schedulers, workers

    async def add(self, *, overdue_s: float, thread_id: UUID | None = None, **columns: Any) -> UUID:
        """Store a cron whose instant came some time ago, as if no server had run since."""
        cron_id = uuid7()
        payload = {"assistant_id": str(ECHO), "input": {"messages": []}, "config": {"configurable": {}}}
        values = {
            "cron_id": cron_id, "assistant_id": ECHO, "thread_id": thread_id, "schedule": "@yearly",
            "timezone": None, "end_time": None, "ends_at": None, "payload": payload, "metadata": {},
            "on_run_completed": "keep", "is_enabled": True, "user_id": "", "owner": None,
            "thread_access": None, **columns,
        }  # fmt: skip
        due = await self.db.pool.fetchval("select date_trunc('minute', now()) - make_interval(secs => $1)", overdue_s)
        await self.db.execute(sql.insert_cron, **values, next_run_date=due)
        return cron_id

    async def claim(self) -> list[DueCron]:
        rows = await self.db.fetch(sql.claim_due_crons, claim_s=CLAIM_S, limit=100)
        return [DueCron(**dict(row)) for row in rows]

    async def look(self) -> None:
        """Let every scheduler look once, all at the same time."""
        await asyncio.gather(*(scheduler.activate() for scheduler in self.schedulers))

    async def runs_of(self, *cron_ids: UUID) -> list[int]:
        """How many runs each cron has made."""
        found = "select count(*) from runs where kwargs -> 'config' -> 'configurable' ->> 'cron_id' = $1"
        return [await self.db.pool.fetchval(found, str(cron_id)) for cron_id in cron_ids]

    async def look_until_moved(self, *cron_ids: UUID) -> None:
        """Let the schedulers look until none of these crons is due any more."""

        async def moved() -> bool:
            await self.look()
            return not any([await self.is_due(cron_id) for cron_id in cron_ids])

        await eventually(moved)

    async def is_due(self, cron_id: UUID) -> bool:
        return await self.db.pool.fetchval("select next_run_date <= now() from crons where cron_id = $1", cron_id)

    async def thread(self) -> UUID:
        thread_id = uuid7()
        await self.db.pool.execute("insert into threads (thread_id) values ($1)", thread_id)
        return thread_id


@asynccontextmanager
async def opened(url: str, servers: int) -> AsyncIterator[House]:
    config = load_config(PROJECTS / "graphs" / "langgraph.json")
    graphs, settings = load_graphs(config), AgentSettings(database_url=url)
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(open_app(config, graphs, settings, url)) for _ in range(servers)]
        db = await Database.connect(url, schema=SCHEMA)
        stack.push_async_callback(db.close)
        for app in apps:
            stack.push_async_callback(app.worker.drain, 5.0)
            # The tests say when to look.
            await app.worker._chores.close()
        tasks = [task for app in apps for task in app.worker._chores.tasks if isinstance(task, DueCrons)]
        assert len(tasks) == servers
        yield House(db, tasks, [app.worker for app in apps])


@pytest.fixture
async def house(fresh_database: Callable[[], Awaitable[str]]) -> AsyncIterator[House]:
    async with opened(await fresh_database(), servers=3) as made:
        yield made


async def test_each_overdue_cron_fires_once_and_goes_on(house: House):
    crons = [await house.add(overdue_s=3600) for _ in range(100)]
    await house.look_until_moved(*crons)
    assert await house.runs_of(*crons) == [1] * 100
    await house.look()
    assert await house.runs_of(*crons) == [1] * 100


async def test_a_cron_that_comes_more_often_than_its_thread_can_follow_waits_once(house: House):
    """The one that waits stands for all instants until it begins; other crons of the thread wait beside it."""
    thread_id = await house.thread()
    often = await house.add(overdue_s=60, thread_id=thread_id, on_run_completed=None)
    other = await house.add(overdue_s=60, thread_id=thread_id, on_run_completed=None)
    await house.db.pool.execute("update threads set active_runs = 1, status = 'busy'")
    for _ in range(3):
        await house.look_until_moved(often)
        await house.db.pool.execute("update crons set next_run_date = now() where cron_id = $1", often)
    await house.look_until_moved(often, other)
    assert await house.runs_of(often, other) == [1, 1]
    await house.db.pool.execute(
        "update runs set status = 'running', is_blocked = false where kwargs #>> '{config,configurable,cron_id}' = $1",
        str(often),
    )
    await house.db.pool.execute("update crons set next_run_date = now() where cron_id = $1", often)
    await house.look_until_moved(often)
    assert await house.runs_of(often, other) == [2, 1]


async def test_a_cron_whose_runs_find_no_slot_does_not_pile_them_up(house: House):
    """Instants at which none is made are counted; a run that has begun, or is gone, keeps no other back."""
    for worker in house.workers:
        worker.slots = 0
    often, other = await house.add(overdue_s=60), await house.add(overdue_s=60)
    again = "update crons set next_run_date = now() where cron_id = $1"
    for _ in range(3):
        await house.look_until_moved(often)
        await house.db.pool.execute(again, often)
    await house.look_until_moved(often, other)
    assert await house.runs_of(often, other) == [1, 1]
    skipped = "select skipped_count from crons where cron_id = $1"
    assert [await house.db.pool.fetchval(skipped, cron) for cron in (often, other)] == [3, 0]
    of_cron = "where kwargs #>> '{config,configurable,cron_id}' = $1"
    for step in ("update runs set status = 'running', is_blocked = false", "delete from runs"):
        await house.db.pool.execute(f"{step} {of_cron}", str(often))
        await house.db.pool.execute(again, often)
        await house.look_until_moved(often)
        assert await house.runs_of(often) == [2 if "update" in step else 1]
    assert await house.db.pool.fetchval(skipped, often) == 3


async def test_one_claim_fired_twice_makes_one_run(house: House):
    """A process that was paused wakes up with a claim that has run out and was taken by another."""
    thread_id = await house.thread()
    crons = [await house.add(overdue_s=60, thread_id=thread_id, on_run_completed=None), await house.add(overdue_s=60)]
    held = await house.claim()
    several = asyncio.Semaphore(10)
    outcomes = await asyncio.gather(*(s._fire(cron, several) for cron in held for s in house.schedulers))
    assert sorted(outcomes) == ["elsewhere"] * 4 + ["pending"] * 2
    assert await house.runs_of(*crons) == [1, 1]


async def test_the_claim_of_a_dead_process_runs_out(house: House):
    dead, alive = await house.add(overdue_s=60, is_enabled=False), await house.add(overdue_s=60, is_enabled=False)
    await house.db.pool.execute(
        "update crons set is_enabled = true, claimed_until = now() + make_interval(secs => $1) where cron_id = $2",
        60,
        alive,
    )
    await house.db.pool.execute(
        "update crons set is_enabled = true, claimed_until = now() - interval '1 second' where cron_id = $1", dead
    )
    await house.look()
    assert await house.runs_of(alive) == [0]
    await house.look_until_moved(dead)
    assert await house.runs_of(dead) == [1]


async def test_a_paused_cron_and_one_past_its_end_do_not_fire(house: House):
    paused = await house.add(overdue_s=60, is_enabled=False)
    ended = await house.add(overdue_s=3600, is_enabled=False)
    await house.db.pool.execute(
        "update crons set is_enabled = true, ends_at = now() - interval '30 minutes' where cron_id = $1", ended
    )
    await house.look_until_moved(ended)
    assert await house.runs_of(paused, ended) == [0, 0]
    assert await house.db.pool.fetchval("select next_run_date is null from crons where cron_id = $1", ended)
    assert await house.is_due(paused)


async def test_a_run_that_is_refused_holds_up_no_other(house: House):
    both = {"assistant_id": str(ECHO), "context": {"a": 1}, "config": {"configurable": {"b": 2}}}
    payloads = [both, {"config": {"configurable": {}}}, {"assistant_id": 5, "config": {"configurable": {}}}]
    bad, good = [await house.add(overdue_s=60, payload=p) for p in payloads], await house.add(overdue_s=60)
    await house.look_until_moved(*bad, good)
    assert await house.runs_of(*bad, good) == [0, 0, 0, 1]


async def test_a_thread_can_be_deleted_while_its_crons_fire(house: House):
    for _ in range(10):
        thread_id = await house.thread()
        crons = [await house.add(overdue_s=60, thread_id=thread_id, on_run_completed=None) for _ in range(3)]
        await asyncio.gather(house.look(), house.db.execute(sql.delete_thread, thread_id=thread_id))
        assert await house.db.pool.fetchval("select count(*) from crons where cron_id = any($1)", crons) == 0


async def test_seconds_until_due_names_the_nearest_instant(house: House):
    assert await house.db.fetchval(sql.seconds_until_due, within_s=5.0) is None
    await house.add(overdue_s=-59.9, is_enabled=False)
    assert await house.db.fetchval(sql.seconds_until_due, within_s=120.0) is None
    await house.add(overdue_s=-180)
    assert await house.db.fetchval(sql.seconds_until_due, within_s=5.0) is None
    assert 110 < await house.db.fetchval(sql.seconds_until_due, within_s=200.0) <= 180
