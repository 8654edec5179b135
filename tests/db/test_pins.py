"""Which revision's code a thread goes on with, and when it changes to that of the server."""

from collections.abc import Iterable
from uuid import UUID, uuid4

import pytest

from portside.agent.sql import sql
from portside.kernel.db import Database

EARLIER = uuid4()
SERVING = uuid4()


@pytest.fixture
async def thread_id(db: Database) -> UUID:
    """A thread that has nothing left to finish."""
    created = uuid4()
    await db.pool.execute("insert into threads (thread_id) values ($1)", created)
    return created


async def pin(
    db: Database, thread_id: UUID, run_id: UUID, revision_id: UUID, available: Iterable[UUID] = (EARLIER, SERVING)
) -> tuple[UUID, UUID | None]:
    """Begin a run on a server of a revision; return the revision that the run has, and the one that it would keep."""
    row = await db.fetchrow(
        sql.pin_thread, thread_id=thread_id, run_id=run_id, revision_id=revision_id, available=list(available)
    )
    assert row is not None
    return row["revision_id"], row["left_revision_id"]


async def end_run(db: Database, thread_id: UUID, status: str) -> None:
    """Leave a thread as a run does that ends so."""
    await db.pool.execute("update threads set status = $2, idle_status = $2 where thread_id = $1", thread_id, status)


async def test_another_attempt_at_a_run_keeps_its_revision(db: Database, thread_id: UUID) -> None:
    run_id = uuid4()
    assert await pin(db, thread_id, run_id, EARLIER) == (EARLIER, None)

    assert await pin(db, thread_id, run_id, SERVING) == (EARLIER, None)
    assert await pin(db, thread_id, run_id, SERVING) == (EARLIER, None), "the thread stays with it"


@pytest.mark.parametrize("status", ["idle", "error"])
async def test_next_run_begins_with_the_revision_of_its_server(db: Database, thread_id: UUID, status: str) -> None:
    await pin(db, thread_id, uuid4(), EARLIER)
    await end_run(db, thread_id, status)

    run_id = uuid4()
    assert await pin(db, thread_id, run_id, SERVING) == (SERVING, None)
    assert await pin(db, thread_id, run_id, EARLIER) == (SERVING, None), "its attempts stay with that one"


async def test_run_that_resumes_an_interrupted_thread_keeps_its_revision(db: Database, thread_id: UUID) -> None:
    await pin(db, thread_id, uuid4(), EARLIER)
    await end_run(db, thread_id, "interrupted")

    resuming = uuid4()
    assert await pin(db, thread_id, resuming, SERVING) == (EARLIER, None)

    await end_run(db, thread_id, "idle")
    assert await pin(db, thread_id, resuming, SERVING) == (EARLIER, None), "it is the last run now"
    assert await pin(db, thread_id, uuid4(), SERVING) == (SERVING, None)


@pytest.mark.parametrize("is_interrupted", [True, False])
async def test_revision_that_is_not_available_is_left_and_named(
    db: Database, thread_id: UUID, *, is_interrupted: bool
) -> None:
    begun = uuid4()
    await pin(db, thread_id, begun, EARLIER)

    if is_interrupted:
        await end_run(db, thread_id, "interrupted")

    run_id = uuid4() if is_interrupted else begun
    assert await pin(db, thread_id, run_id, SERVING, available=[SERVING]) == (SERVING, EARLIER)

    # It is named once: the thread has the other revision now, also when the earlier one is there again.
    assert await pin(db, thread_id, run_id, SERVING) == (SERVING, None)


async def test_thread_that_was_deleted_gets_no_pin(db: Database) -> None:
    assert (
        await db.fetchrow(sql.pin_thread, thread_id=uuid4(), run_id=uuid4(), revision_id=SERVING, available=[SERVING])
        is None
    )

    assert await db.pool.fetchval("select count(*) from thread_revisions") == 0
