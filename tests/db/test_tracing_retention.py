"""Retention of traces: tiers, feedback that extends them, and deletion.

An expired trace leaves no run, file or feedback, including late deliveries, and stays counted.
"""

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Database
from portside.tracing import retention
from portside.tracing.feedback import FeedbackRequest, create_feedback
from portside.tracing.feedback_tokens import ExpiredFeedbackTokens, TokenQuery, TokenRequest, create_tokens, list_tokens
from portside.tracing.ingest import store_batch
from portside.tracing.ingest_parser import build_update_parser, parse_batch, parse_multipart
from portside.tracing.projects import ProjectNotFound, ProjectRequest, create_project
from portside.tracing.retention import ExpiredTraces, OrphanedData, TraceRetention, TracesToDelete, delete_traces
from portside.tracing.sql import sql
from portside.tracing.types import AttachmentWrite, FeedbackWrite, IngestBatch
from tests.conftest import eventually

PACKAGES = ("portside.identity", "portside.tracing")


async def store_trace(db: Database, actor: Actor, days: int, tier: str = "shortlived", project: str = "p") -> UUID:
    """Store a trace of two runs that was received some days ago."""
    root = uuid4()
    runs = [{"id": root, "name": "r", "session_name": project}]
    runs.append({**runs[0], "id": uuid4(), "parent_run_id": root})
    body = json.dumps({"post": runs}, default=str).encode()

    await store_batch(db, parse_batch(body, ""), by=actor, tier=tier)
    ago = now() - timedelta(days=days)
    await db.pool.execute("update traces set received_at = $2 where trace_id = $1", root, ago)

    return root


async def count_runs(db: Database) -> dict[UUID, int]:
    """How many runs there are of each trace."""
    rows = await db.pool.fetch("select trace_id, count(*) as runs from runs group by 1")
    return {row["trace_id"]: row["runs"] for row in rows}


async def test_each_tier_expires_after_its_own_days(db: Database, actor: Actor):
    old = await store_trace(db, actor, 15)
    young = await store_trace(db, actor, 13)
    longer = await store_trace(db, actor, 15, "longlived")
    oldest = await store_trace(db, actor, 401, "longlived")
    task = ExpiredTraces(db, TraceRetention())
    assert (await task.activate()).did == {"shortlived_traces": 1, "longlived_traces": 1}
    assert await count_runs(db) == {young: 2, longer: 2}

    assert (await task.activate()).did == {"shortlived_traces": 0, "longlived_traces": 0}
    billed = await db.pool.fetch("select trace_id from traces where expired_at is not null")
    assert {row["trace_id"] for row in billed} == {old, oldest}


async def test_expiry_batches_limit_traces_and_runs(db: Database, actor: Actor):
    for number in range(5):
        await store_trace(db, actor, 20 - number)

    task = ExpiredTraces(db, TraceRetention())
    task.traces_at_once = 4
    task.runs_at_once = 3
    done = [(await task.activate()) for _ in range(4)]

    assert [(status.did["shortlived_traces"], status.again) for status in done] == [
        (2, True),
        (2, True),
        (1, False),
        (0, False),
    ]

    # One that has more runs than that goes alone.
    await store_trace(db, actor, 15)
    task.runs_at_once = 1
    assert (await task.activate()).did["shortlived_traces"] == 1
    assert await count_runs(db) == {}


async def test_feedback_during_deletion_does_not_extend_a_trace(db: Database, actor: Actor):
    trace = await store_trace(db, actor, 15)
    async with db.transaction() as tx:
        gone = {"workspace_ids": [actor.workspace_id], "trace_ids": [trace]}
        await tx.execute(sql.delete_traces, **gone)
        given = asyncio.create_task(create_feedback(db, FeedbackRequest(key="k", run_id=trace), by=actor))
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )

        await eventually(lambda: db.pool.fetchval(waiting))

    await given
    assert await db.pool.fetchval("select tier from traces where trace_id = $1", trace) == "shortlived"


async def test_zero_days_keep_traces_for_ever(db: Database, actor: Actor):
    await store_trace(db, actor, 5000)
    await store_trace(db, actor, 5000, "longlived")
    assert (await ExpiredTraces(db, TraceRetention(0, 0)).activate()).did == {}
    assert len(await count_runs(db)) == 2


async def test_feedback_makes_a_trace_long_lived_unless_it_opts_out(db: Database, actor: Actor):
    traces = {name: await store_trace(db, actor, 15) for name in ("given", "delivered", "not", "early", "none")}
    await create_feedback(db, FeedbackRequest(key="k", run_id=traces["given"], score=1), by=actor)
    unextending = FeedbackRequest(key="k", run_id=traces["not"], score=1, extend_trace_retention=False)
    await create_feedback(db, unextending, by=actor)

    part = f'--b\r\nContent-Disposition: form-data; name="feedback.{uuid4()}"\r\n\r\n'
    text = json.dumps({"key": "k", "run_id": str(traces["delivered"])})
    body = f"{part}{text}\r\n--b--\r\n".encode()
    await store_batch(db, parse_multipart(body, "multipart/form-data; boundary=b"), by=actor)

    # Feedback that came before its run found no trace to extend.
    await create_feedback(db, FeedbackRequest(key="k", run_id=traces["early"]), by=actor)
    await db.pool.execute("update traces set tier = 'shortlived' where trace_id = $1", traces["early"])
    await ExpiredTraces(db, TraceRetention()).activate()
    assert set(await count_runs(db)) == {traces["given"], traces["delivered"], traces["early"]}
    tiers = await db.pool.fetch("select tier, extended_at is null as is_plain from traces where expired_at is null")
    assert {(row["tier"], row["is_plain"]) for row in tiers} == {("longlived", False)}


async def test_the_tier_of_a_project_applies_to_its_traces(db: Database, actor: Actor):
    for tier in ("shortlived", "longlived"):
        request = ProjectRequest(tier, trace_tier=tier)  # type: ignore[arg-type]
        await create_project(db, actor.workspace_id, request, upsert=False)
        await store_trace(db, actor, 15, "longlived" if tier == "shortlived" else "shortlived", project=tier)

    rows = await db.pool.fetch("select p.name, t.tier from traces t join projects p on p.id = t.project_id")
    assert {row["name"]: row["tier"] for row in rows} == {"shortlived": "shortlived", "longlived": "longlived"}


async def test_deleting_traces_deletes_runs_feedback_and_attachments(db: Database, actor: Actor):
    gone, stays, elsewhere = [await store_trace(db, actor, 0, project=name) for name in ("p", "p", "q")]
    for run_id in (gone, stays):
        await create_feedback(db, FeedbackRequest(key="k", run_id=run_id), by=actor)
        insert = "insert into attachments values ($1, $2, 'a', 'text/plain', 'x')"
        await db.pool.execute(insert, actor.workspace_id, run_id)
        await db.pool.execute("insert into shared_runs values ($1, $2, $3)", uuid4(), actor.workspace_id, run_id)

    project: Any = await db.pool.fetchval("select id from projects where name = 'p'")
    await delete_traces(db, actor.workspace_id, TracesToDelete(project, [gone, elsewhere, uuid4()]))
    assert await count_runs(db) == {stays: 2, elsewhere: 2}

    for table in ("feedback", "attachments", "shared_runs"):
        assert [row["run_id"] for row in await db.pool.fetch(f"select run_id from {table}")] == [stays]

    with pytest.raises(ProjectNotFound):
        await delete_traces(db, uuid4(), TracesToDelete(project, [stays]))


async def patch_run(db: Database, actor: Actor, run_id: UUID, **fields: Any) -> None:
    """Deliver a patch of a run."""
    await store_batch(db, build_update_parser(run_id)(json.dumps(fields, default=str).encode(), ""), by=actor)


async def test_runs_that_arrive_after_expiry_are_deleted(db: Database, actor: Actor):
    traces = [await store_trace(db, actor, 15) for _ in range(5)]
    young = await store_trace(db, actor, 13)
    await ExpiredTraces(db, TraceRetention()).activate()

    for root in (*traces, young):
        place = {"trace_id": root, "dotted_order": f"20300101T000000000000Z{root}"}
        await patch_run(db, actor, root, outputs={"late": True}, **place)

    assert len(await count_runs(db)) == 6
    task = OrphanedData(db, TraceRetention())
    task.scan_traces = 2
    swept = [(await task.activate()).did["late_traces"] for _ in range(3)]
    assert (sum(swept), await count_runs(db)) == (5, {young: 2})
    assert await db.pool.fetchval("select count(*) from traces where expired_at is not null") == 5

    # The scan starts again at the first trace.
    await patch_run(db, actor, traces[0], trace_id=traces[0], dotted_order=f"20300101T000000000000Z{traces[0]}")
    assert sum([(await task.activate()).did["late_traces"] for _ in range(3)]) == 1


async def test_runs_without_a_trace_expire(db: Database, actor: Actor):
    lonely = uuid4()
    orphan = uuid4()

    fresh = uuid4()
    for run_id in (lonely, fresh):
        await patch_run(db, actor, run_id, outputs={"x": 1})

    child = [{"id": orphan, "name": "child", "parent_run_id": uuid4(), "session_name": "p"}]
    await store_batch(db, parse_batch(json.dumps({"post": child}, default=str).encode(), ""), by=actor)
    await create_feedback(db, FeedbackRequest(key="k", run_id=lonely), by=actor)
    await db.pool.execute("update runs set received_at = now() - interval '15 days' where id <> $1", fresh)

    whole = await store_trace(db, actor, 15, "longlived")
    never = OrphanedData(db, TraceRetention(0, 0))
    task = OrphanedData(db, TraceRetention())
    assert (await never.activate()).did["stray_runs"] == 0

    # The patch and the parent that is waited for; who waits for it is kept as long as any trace is.
    assert (await task.activate()).did["stray_runs"] == 2
    ids = "select id from runs where id = any($1::uuid[])"
    left = {row["id"] for row in await db.pool.fetch(ids, [lonely, orphan, fresh, whole])}
    assert left == {orphan, fresh, whole}
    assert await db.pool.fetchval("select count(*) from feedback") == 0
    await db.pool.execute("update runs set received_at = now() - interval '401 days' where id = $1", orphan)
    assert (await task.activate()).did["stray_runs"] == 1


async def test_feedback_and_attachments_expire_if_their_run_never_arrives(db: Database, actor: Actor):
    run_id = await store_trace(db, actor, 0)
    gone = uuid4()
    young = uuid4()
    again = uuid4()

    def delivery(*run_ids: UUID) -> IngestBatch:
        feedback = [FeedbackWrite(one, one, None, "k", "{}", now()) for one in run_ids]
        return IngestBatch([], feedback, [AttachmentWrite(one, "a", "text/plain", b"x") for one in run_ids])

    await store_batch(db, delivery(run_id, gone, young, again), by=actor)
    project: Any = await db.pool.fetchval("select id from projects")
    on_project = await create_feedback(db, FeedbackRequest(key="k", session_id=project), by=actor)

    for table in ("feedback", "attachments"):
        await db.pool.execute(f"update {table} set received_at = now() - interval '401 days'")
        await db.pool.execute(f"update {table} set received_at = now() - interval '399 days' where run_id = $1", young)

    # What a client delivers again begins its days again.
    await store_batch(db, delivery(again), by=actor)

    for longer in (TraceRetention(14, 0), TraceRetention(0, 400), TraceRetention(402, 400)):
        assert (await OrphanedData(db, longer).activate()).did["orphaned_feedback"] == 0

    done = [(await OrphanedData(db, TraceRetention()).activate()).did for _ in range(2)]
    assert [(did["orphaned_feedback"], did["orphaned_attachments"]) for did in done] == [(1, 1), (0, 0)]
    left = {row["run_id"] for row in await db.pool.fetch("select run_id from attachments")}
    assert left == {run_id, young, again}
    assert {row["id"] for row in await db.pool.fetch("select id from feedback")} == {*left, on_project.id}


async def test_orphans_are_deleted_in_batches(db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "_BATCH", 2)
    attachments = [AttachmentWrite(uuid4(), "a", "text/plain", b"x") for _ in range(3)]
    await store_batch(db, IngestBatch([], [], attachments), by=actor)
    await db.pool.execute("update attachments set received_at = now() - interval '401 days'")

    task = OrphanedData(db, TraceRetention())
    done = [await task.activate() for _ in range(2)]
    assert [(status.did["orphaned_attachments"], status.again) for status in done] == [(2, True), (1, False)]


async def test_expired_feedback_tokens_are_deleted_in_batches(db: Database, actor: Actor):
    run_id = uuid4()
    tokens = await create_tokens(db, [TokenRequest(run_id, "stars") for _ in range(4)], "", by=actor)
    await db.pool.execute("update feedback_tokens set expires_at = now() - interval '1 s' where id <> $1", tokens[0].id)
    task = ExpiredFeedbackTokens(db)
    task.batch = 2
    done = [await task.activate() for _ in range(2)]
    assert [(status.did["feedback_tokens"], status.again) for status in done] == [(2, True), (1, False)]

    assert [one.id for one in await list_tokens(db, TokenQuery(run_id), "", by=actor)] == [tokens[0].id]
    assert await db.pool.fetchval("select count(*) from feedback_tokens") == 1
