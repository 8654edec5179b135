"""Searches for runs across threads read an index, however long the history is."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from portside.agent.sql import sql
from portside.kernel.db import Database, Query

CRON = uuid4()
EVERYBODY = {"assistant_id": None, "access": None, "limit": 11, "offset": 0}


async def explain(db: Database, query: Query, **values: object) -> str:
    arguments = query.arguments({**EVERYBODY, **values})
    return "\n".join(row[0] for row in await db.pool.fetch(f"explain {query.sql}", *arguments))


@pytest.fixture
async def history(agent_databases) -> AsyncIterator[Database]:
    """20,000 runs that ended well; one in a thousand failed or is of the cron."""
    db = await Database.connect(await agent_databases(), max_size=5, schema="portside")
    await db.pool.execute(
        """
        with made as (
            insert into threads (thread_id) select gen_random_uuid() from generate_series(1, 20) returning thread_id
        )
        insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, kwargs)
        select
            gen_random_uuid(), thread_id, gen_random_uuid(), case when n % 1000 = 0 then 'error' else 'success' end,
            'enqueue', case when n % 1000 = 1 then jsonb_build_object(
                'config', jsonb_build_object('configurable', jsonb_build_object('cron_id', $1::text))
            ) else '{}' end
        from made, generate_series(1, 1000) n
        """,
        str(CRON),
    )

    await db.pool.execute("vacuum analyze runs")
    yield db
    await db.close()


async def test_searches_of_runs_read_an_index(history: Database) -> None:
    every = ["pending", "running", "success", "error", "timeout", "interrupted"]
    failed = await explain(history, sql.search_failed_runs, statuses=["error", "timeout"])
    assert "runs_failed" in failed
    of_cron = await explain(history, sql.search_runs_of_cron, statuses=every, cron_id=CRON, thread_id=None)
    assert "runs_of_cron" in of_cron
    thread_id = await history.pool.fetchval("select thread_id from threads limit 1")
    of_thread = await explain(history, sql.search_runs_of_thread, statuses=every, thread_id=thread_id, run_id=None)
    assert "runs_of_thread" in of_thread

    active = await explain(history, sql.search_active_runs, statuses=["pending", "running"])
    assert "Seq Scan on runs" not in active
