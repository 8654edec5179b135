"""The counting queries are answered from the index, and from hours and days that were counted, with the same result."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from portside.kernel.db import Database
from portside.tracing.sql import sql as counting
from portside.usage import totals
from portside.usage.counts import QUERIES, build_range_arguments, to_series
from portside.usage.ranges import read_range
from portside.usage.sql import sql
from portside.usage.totals import TOTALS_LOCK, PastHours
from tests.conftest import eventually

PACKAGES = ("portside.identity", "portside.tracing", "portside.usage")

FIRST = datetime(2026, 1, 1, 7, 30, tzinfo=UTC)
TICK = timedelta(microseconds=1)
RANGES = [
    ("2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"),
    ("2026-01-01T09:00:00Z", "2026-01-04T17:00:00Z"),
    ("2026-01-01T09:20:00Z", "2026-01-04T17:40:00Z"),
    ("2026-01-02T00:00:00.000001Z", "2026-01-03T23:59:59.999999Z"),
    ("2026-01-01T23:59:59.999999Z", "2026-01-04T00:00:00.000001Z"),
    ("2026-01-02T02:59:59.999999Z", "2026-01-03T04:00:00.000001Z"),
    ("2026-01-02T03:00:00.000001Z", "2026-01-03T03:59:59.999999Z"),
    ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
    ("2026-01-02T00:00:00+02:00", "2026-03-20T00:00:00Z"),
    ("2026-01-02T00:00:00+05:30", "2026-01-04T00:00:00+05:30"),
    ("2026-01-02T10:00:00Z", "2026-01-02T20:00:00Z"),
    ("2026-01-02T10:00:00.000001Z", "2026-01-02T11:00:00Z"),
    ("2026-01-02T10:10:00Z", "2026-01-02T10:50:00Z"),
    ("2026-01-02T22:30:00Z", "2026-01-03T01:30:00Z"),
    ("2025-06-01T00:00:00Z", "2026-07-01T00:00:00Z"),
    ("2027-01-01T00:00:00Z", "2027-01-05T00:00:00Z"),
]


async def add(db: Database, workspaces: list[UUID], moments: list[datetime]) -> None:
    """Store a trace of each moment, of any of the workspaces."""
    rng = random.Random(5)
    projects, users, keys = [[UUID(int=rng.getrandbits(128)) for _ in range(3)] for _ in range(3)]
    await db.pool.executemany(
        "insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, received_at)"
        " values ($1, $2, $3, $4, $5, $6)",
        [
            (
                rng.choice(workspaces),
                uuid4(),
                rng.choice(projects),
                rng.choice(keys),
                rng.choice([*users, None]),
                moment,
            )
            for moment in moments
        ],
    )


async def make(db: Database, workspaces: list[UUID]) -> None:
    organization = uuid4()
    await db.pool.execute("insert into organizations (id, display_name) values ($1, 'one')", organization)

    for number, workspace in enumerate(workspaces):
        await db.pool.execute(
            "insert into workspaces (id, organization_id, display_name, tenant_handle) values ($1, $2, $3, $3)",
            workspace,
            organization,
            f"workspace {number}",
        )


async def receive(db: Database, workspaces: list[UUID], count: int) -> None:
    """Make workspaces with traces of the first five days of a year: every so many minutes, and where hours meet."""
    await make(db, workspaces)
    moments = [FIRST + timedelta(minutes=number * 5 * 24 * 60 / count) for number in range(count)]
    meetings = [datetime(2026, 1, 2, tzinfo=UTC) + timedelta(hours=number) for number in range(72)]
    around = [meeting + number * TICK for meeting in meetings for number in (-1, 0, 0, 1)]

    await add(db, workspaces, moments + around)


async def counts(db: Database, workspaces: list[UUID], start: str, end: str) -> list[object]:
    within = read_range(start, end)
    given = await build_range_arguments(db, within)
    responses = [await db.fetch(query, workspace_ids=workspaces, **given) for query in QUERIES.values()]
    return [sorted(repr(to_series(row)) for row in response) for response in responses]


async def test_counting_reads_only_the_index(db: Database):
    workspace = uuid4()
    await db.pool.execute(
        "insert into traces (workspace_id, trace_id, project_id, api_key_id, received_at)"
        " select case when n % 100 = 0 then $1 else gen_random_uuid() end, gen_random_uuid(), $1, $1,"
        " '2026-01-01'::timestamptz + n * interval '1 minute' from generate_series(1, 20000) n",
        workspace,
    )

    await db.pool.execute("vacuum analyze traces")
    start = datetime(2026, 1, 2, tzinfo=UTC)
    given = {
        "stride": timedelta(days=1),
        "origin": datetime(2026, 1, 1, tzinfo=UTC),
        "workspace_ids": [workspace],
        "start_time": start,
        "end_time": datetime(2026, 1, 4, tzinfo=UTC),
        **dict.fromkeys(("first_hour", "first_day", "last_day", "last_hour"), start),
    }

    for query in QUERIES.values():
        plan = await db.pool.fetch("explain " + query.sql, *query.arguments(given))
        assert any("Index Only Scan using traces_by_receipt" in row[0] for row in plan), (query.name, plan)


async def all_counts(db: Database, workspaces: list[UUID]) -> list[object]:
    return [await counts(db, workspaces, *within) for within in RANGES]


async def count_days_without_hours(db: Database, until: datetime) -> None:
    """Leave what was left before hours were counted."""
    await db.pool.execute(
        "insert into trace_days (workspace_id, day, project_id, user_id, api_key_id, traces)"
        " select workspace_id, date_trunc('day', received_at, 'UTC'), project_id, user_id, api_key_id, count(*)"
        " from traces where received_at < $1 group by 1, 2, 3, 4, 5",
        until,
    )

    await db.pool.execute(
        "insert into project_days (workspace_id, day, project_id, traces)"
        " select workspace_id, day, project_id, sum(traces) from trace_days group by 1, 2, 3"
    )

    await db.pool.execute("insert into counted_days (until) values ($1)", until)


@pytest.mark.parametrize("has_days", [False, True], ids=["from the start", "with days of an older version"])
async def test_totals_equal_the_counts_of_traces(db: Database, *, has_days: bool):
    workspaces = [uuid4(), uuid4()]
    await receive(db, workspaces, 1000)
    before = await all_counts(db, workspaces)

    # What was received is billed, whatever becomes of its workspace.
    await db.pool.execute("update workspaces set deleted_at = now() where id = $1", workspaces[0])
    if has_days:
        await count_days_without_hours(db, datetime(2026, 1, 4, tzinfo=UTC))
        assert await all_counts(db, workspaces) == before

    chore = PastHours(db)
    done = Counter[str]()
    # The days of the traces, and some more.
    for step in range(10):
        status = await chore.activate()
        assert status.again
        done.update(status.did)
        if step in {0, 3}:
            assert await all_counts(db, workspaces) == before

    assert done["hours"] > 120
    assert done["days"] == done["hours"] // 24 - (3 if has_days else 0)
    assert await all_counts(db, workspaces) == before

    # What was counted is not looked at again, and what ranges cut of it is.
    await db.pool.execute("delete from traces where received_at < '2026-01-05'")
    whole = [number for number, within in enumerate(RANGES) if all(moment.endswith("00:00Z") for moment in within)]
    after = await all_counts(db, workspaces)
    assert [after[number] for number in whole] == [before[number] for number in whole]
    assert after != before


async def test_imported_traces_are_counted_neither_one_by_one_nor_in_totals(db: Database):
    workspace = uuid4()
    await make(db, [workspace])
    await add(db, [workspace], [FIRST + timedelta(hours=number) for number in range(30)])
    await db.pool.execute("update traces set is_imported = true where received_at < $1", FIRST + timedelta(hours=10))

    start, end = RANGES[0]
    assert await all_of_workspace(db, workspace, start, end) == 20
    assert (await PastHours(db).activate()).did == {"hours": 24, "days": 1}
    assert await all_of_workspace(db, workspace, start, end) == 20


async def test_traces_after_the_counted_hours_are_counted(db: Database):
    workspace = uuid4()
    await make(db, [workspace])
    now = await db.pool.fetchval("select now()")
    start = (now - timedelta(hours=30)).isoformat()
    end = (now + timedelta(hours=1)).isoformat()
    moments = [now - timedelta(minutes=number * 10) for number in range(1, 170)]

    await add(db, [workspace], moments)
    before = await counts(db, [workspace], start, end)

    while (await PastHours(db).activate()).again:
        pass

    assert await counts(db, [workspace], start, end) == before
    await add(db, [workspace], [now, now])
    assert await all_of_workspace(db, workspace, start, end) == len(moments) + 2


async def all_of_workspace(db: Database, workspace: UUID, start: str, end: str) -> int:
    given = await build_range_arguments(db, read_range(start, end))
    rows = await db.fetch(sql.usage_by_workspace, workspace_ids=[workspace], **given)
    return sum(sum(row["traces"]) for row in rows)


async def test_hours_are_counted_when_they_and_a_margin_are_over(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(totals, "CLOSED_AFTER_S", 86_400.0)
    workspace = uuid4()
    await make(db, [workspace])
    settled = await db.fetchval(counting.committed_until, settled_s=86_400.0)
    await add(db, [workspace], [settled - timedelta(hours=30)])

    while (await PastHours(db).activate()).again:
        pass

    until = await db.pool.fetchval("select until from counted_hours")
    assert (until.minute, until.second, until.microsecond) == (0, 0, 0)
    assert settled - timedelta(hours=1) < until <= await db.fetchval(counting.committed_until, settled_s=86_400.0)


async def test_hours_stay_open_during_running_transactions(db: Database):
    await receive(db, [uuid4()], 10)
    settled = await db.fetchval(counting.committed_until, settled_s=600)
    assert settled <= await db.pool.fetchval("select now()") - timedelta(minutes=10)

    async with db.pool.acquire() as other, other.transaction():
        began = await other.fetchval("select now()")
        assert await db.fetchval(counting.committed_until, settled_s=0) <= began


async def test_one_process_counts_at_a_time(db: Database):
    await receive(db, [uuid4()], 10)
    async with db.transaction() as tx:
        assert await tx.fetchval(counting.try_lock, name=TOTALS_LOCK)
        assert not (await PastHours(db).activate()).did

    assert (await PastHours(db).activate()).did == {"hours": 24, "days": 1}


async def test_another_process_counts_after_the_one_that_was_cut_off(db: Database):
    """What the first one has counted by then is not counted twice."""
    workspaces = [uuid4(), uuid4()]
    await receive(db, workspaces, 100)
    before = await all_counts(db, workspaces)
    # Copies of a database have the same numbers of tables.
    waiting = (
        "select pid from pg_locks l join pg_database d on d.oid = l.database"
        " where datname = current_database() and not granted and relation = 'counted_hours'::regclass"
    )

    async with db.transaction() as gate:
        # It has counted the hours, and waits to say so.
        await gate.connection.execute("lock table counted_hours in share mode")
        first = asyncio.create_task(PastHours(db).activate())
        pid = await eventually(lambda: db.pool.fetchval(waiting))
        assert not (await PastHours(db).activate()).did
        await db.pool.fetchval("select pg_terminate_backend($1)", pid)

        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await first

    assert (await PastHours(db).activate()).did == {"hours": 24, "days": 1}
    assert await all_counts(db, workspaces) == before


async def test_several_processes_count_each_hour_once(db: Database):
    workspaces = [uuid4(), uuid4()]
    await receive(db, workspaces, 1000)
    before = await all_counts(db, workspaces)

    async def count() -> int:
        done = [await PastHours(db).activate() for _ in range(10)]
        return sum(status.did.get("hours", 0) for status in done)

    hours = sum(await asyncio.gather(*(count() for _ in range(4))))
    until = await db.pool.fetchval("select until from counted_hours")
    assert hours == (until - datetime(2026, 1, 1, tzinfo=UTC)) / timedelta(hours=1) > 24
    assert await all_counts(db, workspaces) == before
