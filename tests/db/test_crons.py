"""Firing crons on Postgres.

A scheduled time of a cron starts one run, however many processes fire it and wherever one dies.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from portside.agent.app import SCHEMA, open_app
from portside.agent.config import load_config
from portside.agent.crons import firing
from portside.agent.crons.firing import CLAIM_S, MAKE_UP_WITHIN, DueCron, DueCrons
from portside.agent.crons.records import Crons
from portside.agent.crons.schedules import parse_end
from portside.agent.queue.worker import Worker
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.types.access import Caller
from portside.agent.types.crons import CronPatch
from portside.agent.webhooks.policy import WebhookPolicy, Webhooks
from portside.executor.access_filters import read_filter
from portside.executor.encryption_handlers import EncryptionFailed
from portside.executor.load import load_graphs
from portside.kernel.clock import now
from portside.kernel.db import Database
from portside.kernel.errors import Unavailable
from portside.kernel.ids import uuid7
from tests.conftest import eventually
from tests.db.clock import set_clock_back
from tests.servers import PROJECTS

ECHO = UUID("046b5dc7-2108-582c-9c6c-31d556d138f0")


class CronCluster:
    """Several servers on one database: their cron schedulers, and the workers that execute the runs."""

    def __init__(self, db: Database, schedulers: list[DueCrons], workers: list[Worker]) -> None:
        self.db = db
        self.schedulers = schedulers
        self.workers = workers

    async def add(self, *, overdue_s: float, thread_id: UUID | None = None, **columns: Any) -> UUID:
        """Store a cron whose instant came some time ago, as if no server had run since."""
        cron_id = uuid7()
        payload = {"assistant_id": str(ECHO), "input": {"messages": []}, "config": {"configurable": {}}}
        values = {
            "cron_id": cron_id,
            "assistant_id": ECHO,
            "thread_id": thread_id,
            "schedule": "@yearly",
            "timezone": None,
            "end_time": None,
            "ends_at": None,
            "payload": payload,
            "metadata": {},
            "on_run_completed": "keep",
            "is_enabled": True,
            "user_id": "",
            "owner": None,
            "thread_access": None,
            **columns,
        }

        due = await self.db.pool.fetchval("select date_trunc('minute', now()) - make_interval(secs => $1)", overdue_s)
        await self.db.execute(sql.insert_cron, **values, next_run_date=due)
        return cron_id

    async def claim(self) -> list[DueCron]:
        rows = await self.db.fetch(sql.claim_due_crons, claim_s=CLAIM_S, limit=100)
        return [DueCron(**dict(row)) for row in rows]

    async def look(self) -> None:
        """Activate every scheduler once, all at the same time."""
        await asyncio.gather(*(scheduler.activate() for scheduler in self.schedulers))

    async def count_runs(self, *cron_ids: UUID) -> list[int]:
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

    async def is_idle(self) -> bool:
        return not await self.db.pool.fetchval(
            "select exists (select from runs where status in ('pending', 'running'))"
        )

    async def thread(self) -> UUID:
        thread_id = uuid7()
        await self.db.pool.execute("insert into threads (thread_id) values ($1)", thread_id)
        return thread_id


@asynccontextmanager
async def open_cluster(url: str, servers: int) -> AsyncIterator[CronCluster]:
    config = load_config(PROJECTS / "graphs" / "langgraph.json")
    graphs = load_graphs(config.project)
    settings = AgentSettings(database_url=url)
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
        yield CronCluster(db, tasks, [app.worker for app in apps])


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, agent_databases: Callable[[], Awaitable[str]]
) -> AsyncIterator[CronCluster]:
    """Three servers, which may fire the same cron at the same time; a test may ask for another number."""
    async with open_cluster(await agent_databases(), servers=getattr(request, "param", 3)) as made:
        yield made


# For rules about which crons are due and what a run gets: each server takes a quarter of a CPU-second to open.
one_server = pytest.mark.parametrize("cluster", [1], indirect=True, ids=["one server"])


async def test_overdue_cron_fires_once(cluster: CronCluster):
    # Some have missed one instant, others several.
    missed_s = [3600 * 24 * days for days in (1, 3000)]
    crons = [await cluster.add(overdue_s=overdue_s) for overdue_s in missed_s * 10]
    await cluster.look_until_moved(*crons)
    assert await cluster.count_runs(*crons) == [1] * 20
    await cluster.look()
    assert await cluster.count_runs(*crons) == [1] * 20


async def test_frequent_cron_on_a_busy_thread_queues_one_run(cluster: CronCluster):
    """The one that waits stands for all instants until it begins; other crons of the thread wait beside it."""
    thread_id = await cluster.thread()
    often = await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None)
    other = await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None)
    await cluster.db.pool.execute("update threads set active_runs = 1, status = 'busy'")

    for _ in range(3):
        await cluster.look_until_moved(often)
        await cluster.db.pool.execute("update crons set next_run_date = now() where cron_id = $1", often)

    await cluster.look_until_moved(often, other)
    assert await cluster.count_runs(often, other) == [1, 1]
    await cluster.db.pool.execute(
        "update runs set status = 'running', is_blocked = false where kwargs #>> '{config,configurable,cron_id}' = $1",
        str(often),
    )

    await cluster.db.pool.execute("update crons set next_run_date = now() where cron_id = $1", often)
    await cluster.look_until_moved(often)
    assert await cluster.count_runs(often, other) == [2, 1]


async def test_cron_without_free_slots_queues_one_run(cluster: CronCluster):
    """Instants at which none is made are counted; a run that has begun, or is gone, keeps no other back."""
    for worker in cluster.workers:
        worker.slots = 0

    often = await cluster.add(overdue_s=60)
    other = await cluster.add(overdue_s=60)

    again = "update crons set next_run_date = now() where cron_id = $1"
    for _ in range(3):
        await cluster.look_until_moved(often)
        await cluster.db.pool.execute(again, often)

    await cluster.look_until_moved(often, other)
    assert await cluster.count_runs(often, other) == [1, 1]
    skipped = "select skipped_count from crons where cron_id = $1"
    assert [await cluster.db.pool.fetchval(skipped, cron) for cron in (often, other)] == [3, 0]

    of_cron = "where kwargs #>> '{config,configurable,cron_id}' = $1"
    for step in ("update runs set status = 'running', is_blocked = false", "delete from runs"):
        await cluster.db.pool.execute(f"{step} {of_cron}", str(often))
        await cluster.db.pool.execute(again, often)
        await cluster.look_until_moved(often)
        assert await cluster.count_runs(often) == [2 if "update" in step else 1]

    assert await cluster.db.pool.fetchval(skipped, often) == 3


@one_server
async def test_a_cron_that_cancels_what_waits_is_not_skipped(cluster: CronCluster):
    """Its last run has not begun, but makes room for the new one."""
    thread_id = await cluster.thread()
    await cluster.db.pool.execute("update threads set active_runs = 1, status = 'busy'")
    config = {"config": {"configurable": {}}}
    for strategy in ("interrupt", "rollback"):
        payload = {"assistant_id": str(ECHO), "multitask_strategy": strategy, **config}
        cron_id = await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None, payload=payload)
        for _ in range(2):
            (held,) = await cluster.claim()
            assert await cluster.schedulers[0]._fire(held, asyncio.Semaphore()) == "pending"
            await cluster.db.pool.execute("update crons set next_run_date = now() where cron_id = $1", cron_id)

        await cluster.db.pool.execute("delete from crons")


@one_server
async def test_a_cron_that_was_due_shortly_before_its_end_fires(cluster: CronCluster):
    for ended_for, outcome in ((MAKE_UP_WITHIN, "pending"), (MAKE_UP_WITHIN + timedelta(seconds=1), "ended")):
        await cluster.add(overdue_s=60)
        (held,) = await cluster.claim()
        held.ends_at = held.claimed_at - ended_for
        assert await cluster.schedulers[0]._fire(held, asyncio.Semaphore()) == outcome


@one_server
async def test_a_cron_whose_run_could_not_be_made_now_is_tried_again(
    cluster: CronCluster, monkeypatch: pytest.MonkeyPatch
):
    cron_id = await cluster.add(overdue_s=60)
    scheduler = cluster.schedulers[0]
    failures: list[Exception] = [Unavailable("no executor is ready"), EncryptionFailed("no key"), OSError("gone")]

    async def fail(_assistant_id: UUID) -> None:
        raise failures.pop()

    (held,) = await cluster.claim()
    with monkeypatch.context() as failing:
        failing.setattr(scheduler._assistants, "get", fail)
        while failures:
            assert await scheduler._fire(held, asyncio.Semaphore()) == "failed"
            assert await cluster.is_due(cron_id)

    assert await scheduler._fire(held, asyncio.Semaphore()) == "pending"


@one_server
async def test_a_change_that_leaves_the_schedule_alone_keeps_a_cron_due(cluster: CronCluster):
    cron_id = await cluster.add(overdue_s=60)
    webhooks = Webhooks(WebhookPolicy())
    crons = Crons(cluster.db, cluster.schedulers[0]._assistants, webhooks, on_change=lambda: None)
    await crons.patch(cron_id, CronPatch(metadata={"team": "support"}))
    assert await cluster.is_due(cron_id)
    await crons.patch(cron_id, CronPatch(timezone="Asia/Tokyo"))
    assert not await cluster.is_due(cron_id)


@one_server
async def test_crons_wait_while_the_disk_is_nearly_full(cluster: CronCluster, monkeypatch: pytest.MonkeyPatch):
    cron_id = await cluster.add(overdue_s=60)
    with monkeypatch.context() as full:
        full.setattr(Worker, "lacks_disk", True)
        await cluster.look()
        assert await cluster.is_due(cron_id)

    await cluster.look_until_moved(cron_id)
    assert await cluster.count_runs(cron_id) == [1]


async def test_one_claim_fired_twice_makes_one_run(cluster: CronCluster):
    """A process that was paused wakes up with a claim that has run out and was taken by another."""
    thread_id = await cluster.thread()
    crons = [
        await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None),
        await cluster.add(overdue_s=60),
    ]

    held = await cluster.claim()
    several = asyncio.Semaphore(10)
    outcomes = await asyncio.gather(*(s._fire(cron, several) for cron in held for s in cluster.schedulers))
    assert sorted(outcomes) == ["elsewhere"] * 4 + ["pending"] * 2
    assert await cluster.count_runs(*crons) == [1, 1]


@one_server
async def test_the_claim_of_a_dead_process_runs_out(cluster: CronCluster, monkeypatch: pytest.MonkeyPatch):
    # The claim of the one that is alive must not run out during the test.
    claim_s = 3600.0
    monkeypatch.setattr(firing, "CLAIM_S", claim_s)
    dead = await cluster.add(overdue_s=60, is_enabled=False)
    alive = await cluster.add(overdue_s=60, is_enabled=False)
    await cluster.db.pool.execute(
        "update crons set is_enabled = true, claimed_until = now() + make_interval(secs => $1) where cron_id = $2",
        claim_s,
        alive,
    )

    await cluster.db.pool.execute(
        "update crons set is_enabled = true, claimed_until = now() - interval '1 second' where cron_id = $1", dead
    )
    await cluster.look()
    assert await cluster.count_runs(alive) == [0]
    await cluster.look_until_moved(dead)
    assert await cluster.count_runs(dead) == [1]


@one_server
async def test_crons_fire_again_after_a_wrong_clock_is_set_back(cluster: CronCluster):
    """A clock that is fast by hours is wrong; after a smaller step nothing fires twice."""
    # Half an hour from now: no instant comes during the test.
    hourly = {"schedule": f"{(now().minute + 30) % 60} * * * *"}
    fast, ended = [await cluster.add(overdue_s=60, **hourly) for _ in range(2)]
    await cluster.look_until_moved(fast, ended)
    await set_clock_back(cluster.db, 4 * 3600)
    await cluster.db.pool.execute("update crons set ends_at = now() where cron_id = $1", ended)

    step = await cluster.add(overdue_s=60, **hourly)
    await cluster.look_until_moved(step)
    await cluster.db.pool.execute(
        "update crons set scheduled_at = scheduled_at + interval '1 h', next_run_date = next_run_date + interval '1 h'"
        " where cron_id = $1",
        step,
    )

    await cluster.look()
    within = "select next_run_date <= now() + interval '1 hour' from crons where cron_id = $1"
    assert [await cluster.db.pool.fetchval(within, cron) for cron in (fast, step, ended)] == [True, False, None]
    assert await cluster.count_runs(fast, step, ended) == [1, 1, 1]


@one_server
async def test_a_claim_from_before_the_clock_was_set_back_holds_up_nothing(cluster: CronCluster):
    cron = await cluster.add(overdue_s=60)
    await cluster.db.pool.execute("update crons set claimed_until = now() + interval '1 hour'")
    await cluster.look_until_moved(cron)
    assert await cluster.count_runs(cron) == [1]


@one_server
async def test_a_paused_cron_and_one_past_its_end_do_not_fire(cluster: CronCluster):
    paused = await cluster.add(overdue_s=60, is_enabled=False)
    ended = await cluster.add(overdue_s=3600, is_enabled=False)
    await cluster.db.pool.execute(
        "update crons set is_enabled = true, ends_at = now() - interval '30 minutes' where cron_id = $1", ended
    )
    await cluster.look_until_moved(ended)
    assert await cluster.count_runs(paused, ended) == [0, 0]

    assert await cluster.db.pool.fetchval("select next_run_date is null from crons where cron_id = $1", ended)
    assert await cluster.is_due(paused)


@one_server
async def test_a_cron_that_ends_with_the_calendar_fires(cluster: CronCluster):
    text = "9999-12-31T23:59:59.999999"
    cron = await cluster.add(overdue_s=60, end_time=text, ends_at=parse_end(text))
    await cluster.look_until_moved(cron)
    assert await cluster.count_runs(cron) == [1]
    assert await cluster.db.pool.fetchval("select next_run_date > now() from crons where cron_id = $1", cron)


@one_server
async def test_many_crons_of_one_owner_are_one_caller_of_the_queue(cluster: CronCluster):
    of_ada = [await cluster.add(overdue_s=60, user_id="ada") for _ in range(3)]
    of_bob = [await cluster.add(overdue_s=60, user_id="bob") for _ in range(3)]
    of_nobody = [await cluster.add(overdue_s=60) for _ in range(3)]
    await cluster.look_until_moved(*of_ada, *of_bob, *of_nobody)

    found = """
        select r.caller as asked_by from runs r join crons c on c.last_run_id = r.run_id
        where c.cron_id = any($1::uuid[])
    """

    names = [
        {row["asked_by"] for row in await cluster.db.pool.fetch(found, crons)} for crons in (of_ada, of_bob, of_nobody)
    ]
    assert [len(name) for name in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
    assert None not in set.union(*names)
    assert Caller(identity="ada").limit_key not in names[0], "they do not use up the limit of their owner"


@one_server
async def test_a_cron_is_skipped_while_its_owner_may_not_run_on_its_thread(cluster: CronCluster):
    thread_id = await cluster.thread()
    granted = read_filter({"$or": [{"owner": "ada"}, {"members": {"$contains": "ada"}}]})
    cron = await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None, thread_access=granted)
    fired = []

    for metadata in ({"owner": "ada"}, {"owner": "bob"}, {"owner": "bob", "members": ["ada"]}, {}):
        await cluster.db.pool.execute("update threads set metadata = $1", metadata)
        await cluster.db.pool.execute("update crons set next_run_date = now()")
        await cluster.look_until_moved(cron)
        await eventually(cluster.is_idle)
        fired += await cluster.count_runs(cron)

    assert fired == [1, 1, 2, 2]
    assert await cluster.db.pool.fetchval("select skipped_count from crons where cron_id = $1", cron) == 2


@one_server
async def test_a_run_that_is_refused_holds_up_no_other(cluster: CronCluster):
    both = {"assistant_id": str(ECHO), "context": {"a": 1}, "config": {"configurable": {"b": 2}}}
    payloads = [both, {"config": {"configurable": {}}}, {"assistant_id": 5, "config": {"configurable": {}}}]
    bad = [await cluster.add(overdue_s=60, payload=p) for p in payloads]
    good = await cluster.add(overdue_s=60)

    await cluster.look_until_moved(*bad, good)
    assert await cluster.count_runs(*bad, good) == [0, 0, 0, 1]


async def test_a_thread_can_be_deleted_while_its_crons_fire(cluster: CronCluster):
    for _ in range(10):
        thread_id = await cluster.thread()
        crons = [await cluster.add(overdue_s=60, thread_id=thread_id, on_run_completed=None) for _ in range(3)]
        await asyncio.gather(cluster.look(), cluster.db.execute(sql.delete_thread, thread_id=thread_id))
        assert await cluster.db.pool.fetchval("select count(*) from crons where cron_id = any($1)", crons) == 0


@one_server
async def test_seconds_until_due_names_the_nearest_instant(cluster: CronCluster):
    assert await cluster.db.fetchval(sql.seconds_until_due, within_s=5.0) is None
    await cluster.add(overdue_s=-59.9, is_enabled=False)
    assert await cluster.db.fetchval(sql.seconds_until_due, within_s=120.0) is None
    cron_id = await cluster.add(overdue_s=-3600)
    assert await cluster.db.fetchval(sql.seconds_until_due, within_s=5.0) is None

    async def left_s() -> float:
        left = "select extract(epoch from next_run_date - clock_timestamp()) from crons where cron_id = $1"
        return float(await cluster.db.pool.fetchval(left, cron_id))

    before_s = await left_s()
    found_s = await cluster.db.fetchval(sql.seconds_until_due, within_s=4000.0)
    assert await left_s() <= found_s <= before_s
