"""Webhook deliveries on Postgres.

A run's end and its pending webhook are one transaction, whoever ends the run. Deliveries are retried until they
succeed. A run without a webhook costs nothing extra.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.encryption.codec import UNDECRYPTABLE
from portside.agent.queue import statements
from portside.agent.queue.chores import DueThreads
from portside.agent.queue.types import Admission, Cancellation, CancelScope, ClaimedRun, RunResult
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.threads.long_values import with_long_values
from portside.agent.threads.records import create_thread, delete_thread
from portside.agent.types.runs import CancelAction, RunStatus
from portside.agent.types.threads import ThreadCreate, ThreadStatus
from portside.agent.types.webhooks import WebhookUrls
from portside.agent.webhooks.deliveries import (
    CALLS_LIMIT_OF_A_HOST,
    Deliveries,
    RetryPolicy,
    WebhookCleanup,
    build_webhook_chores,
)
from portside.agent.webhooks.log import DeliveryNotFound, WebhookLog
from portside.agent.webhooks.policy import WebhookPolicy, Webhooks
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from portside.kernel.outbound import OutboundRules
from portside.kernel.reconcile import Driver
from tests.conftest import eventually
from tests.db.clock import set_clock_back
from tests.db.queued import admit_run, end_run
from tests.tcp_server import serve_connections

WORKER = uuid4()
HOOK = "http://127.0.0.1:9/never"
OPEN = WebhookPolicy(urls=WebhookUrls(require_https=False, disable_loopback=False))
DONE = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b'{"n":1}', interrupts={})


@pytest.fixture(autouse=True)
def calls_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a host of a test answers later than a real one may, and its call is repeated by nobody."""
    monkeypatch.setattr("portside.agent.webhooks.policy.OutboundRules", partial(OutboundRules, timeout_s=600.0))
    monkeypatch.setattr("portside.agent.webhooks.deliveries.CLAIM_S", 3600.0)


def build_admission(thread_id: UUID | None = None, url: str | None = HOOK, **options: Any) -> Admission:
    kwargs = {"webhook": url, "config": {"configurable": {"graph_id": "g", "langgraph_auth_user": {"token": "x"}}}}
    given = {
        "strategy": "enqueue",
        "is_temporary": thread_id is None,
        "delay_s": 0.0,
        "metadata": {"m": 1},
        "thread_metadata": {},
        "kwargs": kwargs,
        "create_thread": True,
        **options,
    }

    return Admission(run_id=uuid7(), thread_id=thread_id or uuid7(), assistant_id=uuid4(), **given)


async def begin(db: Database, admission: Admission) -> ClaimedRun:
    assert (await admit_run(db, admission, WORKER, starts=True)).outcome == "running"
    return ClaimedRun(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        kwargs={},
        attempt=1,
        is_temporary=admission.is_temporary,
    )


async def end(db: Database, ending: RunResult = DONE, **options: Any) -> ClaimedRun:
    run = await begin(db, build_admission(**options))
    assert await end_run(db, WORKER, run, ending) == "ended"
    return run


async def list_deliveries(db: Database) -> list[tuple[str, Any]]:
    rows = await db.pool.fetch("select run ->> 'status' as status, values from webhook_deliveries order by run_id")
    return [(row["status"], row["values"]) for row in rows]


async def test_every_end_records_a_delivery_with_its_values(db: Database):
    await end(db)
    await end(db, thread_id=uuid4())
    await end(
        db, RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, values=b'{"n":2}', error={"error": "E"})
    )
    await end(
        db, RunResult(status=RunStatus.TIMEOUT, thread_status=ThreadStatus.ERROR, error={"error": "TimeoutError"})
    )
    await end(
        db, RunResult(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.IDLE, error={"error": "UserInterrupt"})
    )

    waiting = build_admission()
    await admit_run(db, waiting, WORKER, starts=False)
    scope = CancelScope(thread_id=waiting.thread_id, run_ids=[waiting.run_id])
    await statements.cancel_runs(db, scope, Cancellation(CancelAction.INTERRUPT, "because"))

    lost = await begin(db, build_admission())
    await db.pool.execute("update runs set leased_until = now() - interval '1 s' where run_id = $1", lost.run_id)
    await db.fetch(sql.release_expired_runs, limit=9, max_attempts=1)

    assert await list_deliveries(db) == [
        ("success", {"n": 1}),
        ("success", {"n": 1}),
        ("error", {"n": 2}),
        ("timeout", None),
        ("interrupted", None),
        ("interrupted", None),
        ("error", None),
    ]
    reasons = await db.pool.fetch("select run ->> 'cancel_reason' as reason from webhook_deliveries order by run_id")
    assert [row["reason"] for row in reasons] == [None, None, None, None, None, "because", None]


async def test_no_delivery_without_end_or_address(db: Database):
    await end(db, url=None)
    await end(db, RunResult(status=RunStatus.ROLLED_BACK, thread_status=ThreadStatus.IDLE))
    unknown = await begin(db, build_admission())
    assert await end_run(db, uuid4(), unknown, DONE) == "lost"
    await statements.hand_back_runs(db, WORKER, {unknown.run_id: 1})
    await statements.claim_runs(db, WORKER, 1)

    with pytest.raises(RuntimeError):
        async with db.transaction() as undone:
            claimed = ClaimedRun(**{**_fields(unknown), "attempt": 2})
            assert await end_run(undone, WORKER, claimed, DONE) == "ended"  # type: ignore[arg-type]
            raise RuntimeError

    assert await list_deliveries(db) == []


def _fields(run: ClaimedRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ClaimedRun.__struct_fields__}


async def test_deleted_run_is_delivered_once(db: Database):
    run = await end(db, thread_id=uuid4())
    taken = (await statements.delete_run(db, WORKER, run.thread_id, run.run_id)).run
    assert taken is not None
    assert (
        await end_run(db, WORKER, taken, RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR))
        == "rollback"
    )
    assert await list_deliveries(db) == [("success", {"n": 1})]


class Receiver:
    """A host that notes what it is sent, and answers with one status after the other."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.seen = list[tuple[dict[str, str], Any]]()
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.seen.append((headers, json.loads(body)))

        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status if status else b"garbage\r\n\r\n")
        await writer.drain()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["Receiver"]:
        async with serve_connections(self.answer) as port:
            self.url = f"http://127.0.0.1:{port}/hook?a=1"
            yield self


@asynccontextmanager
async def run_deliveries(db: Database, policy: WebhookPolicy = OPEN, attempts: int = 3) -> AsyncIterator[Webhooks]:
    webhooks = Webhooks(policy)
    driver = Driver([Deliveries(db, webhooks, RetryPolicy(attempts, 0.01), with_long_values)])
    driver.start()
    yield webhooks
    await driver.close()


async def outcome(db: Database, run: ClaimedRun) -> tuple[str, list[int | None]]:
    """Return how a delivery went when it is over: its status and what each attempt was answered."""

    async def over() -> Any:
        delivery = await WebhookLog(db).get(run.thread_id, run.run_id)
        return delivery if delivery.next_attempt_at is None else None

    delivery = await eventually(over)
    return delivery.status, [attempt.status_code for attempt in delivery.attempts]


async def test_delivery_is_retried_until_it_succeeds(db: Database):
    async with Receiver(503, 0, 200).listen() as receiver, run_deliveries(db):
        run = await end(db, url=receiver.url)
        assert await outcome(db, run) == ("delivered", [503, None, 200])

    headers, body = receiver.seen[-1]
    assert (len(receiver.seen), {seen[0]["webhook-id"] for seen in receiver.seen}) == (3, {str(run.run_id)})
    assert (headers["content-type"], body["values"], body["status"]) == ("application/json", {"n": 1}, "success")
    assert body["run_started_at"] <= body["run_ended_at"] <= body["webhook_sent_at"]
    assert (body["metadata"], "langgraph_auth_user" in json.dumps(body)) == ({"m": 1}, False)

    # The payload is deleted.
    assert await db.pool.fetchval("select count(*) from webhook_deliveries where run is null and values is null") == 1


@pytest.mark.parametrize(
    ("answers", "received"),
    [
        ([429, 204], "delivered"),
        ([408, 425, 299], "delivered"),
        ([503, 500, 502], "failed"),
        ([302], "failed"),
        ([404], "failed"),
        ([400], "failed"),
        ([401], "failed"),
    ],
)
async def test_which_statuses_are_retried(db: Database, answers: list[int], received: str):
    async with Receiver(*answers).listen() as receiver, run_deliveries(db):
        run = await end(db, url=receiver.url)
        assert await outcome(db, run) == (received, answers)


async def test_address_is_checked_again_when_called(db: Database):
    async with Receiver().listen() as receiver:
        runs = [await end(db, url=receiver.url) for _ in range(3)]
        await db.pool.execute("update webhook_deliveries set due_at = now() + interval '1 h'")

        elsewhere = WebhookUrls(require_https=False, disable_loopback=False, allowed_domains=["other.example"])
        disabled = WebhookPolicy(urls=OPEN.urls, is_disabled=True)
        for policy, run in zip((WebhookPolicy(), WebhookPolicy(urls=elsewhere), disabled), runs, strict=True):
            await db.pool.execute("update webhook_deliveries set due_at = now() where run_id = $1", run.run_id)
            async with run_deliveries(db, policy):
                assert await outcome(db, run) == ("failed", [None])

    assert receiver.seen == []
    # Nobody will get the payloads any more.
    left = "select count(*) from webhook_deliveries where run is not null or values is not null"
    assert await db.pool.fetchval(left) == 0


async def test_delivery_to_an_unknown_host_is_retried(db: Database):
    """The name may be missing for a while only."""
    run = await end(db, url=f"http://{'a' * 64}.example/")
    async with run_deliveries(db):
        assert await outcome(db, run) == ("failed", [None, None, None])

    delivery = await WebhookLog(db).get(run.thread_id, run.run_id)
    assert all("is not the name of any host" in str(attempt.reason) for attempt in delivery.attempts)


async def test_undecryptable_delivery_fails(db: Database):
    async with Receiver().listen() as receiver:
        run = await end(db, url=receiver.url)
        spoil = "update webhook_deliveries set values = jsonb_build_object($1::text, 'the key is not known')"
        await db.pool.execute(spoil, UNDECRYPTABLE)

        async with run_deliveries(db):
            assert await outcome(db, run) == ("failed", [None])

    assert receiver.seen == []


async def test_another_process_delivers_after_a_crash(db: Database):
    reached = asyncio.Event()
    release = asyncio.Event()

    class Silent(Receiver):
        async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self.seen:
                self.seen.append(({}, None))
                reached.set()
                await release.wait()
            else:
                await super().answer(reader, writer)

    async with Silent().listen() as receiver:
        run = await end(db, url=receiver.url)
        async with run_deliveries(db):
            await reached.wait()

        release.set()
        # The claim of the process that is gone runs out.
        await db.pool.execute("update webhook_deliveries set due_at = now()")
        async with run_deliveries(db):
            assert await outcome(db, run) == ("delivered", [200])

    assert [body and body["run_id"] for _, body in receiver.seen] == [None, str(run.run_id)]


async def test_clock_that_is_set_back_delays_no_delivery(db: Database):
    async with Receiver(503, 200).listen() as receiver:
        run = await end(db, url=receiver.url)
        await set_clock_back(db, 4 * 3600)
        async with run_deliveries(db):
            assert await outcome(db, run) == ("delivered", [503, 200])

    assert len(receiver.seen) == 2


async def test_late_attempt_does_not_change_a_delivery(db: Database):
    run = await end(db)
    late = {"run_id": run.run_id, "attempt": 1, "status": "failed", "entry": [], "delay_s": 0.0}
    await db.fetch(sql.claim_webhooks, claim_s=0, busy_hosts=[], limit=1)
    await db.fetch(sql.claim_webhooks, claim_s=0, busy_hosts=[], limit=1)
    assert await db.execute(sql.record_webhook_attempt, **late) == 0
    assert await db.execute(sql.record_webhook_attempt, **{**late, "attempt": 2, "status": "delivered"}) == 1
    assert await db.execute(sql.record_webhook_attempt, **{**late, "attempt": 2}) == 0

    assert await db.fetch(sql.claim_webhooks, claim_s=0, busy_hosts=[], limit=1) == []


async def test_unresponsive_host_blocks_no_other_host(db: Database):
    for _ in range(3):
        await end(db, url="https://Silent.example/x")

    other = await end(db, url="https://other.example:8443/x")
    rows = await db.fetch(sql.claim_webhooks, claim_s=30, busy_hosts=["silent.example"], limit=9)
    assert [row["run_id"] for row in rows] == [other.run_id]


async def test_a_host_gets_eight_calls_at_once_and_others_go_on(db: Database):
    release = asyncio.Event()

    class Slow(Receiver):
        async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            await super().answer(reader, writer)

    async with Slow().listen() as slow, Receiver().listen() as receiver:
        held = [await end(db, url=slow.url) for _ in range(CALLS_LIMIT_OF_A_HOST + 3)]
        async with run_deliveries(db):
            begun = "select count(*) from webhook_deliveries where attempts > 0"

            async def has_begun() -> bool:
                return await db.pool.fetchval(begun) >= CALLS_LIMIT_OF_A_HOST

            await eventually(has_begun)
            other = await end(db, url=receiver.url)
            assert await outcome(db, other) == ("delivered", [200])
            assert await db.pool.fetchval(begun) == CALLS_LIMIT_OF_A_HOST + 1
            release.set()
            assert [await outcome(db, run) for run in held] == [("delivered", [200])] * len(held)


async def test_delivery_is_hidden_from_a_new_thread_of_the_same_id(db: Database):
    run = await end(db, is_temporary=False)
    assert (await WebhookLog(db).get(run.thread_id, run.run_id)).url == HOOK
    with pytest.raises(DeliveryNotFound):
        await WebhookLog(db).get(uuid4(), run.run_id)

    await delete_thread(db, run.thread_id)
    assert (await WebhookLog(db).get(run.thread_id, run.run_id)).url == HOOK
    await create_thread(db, ThreadCreate(run.thread_id))

    with pytest.raises(DeliveryNotFound):
        await WebhookLog(db).get(run.thread_id, run.run_id)


async def test_settings_say_how_often_a_call_is_tried_and_for_how_long_it_is_recorded(db: Database):
    settings = AgentSettings(webhook_max_attempts=2, webhook_retry_after_seconds=0.01, webhook_log_kept_hours=3)
    deliveries, cleanup = build_webhook_chores(db, Webhooks(OPEN), settings, with_long_values)
    driver = Driver([deliveries])
    driver.start()
    async with Receiver(500, 500, 200).listen() as receiver:
        run = await end(db, url=receiver.url)
        assert await outcome(db, run) == ("failed", [500, 500])

    await driver.close()
    for hours, is_deleted in ((2, 0), (4, 1)):
        await db.pool.execute("update webhook_deliveries set updated_at = now() - make_interval(hours => $1)", hours)
        assert (await cleanup.activate()).did == {"deleted": is_deleted}


async def test_delivery_outlives_its_run_and_expires(db: Database):
    async with Receiver().listen() as receiver, run_deliveries(db):
        run = await end(db, url=receiver.url)
        assert (await outcome(db, run))[0] == "delivered"

    await db.pool.execute("update threads set delete_after = now() - interval '1 s'")
    assert (await DueThreads(db).activate()).did == {"deleted": 1}
    assert (await WebhookLog(db).get(run.thread_id, run.run_id)).status == "delivered"
    assert (await WebhookCleanup(db, 3600).activate()).did == {"deleted": 0}
    waiting = await end(db)
    await db.pool.execute("update webhook_deliveries set updated_at = now() - interval '2 h'")
    assert (await WebhookCleanup(db, 3600).activate()).did == {"deleted": 1}
    assert (await WebhookLog(db).get(waiting.thread_id, waiting.run_id)).status == "pending"

    with pytest.raises(DeliveryNotFound):
        await WebhookLog(db).get(run.thread_id, run.run_id)
