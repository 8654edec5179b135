"""Figures out of days that were counted are those of the runs themselves, whatever is written or deleted meanwhile."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.identity import first_start
from portside.identity.keyring import Keyring
from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from portside.tracing import figure_days
from portside.tracing.chart_data import Span, read_data
from portside.tracing.chart_types import ChartFilters, Series
from portside.tracing.conditions import Conditions
from portside.tracing.deliveries import from_batch
from portside.tracing.feedback import FeedbackRequest, create_feedback
from portside.tracing.figure_days import FiguresOfDays, PlainQuestion, figures_of_days, spreads
from portside.tracing.figures import ALL, RunStats, Slice, Slicing, measure
from portside.tracing.ingest import receive
from portside.tracing.project_lists import ProjectQuery, list_projects
from portside.tracing.projects import delete_projects
from portside.tracing.retention import TracesToDelete, delete_traces
from portside.tracing.run_queries import RunFilters, conditions_of, plain_question
from portside.tracing.sql import sql

TODAY = now().replace(hour=0, minute=0, second=0, microsecond=0)
FIRST = TODAY - timedelta(days=6)
DAY = timedelta(days=1)
PRECISION = 0.025


@pytest.fixture
async def db(fresh_database: Callable[[], Awaitable[str]], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(figure_days, "EXACT_RUNS", 0)
    db = await Database.connect(await fresh_database(), max_size=4)
    await migrate(db, ["portside.identity", "portside.tracing"])
    yield db
    await db.close()


@pytest.fixture
async def actor(db: Database) -> Actor:
    return await Keyring(db).authenticate(await first_start.set_up(db))


async def deliver(db: Database, actor: Actor, runs: list[dict[str, Any]], kind: str = "post") -> None:
    await receive(db, from_batch(json.dumps({kind: runs}, default=str).encode(), ""), by=actor)


def made(rng: random.Random, began: datetime) -> list[dict[str, Any]]:
    """Make a trace of a root and a child, with figures of every size."""
    root = uuid4()
    runs: list[dict[str, Any]] = [{"id": root, "start_time": began}, {"id": uuid4(), "parent_run_id": root}]
    for run in runs:
        at = began + timedelta(seconds=rng.random())
        usage = {"input_tokens": rng.choice([0, 7, 4000, 10**9]), "output_tokens": rng.randrange(3000)}
        run |= {
            "name": "r", "session_name": root_project(root), "start_time": run.get("start_time", at),
            "extra": {"metadata": {"usage_metadata": {**usage, "total_cost": rng.random() / 1000}}},
        }  # fmt: skip
        if rng.random() < 0.9:
            run["end_time"] = at + timedelta(seconds=rng.choice([0.0, 0.001, 1.5, 3600.0]) * (1 + rng.random()))
        if rng.random() < 0.2:
            run["error"] = "it failed"
        if rng.random() < 0.5:
            run["events"] = [{"name": "new_token", "time": at + timedelta(seconds=rng.random())}]
    return runs


def root_project(root: UUID) -> str:
    return f"project {root.int % 2}"


async def filled(db: Database, actor: Actor, traces: int = 300) -> list[list[dict[str, Any]]]:
    """Store traces of seven days, the last of which is not over, some of them where days meet."""
    rng = random.Random(11)
    moments = [FIRST + rng.random() * (now() - FIRST) for _ in range(traces)]
    moments += [FIRST + number * DAY + tick for number in range(1, 6) for tick in (timedelta(0), -timedelta.resolution)]
    found = [made(rng, moment) for moment in moments]
    await deliver(db, actor, [run for runs in found for run in runs])
    return found


async def count(db: Database) -> int:
    """Count all that is over; return how many days of projects were counted again."""
    task, again = FiguresOfDays(db), 0
    task.quiet_s = 0
    while (status := await task.activate()).did:
        again += status.did.get("touched_days", 0)
    return again


def close(exact: RunStats, told: RunStats) -> bool:
    """Whether both tell the same, percentiles as far as they have to."""
    for name, one in msgspec.structs.asdict(exact).items():
        other = getattr(told, name)
        if isinstance(one, float):
            is_spread = name.endswith(("_p50", "_p99")) or name == "median_tokens"
            allowed = max(abs(one) * (PRECISION if is_spread else 1e-9), 0.5 if "tokens" in name else 1e-9)
            if other is None or abs(one - other) > allowed:
                return False
        elif one != other:
            return False
    return True


RANGES: list[dict[str, Any]] = [
    {},
    {"is_root": True},
    {"start_time": FIRST + DAY},
    {"start_time": FIRST + 1.3 * DAY, "end_time": FIRST + 4.7 * DAY, "is_root": False},
    {"start_time": FIRST + DAY, "end_time": FIRST + 3 * DAY - timedelta.resolution},
    {"start_time": FIRST + DAY + timedelta.resolution, "end_time": FIRST + 3 * DAY},
    {"end_time": FIRST + 2 * DAY},
    {"filter": "eq( is_root,true )", "is_root": True, "start_time": FIRST + 0.5 * DAY},
    {"start_time": TODAY - DAY - timedelta(hours=1), "end_time": datetime(9999, 12, 31, tzinfo=UTC)},
]
SLICINGS = [ALL, Slicing(attribute="project"), Slicing(stride=2 * DAY, origin=FIRST - DAY)]


async def told(db: Database, actor: Actor, asked: dict[str, Any], slicing: Slicing) -> dict[Slice, RunStats]:
    """Ask both ways, and return what both told. Fails where they differ, or days were not made use of."""
    body = RunFilters(**asked)
    condition = conditions_of(body, actor.workspace_id, Conditions())
    plain = plain_question(body, actor.workspace_id)
    exact = await measure(db, condition, slicing)
    found = await measure(db, condition, slicing, plain)
    assert plain is not None
    assert found.keys() == exact.keys()
    assert all(close(exact[key], found[key]) for key in exact), (asked, exact, found)
    return found


async def all_told(db: Database, actor: Actor) -> list[dict[Slice, RunStats]]:
    return [await told(db, actor, asked, slicing) for asked in RANGES for slicing in SLICINGS]


async def some_told(db: Database, actor: Actor) -> None:
    for asked in ({}, RANGES[3]):
        await told(db, actor, asked, Slicing(attribute="project"))


async def projects_of(db: Database) -> dict[str, UUID]:
    return {row["name"]: row["id"] for row in await db.pool.fetch("select id, name from projects")}


async def test_days_tell_what_their_runs_do(db: Database, actor: Actor):
    traces = await filled(db, actor)
    before = await all_told(db, actor)
    assert await figures(db, actor) is None
    await count(db)
    assert await all_told(db, actor) != before, "percentiles are those of places"
    assert await figures(db, actor)
    assert await db.pool.fetchval("select until from figured_days") in {TODAY, TODAY - DAY}
    project = (await projects_of(db))["project 1"]
    of_one = await told(db, actor, {"session": [project, uuid4()]}, ALL)
    assert of_one[None, ""].run_count == sum(2 for root, _ in traces if root_project(root["id"]) == "project 1")
    elsewhere = PlainQuestion(workspace_id=uuid4(), projects=[project])
    division = figure_days.Division(by_project=False, stride=None, origin=None, limit=1)
    assert not await figures_of_days(db, elsewhere, division)


async def figures(db: Database, actor: Actor) -> object:
    division = figure_days.Division(by_project=False, stride=None, origin=None, limit=1)
    return await figures_of_days(db, PlainQuestion(workspace_id=actor.workspace_id), division)


async def test_what_is_written_and_deleted_later_is_told_at_once_and_counted_again(db: Database, actor: Actor):
    traces = await filled(db, actor, 100)
    projects = await projects_of(db)
    await count(db)
    began = FIRST + 2.5 * DAY

    async def nothing_is_left() -> int:
        await some_told(db, actor)
        again = await count(db)
        assert not await db.pool.fetchval(
            "select count(*) from touched_days where day < (select until from figured_days)"
        )
        await some_told(db, actor)
        return again

    old = [root for root, _ in traces if root["start_time"] < TODAY - 3 * DAY]
    assert await nothing_is_left() == 0
    await deliver(db, actor, [{"id": root["id"], "error": "late", "end_time": now()} for root in old[:5]], "patch")
    assert 0 < await nothing_is_left() <= 5
    # Its start moves to another day, and with it two days change.
    rows = [{"id": uuid4(), "name": "moved", "session_name": "project 0", "start_time": began}]
    await deliver(db, actor, rows)
    assert await nothing_is_left() == 1
    await deliver(db, actor, [{"id": rows[0]["id"], "start_time": began + DAY}], "patch")
    assert await nothing_is_left() == 2
    # Many at once are copied.
    await deliver(db, actor, [{**rows[0], "id": uuid4()} for _ in range(60)])
    assert await nothing_is_left() == 1
    gone = [root["id"] for root in old if root_project(root["id"]) == "project 1"]
    await delete_traces(db, actor.workspace_id, TracesToDelete(projects["project 1"], gone))
    assert await nothing_is_left() > 0
    # Feedback is looked up whenever figures are asked for.
    await create_feedback(db, FeedbackRequest(key="k", run_id=traces[0][0]["id"], score=1), by=actor)
    assert (await told(db, actor, {}, ALL))[None, ""].feedback_stats["k"].n == 1
    async with db.transaction() as tx:
        await delete_projects(tx, actor.workspace_id, [projects["project 1"]])
    await nothing_is_left()
    kept = await db.pool.fetch("select distinct project_id from figure_days")
    assert [row["project_id"] for row in kept] == [projects["project 0"]]


async def test_what_is_under_way_while_its_day_is_counted_is_not_lost(db: Database, actor: Actor):
    root = (await filled(db, actor, 20))[0][0]
    run_id = UUID(str(root["id"]))
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute("update runs set error = 'late' where id = $1", run_id)
        await count(db)
        assert await db.pool.fetchval("select count(*) from figure_days") > 0
    await some_told(db, actor)
    assert await count(db) == 1
    await some_told(db, actor)


async def test_one_process_counts_at_a_time_and_only_what_is_over(db: Database, actor: Actor):
    await deliver(db, actor, made(random.Random(1), now()))
    assert not (await FiguresOfDays(db).activate()).did
    await deliver(db, actor, made(random.Random(1), FIRST))
    async with db.transaction() as tx:
        assert await tx.fetchval(sql.begin_alone, name=figure_days.LOCK)
        assert not (await FiguresOfDays(db).activate()).did
    assert (await FiguresOfDays(db).activate()).did == {"days": 1}


async def test_few_runs_and_other_questions_are_answered_by_the_runs(
    db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch
):
    await filled(db, actor, 20)
    await count(db)
    assert await figures(db, actor)
    monkeypatch.setattr(figure_days, "EXACT_RUNS", 1000)
    assert await figures(db, actor) is None
    roots: dict[str, Any] = {"filter": "eq(is_root, true)"}
    assert plain_question(RunFilters(**roots), actor.workspace_id) == PlainQuestion(
        workspace_id=actor.workspace_id, is_root=True
    )
    others: list[dict[str, Any]] = [
        {"run_type": "llm"}, {"error": False}, {"filter": "eq(name, 'x')"}, {"id": [uuid4()]},
        {**roots, "is_root": False},
    ]  # fmt: skip
    for asked in others:
        assert plain_question(RunFilters(**asked), actor.workspace_id) is None


async def test_projects_are_listed_with_what_days_tell(db: Database, actor: Actor):
    await filled(db, actor, 100)
    query = ProjectQuery(include_stats=True, sort_by="runs_count")
    before = await list_projects(db, actor.workspace_id, query)
    await count(db)
    after = await list_projects(db, actor.workspace_id, query)
    told = [(project.id, project.run_count, project.total_tokens, project.total_cost) for project in after]
    assert told == [(project.id, project.run_count, project.total_tokens, project.total_cost) for project in before]
    assert [project.latency_p50 for project in after] != [project.latency_p50 for project in before]


async def test_charts_by_day_are_made_of_days(db: Database, actor: Actor):
    await filled(db, actor, 100)
    project = (await projects_of(db))["project 0"]
    span = Span(FIRST + 0.3 * DAY, now(), DAY, FIRST)
    series = [
        Series(metric="run_count", filters=ChartFilters(filter="eq(is_root, true)")),
        Series(metric="total_tokens"),
        Series(metric="latency_p50"),
    ]

    async def points() -> list[Any]:
        common = ChartFilters(session=[project])
        return [
            [point.value for point in await read_data(db, actor.workspace_id, [one], common, span)] for one in series
        ]

    before = await points()
    await count(db)
    after = await points()
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    assert after[2] == pytest.approx(before[2], rel=PRECISION)


def test_percentiles_are_those_of_the_middles_of_places():
    places = [0, 1000, 1014, 4000, 4000 + 1061]
    found: dict[str, Any] = dict(spreads(places, [1, 1, 2, 3, 1]))
    assert found["latency"] == [pytest.approx((1.05**0.5 + 1.05**14.5) / 2), pytest.approx(1.05**14.5)]
    assert found["prompt_tokens_spread"] == [0.0, pytest.approx(20 * 0.97)]
    assert found["first_token"] is None
    assert found["cost"] is None
