"""The counting queries are answered from the index alone."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from portside.usage.sql import sql


@pytest.mark.parametrize("query", [query.name for query in sql])
async def test_counting_reads_only_the_index(fresh_database: Callable[[], Awaitable[str]], query: str):
    db = await Database.connect(await fresh_database(), max_size=1)
    await migrate(db, ["portside.identity", "portside.tracing"])
    workspace = uuid4()
    await db.pool.execute(
        "insert into traces (workspace_id, trace_id, project_id, api_key_id, received_at)"
        " select case when n % 100 = 0 then $1 else gen_random_uuid() end, gen_random_uuid(), $1, $1,"
        " '2026-01-01'::timestamptz + n * interval '1 minute' from generate_series(1, 20000) n",
        workspace,
    )
    await db.pool.execute("vacuum analyze traces")
    plan = await db.pool.fetch(
        "explain " + getattr(sql, query).sql,
        *getattr(sql, query).arguments(
            {
                "stride": timedelta(days=1),
                "origin": datetime(2026, 1, 1, tzinfo=UTC),
                "workspace_ids": [workspace],
                "start_time": datetime(2026, 1, 2, tzinfo=UTC),
                "end_time": datetime(2026, 1, 4, tzinfo=UTC),
            }
        ),
    )
    await db.close()
    assert any("Index Only Scan using traces_by_receipt" in row[0] for row in plan), plan
