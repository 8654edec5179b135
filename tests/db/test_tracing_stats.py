"""Statistics from counted days equal those of the runs themselves, even during writes and deletions."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Database
from portside.tracing import rollups
from portside.tracing.chart_data import TimeBuckets, compute_points
from portside.tracing.chart_types import ChartFilters, ChartSeries
from portside.tracing.conditions import ConditionBuilder
from portside.tracing.feedback import FeedbackRequest, create_feedback
from portside.tracing.ingest import store_batch
from portside.tracing.ingest_parser import parse_batch
from portside.tracing.percentiles import compute_percentiles
from portside.tracing.project_lists import ProjectQuery, list_projects
from portside.tracing.projects import delete_projects
from portside.tracing.retention import TracesToDelete, delete_traces
from portside.tracing.rollups import DailyRollups, RollupQuery, read_rollups, to_rollup_query
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.sql import sql
from portside.tracing.stats import (
    ALL,
    GroupKey,
    RunStats,
    StatsGrouping,
    compute_stats,
)

TODAY = now().replace(hour=0, minute=0, second=0, microsecond=0)
FIRST = TODAY - timedelta(days=6)
DAY = timedelta(days=1)
PRECISION = 0.025
PACKAGES = ("portside.identity", "portside.tracing")
PROJECTS = ("project 0", "project 1")


@pytest.fixture(autouse=True)
def figures_of_counted_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "EXACT_MAX_RUNS", 0)


async def deliver(db: Database, actor: Actor, runs: list[dict[str, Any]], kind: str = "post") -> None:
    await store_batch(db, parse_batch(json.dumps({kind: runs}, default=str).encode(), ""), by=actor)


def build_trace(rng: random.Random, began: datetime) -> list[dict[str, Any]]:
    """Make a trace of a root and a child, with figures of every size."""
    root = uuid4()
    project = rng.choice(PROJECTS)
    runs: list[dict[str, Any]] = [
        {"id": root, "start_time": began},
        {"id": uuid4(), "parent_run_id": root, "run_type": "llm"},
    ]

    for run in runs:
        at = began + timedelta(seconds=rng.random())
        usage = {"input_tokens": rng.choice([0, 7, 4000, 10**9]), "output_tokens": rng.randrange(3000)}
        run |= {
            "name": "r",
            "session_name": project,
            "start_time": run.get("start_time", at),
            "extra": {"metadata": {"usage_metadata": {**usage, "total_cost": rng.random() / 1000}}},
        }

        if rng.random() < 0.9:
            run["end_time"] = at + timedelta(seconds=rng.choice([0.0, 0.001, 1.5, 3600.0]) * (1 + rng.random()))

        if rng.random() < 0.2:
            run["error"] = "it failed"

        if rng.random() < 0.5:
            run["events"] = [{"name": "new_token", "time": at + timedelta(seconds=rng.random())}]

    return runs


async def store_traces(db: Database, actor: Actor, traces: int = 300) -> list[list[dict[str, Any]]]:
    """Store traces of seven days, the last of which is not over, some of them where days meet."""
    rng = random.Random(11)
    moments = [FIRST + rng.random() * (now() - FIRST) for _ in range(traces)]
    moments += [FIRST + number * DAY + tick for number in range(1, 6) for tick in (timedelta(0), -timedelta.resolution)]
    found = [build_trace(rng, moment) for moment in moments]

    await deliver(db, actor, [run for runs in found for run in runs])
    return found


async def count(db: Database) -> int:
    """Count all that is over; return how many days of projects were counted again."""
    task = DailyRollups(db)
    again = 0
    task.quiet_s = 0

    while (status := await task.activate()).did:
        again += status.did.get("stale_days", 0)

    return again


def close(exact: RunStats, received: RunStats) -> bool:
    """Whether both tell the same, percentiles as far as they have to."""
    for name, one in msgspec.structs.asdict(exact).items():
        other = getattr(received, name)
        if isinstance(one, float):
            is_spread = name.endswith(("_p50", "_p95", "_p99")) or name == "median_tokens"
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
SLICINGS = [ALL, StatsGrouping(attribute="project"), StatsGrouping(stride=2 * DAY, origin=FIRST - DAY)]


async def compare_stats(
    db: Database, actor: Actor, asked: dict[str, Any], slicing: StatsGrouping
) -> dict[GroupKey, RunStats]:
    """Ask both ways, and return what both received. Fails where they differ, or days were not made use of."""
    body = RunFilters(**asked)
    condition = build_run_condition(body, actor.workspace_id, ConditionBuilder())
    plain = to_rollup_query(body, actor.workspace_id)
    exact = await compute_stats(db, condition, slicing)
    found = await compute_stats(db, condition, slicing, plain)
    assert plain is not None
    assert found.keys() == exact.keys()

    assert all(close(exact[key], found[key]) for key in exact), (asked, exact, found)
    return found


async def all_stats(db: Database, actor: Actor) -> list[dict[GroupKey, RunStats]]:
    return [await compare_stats(db, actor, asked, slicing) for asked in RANGES for slicing in SLICINGS]


async def check_some_stats(db: Database, actor: Actor) -> None:
    for asked in ({}, RANGES[3]):
        await compare_stats(db, actor, asked, StatsGrouping(attribute="project"))


async def read_projects(db: Database) -> dict[str, UUID]:
    return {row["name"]: row["id"] for row in await db.pool.fetch("select id, name from projects")}


async def test_rollups_equal_statistics_of_runs(db: Database, actor: Actor):
    traces = await store_traces(db, actor)
    before = await all_stats(db, actor)
    assert await figures(db, actor) is None
    await count(db)
    assert await all_stats(db, actor) != before, "percentiles are those of places"
    assert await figures(db, actor)

    # A day may have ended since this module was imported.
    assert TODAY - DAY <= await db.pool.fetchval("select until from daily_run_stats_progress") <= now()
    project = (await read_projects(db))["project 1"]
    of_one = await compare_stats(db, actor, {"session": [project, uuid4()]}, ALL)
    assert of_one[None, ""].run_count == sum(2 for root, _ in traces if root["session_name"] == "project 1")
    elsewhere = RollupQuery(workspace_id=uuid4(), projects=[project])
    division = rollups.RollupGrouping(by_project=False, stride=None, origin=None, limit=1)
    assert not await read_rollups(db, elsewhere, division)


async def figures(db: Database, actor: Actor) -> object:
    division = rollups.RollupGrouping(by_project=False, stride=None, origin=None, limit=1)
    return await read_rollups(db, RollupQuery(workspace_id=actor.workspace_id), division)


async def test_later_changes_are_visible_at_once_and_counted_again(db: Database, actor: Actor):
    traces = await store_traces(db, actor, 100)
    projects = await read_projects(db)
    await count(db)
    began = FIRST + 2.5 * DAY

    async def recount() -> int:
        await check_some_stats(db, actor)
        again = await count(db)
        assert not await db.pool.fetchval(
            "select count(*) from stale_days where day < (select until from daily_run_stats_progress)"
        )
        await check_some_stats(db, actor)

        return again

    old = [root for root, _ in traces if root["start_time"] < TODAY - 3 * DAY]
    assert await recount() == 0
    await deliver(db, actor, [{"id": root["id"], "error": "late", "end_time": now()} for root in old[:5]], "patch")
    assert 0 < await recount() <= 5

    # Its start moves to another day, and with it two days change.
    rows = [{"id": uuid4(), "name": "moved", "session_name": "project 0", "start_time": began}]
    await deliver(db, actor, rows)
    assert await recount() == 1
    await deliver(db, actor, [{"id": rows[0]["id"], "start_time": began + DAY}], "patch")
    assert await recount() == 2

    # Many at once are copied.
    await deliver(db, actor, [{**rows[0], "id": uuid4()} for _ in range(60)])
    assert await recount() == 1
    gone = [root["id"] for root in old if root["session_name"] == "project 1"]
    await delete_traces(db, actor.workspace_id, TracesToDelete(projects["project 1"], gone))
    assert await recount() > 0

    # Feedback is looked up whenever figures are asked for.
    kept_root = next(root for root, _ in traces if root["session_name"] == "project 0")
    await create_feedback(db, FeedbackRequest(key="k", run_id=kept_root["id"], score=1), by=actor)
    assert (await compare_stats(db, actor, {}, ALL))[None, ""].feedback_stats["k"].n == 1

    async with db.transaction() as tx:
        await delete_projects(tx, actor.workspace_id, [projects["project 1"]])

    await recount()
    kept = await db.pool.fetch("select distinct project_id from daily_run_stats")
    assert [row["project_id"] for row in kept] == [projects["project 0"]]


async def test_a_day_is_counted_again_when_it_is_quiet_or_after_hours(db: Database, actor: Actor):
    traces = await store_traces(db, actor, 20)
    root = next(root for root, _ in traces if root["start_time"] < TODAY - 3 * DAY)
    await count(db)
    for error in ("first", "second"):
        await deliver(db, actor, [{"id": root["id"], "error": error, "end_time": now()}], "patch")

    async def count_after(hours: int, marks: int) -> int:
        """Count when so many of the changes, the oldest ones, are so many hours old."""
        await db.pool.execute(
            "update stale_days set written_at = now() - make_interval(hours => $1) where written_by in"
            " (select written_by from stale_days where day < $3 order by written_by limit $2)",
            hours,
            marks,
            TODAY - 2 * DAY,
        )
        return (await DailyRollups(db).activate()).did.get("stale_days", 0)

    assert await count_after(hours=0, marks=2) == 0
    assert await count_after(hours=5, marks=1) == 0, "it still changes"
    assert await count_after(hours=7, marks=1) == 1, "it has changed for long enough"

    await deliver(db, actor, [{"id": root["id"], "error": "third", "end_time": now()}], "patch")
    assert await count_after(hours=1, marks=1) == 1, "it is quiet"


async def test_transactions_that_are_open_during_a_count_are_not_lost(db: Database, actor: Actor):
    root = (await store_traces(db, actor, 20))[0][0]
    run_id = UUID(str(root["id"]))
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute("update runs set error = 'late' where id = $1", run_id)
        await count(db)
        assert await db.pool.fetchval("select count(*) from daily_run_stats") > 0

    await check_some_stats(db, actor)
    assert await count(db) == 1
    await check_some_stats(db, actor)


async def test_one_process_counts_finished_days_at_a_time(db: Database, actor: Actor):
    await deliver(db, actor, build_trace(random.Random(1), now()))
    assert not (await DailyRollups(db).activate()).did
    await deliver(db, actor, build_trace(random.Random(1), FIRST))

    async with db.transaction() as tx:
        assert await tx.fetchval(sql.try_lock, name=rollups.LOCK)
        assert not (await DailyRollups(db).activate()).did

    assert (await DailyRollups(db).activate()).did == {"days": 1}


async def test_a_day_is_counted_an_hour_after_its_end(db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch):
    """A run that began less than an hour ago leaves no mark when it changes."""
    end = TODAY - DAY
    await deliver(db, actor, build_trace(random.Random(1), end - timedelta(hours=5)))
    for minutes, counted in ((30, {}), (90, {"days": 1})):
        margin = now() - end - timedelta(minutes=minutes)
        monkeypatch.setattr(rollups, "COMMIT_MARGIN_S", margin.total_seconds())
        assert (await DailyRollups(db).activate()).did == counted


async def test_few_runs_and_other_filters_do_not_use_rollups(
    db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch
):
    await store_traces(db, actor, 20)
    await count(db)
    assert await figures(db, actor)
    monkeypatch.setattr(rollups, "EXACT_MAX_RUNS", 1000)
    assert await figures(db, actor) is None
    roots: dict[str, Any] = {"filter": "eq(is_root, true)"}
    assert to_rollup_query(RunFilters(**roots), actor.workspace_id) == RollupQuery(
        workspace_id=actor.workspace_id, is_root=True
    )

    others: list[dict[str, Any]] = [
        {"run_type": "llm"},
        {"error": False},
        {"filter": "eq(name, 'x')"},
        {"id": [uuid4()]},
        {**roots, "is_root": False},
    ]

    for asked in others:
        assert to_rollup_query(RunFilters(**asked), actor.workspace_id) is None


async def test_projects_are_listed_with_rollups(db: Database, actor: Actor):
    await store_traces(db, actor, 100)
    query = ProjectQuery(include_stats=True, sort_by="runs_count")
    before = await list_projects(db, actor.workspace_id, query)
    await count(db)

    after = await list_projects(db, actor.workspace_id, query)
    received = [(project.id, project.run_count, project.total_tokens, project.total_cost) for project in after]
    assert received == [(project.id, project.run_count, project.total_tokens, project.total_cost) for project in before]
    assert [project.latency_p50 for project in after] != [project.latency_p50 for project in before]


async def test_daily_charts_use_rollups(db: Database, actor: Actor):
    await store_traces(db, actor, 100)
    project = (await read_projects(db))["project 0"]
    span = TimeBuckets(FIRST + 0.3 * DAY, now(), DAY, FIRST)

    series = [
        ChartSeries(metric="run_count", filters=ChartFilters(filter="eq(is_root, true)")),
        ChartSeries(metric="total_tokens"),
        ChartSeries(metric="latency_p50"),
    ]

    async def points() -> list[Any]:
        common = ChartFilters(session=[project])
        return [
            [point.value or 0 for point in await compute_points(db, actor.workspace_id, [one], common, span)]
            for one in series
        ]

    before = await points()
    await count(db)
    after = await points()
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    assert after[2] == pytest.approx(before[2], rel=PRECISION)


async def test_usage_counts_for_model_runs_alone(db: Database, actor: Actor) -> None:
    usage = {"metadata": {"usage_metadata": {"input_tokens": 2400, "output_tokens": 15, "total_cost": 0.5}}}
    root = {"id": uuid4(), "name": "chain", "run_type": "chain", "session_name": "p", "start_time": FIRST}
    root["extra"] = usage
    model = {**root, "id": uuid4(), "name": "model", "run_type": "llm", "parent_run_id": root["id"]}

    await deliver(db, actor, [root, model])

    async def tokens() -> tuple[int, int, str | None]:
        found = (await compare_stats(db, actor, {}, ALL))[None, ""]
        return found.prompt_tokens, found.total_tokens, found.total_cost

    assert await tokens() == (2400, 2415, "0.5"), "run by run"
    await count(db)
    assert await tokens() == (2400, 2415, "0.5"), "from the statistics of the day"


async def test_absurd_token_counts_do_not_break_statistics(db: Database, actor: Actor) -> None:
    await deliver(db, actor, [{"id": uuid4(), "name": "r", "run_type": "llm", "session_name": "p"}])
    usage = json.dumps({"metadata": {"usage_metadata": {"input_tokens": 1e15, "output_tokens": 1e15}}})
    await db.pool.execute(
        """
        insert into runs (workspace_id, id, project_id, name, run_type, extra, patched, patch_order, is_awaited)
        select workspace_id, gen_random_uuid(), project_id, name, run_type, $1, 0, 0, false
        from runs, generate_series(1, 9500)
        """,
        usage,
    )

    condition = build_run_condition(RunFilters(), actor.workspace_id, ConditionBuilder())
    found = (await compute_stats(db, condition))[None, ""]
    assert (found.run_count, found.prompt_tokens) == (9501, 9 * 10**18)


def test_percentiles_are_the_middles_of_bins():
    places = [0, 1000, 1014, 4000, 4000 + 1061]
    found: dict[str, Any] = dict(compute_percentiles(places, [1, 1, 2, 3, 1]))
    median = (1.05**0.5 + 1.05**14.5) / 2
    last = 1.05**14.5
    assert found["latency"] == pytest.approx([median, last, last])
    assert found["prompt_tokens_spread"] == pytest.approx([0.0, 20 * 0.97])
    assert found["first_token"] is None

    assert found["cost"] is None
