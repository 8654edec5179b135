"""The counting queries are answered from the index, and from days that were counted, with the same result."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from portside.usage.counts import QUERIES
from portside.usage.days import DaysThatAreOver
from portside.usage.ranges import read_range
from portside.usage.sql import sql

FIRST = datetime(2026, 1, 1, 7, 30, tzinfo=UTC)


@pytest.fixture
async def db(fresh_database: Callable[[], Awaitable[str]]) -> AsyncIterator[Database]:
    db = await Database.connect(await fresh_database(), max_size=4)
    await migrate(db, ["portside.identity", "portside.tracing", "portside.usage"])
    yield db
    await db.close()


async def receive(db: Database, workspaces: list[UUID], count: int) -> None:
    """Traces of the first five days of a year, every so many minutes."""
    organization = uuid4()
    await db.pool.execute("insert into organizations (id, display_name) values ($1, 'one')", organization)
    for number, workspace in enumerate(workspaces):
        await db.pool.execute(
            "insert into workspaces (id, organization_id, display_name, tenant_handle) values ($1, $2, $3, $3)",
            workspace, organization, f"workspace {number}",
        )  # fmt: skip
    rng = random.Random(5)
    projects, users, keys = [[uuid4() for _ in range(3)] for _ in range(3)]
    rows = [
        (
            rng.choice(workspaces), uuid4(), rng.choice(projects), rng.choice(keys), rng.choice([*users, None]),
            FIRST + timedelta(minutes=number * 5 * 24 * 60 / count),
        ) for number in range(count)
    ]  # fmt: skip
    await db.pool.executemany(
        "insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, received_at)"
        " values ($1, $2, $3, $4, $5, $6)",
        rows,
    )


async def counts(db: Database, workspaces: list[UUID], start: str, end: str) -> list[object]:
    within = read_range(start, end)
    first_day, last_day = within.whole_days(await db.fetchval(sql.counted_until))
    answers = [
        await db.fetch(
            query, workspace_ids=workspaces, start_time=within.start, end_time=within.end, stride=within.width,
            origin=within.origin, first_day=first_day, last_day=last_day,
        ) for query in QUERIES.values()
    ]  # fmt: skip
    return [sorted(map(repr, answer)) for answer in answers]


@pytest.mark.parametrize("query", list(QUERIES.values()), ids=lambda query: query.name)
async def test_counting_reads_only_the_index(db: Database, query):
    workspace = uuid4()
    await db.pool.execute(
        "insert into traces (workspace_id, trace_id, project_id, api_key_id, received_at)"
        " select case when n % 100 = 0 then $1 else gen_random_uuid() end, gen_random_uuid(), $1, $1,"
        " '2026-01-01'::timestamptz + n * interval '1 minute' from generate_series(1, 20000) n",
        workspace,
    )
    await db.pool.execute("vacuum analyze traces")
    start = datetime(2026, 1, 2, tzinfo=UTC)
    plan = await db.pool.fetch(
        "explain " + query.sql,
        *query.arguments(
            {
                "stride": timedelta(days=1),
                "origin": datetime(2026, 1, 1, tzinfo=UTC),
                "workspace_ids": [workspace],
                "start_time": start,
                "end_time": datetime(2026, 1, 4, tzinfo=UTC),
                "first_day": start,
                "last_day": start,
            }
        ),
    )
    assert any("Index Only Scan using traces_by_receipt" in row[0] for row in plan), plan


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"),
        ("2026-01-01T09:00:00Z", "2026-01-04T17:00:00Z"),
        ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
        ("2026-01-02T00:00:00+02:00", "2026-03-20T00:00:00Z"),
        ("2026-01-02T10:00:00Z", "2026-01-02T20:00:00Z"),
        ("2025-06-01T00:00:00Z", "2026-07-01T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "2027-01-05T00:00:00Z"),
    ],
)
async def test_days_that_were_counted_tell_what_their_traces_did(db: Database, start: str, end: str):
    workspaces = [uuid4(), uuid4()]
    await receive(db, workspaces, 2000)
    before = await counts(db, workspaces, start, end)
    chore = DaysThatAreOver(db)
    days = 0
    while (status := await chore.activate()).again:
        days += status.did["days"]
    assert days > 5
    assert await counts(db, workspaces, start, end) == before
    # What was counted is not looked at again.
    await db.pool.execute("delete from traces where received_at < '2026-01-05'")
    if start.startswith("2026-01-01T00"):
        assert await counts(db, workspaces, start, end) == before
    assert not (await chore.activate()).did


async def test_no_day_is_closed_while_something_of_it_is_under_way(db: Database):
    await receive(db, [uuid4()], 10)
    async with db.pool.acquire() as other, other.transaction():
        began = await other.fetchval("select now()")
        assert await db.fetchval(sql.is_day_over, day=began - timedelta(hours=30))
        assert not await db.fetchval(sql.is_day_over, day=began - timedelta(hours=24))


async def test_one_process_counts_at_a_time(db: Database):
    await receive(db, [uuid4()], 10)
    async with db.transaction() as tx:
        assert await tx.fetchval(sql.begin_counting)
        assert not (await DaysThatAreOver(db).activate()).did
    assert (await DaysThatAreOver(db).activate()).did == {"days": 1}
